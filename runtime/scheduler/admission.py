"""Admission control: starts waiting requests, in order, while places, tokens and pages last."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from ...radix.cache import PrefixCache
from .background import BackgroundShare
from .batch import Batch, ScheduledRequest, num_cached
from .memory_forecast import MemoryGrowth, OutputLengthEstimator, peak_pages
from .programs import LivePrograms
from .queue_policies import QueueContext, QueuePolicy, shared_prefix_length
from .request import Request
from .rows.pictures import before_part

MAX_ARRANGED = 128  # requests that a policy rearranges in one step; others keep their order behind them
MAX_PASSES = 16  # times that the oldest request may be overtaken


class WaitingQueue:
    """Waiting requests, kept sorted, so that a step costs what it looks at and not what waits.

    No request starves: the oldest of the highest priority is overtaken at most MAX_PASSES times, then goes first.
    """

    def __init__(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._by_place: list[Request] = []
        self._by_arrival: list[Request] = []
        self._num_overtaken = 0  # times that the oldest request was overtaken

    def __len__(self) -> int:
        return len(self._by_place)

    @property
    def oldest(self) -> Request | None:
        """The oldest request of the highest priority."""
        return self._by_arrival[0] if self._by_arrival else None

    def add(self, request: Request) -> None:
        """Insert a request. A retracted one returns to its old position."""
        if not self._by_arrival or _arrival_key(request) < _arrival_key(self._by_arrival[0]):
            self._num_overtaken = 0
        insort(self._by_place, request, key=self._policy.key)
        insort(self._by_arrival, request, key=_arrival_key)

    def remove(self, request: Request) -> None:
        """Remove a request that ends without having started."""
        if self._by_arrival[0] is request:
            self._num_overtaken = 0
        _remove_sorted(self._by_place, request, self._policy.key)
        _remove_sorted(self._by_arrival, request, _arrival_key)

    def start(self, request: Request) -> None:
        """Remove a request that starts to run."""
        first = self._by_arrival[0]
        if first is not request and first.message.priority == request.message.priority:
            self._num_overtaken += 1
        self.remove(request)

    def front(self, context: QueueContext) -> list[Request]:
        """Return the requests that may start now, in order."""
        if len(self._by_place) == 1:
            return self._by_place[:]
        arranged = self._policy.arrange(self._by_place[:MAX_ARRANGED], context)
        if self._num_overtaken < MAX_PASSES:
            return arranged
        first = self._by_arrival[0]
        return [first, *(request for request in arranged if request is not first)]


def _arrival_key(request: Request) -> tuple[int, int]:
    return -request.message.priority, request.serial


def _remove_sorted(requests: list[Request], request: Request, key: Callable[[Request], Any]) -> None:
    at = bisect_left(requests, key(request), key=key)
    assert requests[at] is request
    del requests[at]


_MEASURE_INTERVAL = 8  # rounds of admission between two measurements of a waiting request
GOLDEN_RATIO = 0.6180339887498949  # its multiples modulo 1 are evenly spread (Weyl's sequence)


@dataclass(frozen=True)
class AwaitedPrefix:
    """A running request and the number of its tokens that a waiting request needs."""

    request: Request
    num_tokens: int

    @property
    def is_pending(self) -> bool:
        """True while the prefix is still to be computed by a running request."""
        return (
            self.request.lease is not None and not self.request.leaving and self.request.num_computed < self.num_tokens
        )


def find_awaited_prefix(
    request: Request, num_matched: int, running: Iterable[Request], page_size: int
) -> AwaitedPrefix | None:
    """Find the longest prefix of `request` that is being computed now, beyond the `num_matched` cached tokens.

    Waiting costs a few steps. It pays only for a page's worth of tokens, or half of what the request has to compute.
    """
    best: Request | None = None
    num_tokens, limit = num_matched, request.reuse_limit  # the longest so far
    own_tokens = request.cache_tokens
    for other in running:
        if other.num_uncomputed <= 1 or other.namespace != request.namespace:
            continue
        # The first token of which more is needed tells most requests apart.
        least = max(other.num_computed, num_tokens)
        if least >= min(limit, len(other.tokens)) or other.tokens[least] != request.tokens[least]:
            continue
        shared = before_part(request.message.pictures, min(shared_prefix_length(own_tokens, other.cache_tokens), limit))
        if shared > least:
            best, num_tokens = other, shared
    if best is None:
        return None
    gain = num_tokens - num_matched
    worth_it = gain >= page_size or 2 * gain >= len(request.tokens) - num_matched
    return AwaitedPrefix(best, num_tokens) if worth_it else None


class AdmissionResult(msgspec.Struct, frozen=True):
    """Outcome of one round of admission.

    `scheduled` requests run from now on. `fully_cached` ones want no tokens and are complete; `awaiting_grammar` ones
    have everything cached that can be computed before their grammar is compiled. `retracted` ones made room for those
    of a higher priority, and run no longer.
    """

    scheduled: list[ScheduledRequest]
    fully_cached: list[Request]
    awaiting_grammar: list[Request]
    retracted: list[Request]
    num_left: int  # tokens that no request could use


class Admission:
    """Admits waiting requests to a batch."""

    def __init__(
        self,
        cache: PrefixCache,
        batch: Batch,
        programs: LivePrograms,
        output_lengths: OutputLengthEstimator,
        policy: QueuePolicy,
        *,
        max_running: int,
    ) -> None:
        self._cache = cache
        self._batch = batch
        self._programs = programs
        self._output_lengths = output_lengths
        self._max_running = max_running
        self._queue = WaitingQueue(policy)
        self._num_admissions = 0
        self._num_cached_by_rid: dict[str, int] = {}  # by rid, at most _MEASURE_INTERVAL rounds old
        self._awaited_prefixes: dict[str, AwaitedPrefix] = {}  # by rid of the waiting request
        self.needs_room = False  # a running request has to make room for one that waits, when no plan is in flight

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def has_live(self) -> bool:
        """True while a request runs, or waits for a place, that is none of the background."""
        firsts = next(iter(self._batch), None), self._queue.oldest
        return any(request is not None and not request.is_background for request in firsts)

    @property
    def may_start_soon(self) -> bool:
        """True if requests wait that the next steps may start: beside live ones, one background request runs."""
        first = self._queue.oldest
        return first is not None and not (first.is_background and self.has_live and self._batch.has_background)

    def add(self, request: Request) -> None:
        self._queue.add(request)

    def remove(self, request: Request) -> None:
        """Remove a request that ends without having started."""
        self._queue.remove(request)
        self._clear_estimates(request)
        self._cache.drop_soft_pin(request.rid)

    def admit(self, num_tokens: int, background: BackgroundShare, *, may_retract: bool = True) -> AdmissionResult:
        """Start requests for `num_tokens` tokens in all. A request that does not fit is not overtaken by those behind
        it; running ones of lower priorities make room for it if `may_retract`, otherwise `needs_room` is set."""
        scheduled: list[ScheduledRequest] = []
        fully_cached: list[Request] = []
        awaiting_grammar: list[Request] = []
        retracted: list[Request] = []
        self.needs_room = False
        first = self._queue.oldest
        if first is None or num_tokens <= 0 or not self._may_start(first):
            return AdmissionResult(scheduled, fully_cached, awaiting_grammar, retracted, num_tokens)
        self._num_admissions += 1
        growths, least_priority = list[MemoryGrowth](), None
        for request in self._queue.front(self._policy_context()):
            most = background.offer(num_tokens) if request.is_background else num_tokens
            if most <= 0 or not self._may_start(request):
                break
            if request.message.priority != least_priority:  # those of lower priorities make room when it is needed
                least_priority = request.message.priority
                growths = sorted(self._growth(each) for each in self._batch if each.message.priority >= least_priority)
            if request.awaits_mask and not request.awaits_grammar:
                continue
            if (awaited := self._awaited_prefixes.get(request.rid)) is not None and awaited.is_pending:
                continue
            num_matched = self._num_cached(request)
            if request.awaits_grammar and num_matched >= len(request.tokens) - 1:
                self.remove(request)
                awaiting_grammar.append(request)
                continue
            if num_matched == len(request.tokens):
                self.remove(request)
                request.note_cached(num_matched)
                fully_cached.append(request)
                continue
            if (awaited := self._find_awaited(request, num_matched)) is not None:
                self._awaited_prefixes[request.rid] = awaited
                awaited.request.fork_positions.add(awaited.num_tokens)
                continue
            spare = self._reserved_pages(growths, request, num_matched, most)
            item = self._start(request, num_matched, most, spare, retracted if may_retract else None)
            if item is None:
                break
            if request.is_background:
                background.take(item.num_tokens)
            else:
                background.close()
            self._queue.start(request)
            self._programs.mark_started(request)
            self._clear_estimates(request)
            request.note_cached(request.num_computed)
            insort(growths, self._growth(request))
            num_tokens -= item.num_tokens
            scheduled.append(item)
        return AdmissionResult(scheduled, fully_cached, awaiting_grammar, retracted, num_tokens)

    def _start(
        self, request: Request, num_matched: int, num_tokens: int, spare: int, retracted: list[Request] | None
    ) -> ScheduledRequest | None:
        """Start a request if there is a place and room, which running ones of lower priorities make, the most junior
        first. Returns None if there is none, or if they would have to while `retracted` is None."""
        while True:
            item = self._batch.start(request, num_matched, num_tokens, spare=spare) if self._has_place else None
            junior = self._batch.junior_to(request)
            if item is not None or junior is None:
                return item
            if retracted is None:
                self.needs_room = True
                return None
            self._batch.retract(junior)
            retracted.append(junior)

    def _may_start(self, request: Request) -> bool:
        return self._has_place or self._batch.junior_to(request) is not None

    @property
    def _has_place(self) -> bool:
        return len(self._batch) < self._max_running

    def _policy_context(self) -> QueueContext:
        return QueueContext(
            num_cached=self._num_cached_recently,
            has_started=self._programs.has_started,
            running=list(self._batch),
            max_running=self._max_running,
            page_size=self._cache.page_size,
        )

    def _num_cached(self, request: Request) -> int:
        return num_cached(self._cache, request)

    def _num_cached_recently(self, request: Request) -> int:
        """Return the number of cached tokens, measured every few rounds: for ordering, where a stale value costs time
        but no tokens."""
        if (
            request.rid not in self._num_cached_by_rid
            or (self._num_admissions + request.serial) % _MEASURE_INTERVAL == 0
        ):
            self._num_cached_by_rid[request.rid] = self._num_cached(request)
        return self._num_cached_by_rid[request.rid]

    def _clear_estimates(self, request: Request) -> None:
        self._awaited_prefixes.pop(request.rid, None)
        self._num_cached_by_rid.pop(request.rid, None)

    def _reserved_pages(self, growths: list[MemoryGrowth], request: Request, num_matched: int, max_tokens: int) -> int:
        """Return the number of pages that must stay available when the request starts."""
        if not growths:
            return 0  # alone it fits whatever its length: `length_limit` saw to that
        num_pages = self._cache.pages_for(min(num_matched + max_tokens, len(request.tokens)))
        return peak_pages(
            sorted([*growths, self._growth_holding(request, num_pages, num_matched)]), self._cache.page_size
        )

    def _growth(self, request: Request) -> MemoryGrowth:
        assert request.lease is not None
        return self._growth_holding(request, len(request.lease.pages), request.lease.matched)

    def _growth_holding(self, request: Request, num_pages: int, num_shared: int) -> MemoryGrowth:
        """Forecast for a request that holds `num_pages` pages, whose first `num_shared` tokens are
        shared with others."""
        num_held = num_pages * self._cache.page_size
        most = request.end - len(request.tokens)
        return MemoryGrowth(
            num_steps=self._output_lengths.remaining(request.num_output, most, request.serial * GOLDEN_RATIO % 1.0),
            num_wanted=len(request.tokens) - num_held,
            num_freed=num_held - num_shared,
        )

    def _find_awaited(self, request: Request, num_matched: int) -> AwaitedPrefix | None:
        if not self._cache.enabled:
            return None
        seniors = (each for each in self._batch if each.message.priority >= request.message.priority)
        return find_awaited_prefix(request, num_matched, seniors, self._cache.page_size)
