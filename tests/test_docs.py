"""What the pages name is there: files, folders, other pages and their headings. An index reaches each page."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import httpx
import pytest

import ramiform

ROOT = Path(ramiform.__file__).parent.resolve()
PAGES = sorted(ROOT.glob("*.md"))
PAGES += sorted(page for part in ("bench", "docs", "examples", "runtime") for page in (ROOT / part).rglob("*.md"))
DECISIONS = ROOT / "docs/inside/decisions"
FILES = {
    path.relative_to(ROOT).as_posix()
    for folder in ("bench", "constrained", "docs", "examples", "kernels", "lang", "radix", "runtime", "tests", "tools")
    for path in (ROOT / folder).rglob("*.*")
} | {path.name for path in ROOT.glob("*.*")}


def prose(page: Path) -> str:
    """Return a page's text without blocks of code, where `calls[name](arguments)` is no link, `# why` no heading."""
    return re.sub(r"^(```|~~~).*?^\1", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[tuple[Path, str]]:
    """Return the files and the anchors that a page links to, in this repository."""
    found = re.findall(r"\]\((?![a-z]+:)([^)#\s]*)#?([^)\s]*)\)", prose(page))
    return [((page.parent / path).resolve() if path else page, anchor) for path, anchor in found]


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    slugs: Counter[str] = Counter()
    made = set()
    for heading in re.findall(r"^#+ +(.*?) *$", prose(page), flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        made.add(f"{slug}-{slugs[slug]}" if slugs[slug] else slug)
        slugs[slug] += 1
    return made


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    broken = [f"{path}#{anchor}" for path, anchor in links(page) if not path.exists()]
    broken += [f"{path}#{anchor}" for path, anchor in links(page) if anchor and anchor not in anchors(path)]
    assert not broken


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_modules_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"(?:`|-P )([\w/]+\.py)\b", page.read_text("utf-8"))
    assert not [name for name in named if not any(file == name or file.endswith(f"/{name}") for file in FILES)]


@pytest.mark.slow
def test_the_pages_that_code_names_exist() -> None:
    """In docstrings, comments, messages and tests; a decision by its number."""
    kinds = {".py", ".sh", ".toml", ".js", ".html", ".md"}
    files = [file for file in sorted(FILES) if Path(file).suffix in kinds and "node_modules" not in file]
    page = r"(?<![\w/.-])docs/[\w/-]+(?:\.md|\.json|/\d{4})"
    named = {(file, name) for file in files for name in re.findall(page, (ROOT / file).read_text("utf-8"))}
    assert len(named) > 30
    assert not [each for each in named if not list(ROOT.glob(f"{each[1]}*"))]


@pytest.mark.parametrize("index", ["README.md", "docs/README.md"])
def test_an_index_links_to_every_page(index: str) -> None:
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page.parent != DECISIONS} | {DECISIONS / "README.md"}
    assert pages - {path for path, _ in links(ROOT / index)} <= {ROOT / index}


def test_the_index_of_decisions_has_every_number_and_title() -> None:
    rows = re.findall(
        r"^\| \[?(\d+)\]?(?:\(([\w.-]+)\))? \| (.*) \|$", (DECISIONS / "README.md").read_text("utf-8"), re.M
    )
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    assert {name for _, name, _ in rows if name} == {page.name for page in DECISIONS.glob("0*.md")}
    for number, name, title in rows:
        if name:
            assert (DECISIONS / name).read_text("utf-8").startswith(f"# {number}. {title}\n")


def test_the_tests_that_a_page_names_exist() -> None:
    named = [found for page in PAGES for found in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text("utf-8"))]
    assert len(named) > 20, "docs/operate/security.md names a test for each class of faults"
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text("utf-8")]
    assert not missing


def test_the_requests_of_the_readme_have_the_answers_that_anybody_expects(url: str) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    requests = re.findall(r"^curl localhost:30000(/\S+) -H '(\S+): (\S+)' -d '(.*?)'$", text, re.M | re.S)
    answers = [
        httpx.post(url + path, headers={name: value}, content=body, timeout=60).json()["text"]
        for path, name, value, body in requests
    ]
    assert answers == [" Paris", " yes"]
