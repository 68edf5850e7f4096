"""Copied requests, run as they are, give the page's answer in each form.

They are greedy: what the cache gives and what is computed anew round differently, and a draw can fall between the two.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .browser import Page
from .test_chat import ANSWERED, ask, open_chat, posted

AWKWARD = 'What\'s the capital of "France"?\nSay it — $HOME, `x`, \\n, é, 😀, {{s}}.'


def copied(page: Page, label: str) -> str:
    """Click a button that copies, and return what it copied."""
    page.eval("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.click(".composer .copy button, .panel .copy button", label)
    return str(page.wait("window.copied"))


def run(form: str, text: str, folder: Path) -> str:
    """Run a copied request, and return the answer's text."""
    if form == "curl":
        done = subprocess.run(["bash", "-c", text.rstrip() + " -sS --noproxy '*'"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        events = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("data: {")]
        choices = [choice for event in events for choice in event["choices"]]
        return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)
    file = folder / "copied.py"
    file.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, "-P", str(file)], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["curl", "openai-python", "ramiform program"])
def test_a_copied_chat_gives_the_pages_answer(page: Page, home: str, tmp_path: Path, form: str) -> None:
    open_chat(page, home)
    posted(page)
    page.click("summary", "System prompt")
    page.fill("[name=system]", "You are a helpful assistant.")
    page.fill("[name=max_tokens]", "30")
    page.fill("[name=temperature]", "0")
    page.fill("[name=top_k]", "40")
    page.fill("[name=stop]", "XYZ")
    page.fill("[name=message]", AWKWARD)
    text = copied(page, form)
    page.click("button[type=submit]")
    page.wait(ANSWERED)
    [body] = page.eval("window.posted")
    if form == "curl":
        assert json.loads(text.split(" -d '")[1].rsplit("'", 1)[0].replace("'\\''", "'")) == body
    assert run(form, text, tmp_path) == page.eval("document.querySelector('.message.assistant .text').textContent")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["curl", "openai-python", "ramiform program"])
def test_a_copied_completion_gives_the_pages_answer(page: Page, home: str, tmp_path: Path, form: str) -> None:
    page.goto(home + "#/complete")
    page.fill("[name=prompt]", "Question: What is the capital of France?\nAnswer:")
    page.fill("[name=temperature]", "0")
    page.fill("[name=repetition_penalty]", "1.1")
    text = copied(page, form)
    page.click("button.primary")
    page.wait(ANSWERED)
    assert run(form, text, tmp_path) == page.eval("document.querySelector('.answer .text').textContent")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("form", "kind"),
    [  # a program has words of its own for each kind; the others write the body as it is
        *(("ramiform program", kind) for kind in ("JSON Schema", "Regex", "Grammar", "Choices")),
        *(("curl", kind) for kind in ("JSON Schema", "Grammar")),
        *(("openai-python", kind) for kind in ("Regex", "Choices")),
    ],
)
def test_a_copied_constraint_gives_the_pages_answer(
    page: Page, home: str, tmp_path: Path, form: str, kind: str
) -> None:
    page.goto(home + "#/structured")
    page.click(".segmented button", kind)
    page.fill("[name=max_tokens]", "48")
    page.fill("[name=temperature]", "0")
    text = copied(page, form)
    page.click("button.primary")
    page.wait(ANSWERED)
    if page.eval("!!document.querySelector('.answer .json')"):
        page.click(".answer button", "Text")
    assert run(form, text, tmp_path) == page.wait("document.querySelector('.answer .text').textContent")


def test_what_a_program_cannot_express_is_named(page: Page, home: str) -> None:
    open_chat(page, home)
    page.click("summary", "Tools")
    page.click("button", "Example")
    page.fill("[name=message]", "What is the weather in Paris?")
    assert "# Not part of the program: tools" in copied(page, "ramiform program")


def test_a_key_is_not_copied(page: Page, home: str) -> None:
    open_chat(page, home)
    page.eval("sessionStorage.setItem('ramiform.key', 'sesame')")
    page.fill("[name=message]", "Hello!")
    for form in ("curl", "openai-python", "ramiform program"):
        page.eval("window.copied = ''")
        text = copied(page, form)
        assert "sesame" not in text
        assert "API_KEY" in text


def test_an_answer_can_be_copied_as_the_request_that_it_answers(page: Page, home: str, tmp_path: Path) -> None:
    open_chat(page, home)
    page.fill("[name=max_tokens]", "12")
    ask(page, "Hello!")
    page.wait(ANSWERED)
    page.click("button", "Tokens")
    page.eval("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.click(".answer .copy button", "curl")
    text = page.wait("window.copied")
    assert run("curl", text, tmp_path) == page.text(".message.assistant .text")
