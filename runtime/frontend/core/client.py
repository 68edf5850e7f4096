"""The frontend's client of the core: sends requests of token ids, and delivers each request's tokens to its reader.

When the core fails, every reader and every call fails at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from ...protocol import wire
from ...protocol.core import (
    BACKGROUND_PRIORITY,
    Abort,
    AdaptersChanged,
    Answers,
    Attach,
    CoreCall,
    CoreFailed,
    CoreReady,
    CoreReply,
    CoreStats,
    EndStates,
    FlushCache,
    FromCore,
    Generate,
    GetStats,
    Hold,
    LoadAdapter,
    ModelInfo,
    MovedPrefixes,
    MovePrefixes,
    Pause,
    RequestFailed,
    TakeSessions,
    ToCore,
    Tokens,
    TurnEnded,
    UnloadAdapter,
)
from ...protocol.errors import ErrorInfo, RequestError, RuntimeFailed, context_exceeded
from ...protocol.metrics import CoreMetrics
from ...protocol.sampling import (
    InitWeightsGroup,
    LeaveWeightsGroup,
    MemoryTag,
    ReceiveWeights,
    ReleaseMemory,
    ResumeMemory,
    RunningRequests,
    UpdateWeights,
    WeightsChanged,
)
from ...protocol.tree import GetTree, GetTreeNode, NodeContent, TreeMessage
from .loop_socket import LoopSocket
from .request_metrics import RequestMetrics, RequestObserver
from .tenant import current_tenant, scoped_namespace

logger = logging.getLogger("ramiform.frontend")


def new_rid() -> str:
    """Return a unique request id."""
    return secrets.token_hex(16)


def announced(
    names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]]
) -> list[tuple[str, str, list[int]]]:
    """Return name, dtype and shape of each tensor of an update. Raises RequestError if their numbers differ."""
    if not len(names) == len(dtypes) == len(shapes):
        raise RequestError(
            f"each tensor has a name, a dtype and a shape: got {len(names)}, {len(dtypes)} and {len(shapes)}",
            param="names",
        )
    plain = (str(dtype).removeprefix("torch.") for dtype in dtypes)
    return [(name, dtype, list(shape)) for name, dtype, shape in zip(names, plain, shapes, strict=True)]


class TokenStream:
    """An async iterator over one request's tokens. Leaving the `with` block before the last one aborts the request."""

    def __init__(self, core: CoreClient, rid: str, metrics: RequestMetrics) -> None:
        self._core = core
        self._rid = rid
        self._metrics = metrics
        # A queue for one reader, at a third of the cost of asyncio.Queue: this runs for every token.
        self._items: deque[Tokens | ErrorInfo] = deque()
        self._item_added: asyncio.Future[None] | None = None  # the reader waits for it
        self._finished = False

    @property
    def first_seen(self) -> float | None:
        """Time at which the first tokens came, by `time.monotonic`; None for tokens that come in bulk."""
        return self._metrics.first_seen

    def put(self, item: Tokens | ErrorInfo) -> None:
        self._metrics.take(item)
        self._items.append(item)
        if self._item_added is not None and not self._item_added.done():
            self._item_added.set_result(None)

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> Tokens:
        """Raises RamiformError when the request, or the core, failed."""
        if self._finished:
            raise StopAsyncIteration
        while not self._items:
            self._item_added = asyncio.get_running_loop().create_future()
            await self._item_added
        item = self._items.popleft()
        if isinstance(item, ErrorInfo):
            self._finished = True
            raise item.to_exception()
        self._finished = item.finish is not None
        return item

    def abort(self) -> None:
        """End the request early. The reader gets a finish of type "abort"."""
        self._core.abort(self._rid)

    def close(self) -> None:
        """Stop reading; abort the request unless it is over. Calling it again does nothing."""
        self._finished = True
        self._metrics.end("abort")
        self._core.forget(self._rid)

    def __enter__(self) -> TokenStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CoreClient:
    """A connection to the core. Call `start` inside the event loop that uses it."""

    def __init__(self, context: zmq.asyncio.Context, address: str, observer: RequestObserver | None = None) -> None:
        self.observer = observer or RequestObserver()
        self._socket = LoopSocket(context, zmq.DEALER, self._receive)
        self._address = address
        self._decoder = msgspec.msgpack.Decoder(FromCore)
        self._calls = itertools.count()
        self._answers: dict[str, TokenStream] = {}
        self._replies: dict[int, asyncio.Future[CoreReply]] = {}
        self._failure: ErrorInfo | None = None
        self.is_draining = False  # routers should send requests to another replica
        self.on_move_programs: Callable[[str | None], None] = lambda address: None  # sends programs elsewhere
        self.on_sessions: Callable[[bytes], None] = lambda data: None  # takes sessions of another replica

    def start(self, *, takes_sessions: bool = True) -> None:
        """Attach to the core. `takes_sessions`: `on_sessions` does something with sessions of another replica."""
        self._ready: asyncio.Future[ModelInfo] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._socket.raw.connect(self._address)
        self._socket.start()
        self._send(Attach(takes_sessions))

    async def ready(self) -> ModelInfo:
        """Wait until the model is loaded and return its facts. Raises RamiformError when the core could not start."""
        return self._ready.result() if self._ready.done() else await asyncio.shield(self._ready)

    async def max_request_tokens(self) -> int:
        """Return how many tokens a prompt may have at most. Waits and raises RamiformError as `ready`."""
        return (await self.ready()).max_request_tokens

    def require_info(self) -> ModelInfo:
        """Return what `ready` does, at once. Raises RuntimeFailed while the model loads, or when the core is gone."""
        self._check_alive()
        if not self._ready.done():
            raise RuntimeFailed("the model is still loading")
        return self._ready.result()

    def submit(self, request: Generate) -> TokenStream:
        """Send `request` now, in the cache scope of the current tenant.

        Raises RuntimeFailed when the core is gone, RequestError when it is too long, and for a priority that the
        tenant may not have.
        """
        self._check_alive()
        assert request.rid not in self._answers, request.rid
        tenant = current_tenant.get()
        if request.priority > 0 and tenant.key is not None and not tenant.is_admin:
            raise RequestError(
                f"priority {request.priority} precedes other keys' requests: only an admin key may set one above 0",
                param="priority",
            )
        # The core checks this too, but encoding millions of ids would block the event loop.
        if self._ready.done() and len(request.tokens) > (most := self._ready.result().context_length):
            raise context_exceeded(most, len(request.tokens))
        if (namespace := scoped_namespace(request.namespace)) != request.namespace:
            request = msgspec.structs.replace(request, namespace=namespace)
        if tenant.in_batch:
            request = msgspec.structs.replace(request, priority=min(request.priority, BACKGROUND_PRIORITY))
        data = wire.encode(request)
        answer = self._answers[request.rid] = TokenStream(self, request.rid, self.observer.begin(request))
        self._socket.send(data)
        return answer

    def abort(self, rid: str | None) -> None:
        """End a request, or all when `rid` is None; its reader gets a finish of type "abort"."""
        if self._failure is None:
            self._send(Abort(rid))

    def end_states(self, program: str, states: list[int] | None) -> None:
        """Tell the core that these states of a program, or with None the program, need nothing more."""
        if self._failure is None:
            self._send(EndStates(program, states))

    def end_session(self, name: str) -> None:
        """Tell the core that a client's session needs nothing more."""
        if self._failure is None:
            self._send(EndStates(name, is_session=True))

    def note_turn_ended(self, rid: str, waits_for: str) -> None:
        """Tell the core what the program of the ended request `rid` waits for: a tool's name, or "user"."""
        if self._failure is None:
            self._send(TurnEnded(rid, waits_for))

    def forget(self, rid: str) -> None:
        """Drop the reader of `rid`, and abort the request unless it is over."""
        if self._answers.pop(rid, None) is not None:
            self.abort(rid)

    async def flush_cache(self) -> None:
        await self._call(FlushCache(next(self._calls)))

    async def pause(self, hold: Hold) -> None:
        """Set what the core holds back until the next call. Other requests of this client still arrive."""
        await self._call(Pause(next(self._calls), hold))

    async def stats(self) -> CoreStats:
        stats = (await self._call(GetStats(next(self._calls)))).stats
        assert stats is not None
        return stats

    async def measures(self) -> tuple[CoreStats, CoreMetrics]:
        """Return the core's counters and measures since it started."""
        reply = await self._call(GetStats(next(self._calls)))
        assert reply.stats is not None
        return reply.stats, CoreMetrics() if reply.measures is None else reply.measures

    async def tree(self, *, watch: int | None = None, root: int | None = None, limit: int) -> TreeMessage:
        """Return the radix tree, or with a known `watch` what changed since its last answer. Raises RequestError."""
        message = GetTree(call=next(self._calls), watch=watch, root=root, limit=limit)
        tree = (await self._call(message)).tree
        assert tree is not None
        return tree

    async def tree_node(self, node: int) -> NodeContent:
        """Return a node's tokens. Raises RequestError when the tree has no such node."""
        content = (await self._call(GetTreeNode(call=next(self._calls), node=node))).tree_node
        assert content is not None
        return content

    async def move_prefixes(self, to: str, sessions: bytes | None) -> MovedPrefixes:
        """Copy cached prefixes and sessions to the runtime whose `transfer_bind` is `to`. Raises RamiformError."""
        moved = (await self._call(MovePrefixes(next(self._calls), to, sessions))).moved
        assert moved is not None
        return moved

    async def load_adapter(self, name: str, path: str) -> None:
        """Load the LoRA adapter in the directory `path`. Raises RequestError when it cannot be served."""
        await self._call(LoadAdapter(next(self._calls), name, path))

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter; running requests finish with it. Raises RequestError when there is none."""
        await self._call(UnloadAdapter(next(self._calls), name))

    async def update_weights(self, path: str, running: RunningRequests, version: str | None) -> str:
        """Serve the weights in `path` once running requests have made room; return their version. Raises
        RequestError, with the old weights serving, when they cannot be served."""
        made = (await self._call(UpdateWeights(next(self._calls), path, running, version))).weight_version
        assert made is not None
        return made

    async def release_memory(self, tags: Sequence[MemoryTag], running: RunningRequests) -> None:
        """Give memory back once running requests have made room. Raises RequestError when it cannot be."""
        await self._call(ReleaseMemory(next(self._calls), list(tags), running))

    async def resume_memory(self, tags: Sequence[MemoryTag]) -> None:
        """Take memory again. Raises RequestError, still asleep, when the weights cannot be loaded."""
        await self._call(ResumeMemory(next(self._calls), list(tags)))

    async def init_weights_group(self, group: str, address: str, port: int, rank_offset: int, world_size: int) -> None:
        """Join a trainer's group. Raises RequestError when it does not come together."""
        await self._call(InitWeightsGroup(next(self._calls), group, address, port, rank_offset, world_size))

    async def receive_weights(
        self,
        group: str,
        tensors: Sequence[tuple[str, str, Sequence[int]]],
        running: RunningRequests,
        version: str | None,
    ) -> str:
        """Serve tensors, each with its name, dtype and shape, that a trainer broadcasts; return their version. Raises
        RequestError as `update_weights`."""
        message = ReceiveWeights(
            next(self._calls),
            group,
            [name for name, _, _ in tensors],
            [dtype for _, dtype, _ in tensors],
            [list(shape) for _, _, shape in tensors],
            running,
            version,
        )
        made = (await self._call(message)).weight_version
        assert made is not None
        return made

    async def leave_weights_group(self, group: str) -> None:
        """Leave a trainer's group. Raises RequestError if there is none."""
        await self._call(LeaveWeightsGroup(next(self._calls), group))

    @property
    def num_live(self) -> int:
        """The number of requests whose last token has not come."""
        return len(self._answers)

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def fail(self, error: ErrorInfo) -> None:
        """Fail all readers and calls, and all to come, with `error`: the core is gone. The first call counts."""
        if self._failure is not None:
            return
        self._failure = error
        if not self._ready.done():
            self._ready.set_exception(error.to_exception())
            self._ready.exception()  # retrieved: asyncio logs exceptions that nobody awaits
        for answer in self._answers.values():
            answer.put(error)
        self._answers.clear()
        for future in self._replies.values():
            if not future.done():
                future.set_exception(error.to_exception())
        self._replies.clear()

    async def close(self) -> None:
        self._socket.close(linger=0)

    async def _call(self, message: CoreCall) -> CoreReply:
        self._check_alive()
        future = self._replies[message.call] = asyncio.get_running_loop().create_future()
        self._send(message)
        try:
            reply: CoreReply = await future
        finally:
            self._replies.pop(message.call, None)
        if reply.error is not None:
            raise reply.error.to_exception()
        return reply

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise self._failure.to_exception()

    def _send(self, message: ToCore) -> None:
        self._socket.send(wire.encode(message))

    def _receive(self, frames: list[bytes]) -> None:
        try:
            self._handle(wire.decode(self._decoder, b"".join(frames)))
        except Exception as error:
            logger.exception("the link to the core broke")
            self.fail(ErrorInfo.of(RuntimeFailed(f"the link to the core broke: {error}")))

    def _replace_info(self, **facts: Any) -> None:
        """Replace facts of the model, once they are known at all."""
        if self._ready.done() and self._ready.exception() is None:
            info = msgspec.structs.replace(self._ready.result(), **facts)
            self._ready = self._loop.create_future()
            self._ready.set_result(info)

    def _handle(self, message: FromCore) -> None:
        match message:
            case Tokens(rid=rid, finish=finish):
                answer = self._answers.get(rid) if finish is None else self._answers.pop(rid, None)
                if answer is not None:  # else: the reader left while this was on its way
                    answer.put(message)
            case RequestFailed(rid=rid, error=error):
                answer = self._answers.pop(rid, None)
                if answer is not None:
                    answer.put(error)
            case Answers(answers=answers):
                for each in answers:
                    self._handle(each)
            case CoreReply(call=call):
                future = self._replies.get(call)
                if future is not None and not future.done():
                    future.set_result(message)
            case CoreReady(info=info):
                if not self._ready.done():
                    self._ready.set_result(info)
            case CoreFailed(error=error):
                self.fail(error)
            case AdaptersChanged(adapters=adapters):
                self._replace_info(adapters=adapters)
            case WeightsChanged(version=version):
                self._replace_info(weight_version=version)
            case TakeSessions(data=data):
                self.on_sessions(data)
