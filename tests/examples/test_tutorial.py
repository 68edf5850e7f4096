"""The tutorial's snippets run in order on the real runtime and print the documented output.

A `python` block that is followed by a `text` block prints it; one that is not prints nothing. Each snippet is compiled
as `program.py`, because places in the program are part of what is printed.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

import ramiform

TUTORIAL = Path(ramiform.__file__).parent / "docs/tutorial.md"
SNIPPET = re.compile(r"^```python\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def run(code: str, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "program.py", "exec"), names)
    return printed.getvalue()


def without_line_ends(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("backend")
def test_every_snippet_prints_what_the_text_says() -> None:
    text = TUTORIAL.read_text()
    names: dict[str, Any] = {"__name__": "__main__"}
    for snippet in SNIPPET.finditer(text):
        where = f"docs/tutorial.md:{text.count(chr(10), 0, snippet.start()) + 2}"
        try:
            printed = run(snippet[1], names)
        except Exception as error:
            raise AssertionError(f"the snippet at {where} raises {error!r}") from error
        assert without_line_ends(printed) == without_line_ends(snippet[2] or ""), f"the snippet at {where}"


def test_every_code_block_is_a_snippet_or_what_one_prints() -> None:
    text = TUTORIAL.read_text()
    fences = re.findall(r"^```(\w*)$", text, re.MULTILINE)
    opened = fences[0::2]
    assert set(opened) == {"python", "text"}
    assert set(fences[1::2]) == {""}
    found = list(SNIPPET.finditer(text))
    assert len(found) == opened.count("python") > 10
    assert sum(snippet[2] is not None for snippet in found) == opened.count("text")
