"""Images in the page: chosen, dropped and pasted in the chat, in the token strip, in forks, copies and records."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import ramiform as rf
from ramiform.lang.tracing.page import trace_page
from ramiform.lang.tracing.trace import load_views
from ramiform.tests.pictures.checkpoint import picture
from ramiform.tests.pictures.served import make_chat_checkpoint, png, serve, url_of

from .browser import Page
from .test_chat import ANSWERED, ask, open_chat, posted
from .test_programs import CANVAS, open_program
from .test_snippets import copied
from .test_strip import FORKED, fork, ids, stored

A, B = picture(1), picture(2, 70, 30)
LARGE = picture(3, 120, 100)
NUM_NEW = 8


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rf.Runtime]:
    with serve(make_chat_checkpoint(tmp_path_factory.mktemp("checkpoint")), max_image_bytes=50_000) as runtime:
        yield runtime


@pytest.fixture
def chat(page: Page, reader: rf.Runtime) -> Page:
    open_chat(page, f"{reader.url}/")
    posted(page)
    page.fill("[name=temperature]", "0")
    page.fill("[name=max_tokens]", str(NUM_NEW))
    page.click("[name=ignore_eos]")
    return page


def choose(page: Page, *files: Path) -> None:
    """Choose files, as in the browser's dialog."""
    found = page.call("Runtime.evaluate", expression="document.querySelector('[name=image]')")
    page.call("DOM.setFileInputFiles", files=[str(file) for file in files], objectId=found["result"]["objectId"])


def bring(page: Page, event: str, data: bytes, name: str, kind: str = "image/png") -> None:
    """Drop or paste a file on the message."""
    page.eval(
        f"""(() => {{
          const bytes = Uint8Array.from(atob({base64.b64encode(data).decode()!r}), (char) => char.charCodeAt(0));
          const transfer = new DataTransfer();
          transfer.items.add(new File([bytes], {name!r}, {{type: {kind!r}}}));
          const options = {{bubbles: true, cancelable: true, dataTransfer: transfer, clipboardData: transfer}};
          const Kind = {{drop: DragEvent, paste: ClipboardEvent}}[{event!r}];
          document.querySelector('[name=message]').dispatchEvent(new Kind({event!r}, options));
        }})()"""
    )


def shown(selector: str, num: int) -> str:
    images = f"[...document.querySelectorAll({f'{selector} .kept-image img'!r})]"
    return f"{images}.length === {num} && {images}.every((each) => each.complete && each.naturalWidth > 0)"


def test_a_chosen_image_is_asked_about_shown_as_one_block_and_forked(
    chat: Page, reader: rf.Runtime, tmp_path: Path
) -> None:
    (file := tmp_path / "a.png").write_bytes(png(A))
    choose(chat, file)
    chat.wait(shown(".composer", 1))
    ask(chat, "What is it?")
    chat.wait(ANSWERED)
    chat.wait(shown(".message.user", 1))
    assert chat.eval("document.querySelectorAll('.composer .kept-image').length") == 0
    [body] = chat.eval("window.posted")
    parts = [{"type": "image_url", "image_url": {"url": url_of(A)}}, {"type": "text", "text": "What is it?"}]
    assert body["messages"] == [{"role": "user", "content": parts}]
    whole = body | {"stream": False, "stream_options": None}
    told = httpx.post(f"{reader.url}/v1/chat/completions", json=whole, timeout=120).json()
    chat.click("button", "Tokens")
    [answer] = stored(chat, "chat")
    assert ids(answer) == told["choices"][0]["token_ids"]
    [[first, end]] = told["prompt_image_places"]
    prompt = told["prompt_token_ids"]
    chat.click(".strip-head [type=checkbox]")
    chat.wait("!!document.querySelector('.prompt-tokens .chip')")
    assert chat.texts(".prompt-tokens .chip.image") == [f"image 1: {end - first} tokens"]
    assert len(chat.texts(".prompt-tokens .chip")) == len(prompt) - (end - first) + 1
    fork(chat, 3)
    chat.wait(FORKED)
    first_answer, second = stored(chat, "chat")
    before = [*ids(first_answer)[:3], second["tokens"][3]["id"]]
    asked = {
        "prompt": [*prompt, *before],
        "continued_tokens": len(before),
        "image_data": [url_of(A)],
        "max_tokens": NUM_NEW - len(before),
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    [choice] = httpx.post(f"{reader.url}/v1/completions", json=asked, timeout=120).json()["choices"]
    assert choice["prompt_image_places"] == [[first, end]]
    assert ids(second) == before + choice["token_ids"]
    other = httpx.post(f"{reader.url}/v1/completions", json=asked | {"image_data": [url_of(picture(9))]}, timeout=120)
    assert other.json()["choices"][0]["token_ids"] != choice["token_ids"]


def test_dropped_and_pasted_images_are_added_and_removed_and_others_refused(chat: Page) -> None:
    bring(chat, "drop", png(A), "first.png")
    chat.wait(shown(".composer", 1))
    bring(chat, "paste", png(B), "second.png")
    chat.wait(shown(".composer", 2))
    bring(chat, "paste", b"text", "note.txt", "text/plain")
    chat.wait("document.querySelector('.note.bad')?.innerText.includes('note.txt is no PNG, JPEG, WebP or GIF')")
    bring(chat, "drop", bytes(50_001), "huge.png")
    chat.wait("document.querySelector('.note.bad')?.innerText.includes('huge.png')")
    assert "--max-image-bytes" in chat.text(".note.bad")
    chat.click("[aria-label='Remove first.png']")
    chat.wait(shown(".composer", 1))
    chat.click("button[type=submit]")  # an image alone is a message
    chat.wait(ANSWERED)
    [body] = chat.eval("window.posted")
    assert body["messages"][0]["content"] == [{"type": "image_url", "image_url": {"url": url_of(B)}}]


@pytest.mark.slow
def test_a_reload_keeps_images_and_those_that_it_lost_are_named(chat: Page, reader: rf.Runtime) -> None:
    bring(chat, "drop", png(A), "first.png")
    chat.wait(shown(".composer", 1))
    ask(chat, "What is it?")
    chat.wait(ANSWERED)
    chat.goto("about:blank")
    open_chat(chat, f"{reader.url}/")
    chat.wait(shown(".message.user", 1))
    chat.eval(
        "Object.keys(sessionStorage).filter((key) => key.startsWith('ramiform.image.'))"
        ".forEach((key) => sessionStorage.removeItem(key))"
    )
    chat.goto("about:blank")
    open_chat(chat, f"{reader.url}/")
    chat.wait("document.querySelector('.kept-image')?.innerText.includes('first.png')")
    assert "# Left out, as a reload of the page has lost it: first.png" in copied(chat, "curl")
    chat.click("button", "Regenerate")
    chat.wait("document.querySelector('.note.bad')?.innerText.includes('lost first.png: add it again')")


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["curl", "openai-python", "ramiform program"])
def test_a_copied_chat_with_an_image_gives_the_pages_answer(chat: Page, tmp_path: Path, form: str) -> None:
    bring(chat, "drop", png(LARGE), "large.png")
    chat.wait(shown(".composer", 1))
    chat.fill("[name=message]", "What's $it?")
    text = copied(chat, form)
    chat.click("button[type=submit]")
    chat.wait(ANSWERED)
    answer = chat.eval("document.querySelector('.message.assistant .text').textContent")
    (file := tmp_path / "copied").write_text(text, encoding="utf-8")
    command = ["bash", str(file)] if form == "curl" else [sys.executable, "-P", str(file)]
    environment = os.environ | {"no_proxy": "*"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    if form != "curl":
        assert done.stdout.removesuffix("\n") == answer
        return
    events: list[dict[str, Any]] = [json.loads(line[5:]) for line in done.stdout.splitlines() if line[:7] == "data: {"]
    choices = [choice for event in events for choice in event["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == answer


def test_a_model_of_texts_has_no_picker(page: Page, home: str) -> None:
    open_chat(page, home)
    assert page.eval("!document.querySelector('[name=image]')")
    bring(page, "paste", png(A), "first.png")
    page.frames()
    assert page.eval("!document.querySelector('.kept-image')")
    assert page.text(".note.bad") == ""


@rf.function
def look(s: rf.ProgramState) -> None:
    s += rf.image(A) + "What is it?" + rf.gen("answer", max_tokens=2)


def test_records_and_saved_traces_show_an_image(page: Page, reader: rf.Runtime, tmp_path: Path) -> None:
    state = look.run(backend=reader, trace=True)
    [named] = {event.image.digest for event in state.trace.events if event.image is not None}
    newest = httpx.get(f"{reader.url}/v1/ramiform/programs").json()["programs"][0]["id"]
    open_program(page, f"{reader.url}/", newest)
    assert named in shown_image(page)
    assert page.eval("!document.querySelector('.shown-image img')")  # the server keeps no file
    state.trace.save(tmp_path / "trace.json")
    (tmp_path / "trace.html").write_text(trace_page(load_views(tmp_path / "trace.json")), encoding="utf-8")
    page.goto((tmp_path / "trace.html").as_uri())
    page.wait(f"!!document.querySelector({CANVAS!r})")
    assert named in shown_image(page)
    page.wait("document.querySelector('.shown-image img').naturalWidth === 60")


def shown_image(page: Page) -> str:
    """Move along the timeline until an image is shown, and return what stands below it."""
    page.eval(f"document.querySelector({CANVAS!r}).focus()")
    for _ in range(20):
        page.press("ArrowRight")
        page.frames()
        if found := page.text(".shown-image"):
            return found
    raise AssertionError(f"no image is shown: {page.text()}")
