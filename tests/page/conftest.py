"""The page in a headless browser, served by the real runtime with the model that ships."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .browser import Browser, Page, find_browser, start_browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with start_browser(find_browser(), tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A new tab. The test fails if its console had an error, or its content policy was violated."""
    with browser.page() as opened:
        yield opened
        assert opened.problems == []


@pytest.fixture(scope="session")
def home(url: str) -> str:
    """The page's address."""
    return f"{url}/"
