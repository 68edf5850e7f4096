"""The page's shell: tabs, keys of the keyboard, API keys, theme, phones, and texts that try to be markup."""

from __future__ import annotations

from collections.abc import Iterator

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
