"""What the pages name is there: files, folders and other pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ramiform

ROOT = Path(ramiform.__file__).parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "bench/results").glob("*.md")])
FILES = {
    path.relative_to(ROOT).as_posix()
    for folder in ("bench", "constrained", "docs", "examples", "kernels", "lang", "radix", "runtime", "tests")
    for path in (ROOT / folder).rglob("*.*")
} | {path.name for path in ROOT.glob("*.*")}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_modules_and_pages_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```", "", text, flags=re.S)  # `calls[name](*arguments)` in code is no link
    links = re.findall(r"\]\((?!https?:)([^)#]+)", prose)
    missing = [link for link in links if not (page.parent / link).exists()]
    for name in re.findall(r"(?:`|-P )([\w/]+\.py)\b", text):
        if not any(file == name or file.endswith(f"/{name}") for file in FILES):
            missing.append(name)
    assert not missing


def test_the_tests_that_a_page_names_exist() -> None:
    named = [found for page in PAGES for found in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text("utf-8"))]
    assert len(named) > 20, "docs/operate/security.md names a test for each class of faults"
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text("utf-8")]
    assert not missing
