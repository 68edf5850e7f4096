"""Chat in the page: streams, alternatives, edits, tools."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from .browser import Browser, Page

ANSWERED = (
    "document.querySelector('.numbers')?.innerText.includes(' prompt') && !document.querySelector('[aria-busy=true]')"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def open_chat(page: Page, home: str) -> None:
    page.goto(home + "#/chat")
    page.wait("!!document.querySelector('[name=message]')")


def ask(page: Page, text: str, *, key: str = "Control+Enter") -> None:
    page.fill("[name=message]", text)
    page.press(key)


def posted(page: Page) -> None:
    """Keep the bodies of the page's generations in `window.posted`."""
    page.eval(
        """(() => {
          window.posted = [];
          const send = window.fetch;
          window.fetch = (url, options) => {
            const body = options?.body && JSON.parse(options.body);
            if (body?.stream) window.posted.push(body);
            return send(url, options);
          };
        })()"""
    )


@pytest.mark.exhaustive
def test_an_answer_streams_and_is_what_the_api_answers(page: Page, home: str, url: str) -> None:
    open_chat(page, home)
    page.fill("[name=seed]", "11")
    page.fill("[name=max_tokens]", "300")
    page.click("[name=ignore_eos]")
    page.eval(
        """(() => {
          window.seen = new Set();
          new MutationObserver(() => {
            const text = document.querySelector(".message.assistant .text")?.textContent;
            if (text) window.seen.add(text);
          }).observe(document.getElementById("app"), {subtree: true, childList: true, characterData: true});
        })()"""
    )
    posted(page)
    ask(page, "Tell me a story.")
    page.wait(ANSWERED)
    [body] = page.eval("window.posted")
    assert "temperature" not in body
    assert "top_p" not in body
    assert body["stream"]
    whole = body | {"stream": False, "stream_options": None}
    expected = httpx.post(f"{url}/v1/chat/completions", json=whole, timeout=120).json()
    text = expected["choices"][0]["message"]["content"]
    assert page.eval("document.querySelector('.message.assistant .text').textContent") == text
    seen = page.eval("[...window.seen]")
    assert len(seen) > 2, "the text came at once"
    assert all(text.startswith(part) for part in seen)


def test_the_system_prompt_the_settings_and_the_messages_before_are_sent(page: Page, home: str) -> None:
    open_chat(page, home)
    posted(page)
    page.click("summary", "System prompt")
    page.fill("[name=system]", "You are a helpful assistant.")
    page.fill("[name=temperature]", "0")
    page.fill("[name=stop]", "END\n\\n")
    page.fill("[name=logit_bias]", "5: -100")
    page.fill("[name=extra]", '{"cache_salt": "mine"}')
    ask(page, "Hello!", key="Enter")
    page.wait(ANSWERED)
    ask(page, "What is the capital of France?")
    page.wait("document.querySelectorAll('.numbers').length === 2")
    page.wait("[...document.querySelectorAll('.numbers')].every((each) => each.innerText.includes(' prompt'))")
    first, second = page.eval("window.posted")
    assert first["messages"] == [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hello!"},
    ]
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "user"]
    assert second["messages"][2]["content"] == page.texts(".message.assistant .text")[0]
    assert first["temperature"] == 0
    assert first["stop"] == ["END", "\\n"]
    assert first["logit_bias"] == {"5": -100}
    assert first["cache_salt"] == "mine"
    assert first["seed"] != second["seed"]


def test_a_setting_that_is_no_number_is_named_and_nothing_is_sent(page: Page, home: str) -> None:
    open_chat(page, home)
    posted(page)
    page.fill("[name=stop_token_ids]", "seven")
    ask(page, "Hello!")
    page.wait("document.querySelector('.note.bad')?.innerText.includes('stop_token_ids')")
    assert page.eval("window.posted") == []


def test_escape_stops_an_answer(browser: Browser, home: str) -> None:
    numbers = ""
    while "stopped" not in numbers:  # a slow browser may have the whole answer before the key is pressed
        with browser.page() as page:
            open_chat(page, home)
            page.fill("[name=extra]", '{"ignore_eos": true, "max_tokens": 1900}')
            ask(page, "Hello!")
            page.wait("document.querySelector('.message.assistant .text')?.textContent.length > 10")
            page.press("Escape")
            page.wait("!!document.querySelector('.numbers') && !!document.querySelector('button[type=submit]')")
            numbers = page.text(".numbers")


def test_an_answer_is_drawn_again_and_both_are_kept(page: Page, home: str) -> None:
    open_chat(page, home)
    ask(page, "Tell me a story.")
    page.wait(ANSWERED)
    page.click("button", "Regenerate")
    page.wait("document.querySelector('.pager')?.innerText.includes('2 of 2')")
    page.wait(ANSWERED)
    page.click("[aria-label='Previous answer']")
    page.wait("document.querySelector('.pager')?.innerText.includes('1 of 2')")
    assert len(page.texts(".message.assistant")) == 1


def test_an_edited_question_is_asked_again(page: Page, home: str) -> None:
    open_chat(page, home)
    page.fill("[name=temperature]", "0")
    ask(page, "What is the capital of Japan?")
    page.wait(ANSWERED)
    page.click(".message.user button", "Edit")
    page.fill("[name=edit]", "What is the capital of France?")
    page.press("Control+Enter")
    page.wait("document.querySelector('.message.assistant')?.innerText.includes('Paris')")
    page.wait(ANSWERED)
    assert len(page.texts(".message.user")) == 1


@pytest.mark.exhaustive
def test_a_conversation_survives_a_reload_and_a_look_at_another_tab(page: Page, home: str) -> None:
    open_chat(page, home)
    page.fill("[name=top_k]", "7")
    ask(page, "Hello!")
    page.wait(ANSWERED)
    before = page.texts(".message")
    page.click("nav a", "Complete")
    page.wait("!!document.querySelector('[name=prompt]')")
    page.click("nav a", "Chat")
    page.wait("!!document.querySelector('.message')")
    assert page.texts(".message") == before
    page.goto("about:blank")
    open_chat(page, home)
    page.wait("!!document.querySelector('.message')")
    assert page.texts(".message") == before
    assert page.eval("document.querySelector('[name=top_k]').value") == "7"


def test_a_tool_call_is_shown_and_its_result_goes_to_the_model(page: Page, home: str) -> None:
    open_chat(page, home)
    posted(page)
    page.click("summary", "Tools")
    page.fill("[name=tools]", json.dumps([TOOL]))
    page.choose("[name=tool_choice]", "required")
    page.fill("[name=temperature]", "0")
    ask(page, "What is the weather in Paris?")
    page.wait(ANSWERED)
    page.wait("!!document.querySelector('[name=result-0]')")
    assert "get_weather" in page.text(".call")
    assert "Paris" in page.text(".call .json")
    page.choose("[name=tool_choice]", "auto")
    page.fill("[name=result-0]", "sunny, 21 degrees")
    page.click("button", "Send the result")
    page.wait("document.querySelectorAll('.message.assistant .numbers').length === 2")
    page.wait("[...document.querySelectorAll('.numbers')].every((each) => each.innerText.includes(' prompt'))")
    bodies: list[dict[str, Any]] = page.eval("window.posted")
    assert bodies[0]["tool_choice"] == "required"
    call, result = bodies[1]["messages"][1:]
    assert call["tool_calls"][0]["function"]["name"] == "get_weather"
    assert result == {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "sunny, 21 degrees"}


def test_tools_that_are_no_json_are_refused_in_the_page(page: Page, home: str) -> None:
    open_chat(page, home)
    page.click("summary", "Tools")
    page.fill("[name=tools]", "[{")
    page.wait("document.querySelector('[name=tools]').getAttribute('aria-invalid') === 'true'")


def test_a_json_answer_is_a_tree_that_folds(page: Page, home: str) -> None:
    open_chat(page, home)
    page.fill("[name=extra]", '{"regex": "\\\\{\\"list\\": \\\\[1, 2\\\\], \\"ok\\": true\\\\}"}')
    ask(page, "Hello!")
    page.wait("!!document.querySelector('.json details')")
    assert page.texts(".json-key") == ["list", "0", "1", "ok"]
    page.click(".json details details > summary")
    page.wait("document.querySelectorAll('.json-key').length === 2")
    page.click("button", "Text")
    page.wait("document.querySelector('.message.assistant .text')?.textContent === '{\"list\": [1, 2], \"ok\": true}'")


def test_an_error_of_the_server_names_its_parameter(page: Page, home: str) -> None:
    open_chat(page, home)
    page.fill("[name=extra]", '{"no_such_parameter": 1}')
    ask(page, "Hello!")
    page.wait("document.querySelector('.note.bad')?.innerText.includes('no_such_parameter')")
    [problem] = page.problems  # the browser's own line about the answer's status
    assert "400" in problem
    page.problems.clear()


def test_an_empty_chat_offers_a_question(page: Page, home: str) -> None:
    open_chat(page, home)
    page.click(".example")
    assert page.eval("document.querySelector('[name=message]').value") == "What is the capital of France?"
