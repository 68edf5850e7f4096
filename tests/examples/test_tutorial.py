"""The tutorial's snippets are complete programs: each runs by itself on the real runtime and prints what the text says.

A `python` block is followed by a `text` block with what it prints. Each snippet is compiled as `program.py`, because
places in the program are part of what is printed.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

import ramiform

TUTORIAL = Path(ramiform.__file__).parent / "docs/learn/tutorial.md"
TEXT = TUTORIAL.read_text()
SNIPPET = re.compile(r"^```python\n(.*?)^```$\n+^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SNIPPETS = [
    pytest.param(found[1], found[2], id=f"line {TEXT.count(chr(10), 0, found.start()) + 2}")
    for found in SNIPPET.finditer(TEXT)
]


def run(code: str, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "program.py", "exec", dont_inherit=True), names)
    return printed.getvalue()


def without_line_ends(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("code", "says"), SNIPPETS)
def test_a_snippet_alone_prints_what_the_text_says(
    code: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    assert without_line_ends(run(code, {"__name__": "__main__"})) == without_line_ends(says)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("backend")
def test_all_snippets_run_in_order_in_one_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the snippets one after another in one process, as a reader types them."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for snippet in SNIPPETS:
        code, says = map(str, snippet.values)
        assert without_line_ends(run(code, names)) == without_line_ends(says), snippet.id


def test_every_code_block_is_a_snippet_or_what_one_prints() -> None:
    fences = re.findall(r"^```(\w*)$", TEXT, re.MULTILINE)
    opened = fences[0::2]
    assert opened == ["python", "text"] * len(SNIPPETS)
    assert set(fences[1::2]) == {""}
    assert len(SNIPPETS) > 20
