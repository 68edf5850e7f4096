"""Chat templates that requests bring: rendered as the model's own, and bounded whatever they do."""

from __future__ import annotations

import asyncio
import os
import resource
from typing import Any

import httpx
import pytest
from _pytest.mark import ParameterSet

from ramiform.runtime.frontend.chat.request_templates import MAX_TEMPLATE_CHARACTERS, RequestTemplates
from ramiform.runtime.processes.bounded_sleep import poll_until
from ramiform.runtime.protocol.errors import BusyError, RequestError
from ramiform.runtime.tokenizer.chat_template import ChatTemplate
from ramiform.tests.frontend.harness import House, house, run, shipped_tokenizer

from .test_completion import CHAT

SIMPLE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{{ bos_token }}{{ more }}"
ARGUMENTS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hé <b>"}, {"role": "assistant", "content": None}],
    "tools": None,
    "add_generation_prompt": True,
    "more": {"x": [1, 2.5, None]},
}


def render(source: str) -> str:
    async def main() -> str:
        templates = RequestTemplates()
        return await templates.render(source, {"bos_token": "<s>"}, ARGUMENTS)

    return asyncio.run(main())


@pytest.mark.slow
def test_a_template_renders_as_in_process() -> None:
    assert render(SIMPLE) == ChatTemplate(SIMPLE, {"bos_token": "<s>"}).render(**ARGUMENTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "param", "text"),
    [
        ("{% for m in %}", "chat_template", "cannot be read"),
        ("{{ raise_exception('no users') }}", "messages", "no users"),
        ("{{ messages[0].content.no.such }}", "messages", "cannot|refuses"),
        ("{{ ''.__class__.__mro__ }}", "messages", "unsafe"),
        ("x" * (MAX_TEMPLATE_CHARACTERS + 1), "chat_template", "most"),
        ("(" * 100_000, None, None),
        ("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}", "chat_template", "limit|read"),
    ],
    ids=["syntax", "raises", "undefined", "sandbox", "long", "text", "deep"],
)
def test_what_a_template_refuses_is_the_clients_mistake(source: str, param: str | None, text: str | None) -> None:
    if param is None:
        assert render(source) == source
        return
    with pytest.raises(RequestError, match=text) as raised:
        render(source)
    assert raised.value.param == param


def also(source: str) -> ParameterSet:
    """A template that reaches a limit which another one reaches too."""
    return pytest.param(source, marks=pytest.mark.exhaustive)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}and so on{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='x' * 99) %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ 'x'.ljust(9999999999) }}",
        "{{ 9 ** (9 ** 9) }}",
        also("{{ range(99999) | map('string') | list | join('x' * 99999) | length }}"),
        also("{% macro m(n) %}{{ m(n - 1) ~ m(n - 1) if n }}{% endmacro %}{{ m(60) }}"),
    ],
)
def test_no_template_takes_more_than_its_share(source: str) -> None:
    """And the next one renders."""

    async def main() -> None:
        templates = RequestTemplates()
        with pytest.raises(RequestError) as raised:
            await templates.render(source, {}, ARGUMENTS)
        assert raised.value.param in ("chat_template", "messages")
        assert await templates.render("{{ messages | length }}", {}, ARGUMENTS) == "2"

    asyncio.run(main())


@pytest.mark.slow
def test_processes_are_used_again_and_end_with_their_owner() -> None:
    async def main() -> int:
        templates = RequestTemplates()
        for _ in range(3):
            await templates.render("x", {}, ARGUMENTS)
        [process] = templates._pool._idle
        assert process.num_answers == 3
        return process._child.pid

    pid = asyncio.run(main())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_a_process_that_was_killed_is_replaced() -> None:
    """As a system without memory kills: it is not the template's fault."""

    async def main() -> None:
        templates = RequestTemplates()
        for kill in (lambda child: child.kill(), lambda child: (child.kill(), child.wait())):
            assert await templates.render("{{ messages | length }}", {}, ARGUMENTS) == "2"
            kill(templates._pool._idle[0]._child)
        assert await poll_until(lambda: not templates._pool._idle, 60)  # reaped, also while nobody asks
        assert await templates.render("{{ messages | length }}", {}, ARGUMENTS) == "2"

    asyncio.run(main())


@pytest.mark.slow
def test_a_process_answers_with_high_descriptors_as_where_many_connections_are_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    opened: list[int] = []
    try:
        while not opened or opened[-1] < 1024:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        assert render("x") == "x"
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_that_cannot_start_is_no_fault_of_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("subprocess.Popen", fail)
    with pytest.raises(BusyError, match="Too many open files"):
        render("x")


def decoded(built: House, number: int) -> str:
    return shipped_tokenizer().decode(built.core.requests[number].tokens, skip_special_tokens=False)


@pytest.mark.slow
def test_a_request_brings_its_template_where_the_server_allows_it() -> None:
    async def check() -> None:
        async with (
            house(http=True, trust_request_chat_template=True) as built,
            httpx.AsyncClient(base_url=built.url, timeout=60) as client,
        ):
            messages = [{"role": "user", "content": "Hello <|end|>"}]
            body = CHAT | {"messages": messages, "chat_template": SIMPLE, "chat_template_kwargs": {"more": "<|end|>"}}
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.json()["choices"][0]["message"]["content"] == " fine."
            assert decoded(built, 0) == "<|bos|>[user] Hello <|end|>\n<|bos|><|end|>"
            # The client's text is no special token; what the template writes is.
            end = shipped_tokenizer().special_ids["<|end|>"]
            assert built.core.requests[0].tokens.count(end) == 1
            tokens = await client.post("/tokenize", json={k: v for k, v in body.items() if k != "model"})
            assert tokens.json()["tokens"] == built.core.requests[0].tokens
            wrong = await client.post("/v1/chat/completions", json=body | {"chat_template": "{% if %}"})
            assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "chat_template")

    run(check())


@pytest.mark.slow
def test_a_server_that_does_not_allow_it_says_by_which_flag() -> None:
    async def check() -> None:
        async with house(http=True) as built, httpx.AsyncClient(base_url=built.url, timeout=60) as client:
            answer = await client.post("/v1/chat/completions", json=CHAT | {"chat_template": SIMPLE})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "chat_template")
            assert "--trust-request-chat-template" in error["message"]

    run(check())
