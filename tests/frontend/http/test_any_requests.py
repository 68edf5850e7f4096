"""Heads, bodies and WebSocket messages that a stranger wrote are answered, with an error of ours where they are wrong.

One frontend answers all examples of a test: what one left behind would show in the next.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from ramiform.tests.frontend.harness import House, house
from ramiform.tests.frontend.http.transport.peers import WHOLE, connected
from ramiform.tests.fuzzing import dump, fuzz, mutated_bytes, mutated_json

Run = Callable[[Coroutine[Any, Any, None]], None]
pytestmark = pytest.mark.fuzz
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}]
MESSAGES: list[Any] = [
    {"role": "user", "content": [{"type": "text", "text": "a"}]},
    {"role": "assistant", "content": "b"},
]
BODIES: dict[str, Any] = {
    "/v1/chat/completions": {
        "messages": MESSAGES,
        "tools": TOOLS,
        "tool_choice": "auto",
        "max_tokens": 3,
        "logprobs": True,
        "top_logprobs": 2,
        "stop": ["x"],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    },
    "/v1/completions": {
        "prompt": ["a", "b"],
        "max_tokens": 2,
        "logit_bias": {"5": 1.0},
        "n": 2,
        "seed": 3,
        "stream": True,
    },
    "/v1/responses": {
        "input": [{"role": "user", "content": "a"}],
        "text": {"format": {"type": "text"}},
        "max_output_tokens": 3,
        "previous_response_id": None,
    },
    "/v1/messages": {"max_tokens": 2, "messages": MESSAGES, "system": "s", "stop_sequences": ["q"]},
    "/generate": {
        "text": ["a"],
        "sampling_params": [{"max_new_tokens": 2, "regex": "a+", "temperature": 0.5, "top_k": 3, "stop": "b"}],
        "return_logprob": True,
        "logprob_start_len": 0,
        "rid": ["mine"],
    },
    "/tokenize": {"prompt": "a", "add_special_tokens": True},
    "/detokenize": {"tokens": [5, 6, 7]},
    "/api/chat": {"messages": [{"role": "user", "content": "a"}], "options": {"num_predict": 2}, "stream": False},
    "/api/generate": {"prompt": "a", "options": {"num_predict": 2, "stop": ["a"]}, "format": {"type": "object"}},
    "/v1/embeddings": {"input": ["a", [5, 6]], "encoding_format": "float"},
    "/v1/score": {"text_1": "a", "text_2": ["b", "c"]},
    "/v1/ramiform/constraint": {"kind": "regex", "source": "a+", "text": "a", "top": 5},
}
HEADS = [
    WHOLE,
    b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    b'Content-Length: 15\r\n\r\n{"prompt": "a"}',
    b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    b'Expect: 100-continue\r\n\r\n8;x=y\r\n{"prompt\r\n7\r\n": "a"}\r\n0\r\nX-A: b\r\n\r\n',
    b"GET /v1/models?a=%ff&b=1 HTTP/1.0\r\nConnection: keep-alive\r\nAuthorization: Bearer x\r\nCookie: a=b\r\n\r\n",
    b"GET /v1/ramiform/live HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\nOrigin: http://b\r\nAccess-Control-Request-Method: POST\r\n\r\n",
]
LIVE: list[Any] = [
    {"key": None},
    {"key": None, "subscribe": {"health": {}, "programs": {}, "tree": {"root": 1, "limit": 5}}},
    {"subscribe": {"program": {"id": "r-1"}}},
]


@contextmanager
def one_house() -> Iterator[tuple[House, Run]]:
    """A frontend with a fake core, and a function that runs a coroutine on its loop."""
    with asyncio.Runner() as runner:
        context = house(http=True)
        built = runner.run(context.__aenter__())
        try:
            yield built, lambda work: runner.run(asyncio.wait_for(work, 60))
        finally:
            runner.run(context.__aexit__(None, None, None))


async def lives(built: House) -> None:
    async with connected(built) as peer:
        await peer.send(WHOLE)
        assert await peer.answer() == 200


@pytest.mark.slow
def test_any_head_is_answered_or_its_connection_ends() -> None:
    with one_house() as (built, run):

        @fuzz(mutated_bytes(HEADS), examples=80)
        def throw(data: bytes) -> None:
            async def example() -> None:
                async with connected(built) as peer:
                    with suppress(ConnectionError):
                        await peer.send(data)
                        peer.writer.write_eof()
                    answer = await peer.until_closed()
                    assert b"HTTP/1.1 500" not in answer, answer
                await lives(built)

            run(example())

        throw()


@pytest.mark.exhaustive
def test_any_body_is_answered_or_refused_by_name() -> None:
    bodies = st.sampled_from(sorted(BODIES)).flatmap(
        lambda route: st.tuples(
            st.just(route),
            mutated_json([BODIES[route]]).map(dump) | mutated_bytes([json.dumps(BODIES[route]).encode()]),
        )
    )
    with one_house() as (built, run):
        client = httpx.AsyncClient(base_url=built.url, timeout=60, headers={"content-type": "application/json"})

        @fuzz(bodies, examples=150)
        def throw(example: tuple[str, bytes]) -> None:
            async def post() -> None:
                route, body = example
                answer = await client.post(route, content=body)
                assert answer.status_code < 500, (route, body, answer.text)
                if answer.status_code >= 400:
                    assert answer.json()["error"], (route, body, answer.text)

            run(post())

        try:
            throw()
            run(lives(built))
        finally:
            run(client.aclose())


@pytest.mark.slow
@pytest.mark.parametrize("route", ["/v1/ramiform/live", "/v1/responses"])
def test_any_message_on_a_socket_is_answered_or_ends_it(route: str) -> None:
    create = {"type": "response.create", **BODIES["/v1/responses"]}
    seeds = LIVE if route == "/v1/ramiform/live" else [create]
    messages = mutated_json(seeds).map(dump) | mutated_bytes([json.dumps(seed).encode() for seed in seeds])
    with one_house() as (built, run):

        @fuzz(st.tuples(messages, st.booleans()), examples=40)
        def throw(example: tuple[bytes, bool]) -> None:
            async def send() -> None:
                message, as_text = example
                async with connect(f"ws://127.0.0.1:{built.frontend.http_port}{route}", open_timeout=120) as socket:
                    with suppress(ConnectionClosed):
                        if route == "/v1/ramiform/live" and len(message) % 2:
                            await socket.send(json.dumps(LIVE[0]))
                        await socket.send(message.decode("utf-8", "replace") if as_text else message)
                        await socket.ping()
                    await asyncio.wait_for(socket.close(), 30)
                    assert socket.close_code != 1011, "an internal error"
                await lives(built)

            run(send())

        throw()
