"""The route of programs over a real port. Judge of its answers: the same operations over ZMQ."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
import pytest

from ramiform.runtime.frontend.http.native import programs
from ramiform.runtime.frontend.http.native.programs import EXAMPLE, ProgramBody
from ramiform.runtime.frontend.programs.play import AnswerQueue
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import SamplingParams, TokenLogprob
from ramiform.runtime.protocol.session import (
    Concatenate,
    Decide,
    Delta,
    Done,
    Failed,
    Fork,
    Gen,
    Generated,
    Open,
    Operation,
    RoleBegin,
    RoleEnd,
    Select,
    Sync,
    Text,
)
from ramiform.tests.frontend.harness import run, says, shipped_tokenizer
from ramiform.tests.frontend.served import check_error, events, served

TOKENIZER = shipped_tokenizer()
GEN = Gen(sampling=SamplingParams(temperature=0.0, max_new_tokens=8, seed=1))
FINE = TOKENIZER.encode(" fine.", continues=True)
CHAT = [RoleBegin("user"), Text("Hi"), RoleEnd(), RoleBegin("assistant"), GEN, RoleEnd()]


def opened(state: int, budget: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "open", "state": state, "program": 1, "budget": budget}


def appended(state: int, *operations: Operation, first: int = 0) -> dict[str, Any]:
    told = msgspec.to_builtins(operations, str_keys=True)
    return {"type": "append", "state": state, "first": first, "operations": told}


def body(*operations: Operation) -> dict[str, Any]:
    return {"messages": [opened(1), appended(1, *operations)]}


def answers(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = [answer for event in events(response.text) for answer in event["answers"]]
    return msgspec.convert(found, list[Done | Failed | Delta], str_keys=True)


def by_operation(found: Sequence[Any]) -> dict[tuple[int, int], str]:
    return {(one.state, one.op): one.text if isinstance(one, Done) else one.error.message for one in found}


@pytest.mark.slow
def test_operations_are_answered_as_over_zmq_and_ask_the_core_for_the_same_tokens() -> None:
    operations = [*CHAT, Text("So: "), GEN, Text(" "), Select(choices=("yes", "no")), Fork((2, 3)), Sync()]

    async def main() -> None:
        async with served() as (built, client):
            told = {
                "messages": [
                    opened(1),
                    appended(1, *operations),
                    appended(2, Text("A"), GEN),
                    appended(3, Text("B"), GEN),
                    appended(1, Concatenate((2, 3)), GEN, first=len(operations)),
                ]
            }
            over_http = answers(await client.post("/programs", json=told))
            asked = [request.tokens for request in built.core.requests]
            built.core.requests.clear()
            peer = built.client()
            await peer.open(1)
            await peer.append(1, *operations)
            await peer.append(2, Text("A"), GEN)
            await peer.append(3, Text("B"), GEN)
            await peer.append(1, Concatenate((2, 3)), GEN)
            over_zmq = await peer.answers(len(operations) + 6)
            assert by_operation(over_http) == by_operation(list(over_zmq.values()))
            assert sorted(asked) == sorted(request.tokens for request in built.core.requests)

    run(main())


@pytest.mark.slow
def test_what_was_answered_before_is_said_again_and_its_answers_are_left_out() -> None:
    async def main() -> None:
        async with served() as (built, client):
            first = answers(await client.post("/programs", json=body(*CHAT)))
            [sequence] = first[4].sequences
            before = built.core.requests[-1].tokens
            repeated = [Generated(text=sequence.text, ids=sequence.ids) if one is GEN else one for one in CHAT]
            asked = [RoleBegin("user"), RoleEnd(), RoleBegin("assistant"), GEN]
            again = body(*repeated, *asked) | {"known": {"1": len(CHAT)}}
            found = answers(await client.post("/programs", json=again))
            assert [one.op for one in found] == [6, 7, 8, 9]
            assert found[-1].text == " fine."
            tokens = built.core.requests[-1].tokens
            assert tokens[: len(before) + len(FINE)] == [*before, *FINE]

    run(main())


@pytest.mark.slow
def test_streamed_text_comes_in_deltas() -> None:
    async def main() -> None:
        async with served() as (_, client):
            streamed = msgspec.structs.replace(GEN, stream=True)
            found = answers(await client.post("/programs", json=body(Text("a"), streamed)))
            *deltas, done = found[1:]
            assert "".join(delta.text for delta in deltas) == done.text == " fine."
            assert [id for delta in deltas for id in delta.ids] == FINE

    run(main())


@pytest.mark.slow
def test_a_failed_operation_fails_the_later_ones_of_its_state_only() -> None:
    async def main() -> None:
        async with served() as (_, client):
            told = {
                "messages": [
                    opened(1),
                    opened(2),
                    appended(1, Generated(text="a", ids=[10**6]), GEN),
                    appended(2, Text("a"), GEN),
                    appended(3, Text("a")),
                ]
            }
            found = {(one.state, one.op): one for one in answers(await client.post("/programs", json=told))}
            assert [found[1, 0].error.param, found[1, 1].error.param] == ["ids", "ids"]
            assert found[2, 1].text == " fine."
            assert found[3, 0].error.code == "bad_state"

    run(main())


@pytest.mark.slow
def test_a_spent_budget_loses_the_states() -> None:
    async def main() -> None:
        async with served() as (_, client):
            told = {"messages": [opened(1, {"tokens": 1}), appended(1, Text("a"), GEN, GEN)]}
            response = await client.post("/programs", json=told)
            [*_, lost] = [one for event in events(response.text) for one in event["answers"]]
            assert (lost["type"], lost["states"]) == ("lost", [1])
            assert lost["error"]["param"] == "max_total_tokens"

    run(main())


REFUSED: list[tuple[Any, str | None, str]] = [
    ({}, None, "messages"),
    ({"messages": [{"type": "bye"}]}, "messages[0].type", "bye"),
    (body(Text("a")) | {"colour": 1}, None, "colour"),
    (
        {"messages": [opened(1), {**appended(1), "operations": [{"type": "text", "text": "a", "size": 3}]}]},
        "messages[1].operations[0]",
        "size",
    ),
    (
        {"messages": [{**appended(1), "operations": [{"type": "gen", "sampling": {"temperature": -1}}]}]},
        "temperature",
        "temperature",
    ),
    (
        {"messages": [{**appended(1), "operations": [{"type": "gen", "sampling": {"max_token": 1}}]}]},
        "messages[0].operations[0].sampling",
        "max_token",
    ),
    ({"messages": [{**appended(1), "operations": [{"type": "ask"}]}]}, "operations", "answered by the client"),
    ({"messages": [opened(1), {**opened(2), "program": 2}]}, "program", "one program"),
    ({"messages": [opened(1), opened(1)]}, "state", "state 1 exists"),
    (body(Generated(text="a", ids=[1] * 100_000)), "ids", "100000"),
    (body(*[Sync()] * (programs.MAX_OPERATIONS + 1)), "messages", "16385 operations"),
    (body(*[RoleBegin("user"), RoleEnd()] * (programs.MAX_ROLES + 1)), "messages", "513 chat messages"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("wrong", "param", "word"), REFUSED, ids=[word for _, _, word in REFUSED])
def test_a_wrong_body_is_refused_before_anything_is_played(wrong: Any, param: str | None, word: str) -> None:
    async def main() -> None:
        async with served() as (built, client):
            response = await client.post("/programs", json=wrong)
            error = response.json()["error"]
            assert response.status_code == 400, response.text
            assert word in error["message"]
            assert error["param"] == param
            assert not built.core.requests
            check_error(await client.post("/programs", content=b"{}"), 400, None, "must be JSON")
            for text in (
                b"{",
                b'{"messages":' + b"[" * 100_000,
                b'{"messages":[{"type":"open","state":1,"program":"\xff"}]}',
            ):
                sent = await client.post("/programs", content=text, headers={"content-type": "application/json"})
                assert sent.status_code == 400, sent.text

    run(main())


@pytest.mark.slow
def test_a_body_beyond_the_routes_size_is_refused() -> None:
    async def main() -> None:
        async with served() as (_, client):
            response = await client.post("/programs", json=body(Text("a" * programs.MAX_BODY_BYTES)))
            assert response.status_code == 413

    run(main())


@pytest.mark.slow
def test_closing_the_request_aborts_its_generations() -> None:
    async def main() -> None:
        async with served(lambda request: None) as (built, client):  # a model that never answers
            async with asyncio.timeout(60):
                posted = asyncio.create_task(client.post("/programs", json=body(Text("a"), GEN)))
                while not built.core.requests:
                    await asyncio.sleep(0.01)
                posted.cancel()
                while not built.core.aborted:
                    await asyncio.sleep(0.01)
            [request] = built.core.requests
            assert isinstance(request, Generate)
            assert request.rid in built.core.aborted

    run(main())


@pytest.mark.slow
def test_a_stream_without_answers_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "EMPTY_EVENT_SECONDS", 0.01)

    async def main() -> None:
        async with (
            served(lambda request: None) as (_, client),
            client.stream("POST", "/programs", json=body(Text("a"), GEN)) as response,
        ):
            lines = (line async for line in response.aiter_lines() if line)
            first = json.loads((await anext(lines)).removeprefix("data: "))
            assert [one["op"] for one in first["answers"]] == [0]
            assert json.loads((await anext(lines)).removeprefix("data: ")) == {"answers": []}

    run(main())


@pytest.mark.slow
def test_cached_prefixes_are_separated_by_extra_key_in_every_state_and_operation() -> None:
    async def main() -> None:
        async with served() as (built, client):
            told = {
                "messages": [
                    opened(1),
                    appended(1, Text("a"), GEN, Select(choices=("b", "c")), Fork((2,))),
                    appended(2, Text("d"), GEN),
                ],
                "extra_key": "mine",
            }
            answers(await client.post("/programs", json=told))
            assert {request.namespace for request in built.core.requests} == {"mine"}

    run(main())


def test_an_unread_queue_holds_one_delta_for_each_operation() -> None:
    async def main() -> None:
        queue = AnswerQueue()
        for number in range(100):
            queue.add(Delta(1, 4, "a", [number], [TokenLogprob(-1.0, number)]))
            queue.add(Delta(2, 0, "b", [number]))
        queue.add(Done(1, 4, "a" * 100))
        queue.add(Delta(1, 5, "c", [7]))
        first, second, done, other = await queue.take(1)
        assert isinstance(first, Delta)
        assert (first.text, first.ids, len(first.logprobs or ())) == ("a" * 100, list(range(100)), 100)
        assert second == Delta(2, 0, "b" * 100, list(range(100)))
        assert (done, other) == (Done(1, 4, "a" * 100), Delta(1, 5, "c", [7]))
        assert await queue.take(0.0) is None

    run(main())


def test_the_example_of_the_document_is_a_body() -> None:
    told = msgspec.convert(EXAMPLE, ProgramBody)
    assert isinstance(told.messages[0], Open)
    assert told.num_operations == 6


@pytest.mark.slow
def test_a_long_chat_is_rendered_before_it_is_played() -> None:
    turns = [
        RoleBegin("user"),
        Text("a"),
        RoleEnd(),
        RoleBegin("assistant"),
        Generated(text="b", ids=[5]),
        RoleEnd(),
    ] * 40

    async def main() -> None:
        async with served(says(" fine.")) as (_, client):
            found = answers(await client.post("/programs", json=body(*turns, RoleBegin("assistant"), GEN)))
            assert found[-1].text == " fine."

    run(main())


@pytest.mark.slow
def test_questions_are_answered() -> None:
    asks = msgspec.convert({"type": "decide", "questions": [{"type": "predicate", "instructions": "Is it?"}]}, Decide)

    async def main() -> None:
        async with served() as (_, client):
            [_, done] = answers(await client.post("/programs", json=body(Text("a"), asks)))
            [answer] = done.answers
            assert 0 <= answer.probability <= 1

    run(main())


@pytest.mark.slow
def test_a_closed_state_is_aborted_and_the_others_go_on() -> None:
    async def main() -> None:
        async with served(lambda request: None) as (built, client):
            told = {
                "messages": [opened(1), opened(2), appended(1, Text("stay"), GEN), appended(2, Text("stay"), GEN)],
                "rid": "mine",
            }
            posted = asyncio.create_task(client.post("/programs", json=told))
            await built.core.until(lambda: len(built.core.requests) == 2)
            check_error(await client.post("/programs", json=told), 400, "rid", "mine")
            for states in ([2, 9], [2]):
                closed = await client.post("/programs/close", json={"rid": "mine", "states": states})
                assert closed.status_code == 200
            await built.core.until(lambda: len(built.core.aborted) == 1)
            assert not posted.done()
            await client.post("/programs/close", json={"rid": "mine", "states": [1]})
            await built.core.until(lambda: len(built.core.aborted) == 2)
            assert [(one.state, one.op) for one in answers(await posted)] == [(1, 0), (2, 0)]
            assert (await client.post("/programs/close", json={"rid": "mine", "states": [1]})).status_code == 200

    run(main())


@pytest.mark.slow
def test_another_keys_program_cannot_be_closed() -> None:
    async def main() -> None:
        async with served(lambda request: None, api_key="mine,other") as (built, client):
            mine, other = ({"authorization": f"Bearer {key}"} for key in ("mine", "other"))
            assert (await client.post("/programs", json=body(GEN))).status_code == 401
            told = body(Text("a"), GEN) | {"rid": "one"}
            posted = asyncio.create_task(client.post("/programs", json=told, headers=mine))
            await built.core.until(lambda: bool(built.core.requests))
            close = {"rid": "one", "states": [1]}
            await client.post("/programs/close", json=close, headers=other)
            await client.get("/version", headers=other)
            assert not built.core.aborted
            await client.post("/programs/close", json=close, headers=mine)
            await built.core.until(lambda: bool(built.core.aborted))
            await posted

    run(main())
