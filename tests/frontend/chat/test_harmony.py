"""Answers in harmony: however their text is cut, free and constrained."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.frontend.chat.harmony import HarmonyParser, Place
from ramiform.runtime.frontend.chat.reasoning import REASONING_FORMATS, detect_reasoning_markers
from ramiform.runtime.frontend.chat.template_messages import for_harmony
from ramiform.runtime.frontend.chat.tools.detect import detect_tool_format
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.tokenizer import Tokenizer, load_tokenizer
from ramiform.runtime.tokenizer.chat_template import ChatTemplate
from ramiform.tests.frontend.harness import house, run

from .test_completion import CHAT, FORMAT, both, tool
from .test_tools import NAMES, Written, cut, dump, written_calls

MARKERS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"]
# In the manner of gpt-oss's: calls and their results as messages, reasoning only before a call without a later answer.
TEMPLATE = """{% set ns = namespace(name=none) %}{% if tools %}<|start|>developer<|message|>{% for t in tools %}
{{ '// ' + t.function.description }} type {{ t.function.name }}{% endfor %}<|end|>{% endif %}{% for m in messages %}
{%- if m.role == 'tool' %}{{ raise_exception('no call') if ns.name is none }}
{{- '<|start|>functions.' + ns.name + ' to=assistant<|channel|>commentary<|message|>' + m.content + '<|end|>' }}
{%- elif m.role == 'assistant' and m.tool_calls is defined %}
{{- raise_exception('both') if m.content and m.thinking }}
{%- if m.content or m.thinking %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + (m.content or m.thinking) + '<|end|>' }}{% endif %}
{%- set f = m.tool_calls[0].function %}{% set ns.name = f.name %}
{{- '<|start|>assistant to=functions.' + f.name + '<|channel|>commentary json<|message|>' }}
{{- f.arguments | tojson }}<|call|>
{%- elif m.role == 'assistant' %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + ('<|return|>' if loop.last else '<|end|>') }}
{%- else %}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""


def parse(
    pieces: list[str], place: Place = "start", *, keeps_reasoning: bool = False
) -> tuple[str, str, list[tuple[str, Any]]]:
    parser = HarmonyParser(NAMES, place=place, keeps_reasoning=keeps_reasoning)
    parts = [*(parser.feed(piece) for piece in pieces), parser.finish()]
    calls = [(call.name, json.loads(call.arguments)) for part in parts for call in part.calls]
    return "".join(part.content for part in parts), "".join(part.reasoning for part in parts), calls


def write_call(name: str, arguments: dict[str, Any], *, in_role: bool) -> str:
    """A call in each of the two layouts: the recipient beside the channel, as models write, or beside the role."""
    if in_role:
        return f" to=functions.{name}<|channel|>commentary json<|message|>{dump(arguments)}<|call|>"
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dump(arguments)}<|call|>"


plain = st.text("ab <|>.\n", max_size=20).filter(lambda text: not any(marker in text for marker in MARKERS))


@pytest.mark.slow
@given(
    plain.filter(bool),
    plain.filter(bool),
    plain.filter(bool),
    written_calls,
    st.booleans(),
    st.lists(st.integers(0, 999), max_size=8),
)
def test_messages_are_told_apart_by_their_channels_however_they_are_cut(
    thought: str, preamble: str, answer: str, calls: Written, in_role: bool, places: list[int]
) -> None:
    messages = [f"<|channel|>analysis<|message|>{thought}<|end|>", f"<|channel|>commentary<|message|>{preamble}<|end|>"]
    messages += [write_call(name, arguments, in_role=in_role) for name, arguments in calls]
    messages.append(f"<|channel|>final<|message|>{answer}<|return|>")
    text = "<|start|>assistant".join(messages)
    assert parse(cut(text, places)) == (f"{preamble}\n\n{answer}", thought, calls)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|channel|>final<|message|>Paris.", ("Paris.", "")),
        ("<|channel|>analysis<|message|>Hm", ("", "Hm")),
        ("<|channel|>analysis<|message|>Hm<|channel|>final<|message|>Paris.", ("Paris.", "Hm")),
        ("<|channel|>analysis<|message|>Hm<|start|>assistant<|channel|>final<|message|>Paris.", ("Paris.", "Hm")),
        ("<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B", ("", "A\n\nB")),
        ("<|channel|>analysis to=python<|message|>1+1<|call|>", ("", "1+1")),
        ("Paris.", ("Paris.", "")),
        ("to be", ("to be", "")),
        ("<|channel|>fin", ("", "")),
        ("", ("", "")),
    ],
)
@given(places=st.lists(st.integers(0, 99), max_size=6))
def test_answers_that_end_early_or_leave_the_format_are_read_too(
    text: str, expected: tuple[str, str], places: list[int]
) -> None:
    assert parse(cut(text, places)) == (*expected, [])


def test_an_answer_may_begin_within_a_message() -> None:
    assert parse(["Hm<|end|><|start|>assistant<|channel|>final<|message|>Paris."], "analysis") == ("Paris.", "Hm", [])
    assert parse(["is.<|return|>"], "final") == ("is.", "", [])


@pytest.mark.parametrize(
    "text",
    [
        "<|channel|>commentary to=functions.nobody<|message|>{}<|call|>",
        "<|channel|>commentary to=functions.add <|constrain|>json<|message|>[1]<|call|>",
        '<|channel|>commentary to=functions.add<|message|>{"a": <|call|>',
    ],
)
@given(places=st.lists(st.integers(0, 99), max_size=6))
def test_a_call_that_is_malformed_is_text(text: str, places: list[int]) -> None:
    assert parse(cut(text, places)) == (text, "", [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [  # a marker in a text of the arguments, unless they cannot be read so
        ('<|channel|>commentary to=functions.add<|message|>{"s": "a<|end|>b"}<|call|>', ("", {"s": "a<|end|>b"})),
        ('<|channel|>commentary to=functions.add<|message|>{"s": "a<|end|>b"}', ("", {"s": "a<|end|>b"})),
        (
            '<|channel|>commentary to=functions.add<|message|>{"s": "a<|end|><|start|>assistant<|channel|>final'
            '<|message|>He said "no".<|return|>',
            ('<|channel|>commentary to=functions.add<|message|>{"s": "a<|end|>He said "no".', None),
        ),
        ('commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>', ("", {"a": 1})),
        ("commentary to=functions.", ("", None)),
        ("commentary is free", ("commentary is free", None)),
        ('<|channel|>commentary<|channel|>commentary to=functions.addjson<|message|>{"a": 1}', ("", {"a": 1})),
    ],
)
@given(places=st.lists(st.integers(0, 199), max_size=6))
def test_calls_are_read_with_the_habits_of_models(text: str, expected: tuple[str, Any], places: list[int]) -> None:
    said, arguments = expected
    assert parse(cut(text, places)) == (said, "", [] if arguments is None else [("add", arguments)])


@pytest.mark.parametrize("keeps_reasoning", [True, False])
def test_a_bare_call_in_the_final_message_is_one(keeps_reasoning: bool) -> None:
    thought = "<|channel|>analysis<|message|>Hm<|end|>"
    message = "<|start|>assistant<|channel|>{}<|message|>{}<|end|>"
    call = '{"name": "add", "arguments": {"a": 1}}'
    preamble, final = message.format("commentary", "I add."), message.format("final", call)
    kept = thought if keeps_reasoning else ""

    def read(text: str) -> tuple[str, list[str]]:
        results = []
        for pieces in ([text], list(text)):
            parser = HarmonyParser(NAMES, keeps_reasoning=keeps_reasoning, reads_bare=True)
            parts = [*(parser.feed(piece) for piece in pieces), parser.finish()]
            calls = [call.arguments for part in parts for call in part.calls]
            results.append(("".join(part.content for part in parts), calls))
        assert results[0] == results[1]
        return results[0]

    assert read(thought + final) == (kept, ['{"a": 1}'])
    assert read(thought + preamble + final) == (f"{kept}I add.", ['{"a": 1}'])
    assert read(call) == ("", ['{"a": 1}'])
    assert read(thought + final + message.format("final", "So.")) == (f"{kept}{call}\n\nSo.", [])
    assert read(final + message.format("analysis", "Hm"))[0] == (f"{call}{thought}" if keeps_reasoning else "")
    marked = write_call("add", {"b": 2}, in_role=False)
    assert read(f"{thought}{final}<|start|>assistant{marked}") == (f"{kept}{call}", ['{"b": 2}'])


def test_reasoning_that_is_kept_has_its_markers() -> None:
    text = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Paris.<|return|>"
    assert parse([text], keeps_reasoning=True) == ("<|channel|>analysis<|message|>Hm<|end|>Paris.", "", [])


# The whole way, with the markers as special tokens


@cache
def special_tokenizer() -> Tokenizer:
    """The shipped tokenizer with harmony's tokens and a template in its manner. `<|end|>` ends no output."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vocabulary = json.loads((SHIPPED_MODEL / "tokenizer.json").read_text())
        ids = [each["id"] for each in vocabulary["added_tokens"]] + list(vocabulary["model"]["vocab"].values())
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        vocabulary["added_tokens"] += [
            {"id": max(ids) + 1 + number, "content": marker, "special": True, **flags}
            for number, marker in enumerate(MARKERS)
        ]
        (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
        (folder / "tokenizer_config.json").write_text('{"eos_token": "<|eos|>", "bos_token": "<|bos|>"}')
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        return load_tokenizer(folder)


def test_the_format_is_read_off_the_template_and_the_tokens() -> None:
    class Told:
        special_ids: dict[str, int] = {"<|end|>": 1}  # noqa: RUF012  Phi's too
        token_bytes: list[bytes] = []  # noqa: RUF012
        chat = ChatTemplate(TEMPLATE, {})

    assert detect_tool_format(Told()).name == "harmony"  # type: ignore[arg-type]
    assert detect_reasoning_markers(Told()) is None  # type: ignore[arg-type]
    assert detect_reasoning_markers(special_tokenizer()) == REASONING_FORMATS["harmony"]


def serving(
    say: Callable[[str, Generate], str],
    check: Callable[[Any, httpx.AsyncClient], Any],
    **settings: Any,
) -> None:
    tokenizer = special_tokenizer()

    def script(request: Generate) -> list[int]:
        prompt = tokenizer.decode(request.tokens, skip_special_tokens=False)
        return tokenizer.encode(say(prompt, request), parse_special=request.sampling.constraint is None, continues=True)

    async def main() -> None:
        async with (
            house(script, http=True, tokenizer=tokenizer, **settings) as built,
            httpx.AsyncClient(base_url=built.url, timeout=120) as client,
        ):
            await check(built, client)

    run(main())


FREE = (
    "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.a <|constrain|>json<|message|>{"x": 5}<|call|> and so on'
)


@pytest.mark.slow
def test_a_free_answer_is_read_and_ends_at_its_call() -> None:
    async def check(built: Any, client: httpx.AsyncClient) -> None:
        whole, usage = await both(client, {"tools": [tool("a"), tool("b")]})
        assert (whole["content"], whole["reasoning"]) == ("I look.", "Let me see.")
        assert (whole["tool_calls"], whole["finish_reason"]) == ([["a", '{"x": 5}']], "tool_calls")
        assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
        assert len(built.core.requests) == 2  # one for each way of asking
        kept, _ = await both(client, {"separate_reasoning": False, "tools": [tool("a")]})
        assert kept["content"] == "<|channel|>analysis<|message|>Let me see.<|end|>I look."

    serving(lambda prompt, _: FREE, check)


@pytest.mark.slow
def test_a_grammar_holds_the_final_message_only() -> None:
    def say(prompt: str, request: Generate) -> str:
        constraint = request.sampling.constraint
        if constraint is None:
            assert prompt.endswith("<|start|>assistant<|channel|>analysis<|message|>")
            return "Let me see.<|end|> forty-two"
        if constraint.kind == "choices":
            assert prompt.endswith("<|start|>assistant<|channel|>")
            assert json.loads(constraint.source) == ["analysis", "final"]
            return "final" if "Let me see." in prompt else "analysis"
        assert prompt.endswith(
            "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|message|>"
        )
        return "42"

    async def check(built: Any, client: httpx.AsyncClient) -> None:
        whole, usage = await both(client, {"response_format": FORMAT})
        assert (whole["content"], whole["reasoning"], whole["finish_reason"]) == ("42", "Let me see.", "stop")
        assert usage["completion_tokens_details"]["reasoning_tokens"] > 0

    serving(say, check)


@pytest.mark.slow
@pytest.mark.parametrize("tools", [[tool("b")], [tool("a"), tool("b")], [tool("b"), tool("bb")]])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "b"}}], ids=["required", "named"]
)
def test_a_forced_call_is_written_in_the_format(tools: list[dict[str, Any]], choice: Any) -> None:
    def say(prompt: str, request: Generate) -> str:
        constraint = request.sampling.constraint
        if constraint is None:
            return "I must call.<|end|>"
        if constraint.kind == "choices":
            choices = json.loads(constraint.source)
            assert "final" not in choices
            if "analysis" in choices:
                return "commentary to=functions." if "I must call." in prompt else "analysis"
            return "b "
        return '{"x": 7}'

    async def check(built: Any, client: httpx.AsyncClient) -> None:
        whole, _ = await both(client, {"tools": tools, "tool_choice": choice})
        assert (whole["tool_calls"], whole["reasoning"]) == ([["b", '{"x": 7}']], "I must call.")
        assert (whole["content"], whole["finish_reason"]) == ("", "tool_calls")
        prompt = special_tokenizer().decode(built.core.requests[-1].tokens, skip_special_tokens=False)
        assert prompt.endswith(
            "I must call.<|end|><|start|>assistant<|channel|>commentary to=functions.b <|constrain|>json<|message|>"
        )

    serving(say, check)


@pytest.mark.slow
@pytest.mark.parametrize("calls", [True, False])
def test_strict_tools_leave_the_choice_to_the_model(calls: bool) -> None:
    def say(prompt: str, request: Generate) -> str:
        constraint = request.sampling.constraint
        if constraint is None:
            return "Hm.<|end|>" if prompt.endswith("analysis<|message|>") else "Paris.<|return|> more"
        if constraint.kind == "choices":
            assert json.loads(constraint.source) == ["analysis", "final", "commentary to=functions."]
            return "analysis" if "Hm." not in prompt else "commentary to=functions." if calls else "final"
        return '{"x": 7}'

    async def check(built: Any, client: httpx.AsyncClient) -> None:
        whole, _ = await both(client, {"tools": [tool("a", strict=True)]})
        assert whole["reasoning"] == "Hm."
        assert (whole["content"], whole["tool_calls"]) == (("", [["a", '{"x": 7}']]) if calls else ("Paris.", []))

    serving(say, check)


@pytest.mark.slow
def test_thinking_beyond_its_budget_is_closed() -> None:
    def say(prompt: str, request: Generate) -> str:
        constraint = request.sampling.constraint
        if constraint is not None and constraint.kind == "choices":
            return "analysis"
        return "and so on " * 50 if prompt.endswith("analysis<|message|>") else "42<|return|>"

    async def check(built: Any, client: httpx.AsyncClient) -> None:
        whole, usage = await both(client, {"thinking_token_budget": 5})
        assert (whole["content"], whole["finish_reason"]) == ("42", "stop")
        assert whole["reasoning"].startswith("and so")
        without, _ = await both(client, {"thinking_token_budget": 0})
        assert (without["content"], without["reasoning"]) == ("42", "")
        cut_off, usage = await both(client, {"thinking_token_budget": 500, "max_tokens": 8})
        assert (cut_off["content"], cut_off["finish_reason"], usage["completion_tokens"]) == ("", "length", 8)

    serving(say, check)


@pytest.mark.slow
def test_a_final_message_is_continued() -> None:
    async def check(built: Any, client: httpx.AsyncClient) -> None:
        messages = [*CHAT["messages"], {"role": "assistant", "content": "The capital"}]
        more = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
        whole, _ = await both(client, more)
        assert (whole["content"], whole["reasoning"]) == (" is Paris.", "")
        prompt = special_tokenizer().decode(built.core.requests[0].tokens, skip_special_tokens=False)
        assert prompt.endswith("<|channel|>final<|message|>The capital")

    serving(lambda prompt, _: " is Paris.<|return|>", check)


@pytest.mark.slow
def test_a_forced_call_follows_a_message_that_was_begun() -> None:
    def say(prompt: str, request: Generate) -> str:
        constraint = request.sampling.constraint
        assert constraint is not None
        return "commentary to=functions." if constraint.kind == "choices" else '{"x": 7}'

    async def check(built: Any, client: httpx.AsyncClient) -> None:
        messages = [*CHAT["messages"], {"role": "assistant", "content": "I look"}]
        more = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
        whole, _ = await both(client, more | {"tools": [tool("a")], "tool_choice": "required"})
        assert whole["tool_calls"] == [["a", '{"x": 7}']]
        prompt = special_tokenizer().decode(built.core.requests[-1].tokens, skip_special_tokens=False)
        assert (
            "<|channel|>final<|message|>I look<|end|><|start|>assistant<|channel|>commentary to=functions.a" in prompt
        )

    serving(say, check)


def test_the_history_reaches_the_template_as_it_asks() -> None:
    def call(number: int) -> dict[str, Any]:
        return {"id": f"c{number}", "function": {"name": f"f{number}", "arguments": {"x": number}}}

    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [call(1), call(2)]},
        {"role": "tool", "content": "two", "tool_call_id": "c2"},
        {"role": "tool", "content": "one", "tool_call_id": "c1"},
        {"role": "assistant", "content": "", "tool_calls": [call(1)]},
        {"role": "tool", "content": "again", "tool_call_id": "c1"},
        {"role": "assistant", "content": "Done.", "reasoning_content": "So."},
    ]
    text = ChatTemplate(TEMPLATE, {}).render(for_harmony(history), add_generation_prompt=True)
    assert text == (
        "<|start|>user<|message|>a<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Hm.\n\nI look.<|end|>"
        '<|start|>assistant to=functions.f1<|channel|>commentary json<|message|>{"x": 1}<|call|>'
        "<|start|>functions.f1 to=assistant<|channel|>commentary<|message|>one<|end|>"
        '<|start|>assistant to=functions.f2<|channel|>commentary json<|message|>{"x": 2}<|call|>'
        "<|start|>functions.f2 to=assistant<|channel|>commentary<|message|>two<|end|>"
        '<|start|>assistant to=functions.f1<|channel|>commentary json<|message|>{"x": 1}<|call|>'
        "<|start|>functions.f1 to=assistant<|channel|>commentary<|message|>again<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Done.<|return|>"
        "<|start|>assistant"
    )
