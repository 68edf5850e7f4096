"""The page's shell: tabs, keys of the keyboard, API keys, theme, phones, and texts that try to be markup."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ramiform

from .browser import Browser, Page
from .test_chat import ANSWERED, ask, open_chat, posted

KEY = "sesame-2f1c"
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script><b>&amp;'


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    """A server that asks for a key, with a hostile model name."""
    with ramiform.Runtime(
        port=0, dtype="float32", num_pages=256, log_level="error", api_key=KEY, served_model_name=HOSTILE
    ) as started:
        yield f"{started.url}/"


def test_tabs_open_by_click_by_number_and_by_address(page: Page, home: str) -> None:
    open_chat(page, home)
    page.press("2")
    page.wait("location.hash === '#/complete' && !!document.querySelector('[name=prompt]')")
    page.click("nav a", "Structured")
    page.wait("!!document.querySelector('[name=source]')")
    assert page.eval("document.querySelector('nav [aria-current=page]').innerText") == "Structured"
    assert page.eval("document.title") == "Structured - ramiform-demo"
    page.goto(home + "#/complete")
    page.wait("!!document.querySelector('[name=prompt]')")


def test_a_slash_reaches_the_input_and_digits_in_it_are_text(page: Page, home: str) -> None:
    open_chat(page, home)
    page.press("/")
    page.wait("document.activeElement.name === 'message'")
    page.press("2")
    page.press("/")
    assert page.eval("document.querySelector('[name=message]').value") == "2/"
    assert page.eval("location.hash") == "#/chat"


def test_the_theme_follows_the_system_until_it_is_chosen(page: Page, home: str) -> None:
    page.prefer(scheme="dark")
    open_chat(page, home)
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.eval(background)
    page.click("[aria-label='Light theme']")
    page.wait(f"{background} !== '{dark}'")
    page.goto("about:blank")
    open_chat(page, home)
    assert page.eval(background) != dark
    page.click("[aria-label='Dark theme']")
    page.wait(f"{background} === '{dark}'")


CONTRASTS = [
    *(
        (text, ground, 4.5)
        for text in ("--fg", "--muted", "--accent", "--bad")
        for ground in ("--bg", "--raised", "--sunken")
    ),
    *(("--fg", f"--heat-{step}", 4.5) for step in range(6)),
    ("--on-accent", "--accent", 4.5),
    ("--fg", "--accent-soft", 4.5),
    ("--muted", "--accent-soft", 4.5),
    ("--bad", "--bad-soft", 4.5),
    ("--warn", "--warn-soft", 4.5),
    ("--good", "--raised", 4.5),
    ("--warn", "--raised", 4.5),
    ("--line-strong", "--raised", 3),  # borders of controls
]


def luminance(color: str) -> float:
    """Return the relative luminance of `rgb(r, g, b)`, as WCAG 2 defines it."""
    channels = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_the_contrast_of_wcag_aa(page: Page, home: str, scheme: str) -> None:
    page.prefer(scheme=scheme)
    open_chat(page, home)
    names = sorted({name for text, ground, _ in CONTRASTS for name in (text, ground)})
    colors = page.eval(
        f"import(new URL('page/ui.js', location)).then(({{color}}) => {json.dumps(names)}.map((name) => color(name)))"
    )
    light = dict(zip(names, map(luminance, colors), strict=True))
    ratios = {
        (text, ground): (max(light[text], light[ground]) + 0.05) / (min(light[text], light[ground]) + 0.05)
        for text, ground, _ in CONTRASTS
    }
    assert [pair for pair in CONTRASTS if ratios[pair[:2]] < pair[2]] == [], ratios


@pytest.mark.parametrize("tab", ["chat", "complete", "structured"])
def test_a_phone_scrolls_in_one_direction_only(page: Page, home: str, tab: str) -> None:
    page.resize(360, 740, is_phone=True)
    page.goto(f"{home}#/{tab}")
    page.wait("!!document.querySelector('[data-main-input]')")
    assert page.eval("document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize("tab", ["chat", "complete", "structured"])
def test_every_control_has_a_name(page: Page, home: str, tab: str) -> None:
    page.goto(f"{home}#/{tab}")
    page.wait("!!document.querySelector('[data-main-input]')")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = ("button", "textbox", "combobox", "checkbox", "spinbutton", "slider", "link")
    controls = [node for node in nodes if node.get("role", {}).get("value") in roles]
    assert len(controls) > 10
    assert [node for node in controls if not node.get("name", {}).get("value")] == []


@pytest.mark.exhaustive
def test_a_key_is_asked_for_once_and_kept_in_the_tab(browser: Browser, locked: str) -> None:
    with browser.page() as page:
        page.goto(locked + "#/chat")
        page.wait("document.querySelector('dialog').open")
        page.fill("dialog input", "wrong")
        page.press("Enter")
        page.wait(
            "document.querySelector('dialog').open && document.querySelector('dialog').innerText.includes('refused')"
        )
        page.fill("dialog input", KEY)
        page.press("Enter")
        page.wait("!!document.querySelector('[name=message]') && !document.querySelector('dialog').open")
        ask(page, "Hello!")
        page.wait(ANSWERED)
        page.goto("about:blank")
        page.goto(locked + "#/chat")
        page.wait("!!document.querySelector('[name=message]')")
        assert not page.eval("document.querySelector('dialog').open")
        assert all("401" in problem for problem in page.problems)
        assert len(page.problems) == 2
        # The model's name is markup: it is shown as it is.
        assert page.text(".brand .model") == HOSTILE
        assert page.eval("window.hacked") is None


def test_no_script_makes_markup_of_text() -> None:
    static = Path(ramiform.__file__).parent / "runtime/frontend/http/dashboard/static"
    scripts = list(static.glob("*.js"))
    assert len(scripts) > 10
    makers = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc")
    assert [script.name for script in scripts if makers.search(script.read_text(encoding="utf-8"))] == []


@pytest.mark.exhaustive
def test_markup_in_messages_answers_and_tools_is_shown_as_text(page: Page, home: str) -> None:
    open_chat(page, home)
    posted(page)
    page.fill("[name=max_tokens]", "4")
    ask(page, HOSTILE)
    page.wait(ANSWERED)
    # The model goes on after markup, so that its answer contains it.
    page.click(".message.assistant button", "Edit")
    page.fill("[name=edit]", HOSTILE)
    page.click("button", "Save and go on")
    page.wait("document.querySelectorAll('.pager').length === 1")
    page.wait(ANSWERED)
    assert page.eval("window.posted.at(-1).continue_final_message")
    assert page.eval("document.querySelector('.message.assistant .text').textContent").startswith(HOSTILE)
    assert page.eval("document.querySelector('.message.user .text').textContent") == HOSTILE
    assert page.eval("[...document.querySelectorAll('img, #app script')].length") == 0
    assert page.eval("window.hacked") is None


@pytest.mark.exhaustive
def test_a_model_that_answers_markup_runs_nothing(page: Page, home: str) -> None:
    page.goto(home + "#/structured")
    page.wait("!!document.querySelector('[name=source]')")
    page.click(".segmented button", "Choices")
    page.fill("[name=source]", HOSTILE)
    page.fill("[name=prompt]", HOSTILE)
    page.press("Control+Enter")
    page.wait(ANSWERED)
    assert page.eval("document.querySelector('.answer .text').textContent") == HOSTILE
    page.click("button", "Tokens")
    page.wait("document.querySelectorAll('.strip .chip').length > 5")
    page.click(".strip .chip[data-index='1']")
    page.wait("!!document.querySelector('.popover')")
    assert page.eval("[...document.querySelectorAll('img, #app script')].length") == 0
    assert page.eval("window.hacked") is None
