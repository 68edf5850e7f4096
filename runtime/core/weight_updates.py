"""Weights that change while requests run, and memory that is given back, as a service of the core's loop.

New weights are loaded and checked between two steps, beside the old ones, which serve until running requests have made
room for the change as the client chose. They make room for a release of memory in the same ways.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

import torch

from ..engine import ForwardEngine
from ..models.stored.shared_tensors import shared_tensors
from ..parallel.rank_zero import RankZeroEngine
from ..protocol.config import CoreConfig
from ..protocol.core import CoreReply, Generate, RequestFailed, ToCore
from ..protocol.errors import BusyError, ErrorInfo, RamiformError, RequestError
from ..protocol.sampling import (
    ASLEEP,
    InitWeightsGroup,
    LeaveWeightsGroup,
    ReceiveWeights,
    ReleaseMemory,
    ResumeMemory,
    UpdateWeights,
    WeightsChanged,
)
from ..scheduler.scheduler import Scheduler
from ..transfer.hub import uses_transfers
from .adapters import Adapters
from .service import POLL_MS, Reply, Service
from .weight_groups import DTYPES, WeightGroups

logger = logging.getLogger("ramiform.core")

MARK = "\0weights\0"  # in the namespace of prefixes that updated weights computed, before what no other weights have
MAX_VERSION = 200  # characters of a version's name


class WeightUpdates(Service):
    """Changes the weights of one core, one update after the other, and lets it sleep."""

    def __init__(
        self,
        config: CoreConfig,
        engine: ForwardEngine | RankZeroEngine,
        adapters: Adapters,
        scheduler: Scheduler,
        *,
        is_logged: bool,
    ) -> None:
        """`is_logged`: the scheduler's plans are logged, and could not be replayed after a change."""
        self._engine, self._adapters, self._scheduler = engine, adapters, scheduler
        self._numbers = itertools.count(1)
        # With the name of an update's version.
        self._pending: tuple[bytes, UpdateWeights | ReleaseMemory, str] | None = None
        self._groups = WeightGroups(config.num_ranks)
        self._joining: list[tuple[bytes, InitWeightsGroup, Future[None]]] = []
        self._receiving: tuple[bytes, ReceiveWeights, Future[dict[str, torch.Tensor]]] | None = None
        self._refusal = None
        if uses_transfers(config):
            self._refusal = "runtimes that exchange keys and values keep the same ones"
        elif is_logged:
            self._refusal = "a plan log could not be replayed"
        elif config.nnodes > 1:
            self._refusal = "the nodes of a runtime keep theirs, since they share no files"

    @property
    def wait_ms(self) -> int | None:
        return POLL_MS if self._pending or self._joining or self._receiving else None

    def handle(self, owner: bytes, message: ToCore) -> ToCore | list[Reply]:
        """Load new weights, or begin to give memory back, and let running requests make room; take memory again. While
        memory is given back requests are refused."""
        match message:
            case UpdateWeights() | ReleaseMemory() | ResumeMemory():
                try:
                    return self._begin(owner, message)
                except RamiformError as error:
                    if self._pending is None:
                        self._engine.drop_weights()
                    return [(owner, CoreReply(message.call, error=ErrorInfo.of(error)))]
            case InitWeightsGroup() | LeaveWeightsGroup() | ReceiveWeights():
                try:
                    return self._use_group(owner, message)
                except RequestError as error:
                    return [(owner, CoreReply(message.call, error=ErrorInfo.of(error)))]
            case Generate(rid=rid) if self._scheduler.weights.released:
                error = BusyError(
                    f"the runtime sleeps: {' and '.join(sorted(self._scheduler.weights.released))} were released, "
                    "and no request is answered before /wake_up or /resume_memory_occupation",
                    code=ASLEEP,
                )
                return [(owner, RequestFailed(rid, ErrorInfo.of(error)))]
            case _:
                return message

    def advance(self) -> Iterator[Reply]:
        """Change the weights, or give memory back, if running requests have made room."""
        yield from self._advance_groups()
        if self._pending is None:
            return
        owner, message, version = self._pending
        mark, now, scheduler = f"{MARK}{secrets.token_hex(16)}", time.monotonic(), self._scheduler
        if isinstance(message, ReleaseMemory):
            release = partial(self._engine.release_memory, message.tags)
            if scheduler.release_memory(message.tags, mark, now, release):
                self._pending = None
                logger.info("released the memory of %s", " and ".join(message.tags))
                yield owner, CoreReply(message.call)
            return
        replaced = list[object]()  # the old weights, which are freed behind the answer
        if not scheduler.change_weights(mark, version, now, lambda: replaced.append(self._engine.take_weights())):
            return
        self._pending = None
        scheduler.weights.released -= {"weights"}
        self._adapters.note_weights(version)
        logger.info("serving the weights %s from %s", version, message.path)
        yield "all", WeightsChanged(version)
        yield owner, CoreReply(message.call, weight_version=version)

    def _begin(self, owner: bytes, message: UpdateWeights | ReleaseMemory | ResumeMemory) -> list[Reply]:
        """Raises RamiformError, with nothing changed, when the weights or the settings do not allow it."""
        param = "model_path" if isinstance(message, UpdateWeights) else "tags"
        if self._refusal is not None:
            raise RequestError(f"weights cannot be changed: {self._refusal}", param=param, code="not_supported")
        if self._pending is not None:
            raise RequestError("another update or release waits for running requests", param=param, code="conflict")
        if isinstance(message, ResumeMemory):
            self._resume(message)
            return [(owner, CoreReply(message.call))]
        if message.running == "finish" and self._scheduler.weights.never_due:
            raise RequestError(
                "generation is paused, so running requests do not finish: "
                "choose another mode, or resume generation first",
                param="mode",
            )
        version = ""
        if isinstance(message, UpdateWeights):
            self._load(message)
            version = message.version or f"update-{next(self._numbers)}"
        else:
            self._engine.check_release()
        self._scheduler.begin_weights(message.running)
        self._pending = owner, message, version
        return []

    def _use_group(self, owner: bytes, message: InitWeightsGroup | LeaveWeightsGroup | ReceiveWeights) -> list[Reply]:
        """Begin to join a group or to receive from one, or leave it. Raises RequestError."""
        if self._refusal is not None:
            raise RequestError(f"weights cannot be changed: {self._refusal}", param="group_name", code="not_supported")
        match message:
            case InitWeightsGroup():
                self._engine.check_release()
                self._joining.append((owner, message, self._groups.join(message)))
                return []
            case LeaveWeightsGroup(call=call, group=group):
                if self._receiving is not None and self._receiving[1].group == group:
                    raise RequestError(f"tensors come over the group {group!r}", param="group_name", code="conflict")
                self._groups.leave(group)
                return [(owner, CoreReply(call))]
        if self._receiving is not None:
            raise RequestError("another update is on its way", param="group_name", code="conflict")
        try:
            self._check_announced(message)
            self._receiving = owner, message, self._groups.receive(message)
        except RequestError:
            with suppress(RequestError):
                self._groups.leave(message.group)  # what the trainer sends would be taken for the next update's
            raise
        return []

    def _check_announced(self, message: ReceiveWeights) -> None:
        """Raise RequestError for tensors that the model could not take."""
        if not len(message.names) == len(message.dtypes) == len(message.shapes) > 0:
            raise RequestError("names, dtypes and shapes have one entry for each tensor", param="names")
        if len(shapes := dict(zip(message.names, message.shapes, strict=True))) < len(message.names):
            raise RequestError("a tensor is named twice", param="names")
        if (unknown := next((dtype for dtype in message.dtypes if dtype not in DTYPES), None)) is not None:
            raise RequestError(f"the dtype {unknown!r} is none of {', '.join(DTYPES)}", param="dtypes")
        self._engine.check_tensors(shapes)

    def _advance_groups(self) -> Iterator[Reply]:
        """Answer who has joined a group, and begin the update whose tensors have come."""
        for joining in [each for each in self._joining if each[2].done()]:
            self._joining.remove(joining)
            owner, joined, future = joining
            error = future.exception()
            yield owner, CoreReply(joined.call, error=None if error is None else ErrorInfo.of(error))
        if self._receiving is None or not self._receiving[2].done() or self._pending is not None:
            return
        (owner, message, came), self._receiving = self._receiving, None
        try:
            with shared_tensors(came.result()) as path:
                self._begin(owner, UpdateWeights(message.call, str(path), message.running, message.version))
        except RamiformError as refused:
            self._engine.drop_weights()
            yield owner, CoreReply(message.call, error=ErrorInfo.of(refused))

    def _load(self, message: UpdateWeights) -> None:
        """Load and check the weights of an update. Raises RamiformError."""
        if message.version is not None and not 1 <= len(message.version) <= MAX_VERSION:
            raise RequestError(f"weight_version must have 1 to {MAX_VERSION} characters", param="weight_version")
        start = time.monotonic()
        self._engine.prepare_weights(message.path)
        logger.info("loaded weights from %s in %.2f s", message.path, time.monotonic() - start)

    def _resume(self, message: ResumeMemory) -> None:
        """Take memory again. Raises RamiformError, with nothing changed, when the weights cannot be loaded."""
        weights = self._scheduler.weights
        due = weights.released.intersection(message.tags)
        if "weights" in due:
            self._engine.prepare_weights(None)
            self._engine.take_weights()
        weights.released -= due
        if due:
            logger.info("took memory for %s again", " and ".join(sorted(due)))
