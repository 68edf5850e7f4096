"""The site of docs/ is built without a warning, holds what it should, leads nowhere in vain, and loads nothing from
elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

import ramiform
from ramiform.tests.page.browser import find_browser, start_browser

ROOT = Path(ramiform.__file__).parent.resolve()
MKDOCS = ROOT / ".venv/docs/bin/mkdocs"

pytestmark = pytest.mark.exhaustive


class Links(HTMLParser):
    """Collects a page's anchors, the addresses that it links to, and those that it loads."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if "href" in given and tag in ("a", "area"):
            self.links.append(given["href"])
        elif "href" in given and given.get("rel") != "canonical":
            self.loaded.append(given["href"])
        self.loaded += [given["src"]] if "src" in given else []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not MKDOCS.exists():
        pytest.skip("`make .venv/.docs` installs what builds the site")
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [MKDOCS, "build", "--quiet", "--strict", "--site-dir", place],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return place


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {page: Links(page.read_text("utf-8")) for page in sorted(site.rglob("*.html")) if page.name != "404.html"}


def test_no_link_is_dead(pages: dict[Path, Links]) -> None:
    def leads_somewhere(page: Path, link: str) -> bool:
        address, anchor = urldefrag(link)
        target = (page.parent / unquote(address)).resolve() if address else page
        target = target / "index.html" if target.is_dir() else target
        return target.exists() and (target not in pages or unquote(anchor) in pages[target].anchors)

    own = [(page, link) for page, found in pages.items() for link in found.links if not urlsplit(link).scheme]
    assert len(own) > 5000
    assert not [f"{page}: {link}" for page, link in own if not leads_somewhere(page, link)]


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Links]) -> None:
    loaded = {address for found in pages.values() for address in found.loaded}
    assert len(loaded) > 5
    assert not [address for address in loaded if urlsplit(address).netloc]
    styles = " ".join(style.read_text("utf-8") for style in site.rglob("*.css"))
    assert not re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)]*", styles)


def test_every_page_of_docs_and_every_public_name_has_its_place(pages: dict[Path, Links], site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        assert site / name / "index.html" in pages or page.name == "README.md", page
    anchors = set().union(*(found.anchors for page, found in pages.items() if page.parts[-3] == "reference"))
    names = {anchor.rpartition(".")[2] for anchor in anchors}
    assert set(ramiform.__all__) - names == {"__version__"}


def test_an_example_stands_beside_what_it_prints(site: Path) -> None:
    for output in (ROOT / "examples/agents/outputs").glob("*.txt"):
        page = (site / "examples" / output.stem / "index.html").read_text("utf-8")
        text = re.sub(r"<[^>]*>", "", page).replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"')
        assert output.read_text("utf-8").strip() in text.replace("&#39;", "'").replace("&amp;", "&"), output.name


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    class Handler(SimpleHTTPRequestHandler):
        """Serves files and logs nothing."""

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_a_reader_finds_pages_by_their_words(address: str, tmp_path: Path) -> None:
    with start_browser(find_browser(), tmp_path) as browser, browser.page() as page:
        page.goto(address)
        page.click(".md-search__input")
        page.fill(".md-search__input", "best_of")
        links = "[...document.querySelectorAll('.md-search-result__link')].map((each) => each.href)"
        page.wait(f"{links}.some((link) => link.includes('/reference/search/'))")  # further results come later
        assert page.problems == []  # its content policy allows nothing from elsewhere
