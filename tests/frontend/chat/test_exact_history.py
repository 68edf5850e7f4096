"""Histories that are encoded with the ids that were generated, against the plain encoding of the same text."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.runtime.frontend.chat.exact_history import EncodedPrompt, ExactHistory, TokenTextIndex
from ramiform.runtime.frontend.chat.history_tree import HistoryTree
from ramiform.runtime.frontend.chat.renderer import MessageRenderer
from ramiform.runtime.frontend.core.tenant import Tenant, current_tenant
from ramiform.runtime.frontend.text.encoding import Encoder
from ramiform.runtime.protocol.core import ClientSession, EndStates
from ramiform.tests.frontend.harness import run, shipped_tokenizer
from ramiform.tests.frontend.served import served

TOKENIZER = shipped_tokenizer()
RENDERER = MessageRenderer(TOKENIZER)
ENCODER = Encoder(TOKENIZER)
SPECIAL = frozenset(TOKENIZER.special_ids.values())
PIECES = [
    "cat",
    " sits",
    " on",
    " a",
    " mat",
    ".",
    "\n",
    " ",
    "é",
    "水",
    "😀",
    "<|",
    "|>",
    "end",
    "<|end|>",
    "<|user|>",
    "{",
    '"',
]
Messages = list[dict[str, Any]]


def make(**options: Any) -> ExactHistory:
    return ExactHistory(TOKENIZER, ENCODER, **options)


RUNNER = asyncio.Runner()


@pytest.fixture(scope="module", autouse=True)
def runner() -> Iterator[None]:
    with RUNNER:
        yield


def ask(history: ExactHistory, messages: Messages, namespace: str = "") -> EncodedPrompt:
    return RUNNER.run(history.encode(RENDERER.render(messages), namespace, bound=None), context=copy_context())


def plain(messages: Messages) -> list[int]:
    return ENCODER.encode(RENDERER.render(messages), at_start=True)


def drifted(text: str, draw: random.Random) -> list[int]:
    """Return ids of `text` that the tokenizer would not choose: it is cut anywhere, also within characters."""
    ids: list[int] = []
    data = text.encode()
    by_byte = {
        each[0]: token for token, each in enumerate(TOKENIZER.token_bytes) if each is not None and len(each) == 1
    }
    while data:
        if draw.random() < 0.5:
            ids.append(by_byte[data[0]])
            data = data[1:]
            continue
        size = draw.randint(1, 8)
        try:
            ids += TOKENIZER.encode(data[:size].decode(), parse_special=False, continues=True)
            data = data[size:]
        except UnicodeDecodeError:
            continue
    assert TOKENIZER.decode(ids) == text
    return ids


def letters(text: str) -> list[int]:
    return [TOKENIZER.encode(letter, parse_special=False, continues=True)[0] for letter in text]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def same_meaning(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return True if both have the same text and the same special tokens at the same places of it."""

    def parts(ids: Sequence[int]) -> list[str | int]:
        found: list[str | int] = []
        run: list[int] = []
        for token in [*ids, -1]:
            if token in SPECIAL or token < 0:
                found += [TOKENIZER.decode(run), token]
                run = []
            else:
                run.append(token)
        return found

    return parts(one) == parts(other)


def test_a_later_turn_repeats_the_ids_that_were_generated() -> None:
    """Play turns whose ids the tokenizer would not choose; each prompt begins with the one before and its answer."""
    draw, history = random.Random(1), make()
    messages, before = [user("Tell me about cats.")], []
    for turn in range(4):
        conversation = ask(history, messages)
        assert conversation.tokens[: len(before)] == before
        assert same_meaning(conversation.tokens, plain(messages))
        said = drifted(f"Cats, number {turn}: they sleep a lot, and eat mice 😀.", draw)
        assert said != TOKENIZER.encode(TOKENIZER.decode(said), parse_special=False, continues=True)
        history.remember(conversation, said)
        before = [*conversation.tokens, *said]
        messages = [*messages, assistant(TOKENIZER.decode(said)), user("And then?")]
    assert ask(history, messages).num_remembered > 4 * 30


def test_only_the_new_part_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    history, messages = make(), [user("cats " * 500)]
    said = drifted("They sleep.", random.Random(2))
    history.remember(ask(history, messages), said)
    sizes: list[int] = []
    encode = TOKENIZER.encode_text

    def counted(text: str, **options: Any) -> list[int]:
        sizes.append(len(text))
        return encode(text, **options)

    monkeypatch.setattr(TOKENIZER, "encode_text", counted)
    ask(history, [*messages, assistant("They sleep."), user("And then?")])
    assert sum(sizes) < 60


@pytest.mark.parametrize(
    ("content", "num"),
    [
        ("They sleep a lot.", None),  # as it was said
        ("They sleep a lot. Always.", None),  # more was added
        ("They sleep", 10),  # cut
        ("They sleep a few hours.", 12),  # edited: what comes before the edit stays
        ("Dogs bark.", 0),
        ("", 0),
    ],
)
def test_an_edited_answer_keeps_the_ids_before_the_edit(content: str, num: int | None) -> None:
    history, messages = make(), [user("Tell me about cats.")]
    said = letters("They sleep a lot.")
    history.remember(ask(history, messages), said)
    messages += [assistant(content), user("And then?")]
    asked = ask(history, messages)
    assert same_meaning(asked.tokens, plain(messages))
    assert asked.num_remembered == (len(said) if num is None else num)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(0, 1 << 32))
def test_any_history_keeps_its_text_and_its_special_tokens(seed: int) -> None:
    """Remember answers of any tokens, then send histories that repeat, cut, join and change them."""
    draw, history, known = random.Random(seed), make(), [[user("cat")]]
    for _ in range(6):
        messages = draw.choice(known)
        asked = ask(history, messages)
        assert same_meaning(asked.tokens, plain(messages))
        text = "".join(draw.choices(PIECES, k=draw.randint(1, 8)))
        history.remember(asked, drifted(text, draw))
        if draw.random() < 0.4:
            at = draw.randint(0, len(text))
            text = text[:at] + draw.choice(["", text[at + 1 :], "<|end|>", " cat"])
        known.append([*messages, assistant(text), user(draw.choice(PIECES))])
    assert_counts(history)


def assert_counts(history: ExactHistory) -> None:
    """Forget everything; the count of bytes must come out at zero."""
    for tree in history._trees.values():
        while tree.forget_oldest():
            assert tree.num_bytes >= 0
        assert tree.num_bytes == 0
        assert not tree._roots


def test_special_tokens_that_ordinary_tokens_spell_are_not_taken_for_them() -> None:
    """Say the name of a special token letter by letter, then end the answer before it, where the template writes it."""
    history, messages = make(), [user("Hi")]
    said = letters("Hello<|end|>\n<|user|> more")
    history.remember(ask(history, messages), said)
    for content in ("Hello", "Hello<|end|>\n<|user|> more", "Hello<|en"):
        later = [*messages, assistant(content), user("And then?")]
        assert same_meaning(ask(history, later).tokens, plain(later))


def test_each_key_and_namespace_has_a_memory_of_its_own() -> None:
    history, messages = make(), [user("Tell me about cats.")]
    said = drifted("They sleep a lot.", random.Random(3))
    later = [*messages, assistant("They sleep a lot."), user("And then?")]
    history.remember(ask(history, messages, "salt"), said)
    assert ask(history, later).num_remembered == 0
    assert ask(history, later, "salt").num_remembered == len(said)
    token = current_tenant.set(Tenant("another key"))
    assert ask(history, later, "salt").num_remembered == 0
    current_tenant.reset(token)


def test_the_memory_is_bounded_and_the_least_used_conversation_goes_first() -> None:
    history = make(max_bytes=100_000)
    first = [user("Which one is kept?")]
    said = drifted("The one that is used.", random.Random(4))
    later = [*first, assistant("The one that is used."), user("And then?")]
    history.remember(ask(history, first), said)
    for number in range(200):
        messages = [user(f"{number} cats")]
        history.remember(ask(history, messages), drifted("They sleep.", random.Random(number)))
        assert history.num_bytes <= 100_000
        assert ask(history, later).num_remembered == len(said)
    assert ask(history, [user("3 cats"), assistant("They sleep."), user("?")]).num_remembered == 0
    assert_counts(history)


def test_prompts_that_are_never_answered_are_bounded_too() -> None:
    history, text = make(max_bytes=100_000), " ".join(f"word{number}" for number in range(2000))
    history.remember(ask(history, [user(text)]), letters("Yes."))
    for number in range(100):
        ask(history, [user(text[: 50 * number + 100] + "\n?")])
        assert history.num_bytes <= 100_000
    assert_counts(history)


def test_an_empty_text_can_be_forgotten() -> None:
    tree = HistoryTree()
    tree.add("salt", "", None, (1,), is_generated=False)
    assert tree.forget_oldest()
    assert tree.longest("salt", "text") is None


def test_an_answer_whose_reasoning_is_left_out_keeps_the_ids_of_its_content() -> None:
    history, messages = make(), [user("Tell me about cats.")]
    said = TOKENIZER.encode("<think>Hm.</think>\n\n", continues=True) + drifted("They sleep a lot.", random.Random(5))
    asked = ask(history, messages)
    history.remember(asked, said)
    content = history.after(said, "</think>")
    assert TOKENIZER.decode(content) == "They sleep a lot."
    history.remember_without(asked, asked.text, content)
    later = [*messages, assistant("They sleep a lot."), user("And then?")]
    again = ask(history, later)
    assert again.num_remembered == len(content)
    assert again.tokens[: len(asked.tokens) + len(content)] == [*asked.tokens, *content]


@pytest.mark.slow
@given(st.lists(st.integers(0, TOKENIZER.vocab_size + 1), max_size=30))
def test_ids_are_remembered_as_far_as_a_prompt_can_repeat_their_text(ids: list[int]) -> None:
    index = TokenTextIndex(TOKENIZER)
    text, num = index.text(ids)
    assert TOKENIZER.decode(ids[:num], skip_special_tokens=False) == text
    assert "\ufffd" not in text
    ends, is_whole = index.ends(ids[:num])
    for place, end in enumerate(ends):
        part = TOKENIZER.decode(ids[: place + 1], skip_special_tokens=False)
        assert (part == text[:end]) == bool(is_whole[place])


@pytest.mark.slow
def test_a_client_that_drops_the_reasoning_gets_the_ids_of_the_content() -> None:
    """Answer with reasoning in one-letter tokens; the next prompt must hold the content's only."""

    async def main() -> None:
        said = letters("<think>\nHm.\n</think>\n\nThey sleep.")
        async with served(lambda request: said, reasoning_parser="think") as (built, client):
            messages = [user("Tell me about cats.")]
            body = {"messages": messages}
            message = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
            assert (message["reasoning_content"], message["content"]) == ("Hm.", "They sleep.")
            messages += [assistant(message["content"]), user("And then?")]
            answer = (await client.post("/v1/chat/completions", json=body)).json()
            first, second = built.core.requests
            content = letters("They sleep.")
            assert second.tokens[: len(first.tokens) + len(content)] == [*first.tokens, *content]
            assert answer["usage"]["prompt_tokens_details"]["remembered_tokens"] == len(content)
            assert same_meaning(second.tokens, plain(messages))

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "num"), [({}, 11), ({"seed": 1}, 0), ({"exact_history": False}, 0)])
def test_requests_with_a_seed_have_the_tokenizers_ids(fields: dict[str, Any], num: int) -> None:
    async def main() -> None:
        async with served(lambda request: letters("They sleep.")) as (built, client):
            messages = [user("Hi")]
            await client.post("/v1/chat/completions", json={"messages": messages} | fields)
            messages += [assistant("They sleep."), user("?")]
            answer = (await client.post("/v1/chat/completions", json={"messages": messages} | fields)).json()
            assert answer["usage"]["prompt_tokens_details"]["remembered_tokens"] == num
            assert (built.core.requests[1].tokens == plain(messages)) == (num == 0)

    run(main())


@pytest.mark.exhaustive
def test_only_an_admin_key_raises_priorities_where_there_are_several() -> None:
    async def main() -> None:
        async with served(api_key="one,two", admin_key="root") as (_, client):
            for key, priority, status in (("one", 1, 400), ("one", 0, 200), ("one", -1, 200), ("root", 9, 200)):
                body = {"messages": [user("Hi")], "max_tokens": 1, "priority": priority}
                answer = await client.post("/v1/chat/completions", json=body, headers={"x-api-key": key})
                assert answer.status_code == status, answer.text
                assert status == 200 or answer.json()["error"]["param"] == "priority"

    run(main())


@pytest.mark.slow
def test_requests_carry_the_session_that_headers_and_fields_name() -> None:
    async def main() -> None:
        async with served() as (built, client):
            body: dict[str, Any] = {"messages": [user("Hi")], "max_tokens": 1}

            async def session(headers: dict[str, str], **fields: Any) -> ClientSession | None:
                answer = await client.post("/v1/chat/completions", json=body | fields, headers=headers)
                assert answer.status_code == 200, answer.text
                return built.core.requests[-1].session

            assert await session({}) is None
            named = await session({"x-session-id": "a"})
            assert named is not None
            assert named == await session({"x-claude-code-session-id": "a"}) == await session({}, session_id="a")
            assert named == await session({}, nvext={"agent_hints": {"prefix_id": "a", "osl": 9, "priority": 3}})
            assert built.core.requests[-1].priority == 3
            shared = await session({}, prompt_cache_key="a")
            assert shared is not None
            assert shared.is_shared
            assert shared.name != named.name
            marked = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
            messages = {"messages": [user("Hi")], "system": [marked], "max_tokens": 1, "model": "fake"}
            await client.post("/v1/messages", json=messages, headers={"x-claude-code-session-id": "a"})
            assert built.core.requests[-1].session == named
            [kept] = built.core.requests[-1].retain
            assert kept.seconds == 3600
            assert 0 < kept.num_tokens < len(built.core.requests[-1].tokens)
            wrong = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral", "ttl": "soon"}}
            refused = await client.post(
                "/v1/chat/completions", json={"messages": [{"role": "user", "content": [wrong]}]}
            )
            assert refused.status_code == 400
            assert "soon" in refused.json()["error"]["message"]
            response = (await client.post("/v1/responses", json={"input": "Hi"})).json()
            chain = built.core.requests[-1].session
            await client.post("/v1/responses", json={"input": "?", "previous_response_id": response["id"]})
            assert chain is not None
            assert built.core.requests[-1].session == chain
            assert (await client.post("/close_session", json={"session_id": "a"})).status_code == 200
            await built.core.until(lambda: bool(built.core.ended))
            assert built.core.ended == [EndStates(named.name, is_session=True)]
            assert (await client.post("/close_session", json={"session_id": "a"})).status_code == 400

    run(main())
