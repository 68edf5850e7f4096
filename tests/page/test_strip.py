"""The token strip: probabilities before and after the mask, and forks, judged by the API's own answers."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

import ramiform

from .browser import Browser, Page
from .test_chat import ANSWERED, ask, open_chat, posted

FORKED = f"{ANSWERED} && document.querySelector('.numbers').innerText.includes('fork')"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "kind": {"enum": ["city", "river"]}},
    "required": ["city", "kind"],
    "additionalProperties": False,
}


def stored(page: Page, view: str) -> list[dict[str, Any]]:
    """Return the answers that the page keeps for a view: as they are kept when it is left."""
    page.eval("dispatchEvent(new Event('pagehide'))")
    state: dict[str, Any] = page.eval(f"JSON.parse(sessionStorage.getItem('ramiform.{view}'))")
    if "answers" in state:
        answers: list[dict[str, Any]] = state["answers"]
        return answers
    return [answer for message in state["messages"] for answer in message.get("answers", [])]


def ids(answer: dict[str, Any]) -> list[int]:
    return [token["id"] for token in answer["tokens"]]


def complete(page: Page, home: str, prompt: str, **fields: str) -> None:
    page.goto(home + "#/complete")
    page.fill("[name=prompt]", prompt)
    for name, value in fields.items():
        page.fill(f"[name={name}]", value)
    page.press("Control+Enter")
    page.wait(ANSWERED)
    page.click("button", "Tokens")
    page.wait("!!document.querySelector('.strip .chip')")


def chip(index: int, row: int = 0) -> str:
    return f".strip .chip[data-index='{index}'][data-row='{row}']"


def fork(page: Page, index: int, row: int = 0, steps: int = 1) -> None:
    """Open a token and take an alternative `steps` below the token itself, by the keyboard."""
    page.eval(f"document.querySelector({chip(index, row)!r}).focus()")
    page.press("Enter")
    page.wait("!!document.querySelector('.popover')")
    key = "ArrowDown" if steps > 0 else "ArrowUp"
    for _ in range(abs(steps)):
        page.press(key)
    page.press("Enter")
    page.wait("!document.querySelector('.popover')")


def expected_fork(url: str, answer: dict[str, Any], at: int, token: int, body: dict[str, Any]) -> list[int]:
    """Ask the API itself to continue the answer's first `at` tokens and `token`."""
    before = [*ids(answer)[:at], token]
    asked = {
        **body,
        "prompt": [*answer["promptIds"], *before],
        "continued_tokens": len(before),
        "seed": answer["seed"],
        "return_token_ids": True,
    }
    [choice] = httpx.post(f"{url}/v1/completions", json=asked, timeout=120).json()["choices"]
    return before + choice["token_ids"]


@pytest.mark.exhaustive
def test_a_fork_gives_the_tokens_that_the_api_gives(page: Page, home: str, url: str) -> None:
    complete(page, home, "Once upon a time", seed="5", max_tokens="40")
    [first] = stored(page, "complete")
    assert len(first["tokens"]) > 12
    fork(page, 6)
    page.wait(FORKED)
    first, second = stored(page, "complete")
    other = second["tokens"][6]["id"]
    assert ids(second)[:6] == ids(first)[:6]
    assert other != ids(first)[6]
    assert ids(second) == expected_fork(url, first, 6, other, {"max_tokens": 40 - 7})
    # A fork forks again: below its own first token, in the second row.
    fork(page, 9, row=1)
    page.wait("document.querySelectorAll('.strip .letter').length === 3")
    page.wait(ANSWERED)
    first, second, third = stored(page, "complete")
    assert ids(third)[:9] == ids(second)[:9]
    assert ids(third) == expected_fork(url, second, 9, ids(third)[9], {"max_tokens": 40 - 10})


def test_the_same_token_again_draws_what_was_drawn(page: Page, home: str) -> None:
    complete(page, home, "Once upon a time", seed="8", max_tokens="30", temperature="0.9")
    fork(page, 4, steps=0)
    page.wait(FORKED)
    first, second = stored(page, "complete")
    assert ids(second) == ids(first)
    assert second["text"] == first["text"]
    assert [token["logprob"] for token in second["tokens"][5:]] == pytest.approx(
        [token["logprob"] for token in first["tokens"][5:]], abs=1e-3
    )


def test_a_fork_in_a_chat_goes_on_under_the_same_settings(page: Page, home: str, url: str) -> None:
    open_chat(page, home)
    page.fill("[name=seed]", "3")
    page.fill("[name=frequency_penalty]", "0.5")
    ask(page, "What is the capital of France?")
    page.wait(ANSWERED)
    page.click("button", "Tokens")
    fork(page, 7)
    page.wait(FORKED)
    posted(page)
    first, second = stored(page, "chat")
    limit = 2048 - len(first["promptIds"]) - 8
    body = {"max_tokens": limit, "frequency_penalty": 0.5}
    assert ids(second) == expected_fork(url, first, 7, ids(second)[7], body)
    assert second["text"] == page.text(".message.assistant .text")
    # The conversation goes on from the fork.
    ask(page, "Thank you!")
    page.wait("document.querySelectorAll('.message.assistant').length === 2")
    [sent] = page.eval("window.posted")
    assert sent["messages"][1] == {"role": "assistant", "content": second["text"]}


def test_under_a_schema_the_mask_is_shown_and_holds_in_forks(page: Page, home: str, url: str) -> None:
    page.goto(home + "#/structured")
    page.fill("[name=source]", json.dumps(SCHEMA))
    page.fill("[name=prompt]", "Paris, a city in France, as JSON: ")
    page.fill("[name=seed]", "4")
    page.click("[name=chat]")
    page.press("Control+Enter")
    page.wait(ANSWERED)
    page.click(".answer button", "Tokens")
    page.wait("!!document.querySelector('.strip .chip.forced')")
    [answer] = stored(page, "structured")
    told = [token for token in answer["tokens"] if token["logprob"] is not None]
    for token in told:
        shown = [other for other in token["top_logprobs"] if other["allowed"]]
        assert sum(math.exp(other["masked_logprob"]) for other in shown) < 1.001
    # Where the mask leaves a choice, the alternatives that it refuses are struck through and cannot be taken.
    at = next(
        index
        for index, token in enumerate(told)
        if token["num_allowed"] > 1
        and any(not other["allowed"] for other in token["top_logprobs"])
        and sum(other["allowed"] for other in token["top_logprobs"]) > 1
    )
    page.click(chip(at))
    page.wait("!!document.querySelector('.popover .refused')")
    line = "getComputedStyle(document.querySelector('.popover .refused .token')).textDecorationLine"
    assert page.eval(line) == "line-through"
    page.click(".popover .refused")
    assert page.eval("!!document.querySelector('.popover')")
    rows = page.eval(
        "[...document.querySelectorAll('.popover [role=option]')].map((row) => row.getAttribute('aria-disabled'))"
    )
    own = page.eval("[...document.querySelectorAll('.popover [role=option]')].findIndex((row) => row.matches('.own'))")
    other = next(index for index, refused in enumerate(rows) if refused == "false" and index != own)
    page.click(".popover [role=option]", index=other)
    page.wait(FORKED)
    first, second = stored(page, "structured")
    body = {
        "max_tokens": first["request"]["body"]["max_tokens"] - at - 1,
        "response_format": first["request"]["body"]["response_format"],
    }
    assert ids(second) == expected_fork(url, first, at, ids(second)[at], body)


def test_each_of_several_answers_forks_with_its_own_seed(page: Page, home: str, url: str) -> None:
    complete(page, home, "Once upon a time", seed="20", n="3", max_tokens="24")
    page.wait("document.querySelector('.pager').innerText.includes('1 of 3')")
    page.click("[aria-label='Next answer']")
    page.click("[aria-label='Next answer']")
    page.wait("document.querySelector('.pager').innerText.includes('3 of 3')")
    fork(page, 5)
    page.wait(FORKED)
    *answers, third, forked = stored(page, "complete")
    assert [answer["seed"] for answer in [*answers, third]] == [20, 21, 22]
    assert ids(forked) == expected_fork(url, third, 5, ids(forked)[5], {"max_tokens": 24 - 6})


@pytest.mark.exhaustive
def test_a_stopped_answer_goes_on_from_its_last_token(browser: Browser, home: str, url: str) -> None:
    with ExitStack() as tabs:
        stopped = False
        while not stopped:  # a slow browser may have the whole answer before the key is pressed
            page = tabs.enter_context(browser.page())
            stopped = _stop_an_answer(page, home)
        _go_on_from_its_last_token(page, url)
        assert page.problems == []


def _stop_an_answer(page: Page, home: str) -> bool:
    page.goto(home + "#/complete")
    page.fill("[name=prompt]", "Once upon a time")
    page.fill("[name=max_tokens]", "1500")
    page.click("[name=ignore_eos]")
    page.press("Control+Enter")
    page.wait("document.querySelector('.answer .text')?.textContent.length > 20")
    page.press("Escape")
    page.wait("!!document.querySelector('.numbers') && !document.querySelector('[aria-busy=true]')")
    return "stopped" in page.text(".numbers")


def _go_on_from_its_last_token(page: Page, url: str) -> None:
    [first] = stored(page, "complete")
    last = len(first["tokens"]) - 1
    assert 0 < last < 1500
    page.click("[name=ignore_eos]")  # settings of later requests are not those of the fork
    page.click("button", "Tokens")
    page.eval(
        "(async () => { while ([...document.querySelectorAll('.strip > button')].map((it) => it.click()).length)"
        " await new Promise(requestAnimationFrame); })()"
    )  # show all
    fork(page, last, steps=0)
    page.wait("document.querySelector('.numbers').innerText.includes('fork')")
    page.wait(f"document.querySelector('.answer .text').textContent.length > {len(first['text']) + 20}")
    page.press("Escape")
    page.wait("!document.querySelector('[aria-busy=true]')")
    first, second = stored(page, "complete")
    assert second["request"]["body"]["ignore_eos"]
    assert second["request"]["body"]["max_tokens"] == 1500 - last - 1
    assert ids(second)[: last + 1] == ids(first)
    assert len(ids(second)) > last + 1
    whole = {"prompt": first["promptIds"], "max_tokens": len(ids(second)), "ignore_eos": True, "seed": first["seed"]}
    asked = httpx.post(f"{url}/v1/completions", json={**whole, "return_token_ids": True}, timeout=120).json()
    assert ids(second) == asked["choices"][0]["token_ids"]


def test_a_text_of_ones_own_takes_a_tokens_place(page: Page, home: str, url: str) -> None:
    complete(page, home, "Once upon a time", seed="5", max_tokens="30")
    page.click(chip(4))
    page.fill("[name=typed]", " and a <b>river</b>")
    page.press("Enter")
    page.wait(FORKED)
    first, second = stored(page, "complete")
    typed = httpx.post(
        f"{url}/tokenize", json={"prompt": " and a <b>river</b>", "add_special_tokens": False}, timeout=120
    ).json()
    assert len(typed["tokens"]) > 2
    assert ids(second)[4 : 4 + typed["count"]] == typed["tokens"]
    *before, last = typed["tokens"]
    shared = {**first, "tokens": [*first["tokens"][:4], *({"id": token} for token in before)]}
    at = 4 + len(before)
    assert ids(second) == expected_fork(url, shared, at, last, {"max_tokens": 30 - at - 1})
    assert page.text(".answer .text").startswith(first["text"][:3])
    assert "and a <b>river</b>" in page.text(".answer .text")


def test_arrows_lead_along_the_tokens_and_between_branches(page: Page, home: str) -> None:
    complete(page, home, "Once upon a time", seed="5", max_tokens="20")
    fork(page, 5)
    page.wait(FORKED)
    place = "[document.activeElement.dataset.row, document.activeElement.dataset.index]"
    page.eval(f"document.querySelector({chip(5)!r}).focus()")
    page.click(chip(5))
    page.press("Escape")
    page.wait(f"{place}.join() === '0,5'")
    for key, reached in [
        ("ArrowDown", "1,5"),
        ("ArrowLeft", "0,4"),
        ("ArrowRight", "0,5"),
        ("ArrowDown", "1,5"),
        ("ArrowRight", "1,6"),
        ("ArrowUp", "0,6"),
        ("Home", "0,0"),
    ]:
        page.press(key)
        assert page.eval(f"{place}.join()") == reached, key


def test_branches_are_aligned(page: Page, home: str) -> None:
    complete(page, home, "Once upon a time", seed="5", max_tokens="30")
    fork(page, 5)
    page.wait(FORKED)
    lefts = page.eval(
        """[0, 1].map((row) => [...document.querySelectorAll(`.strip .chip[data-row="${row}"]`)]
             .filter(({dataset}) => dataset.index >= 5).map((each) => each.getBoundingClientRect().left))"""
    )
    length = min(map(len, lefts))
    assert length > 5
    assert lefts[0][:length] == lefts[1][:length]


@pytest.mark.exhaustive
def test_the_cached_part_of_the_prompt_is_marked(page: Page, home: str) -> None:
    prompt = "Question: What is the capital of Italy?\nAnswer:"
    complete(page, home, prompt, max_tokens="4")
    page.press("Control+Enter")
    page.click("[name=prompt]")
    page.press("Control+Enter")
    page.wait("document.querySelector('.numbers').innerText.includes('cached')")
    page.wait(ANSWERED)
    *_, answer = stored(page, "complete")
    page.click(".strip-head input[type=checkbox]")
    page.wait(f"document.querySelectorAll('.prompt-tokens .chip').length === {len(answer['promptIds'])}")
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    assert len(page.texts(".prompt-tokens .cached")) == cached


def test_an_answer_without_details_has_no_bars_and_says_why_it_cannot_fork(page: Page, home: str) -> None:
    page.goto(home + "#/complete")
    page.wait("!!document.querySelector('[name=details]')")
    page.click("[name=details]")
    page.fill("[name=extra]", '{"logprobs": 2}')
    page.fill("[name=prompt]", "Question: What is the capital of France?\nAnswer:")
    page.press("Control+Enter")
    page.wait(ANSWERED)
    page.click("button", "Tokens")
    page.click(chip(0))
    page.wait("document.querySelector('.popover')?.innerText.includes('without token ids')")
    assert page.texts(".popover .alternative.refused") == []
    assert page.eval("document.querySelectorAll('.strip .heat-1, .strip .heat-5').length") <= 2  # the legend's own


@pytest.mark.exhaustive
def test_tokens_that_were_guessed_are_marked(page: Page) -> None:
    with ramiform.Runtime(
        port=0, dtype="float32", num_pages=256, log_level="error", speculative="ngram", speculative_adaptive=False
    ) as started:
        text = "Question: What is the capital of France?\nAnswer: Paris\n" * 4
        complete(page, f"{started.url}/", text + "Question:", temperature="0", max_tokens="24")
        [answer] = stored(page, "complete")
        origins = [token["origin"] for token in answer["tokens"]]
        assert "accepted" in origins
        assert len(page.texts(".strip .chip.accepted .mark")) == origins.count("accepted")
        assert "a guess that was verified" in page.text(".legend")
