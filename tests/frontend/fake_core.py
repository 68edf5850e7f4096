"""A core in the test's own event loop: the real messages on a real socket, and a "model" that is a pure function.

Its log-probabilities are a function of all tokens before, so that a wrong prompt shows; what it puts out is scripted;
it stops where the real scheduler's rules stop.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from ramiform.runtime.protocol import wire
from ramiform.runtime.protocol.core import (
    Abort,
    Attach,
    CoreFailed,
    CoreReady,
    CoreReply,
    CoreStats,
    EndStates,
    Finish,
    FlushCache,
    FromCore,
    Generate,
    GetStats,
    ModelInfo,
    Pause,
    RequestFailed,
    ToCore,
    Tokens,
    TurnEnded,
)
from ramiform.runtime.protocol.errors import BusyError, ErrorInfo, RamiformError
from ramiform.runtime.protocol.sampling import TokenLogprob
from ramiform.runtime.scheduler.interfaces import VocabularyInfo
from ramiform.runtime.scheduler.stops import StopRules
from ramiform.runtime.tokenizer import Tokenizer

Script = Callable[[Generate], Sequence[int] | RamiformError | None]


def logprob(before: Sequence[int], token: int) -> float:
    """The "model": what `token` has after `before`."""
    return -(zlib.crc32(repr((list(before), token)).encode()) % 1000) / 100 - 0.01


def entries(tokens: Sequence[int], start: int) -> list[TokenLogprob | None]:
    return [
        None if place == 0 else TokenLogprob(logprob(tokens[:place], tokens[place]), tokens[place])
        for place in range(start, len(tokens))
    ]


class FakeCore:
    """`script` says what a request puts out before EOS: ids; None to say nothing until it is aborted; an error."""

    def __init__(self, context: zmq.asyncio.Context, address: str, tokenizer: Tokenizer, script: Script) -> None:
        self.tokenizer = tokenizer
        self.script = script
        self.requests: list[Generate] = []
        self.aborted: list[str] = []
        self.ended: list[EndStates] = []
        self.turns: list[TurnEnded] = []
        self.num_flushes = 0
        self.failure: RamiformError | None = None  # set: the core cannot start
        self.loaded = asyncio.Event()
        self.loaded.set()
        self.info = ModelInfo(
            name="fake",
            path="/models/fake",
            architecture="Fake",
            num_parameters=1,
            vocab_size=tokenizer.vocab_size,
            context_length=2048,
            max_running=16,
            dtype="float32",
            device="cpu",
            page_size=16,
            num_pages=64,
            version="0",
        )
        padding = [None] * 8  # rows without a token, as models have
        token_bytes = [*tokenizer.token_bytes, *padding]
        self._facts = VocabularyInfo(len(token_bytes), token_bytes, frozenset(tokenizer.eos_ids))
        self._waiting: dict[str, bytes] = {}
        self._changed = asyncio.Event()
        self._socket: zmq.asyncio.Socket = context.socket(zmq.ROUTER)
        wire.set_options(self._socket)
        self._socket.bind(address)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToCore)
        self._frontend = b""
        self._task = asyncio.create_task(self._run())

    def load(self, *, context_length: int) -> None:
        """Say that the model is loaded, with room for prompts of that length."""
        self.info = msgspec.structs.replace(self.info, context_length=context_length, num_pages=context_length)
        self.loaded.set()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        self._socket.close(linger=0)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that messages bring about."""
        async with asyncio.timeout(60):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def fail(self, error: RamiformError) -> None:
        self.send(CoreFailed(ErrorInfo.of(error)))

    def send(self, message: FromCore) -> None:
        self._socket.send_multipart([self._frontend, wire.encode(message)])

    def send_end(self, rid: str) -> None:
        """End a request that the script says nothing to."""
        del self._waiting[rid]
        self.send(Tokens(rid=rid, ids=[], num_cached=0, finish=Finish("stop")))

    async def _run(self) -> None:
        while True:
            self._frontend, data = await self._socket.recv_multipart()
            self._handle(wire.decode(self._decoder, data))
            self._changed.set()

    def _handle(self, message: ToCore) -> None:
        match message:
            case Attach():
                self._loading = asyncio.create_task(self._load())
            case Generate():
                self.requests.append(message)
                self._generate(message)
            case Abort(rid=rid):
                for each in [rid] if rid is not None else list(self._waiting):
                    self.aborted.append(each)
                    if self._waiting.pop(each, None) is not None:
                        self.send(Tokens(rid=each, ids=[], num_cached=0, finish=Finish("abort")))
            case EndStates():
                self.ended.append(message)
            case TurnEnded():
                self.turns.append(message)
            case FlushCache(call=call):
                self.num_flushes += 1
                self.send(CoreReply(call))
            case Pause(call=call):
                self.send(CoreReply(call))
            case GetStats(call=call):
                required = {own.name: 0 for own in msgspec.structs.fields(CoreStats) if own.required}
                self.send(CoreReply(call, stats=CoreStats(**required | {"num_waiting": len(self._waiting)})))

    async def _load(self) -> None:
        await self.loaded.wait()
        self.send(CoreReady(self.info) if self.failure is None else CoreFailed(ErrorInfo.of(self.failure)))

    def _generate(self, request: Generate) -> None:
        asks = request.sampling.max_new_tokens or request.sampling.constraint is not None
        output = self.script(request) if asks else []
        if isinstance(output, RamiformError):
            self.send(RequestFailed(request.rid, ErrorInfo.of(output)))
            return
        rules = StopRules(request.sampling, self._facts)
        start = None if request.logprobs is None else request.logprobs.prompt_from
        given = None if start is None else entries(request.tokens, start)
        ids: list[int] = []
        finish = None if request.sampling.max_new_tokens else Finish("length")
        for token in [*(output or []), self.tokenizer.eos_ids[0]] if finish is None else []:
            if output is None:
                break
            finish = rules.feed(token, len(ids))
            before = [*request.tokens, *ids]
            ids.append(token)
            if finish is None and len(ids) == request.sampling.max_new_tokens:
                finish = Finish("length")
            values = None if request.logprobs is None else [TokenLogprob(logprob(before, token), token)]
            self.send(
                Tokens(
                    rid=request.rid,
                    ids=[token],
                    num_cached=len(request.tokens) // 2,
                    finish=finish,
                    logprobs=values,
                    prompt_logprobs=given,
                )
            )
            given = None
            if finish is not None:
                return
        if output is None:
            self._waiting[request.rid] = self._frontend
        else:
            self.send(
                Tokens(rid=request.rid, ids=[], num_cached=0, finish=finish or Finish("length"), prompt_logprobs=given)
            )


BUSY = BusyError("too many requests wait")
