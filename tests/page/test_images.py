"""The pictures of docs/page.md, taken of the real page.

    RAMIFORM_IMAGES=docs/images pytest --rootdir=tests tests/page/test_images.py

writes them into that folder; without the variable they go to a temporary one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import ramiform

from .browser import Page
from .test_chat import ANSWERED, ask, open_chat
from .test_strip import FORKED, chip, fork

DOCS = Path(ramiform.__file__).parent / "docs"
MAX_BYTES = 120_000
CHECKED = "document.querySelector('.badge[role=status]')?.innerText"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(os.environ.get("RAMIFORM_IMAGES", tmp_path)).resolve()


def test_the_docs_show_pictures_that_are_there_and_small() -> None:
    named = re.findall(r"\]\((images/[^)]+)\)", (DOCS / "page.md").read_text(encoding="utf-8"))
    assert named
    for name in named:
        assert 5_000 < (DOCS / name).stat().st_size <= MAX_BYTES, name
    assert {DOCS / name for name in named} == set((DOCS / "images").glob("page-*.png"))


@pytest.mark.slow
def test_a_chat_with_forks(page: Page, home: str, folder: Path) -> None:
    page.resize(1120, 780)
    open_chat(page, home)
    page.fill("[name=seed]", "3")
    ask(page, "What is the capital of France?")
    page.wait(ANSWERED)
    page.click("button", "Tokens")
    fork(page, 7)
    page.wait(FORKED)
    page.click(chip(7, row=1))
    page.wait("!!document.querySelector('.popover')")
    page.screenshot(folder / "page-chat.png")


@pytest.mark.slow
def test_a_token_that_the_mask_chose(page: Page, home: str, folder: Path) -> None:
    page.resize(1120, 780)
    page.goto(home + "#/structured")
    page.fill("[name=prompt]", "Paris, a city in France, as JSON:")
    page.click("[name=chat]")
    page.fill("[name=seed]", "5")
    page.press("Control+Enter")
    page.wait(ANSWERED)
    page.click(".answer button", "Tokens")
    page.click(chip(7))
    page.wait("!!document.querySelector('.popover .refused')")
    page.screenshot(folder / "page-token.png")


@pytest.mark.slow
def test_a_schema_with_an_error_and_its_mask(page: Page, home: str, folder: Path) -> None:
    page.resize(1120, 780)
    page.goto(home + "#/structured")
    page.wait("!!document.querySelector('[name=source]')")
    page.wait(f"{CHECKED}.startsWith('compiles')")
    page.fill("[name=text]", '{"city": "Paris", "country": "')
    page.wait("!!document.querySelector('.mask .chip')")
    page.wait(f"{CHECKED}.startsWith('compiles')")
    page.eval("document.querySelector('.stepper').scrollIntoView({block: 'center'})")
    page.screenshot(folder / "page-mask.png")
    page.eval("scrollTo(0, 0)")
    source = page.eval("document.querySelector('[name=source]').value")
    page.fill("[name=source]", source.replace('"integer"', '"integr"'))
    page.wait("!!document.querySelector('.caret-mark')")
    page.screenshot(folder / "page-structured.png")


@pytest.mark.slow
def test_a_phone_in_the_dark(page: Page, home: str, folder: Path) -> None:
    page.resize(360, 720, is_phone=True, scale=1.5)
    page.prefer(scheme="dark")
    open_chat(page, home)
    page.fill("[name=seed]", "3")
    ask(page, "What is the capital of France?")
    page.wait(ANSWERED)
    page.click("button", "Tokens")
    fork(page, 7)
    page.wait(FORKED)
    page.eval("document.querySelector('.message.user').scrollIntoView({block: 'start'})")
    page.eval("scrollBy(0, -90)")
    page.screenshot(folder / "page-phone.png")
