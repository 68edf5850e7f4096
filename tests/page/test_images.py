"""The pictures of docs/use/page.md, taken of the real page.

    RAMIFORM_IMAGES=docs/use/images pytest --rootdir=tests tests/page/test_images.py

writes them into that folder; without the variable they go to a temporary one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import httpx
import pytest

import ramiform

from . import test_programs, test_tree
from .browser import Page
from .test_chat import ANSWERED, ask, open_chat
from .test_strip import FORKED, chip, fork

DOCS = Path(ramiform.__file__).parent / "docs/use"
MAX_BYTES = 120_000
CHECKED = "document.querySelector('.badge[role=status]')?.innerText"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(os.environ.get("RAMIFORM_IMAGES", tmp_path)).resolve()


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
    # Without the mouse: the answer may still move.
    page.eval("[...document.querySelectorAll('.answer button')].find((each) => each.innerText == 'Tokens').click()")
    page.wait(f"!!document.querySelector({chip(7)!r})")
    page.eval(f"document.querySelector({chip(7)!r}).focus()")
    page.press("Enter")
    page.wait("!!document.querySelector('.popover .refused')")
    page.screenshot(folder / "page-token.png")


@pytest.mark.exhaustive
def test_a_schema_with_an_error_and_its_mask(page: Page, home: str, folder: Path) -> None:
    page.resize(1120, 780)
    page.goto(home + "#/structured")
    page.wait("!!document.querySelector('[name=source]')")
    page.wait(f"{CHECKED}.startsWith('compiles')")
    page.fill("[name=text]", '{"city": "Paris", "country": "')
    page.wait("document.querySelector('.mask')?.innerText.includes('France')")  # of this text
    page.wait(f"{CHECKED}.startsWith('compiles')")
    page.eval("document.querySelector('.stepper').scrollIntoView({block: 'center'})")
    page.screenshot(folder / "page-mask.png")
    page.eval("scrollTo(0, 0)")
    source = page.eval("document.querySelector('[name=source]').value")
    page.fill("[name=source]", source.replace('"integer"', '"integr"'))
    page.wait("!!document.querySelector('.caret-mark')")
    page.screenshot(folder / "page-structured.png")


@pytest.mark.exhaustive
def test_programs_and_a_timeline(page: Page, home: str, url: str, backend: ramiform.Runtime, folder: Path) -> None:
    page.resize(1120, 640)
    for question in ("What is 251 plus 138?", "What is 40 plus 2?"):
        test_programs.react.run(question)
        test_programs.fan_out.run(question)
    with pytest.raises(ramiform.RamiformError):
        test_programs.broken.run()
    httpx.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20})
    page.goto(home + "#/programs")
    page.wait("document.querySelectorAll('.vtable tbody a').length >= 6")
    page.screenshot(folder / "page-programs.png")
    first, second, *_ = (  # the newest
        row["id"]
        for row in httpx.get(f"{url}/v1/ramiform/programs").json()["programs"]
        if row["title"] == "fan_out" and row["states"] == 9
    )
    page.resize(1120, 980)
    test_programs.open_program(page, home, first)
    test_programs.wait_for_paint(page, test_programs.CANVAS, colours=6)
    box = page.eval(f"document.querySelector({test_programs.CANVAS!r}).getBoundingClientRect().toJSON()")
    for kind in ("mousePressed", "mouseReleased"):  # the decode of the second branch
        at = {"x": box["x"] + 0.7 * box["width"], "y": box["y"] + 24 + 2.65 * 36}
        page.call("Input.dispatchMouseEvent", type=kind, **at, button="left", clickCount=1)
    page.wait("!!document.querySelector('.details b')")
    page.screenshot(folder / "page-timeline.png")
    page.goto(f"{home}#/programs/{second}?with={first}")
    page.wait(f"document.querySelectorAll({test_programs.CANVAS!r}).length === 2")
    page.eval("document.querySelectorAll('h3')[1].scrollIntoView({block: 'start'})")
    page.eval("scrollBy(0, -60)")
    page.screenshot(folder / "page-compare.png")


@pytest.mark.exhaustive
def test_the_tree_and_health(page: Page, folder: Path) -> None:
    with ramiform.Runtime(port=0, dtype="float32", num_pages=256, log_level="error", speculative="suffix") as runtime:
        ramiform.set_default_backend(runtime)
        page.resize(1120, 760)
        try:
            page.goto(f"{runtime.url}/#/tree")
            for question in ("What is 251 plus 138?", "What is 40 plus 2?", "What is 7 times 6?"):
                test_tree.fan_out.run(test_tree.SHARED)
                test_programs.react.run(question)
                test_programs.fan_out.run(question)
            page.wait("document.querySelectorAll('.bands .key').length > 8")
            page.eval(f"document.querySelector({test_tree.CANVAS!r}).focus()")
            for key in ("ArrowRight", "ArrowRight"):
                page.press(key)
            page.wait("!!document.querySelector('.details pre')")
            page.screenshot(folder / "page-tree.png")
            page.resize(1120, 440)
            page.prefer(scheme="dark")
            page.goto(f"{runtime.url}/#/health")
            for number in range(90 if "RAMIFORM_IMAGES" in os.environ else 9):  # 90 draw a curve
                test_programs.fan_out.run(f"{number}")
                page.eval("0")  # reads what the browser has told meanwhile
            page.wait("document.querySelectorAll('.chart').length === 8")
            page.wait("/output\\s*[1-9]/.test(document.querySelector('.plot').innerText)")
            page.screenshot(folder / "page-health.png")
        finally:
            ramiform.set_default_backend(None)


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


def test_the_docs_show_pictures_that_are_there_and_small() -> None:
    named = re.findall(r"\]\((images/[^)]+)\)", (DOCS / "page.md").read_text(encoding="utf-8"))
    assert named
    for name in named:
        assert 5_000 < (DOCS / name).stat().st_size <= MAX_BYTES, name
    assert {DOCS / name for name in named} == set((DOCS / "images").glob("page-*.png"))
