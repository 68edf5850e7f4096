"""Stores take at most 1.3 times the memory that they count, and not less than half of it, as tracemalloc sees it."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ramiform.runtime.frontend.chat.exact_history import ExactHistory
from ramiform.runtime.frontend.http.openai.responses.conversations import ConversationStore
from ramiform.runtime.frontend.http.openai.responses.store import ResponseStore
from ramiform.runtime.frontend.records.log import ProgramLog
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.protocol.session import Close, Fork, Gen, Open, Operation, Select, Text
from ramiform.tests.composition.mix import WORDS
from ramiform.tests.frontend.harness import House, house, run, says
from ramiform.tests.frontend.http.transport.peers import Peer, connected

from .test_garbage import ask

NUM_REQUESTS = 60
NUM_STATES = 20  # for each program
draw = random.Random(5)
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}


def words(number: int) -> str:
    return f"{' '.join(draw.choices(WORDS, k=number))} {draw.randrange(10**9)}"


def chat(number: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": words(number)}], "max_tokens": 30}


REQUESTS: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
    "chat": lambda: ("/v1/chat/completions", chat(20)),
    "long chat": lambda: ("/v1/chat/completions", chat(200)),
    "generate": lambda: ("/generate", {"text": words(20)}),
    "regex": lambda: ("/generate", {"text": "a", "sampling_params": {"regex": f"{words(30)}*"}}),
    "four samples": lambda: ("/v1/completions", {"prompt": words(20), "n": 4}),
    "response": lambda: ("/v1/responses", {"input": words(20)}),
    "response with tools": lambda: ("/v1/responses", {"input": words(20), "tools": [TOOL], "tool_choice": "none"}),
    "response of a long text": lambda: ("/v1/responses", {"input": words(300)}),
    "conversation": lambda: ("/v1/conversations", {"metadata": {"topic": words(9)}}),
    "conversation with items": lambda: ("/v1/conversations", {"items": [{"role": "user", "content": words(9)}] * 5}),
}
PROGRAMS: dict[str, Callable[[int], list[Operation]]] = {
    "text": lambda first: [Text(words(20))],
    "wide text": lambda first: [Text("\N{HIRAGANA LETTER A}" * 900 + words(1))],
    "large text": lambda first: [Text(words(2000))],
    "ten texts": lambda first: [Text(words(4)) for _ in range(10)],
    "generations": lambda first: [Text(words(9)), *(Gen(sampling=SamplingParams(max_new_tokens=8)) for _ in range(3))],
    "select": lambda first: [Text("a"), Select(choices=tuple(words(20) for _ in range(20)))],
    "branches": lambda first: [Text(words(4)), Fork(tuple(range(first, first + NUM_STATES - 1)))],
}


class Stores:
    """The stores of the one frontend of this process."""

    def __init__(self) -> None:
        kinds = ProgramLog, ExactHistory, ResponseStore, ConversationStore
        self._found = [found for found in gc.get_objects() if type(found) in kinds]

    @property
    def num_bytes(self) -> int:
        """Sum of the bytes that they count."""
        return sum(
            sum(entry.num_bytes for entry in found._entries.values())
            if isinstance(found, ConversationStore)
            else found._num_bytes
            if isinstance(found, ResponseStore)
            else found.num_bytes
            for found in self._found
        )


async def drop_cancelled_timers() -> None:
    """Let asyncio drop them: it keeps up to a hundred, each with the context of its request."""
    for _ in range(200):
        asyncio.get_running_loop().call_later(3600, print).cancel()
    await asyncio.sleep(0.01)


async def measured(built: House, stores: Stores, once: Callable[[], Awaitable[Any]]) -> tuple[int, int]:
    """Return the bytes that requests leave, and those that are counted."""
    for _ in range(5):
        await once()
    gc.collect()
    before, requests = stores.num_bytes, built.core.requests
    tracemalloc.start()
    try:
        for _ in range(NUM_REQUESTS):
            await once()
        await asyncio.sleep(0.1)
        await drop_cancelled_timers()
        requests.clear()  # the fake core's memory is not the frontend's
        gc.collect()
        return tracemalloc.get_traced_memory()[0] // NUM_REQUESTS, (stores.num_bytes - before) // NUM_REQUESTS
    finally:
        tracemalloc.stop()


@pytest.mark.exhaustive
def test_stores_count_what_requests_leave() -> None:
    async def main() -> None:
        async with house(says("Hello there"), http=True) as built, connected(built) as peer:
            found = await sizes(built, peer)
            bad = {name: pair for name, pair in found.items() if not 0.5 <= pair[0] / pair[1] <= 1.3}
            assert bad == {}

    run(main())


async def sizes(built: House, peer: Peer) -> dict[str, tuple[int, int]]:
    """Return what a request of each kind leaves, and what is counted."""
    found: dict[str, tuple[int, int]] = {}
    client, stores = built.client(), Stores()
    number = 1
    for name, request in REQUESTS.items():
        found[name] = await measured(built, stores, lambda request=request: ask(peer, *request()))  # type: ignore[misc]
    for name, operations in PROGRAMS.items():

        async def program(operations: Callable[[int], list[Operation]] = operations) -> None:
            nonlocal number
            first, number = number, number + NUM_STATES
            await client.send(Open(first, first))
            await client.play(first, *operations(first + 1))
            await client.send(Close(list(range(first, number))))

        found[name] = await measured(built, stores, program)
    return found
