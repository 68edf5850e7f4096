"""The example notebook runs cell by cell, and shows states, traces and reports as HTML."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import ramiform

CELLS = json.loads((Path(ramiform.__file__).parent / "examples/agents/notebook.ipynb").read_text())["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


class Page(HTMLParser):
    """Checks that tags are nested and closed, and collects the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        if tag not in ("br", "hr", "meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def run(cell: str, names: dict[str, Any]) -> tuple[str, str]:
    """Run a cell as notebooks do; return what it prints, and the HTML or else the repr of its last expression."""
    *statements, last = ast.parse(cell).body
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if not isinstance(last, ast.Expr):
            exec(compile(cell, "cell", "exec"), names)
            return printed.getvalue(), ""
        exec(compile(ast.Module(statements, []), "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    shown = value._repr_html_() if hasattr(value, "_repr_html_") else "" if value is None else repr(value)
    return printed.getvalue(), shown


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    yield {"__name__": "__main__"}
    ramiform.set_default_backend(None)


@pytest.mark.exhaustive
def test_all_cells_run_and_show_what_the_model_did(names: dict[str, Any]) -> None:
    shown = {cell.splitlines()[-1]: run(cell, names) for cell in CODE}
    state = Page(shown["s"][1]).text
    assert "The capital of Japan is Tokyo." in state
    assert state.count("branch ") == 3
    assert shown["s.variables()"][1] == repr(names["s"].variables())
    assert names["s"].variables()["sure"] == " yes"
    assert "fact" in names["s"]._ipython_key_completions_()
    assert "Japan is a country in Asia." in Page(shown["s.trace"][1]).text
    assert "total" in shown["print(s.trace.summary())"][0]
    printed, peru = shown["running"]
    assert printed == "The capital of Peru is Lima.\n"
    assert "The capital of Peru is Lima." in Page(peru).text
    report = Page(shown["report"][1]).text
    assert "0.75" in report
    assert "Ottawa" in report, "the failure is shown with its text"


def test_the_notebook_is_kept_without_outputs() -> None:
    for cell in CELLS:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
