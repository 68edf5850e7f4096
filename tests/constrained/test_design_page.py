"""The worked example of the design page: its code is run, and prints what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import ramiform

PAGE = Path(ramiform.__file__).parent / "docs/inside/constrained-design.md"


def test_the_code_of_the_design_page_prints_what_the_page_shows() -> None:
    names: dict[str, Any] = {}
    printed = ""
    for language, text in re.findall(r"```(python|text)\n(.*?)```\n", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        if language == "text":
            assert printed == text
            continue
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(text, names)
        printed = output.getvalue()
