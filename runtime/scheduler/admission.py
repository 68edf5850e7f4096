"""Who starts to run: waiting requests, in order, while there are places, tokens and pages for them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...radix.cache import PrefixCache
from .batch import Batch, ScheduledRequest
from .memory_forecast import MemoryGrowth, OutputLengthEstimator, peak
from .programs import LivePrograms
from .queue_policies import QueueContext, QueuePolicy
from .request import Request
from .sharing import AwaitedPrefix, find_awaited_prefix

MAX_ARRANGED = (
    128  # requests that an order arranges in one step; with more waiting, the others keep their places behind
)
MAX_PASSES = 16  # requests that may start ahead of the one that has waited longest


class WaitingQueue:
    """Kept sorted, so that a step costs what is in front and not what waits.

    Nobody starves: among those of the highest priority, the one that came first is passed at most PATIENCE times, and
    is the first of all then.
    """

    def __init__(self, order: QueuePolicy) -> None:
        self._order = order
        self._by_place: list[Request] = []
        self._by_arrival: list[Request] = []
        self._num_passed = 0  # how often the one that came first was passed

    def __len__(self) -> int:
        return len(self._by_place)

    def add(self, request: Request) -> None:
        """A retracted request comes back to where it was."""
        if not self._by_arrival or _arrival_key(request) < _arrival_key(self._by_arrival[0]):
            self._num_passed = 0
        insort(self._by_place, request, key=self._order.place)
        insort(self._by_arrival, request, key=_arrival_key)

    def remove(self, request: Request) -> None:
        """It ends without having started."""
        if self._by_arrival[0] is request:
            self._num_passed = 0
        _remove_sorted(self._by_place, request, self._order.place)
        _remove_sorted(self._by_arrival, request, _arrival_key)

    def start(self, request: Request) -> None:
        """It gets its place among the running."""
        first = self._by_arrival[0]
        if first is not request and first.message.priority == request.message.priority:
            self._num_passed += 1
        self.remove(request)

    def front(self, view: QueueContext) -> list[Request]:
        """Who may start now, one after the other."""
        arranged = self._order.arrange(self._by_place[:MAX_ARRANGED], view)
        if self._num_passed < MAX_PASSES:
            return arranged
        first = self._by_arrival[0]
        return [first, *(request for request in arranged if request is not first)]


def _arrival_key(request: Request) -> tuple[int, int]:
    return -request.message.priority, request.serial


def _remove_sorted(requests: list[Request], request: Request, key: Callable[[Request], Any]) -> None:
    at = bisect_left(requests, key(request), key=key)
    assert requests[at] is request
    del requests[at]


MEASURE_INTERVAL = 8  # of admission, between two measures of one waiting request
GOLDEN_RATIO = 0.6180339887498949  # its multiples, modulo 1, are spread evenly however many are taken (Weyl's sequence)


@dataclass(frozen=True)
class AdmissionResult:
    """Requests that run from now on, and those that need no computing: they want no tokens and are cached whole, or all
    that can be computed before their grammars are there is cached."""

    parts: list[ScheduledRequest]
    cached_whole: list[Request]
    awaiting: list[Request]
    num_left: int  # tokens that nobody could use


class Admission:
    """The waiting requests of a batch."""

    def __init__(
        self,
        cache: PrefixCache,
        batch: Batch,
        programs: LivePrograms,
        lengths: OutputLengthEstimator,
        order: QueuePolicy,
        *,
        max_running: int,
    ) -> None:
        self._cache = cache
        self._batch = batch
        self._programs = programs
        self._lengths = lengths
        self._max_running = max_running
        self._queue = WaitingQueue(order)
        self._num_rounds = 0
        self._measured: dict[str, int] = {}  # cached tokens of waiting requests, measured within the last ROUNDS
        self._awaited: dict[str, AwaitedPrefix] = {}  # what a waiting request waits for, if another computes its prefix

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, request: Request) -> None:
        self._queue.add(request)

    def remove(self, request: Request) -> None:
        """It ends without having started."""
        self._queue.remove(request)
        self._forget(request)
        self._cache.drop_soft_pin(request.rid)

    def admit(self, num_tokens: int) -> AdmissionResult:
        """Start requests for `num_tokens` tokens in all. Who has no room is not passed by those behind."""
        parts: list[ScheduledRequest] = []
        cached_whole: list[Request] = []
        awaiting: list[Request] = []
        if not self._queue or not self._may_start(num_tokens):
            return AdmissionResult(parts, cached_whole, awaiting, num_tokens)
        self._num_rounds += 1
        growths = sorted(self._growth(request) for request in self._batch)
        for request in self._queue.front(self._view()):
            if not self._may_start(num_tokens):
                break
            if (awaited := self._awaited.get(request.rid)) is not None and awaited.coming:
                continue
            num_matched = self._num_cached(request)
            if request.awaits_grammar and num_matched >= len(request.tokens) - 1:
                self.remove(request)
                awaiting.append(request)
                continue
            if num_matched == len(request.tokens):
                self.remove(request)
                request.note_cached(num_matched)
                cached_whole.append(request)
                continue
            if (awaited := self._find_awaited(request, num_matched)) is not None:
                self._awaited[request.rid] = awaited
                continue
            part = self._batch.start(
                request, num_matched, num_tokens, spare=self._spare(growths, request, num_matched, num_tokens)
            )
            if part is None:
                break
            self._queue.start(request)
            self._programs.begin(request)
            self._forget(request)
            request.note_cached(request.num_computed)
            insort(growths, self._growth(request))
            num_tokens -= part.num_tokens
            parts.append(part)
        return AdmissionResult(parts, cached_whole, awaiting, num_tokens)

    def _may_start(self, num_tokens: int) -> bool:
        return num_tokens > 0 and len(self._batch) < self._max_running

    def _view(self) -> QueueContext:
        return QueueContext(
            num_cached=self._num_cached_lately,
            has_begun=self._programs.has_begun,
            running=list(self._batch),
            max_running=self._max_running,
            page_size=self._cache.page_size,
        )

    def _num_cached(self, request: Request) -> int:
        return self._cache.match(request.tokens, request.message.namespace, limit=request.reuse_limit)

    def _num_cached_lately(self, request: Request) -> int:
        """For ordering, where an old figure costs time and never a token: each is measured every few rounds."""
        if request.rid not in self._measured or (self._num_rounds + request.serial) % MEASURE_INTERVAL == 0:
            self._measured[request.rid] = self._num_cached(request)
        return self._measured[request.rid]

    def _forget(self, request: Request) -> None:
        self._awaited.pop(request.rid, None)
        self._measured.pop(request.rid, None)

    def _spare(self, growths: list[MemoryGrowth], request: Request, num_matched: int, max_tokens: int) -> int:
        """Pages to be left when the request starts."""
        if not growths:
            return 0  # alone it fits, whatever is expected: that is how its end was set
        num_pages = self._cache.pages_for(min(num_matched + max_tokens, len(request.tokens)))
        return peak(sorted([*growths, self._growth_of(request, num_pages, num_matched)]), self._cache.page_size)

    def _growth(self, request: Request) -> MemoryGrowth:
        assert request.lease is not None
        return self._growth_of(request, len(request.lease.pages), request.lease.matched)

    def _growth_of(self, request: Request, num_pages: int, num_shared: int) -> MemoryGrowth:
        """Of a request that holds `num_pages`; the first `num_shared` tokens in them are others' as well."""
        num_held = num_pages * self._cache.page_size
        most = request.end - len(request.tokens)
        return MemoryGrowth(
            num_steps=self._lengths.remaining(request.num_output, most, request.serial * GOLDEN_RATIO % 1.0),
            num_wanted=len(request.tokens) - num_held,
            num_freed=num_held - num_shared,
        )

    def _find_awaited(self, request: Request, num_matched: int) -> AwaitedPrefix | None:
        if not self._cache.enabled:
            return None
        return find_awaited_prefix(request, num_matched, self._batch, self._cache.page_size)
