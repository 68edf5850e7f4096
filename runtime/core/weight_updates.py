"""Weights that change while requests run, as a service of the core's loop.

New weights are loaded and checked between two steps, beside the old ones, which serve until running requests have made
room for the change as the client chose.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Iterator

from ..engine import ForwardEngine
from ..parallel.rank_zero import RankZeroEngine
from ..protocol.config import CoreConfig
from ..protocol.core import CoreReply, ToCore
from ..protocol.errors import ErrorInfo, RamiformError, RequestError
from ..protocol.sampling import UpdateWeights, WeightsChanged
from ..scheduler.scheduler import Scheduler
from ..transfer.hub import uses_transfers
from .adapters import Adapters
from .service import POLL_MS, Reply, Service

logger = logging.getLogger("ramiform.core")

MARK = "\0weights\0"  # in the namespace of prefixes that updated weights computed, before what no other weights have
MAX_VERSION = 200  # characters of a version's name


class WeightUpdates(Service):
    """Changes the weights of one core, one update after the other."""

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
        self._adapters, self._scheduler = adapters, scheduler
        self._engine = engine if isinstance(engine, ForwardEngine) else None
        self._numbers = itertools.count(1)
        self._pending: tuple[bytes, UpdateWeights, str] | None = None  # with the name of the version
        self._refusal = None
        if uses_transfers(config):
            self._refusal = "runtimes that exchange keys and values keep the same ones"
        elif is_logged:
            self._refusal = "a plan log could not be replayed"
        elif self._engine is None:
            self._refusal = "with tp or pp above 1 the ranks keep theirs"

    @property
    def wait_ms(self) -> int | None:
        return None if self._pending is None else POLL_MS

    def handle(self, owner: bytes, message: ToCore) -> ToCore | list[Reply]:
        """Load new weights, and let running requests make room for them."""
        if not isinstance(message, UpdateWeights):
            return message
        try:
            self._begin(owner, message)
        except RamiformError as error:
            if self._engine is not None and self._pending is None:
                self._engine.drop_weights()
            return [(owner, CoreReply(message.call, error=ErrorInfo.of(error)))]
        return []

    def advance(self) -> Iterator[Reply]:
        """Change the weights, if running requests have made room."""
        if self._pending is None or self._engine is None:
            return
        owner, message, version = self._pending
        mark = f"{MARK}{secrets.token_hex(16)}"
        if not self._scheduler.change_weights(mark, version, time.monotonic(), self._engine.take_weights):
            return
        self._pending = None
        self._adapters.note_weights(version)
        logger.info("serving the weights %s from %s", version, message.path)
        yield "all", WeightsChanged(version)
        yield owner, CoreReply(message.call, weight_version=version)

    def _begin(self, owner: bytes, message: UpdateWeights) -> None:
        """Raises RamiformError, with nothing changed, when the weights or the settings do not allow the update."""
        if self._refusal is not None or self._engine is None:
            raise RequestError(f"weights cannot be changed: {self._refusal}", param="model_path", code="not_supported")
        if self._pending is not None:
            raise RequestError("another update waits for running requests", param="model_path", code="conflict")
        if message.version is not None and not 1 <= len(message.version) <= MAX_VERSION:
            raise RequestError(f"weight_version must have 1 to {MAX_VERSION} characters", param="weight_version")
        if message.running == "finish" and self._scheduler.weights.never_due:
            raise RequestError(
                "generation is paused, so running requests do not finish: "
                "choose another mode, or resume generation first",
                param="mode",
            )
        start = time.monotonic()
        self._engine.prepare_weights(message.path)
        logger.info("loaded weights from %s in %.2f s", message.path, time.monotonic() - start)
        self._scheduler.begin_weights(message.running)
        self._pending = owner, message, message.version or f"update-{next(self._numbers)}"
