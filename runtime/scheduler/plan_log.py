"""Plan log: messages, plans and results of a scheduler as JSON lines, enough to replay its
decisions without a model."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import IO

import msgspec

from ...radix.window_pages import WindowSizes
from ..protocol.config import CoreConfig
from ..protocol.core import Abort, EndStates, FlushCache, FromCore, Generate, GetStats, Pause, ToCore, TurnEnded
from ..protocol.errors import RequestError
from .interfaces import VocabularyInfo
from .jump_forward import CONTEXT_TOKENS, Retokenise
from .plan import ForwardPlan, ForwardResult, SamplingPlan
from .rope_switch import RopeSwitch
from .scheduler import CacheSizes, Scheduler

logger = logging.getLogger("ramiform.core")

LOG_VERSION = 3
MAX_LOG_BYTES = 8 << 30  # a log ends here, so that it does not fill the disk; it can be replayed so far


class LogHeader(msgspec.Struct, frozen=True, kw_only=True, tag="header"):
    """First line: settings and sizes of the scheduler."""

    version: int
    config: CoreConfig
    num_pages: int
    num_host_pages: int
    page_size: int
    num_state_slots: int = 0
    windows: WindowSizes | None = None
    context_length: int
    rope: RopeSwitch | None = None
    widened_from: int = 0
    token_bytes: list[str | None]  # base64
    eos_ids: list[int]
    special_ids: dict[str, int] = {}
    forced_end: int | None = None

    @classmethod
    def of(
        cls,
        config: CoreConfig,
        vocabulary: VocabularyInfo,
        sizes: CacheSizes,
        context_length: int,
        rope: RopeSwitch | None = None,
        widened_from: int = 0,
    ) -> LogHeader:
        """Build the header from the scheduler's arguments."""
        encoded = [None if data is None else base64.b64encode(data).decode() for data in vocabulary.token_bytes]
        return cls(
            version=LOG_VERSION,
            config=config,
            context_length=context_length,
            rope=rope,
            widened_from=widened_from,
            token_bytes=encoded,
            eos_ids=sorted(vocabulary.eos_ids),
            special_ids=dict(vocabulary.special_ids),
            forced_end=vocabulary.forced_end,
            **sizes._asdict(),
        )

    def cache_sizes(self) -> CacheSizes:
        """Return the sizes of the prefix cache."""
        return CacheSizes(*(getattr(self, name) for name in CacheSizes._fields))

    def vocabulary(self) -> VocabularyInfo:
        """Return the vocabulary facts that the header holds."""
        decoded = [None if data is None else base64.b64decode(data) for data in self.token_bytes]
        return VocabularyInfo(len(decoded), decoded, frozenset(self.eos_ids), self.special_ids, self.forced_end)


class LoggedMessage(msgspec.Struct, frozen=True, tag="message"):
    """A message that the scheduler handled."""

    owner: bytes
    message: Generate | EndStates | TurnEnded | Abort | FlushCache | Pause | GetStats
    now: float  # as for the scheduler, in seconds: eviction looks at the time that programs wait


class LoggedPlan(msgspec.Struct, frozen=True, tag="plan"):
    """A plan, or None. `settled` are the requests whose grammars were ready, or failed, at this step."""

    plan: ForwardPlan | None
    settled: list[str]
    now: float


class LoggedResult(msgspec.Struct, frozen=True, tag="result"):
    """The result of a step."""

    result: ForwardResult
    now: float


class LoggedRetokenisation(msgspec.Struct, frozen=True, tag="retokenised"):
    """Tokenizer output, so that a replay needs no tokenizer: the ids of `data` after the tokens `before`.

    It is written after the event during which it was first requested.
    """

    before: list[int]
    data: bytes
    ids: list[int]


LogEntry = LogHeader | LoggedMessage | LoggedPlan | LoggedResult | LoggedRetokenisation


class PlanLog:
    """Writes entries, one per line. Each line is complete before the next begins.

    Raises OSError if the header cannot be written. A later failure, such as a full disk, ends the log, not the core.
    """

    def __init__(self, header: LogHeader, file: IO[bytes], *, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._file = file
        self._num_left = max_bytes
        self._encoder = msgspec.json.Encoder()
        self._append(header)

    @classmethod
    def open(cls, path: str, header: LogHeader) -> PlanLog:
        """Open a log at `path`. Raises RequestError if it cannot be written."""
        try:
            return cls(header, open(path, "wb"))
        except OSError as error:
            raise RequestError(f"cannot write the plan log: {error}", param="log_plans") from None

    def write(self, entry: LogEntry) -> None:
        """Append an entry, unless the log has ended: at its maximum size, or because it could not be written."""
        try:
            self._append(entry)
        except OSError as error:
            logger.warning("the plan log ends here: %s", error)
            self._num_left = 0
            with suppress(OSError):  # what is still buffered cannot be written either
                self._file.close()

    def _append(self, entry: LogEntry) -> None:
        line = self._encoder.encode(entry) + b"\n"
        self._num_left -= len(line)
        if self._num_left >= 0:
            self._file.write(line)
            self._file.flush()  # if the core dies, the log ends with what it was about to compute

    def retokenise(self, retokenise: Retokenise) -> Retokenise:
        """Wrap `retokenise` so that its results are logged."""

        def logged(before: Sequence[int], data: bytes) -> list[int]:
            ids = retokenise(before, data)
            self.write(LoggedRetokenisation(list(before[-CONTEXT_TOKENS:]), data, ids))
            return ids

        return logged


class LoggingScheduler:
    """A scheduler whose messages, plans and results are logged."""

    def __init__(self, scheduler: Scheduler, log: PlanLog) -> None:
        self._scheduler = scheduler
        self._log = log

    @property
    def idle(self) -> bool:
        return self._scheduler.idle

    @property
    def pending_grammars(self) -> bool:
        return self._scheduler.pending_grammars

    def handle(self, message: ToCore, now: float, owner: bytes = b"") -> list[FromCore]:
        assert isinstance(message, Generate | EndStates | TurnEnded | Abort | FlushCache | Pause | GetStats)
        self._log.write(LoggedMessage(owner, message, now))
        return self._scheduler.handle(message, now, owner)

    def plan(self, now: float) -> ForwardPlan | None:
        was_idle, compiling = self._scheduler.idle, self._scheduler.compiling
        plan = self._scheduler.plan(now)
        settled = sorted(compiling - self._scheduler.compiling)
        if settled or not was_idle:
            self._log.write(LoggedPlan(plan, settled, now))
        return plan

    def answers(self) -> list[FromCore]:
        return self._scheduler.answers()

    def sampling(self) -> SamplingPlan | None:
        return self._scheduler.sampling()

    def commit(self, plan: ForwardPlan, result: ForwardResult, now: float) -> list[FromCore]:
        self._log.write(LoggedResult(result, now))
        return self._scheduler.commit(plan, result, now)


def read_log(lines: Iterable[bytes]) -> Iterator[LogEntry]:
    """Iterate over the entries of a log, up to a last line that was cut off.

    Raises RequestError, naming the line, if it is not a plan log or has another version.
    """
    decoder: msgspec.json.Decoder[LogEntry] = msgspec.json.Decoder(LogEntry)
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break  # the process ended while writing
        try:
            entry = decoder.decode(line)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors, as that of bad UTF-8 is
            raise RequestError(f"line {number} is no entry of a plan log: {error}", param="file") from None
        if isinstance(entry, LogHeader) != (number == 1):
            raise RequestError("the file does not begin with a plan log's header", param="file")
        if isinstance(entry, LogHeader) and entry.version != LOG_VERSION:
            raise RequestError(f"the log has version {entry.version}, this is version {LOG_VERSION}", param="file")
        yield entry
