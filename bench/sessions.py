"""Workloads on a real runtime: programs as messages of the session protocol, as the language's client sends them.

Tokens are said as text, so they have to be words that the tokenizer takes for one token each: `word_tokens`. Every
request's prompt is checked to have as many tokens as the workload says.
"""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Callable, Sequence
from itertools import count
from queue import Empty, SimpleQueue

from ramiform.runtime.protocol.client import Connection
from ramiform.runtime.protocol.errors import ErrorInfo
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.protocol.session import (
    Append,
    Concatenate,
    Delta,
    Done,
    Failed,
    Fork,
    Gen,
    Open,
    Operation,
    Text,
)
from ramiform.runtime.tokenizer.interface import Tokenizer

from .programs import Asked, Run, States, Workload, play_all

Event = tuple[float, int, Delta | Done | Failed | ErrorInfo]  # when it came, for which state


def word_tokens(tokenizer: Tokenizer) -> list[int]:
    """Tokens that are a space and a word: texts of them are tokenised as them. Raises AssertionError otherwise."""
    words = [
        token
        for token, text in enumerate(tokenizer.token_bytes)
        if text is not None and re.fullmatch(rb" [a-z]+", text)
    ]
    assert tokenizer.encode(tokenizer.decode(words), continues=True) == words, "words are not tokens of this tokenizer"
    return words


class Program(States):
    """A program whose states the frontend holds."""

    def __init__(self, player: Player) -> None:
        super().__init__(player.start)
        self._player = player
        self._numbers = {0: player.attach()}
        self._num_operations: dict[int, int] = {0: 0}
        player.connection.send(Open(self._numbers[0], self._numbers[0]))

    def say(self, state: int, tokens: Sequence[int]) -> None:
        super().say(state, tokens)
        self._append(state, Text(self._player.tokenizer.decode(tokens)))

    def fork(self, state: int, children: Sequence[int]) -> None:
        super().fork(state, children)
        for child in children:
            self._numbers[child] = self._player.attach()
            self._num_operations[child] = 0
        self._append(state, Fork(tuple(self._numbers[child] for child in children)))

    def join(self, state: int, children: Sequence[int]) -> None:
        super().join(state, children)
        self._append(state, Concatenate(tuple(self._numbers[child] for child in children)))

    def end(self, states: Sequence[int]) -> None:
        super().end(states)
        for state in states:
            self._player.connection.detach(self._numbers[state])

    def generate(self, state: int, num_tokens: int, then: Callable[[], None]) -> None:
        def finish(output: list[int]) -> None:
            self.ids[state] += output
            then()

        self._player.expect(self._numbers[state], self.ids[state].copy(), finish)
        sampling = SamplingParams(max_new_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        self._append(state, Gen(sampling=sampling, stream=True))

    def think(self, seconds: float, then: Callable[[], None]) -> None:
        self._player.after(seconds, then)

    def _append(self, state: int, operation: Operation) -> None:
        first = self._num_operations[state]
        self._num_operations[state] += 1
        self._player.connection.send(Append(self._numbers[state], first, [operation]))


class _StateListener:
    """Receives the messages of one state on the connection's thread, with their times."""

    def __init__(self, queue: SimpleQueue[Event]) -> None:
        self._queue = queue
        self.state = 0

    def receive(self, message: Delta | Done | Failed) -> None:
        self._queue.put((time.perf_counter(), self.state, message))

    def fail(self, error: ErrorInfo) -> None:
        self._queue.put((time.perf_counter(), self.state, error))


class Player:
    """Plays workloads, one after the other, over one connection."""

    def __init__(self, connection: Connection, tokenizer: Tokenizer) -> None:
        self.connection = connection
        self.tokenizer = tokenizer
        self.start = [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._serial = count()
        self._reset()

    def run(self, workload: Workload) -> Run:
        """Play the whole workload. Raises RamiformError when something fails."""
        self._reset()
        self._began = time.perf_counter()
        play_all(workload, lambda number: Program(self))
        while self._waiting or self._timers:
            timeout = max(0.0, self._timers[0][0] - time.perf_counter()) if self._timers else None
            try:
                self._take(*self._events.get(timeout=timeout))
            except Empty:
                heapq.heappop(self._timers)[2]()
        return Run(self._requests, time.perf_counter() - self._began)

    def attach(self) -> int:
        listener = _StateListener(self._events)
        listener.state = self.connection.attach(listener)
        return listener.state

    def expect(self, state: int, prompt: list[int], then: Callable[[list[int]], None]) -> None:
        request = Asked(prompt, time.perf_counter() - self._began)
        self._requests.append(request)
        self._waiting[state] = request, then

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.perf_counter() + seconds, next(self._serial), then))

    def _reset(self) -> None:
        self._requests: list[Asked] = []
        self._waiting: dict[int, tuple[Asked, Callable[[list[int]], None]]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []

    def _take(self, now: float, state: int, message: Delta | Done | Failed | ErrorInfo) -> None:
        match message:
            case ErrorInfo():
                raise message.to_exception()
            case Failed(error=error):
                raise error.to_exception()
            case Delta():
                request, _ = self._waiting[state]
                if request.first_token is None:
                    request.first_token = now - self._began
            case Done(sequences=[sequence]):
                request, then = self._waiting.pop(state)
                assert sequence.prompt_tokens == len(request.prompt), "a text was not tokenised as what it was made of"
                request.output += sequence.ids
                request.num_cached = sequence.cached_tokens
                then(sequence.ids)
