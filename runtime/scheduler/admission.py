"""Who starts to run: waiting requests, in order, while there are places, tokens and pages for them."""

from __future__ import annotations

from dataclasses import dataclass

from ...radix.cache import PrefixCache
from .batch import Batch, Part
from .estimate import OutputLengths
from .orders import Order, View
from .programs import Programs
from .queue import Queue
from .request import Request
from .sharing import Awaited, worth_awaiting


@dataclass(frozen=True)
class Admitted:
    """Requests that run from now on, and those that need no computing: they want no tokens and are cached whole."""

    parts: list[Part]
    cached_whole: list[Request]


class Admission:
    """The waiting requests of a batch."""

    def __init__(
        self,
        cache: PrefixCache,
        batch: Batch,
        programs: Programs,
        lengths: OutputLengths,
        order: Order,
        *,
        max_running: int,
    ) -> None:
        self._cache = cache
        self._batch = batch
        self._programs = programs
        self._lengths = lengths
        self._max_running = max_running
        self._queue = Queue(order)
        self._awaited: dict[str, Awaited] = {}  # what a waiting request waits for, if another computes its prefix

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, request: Request) -> None:
        self._queue.add(request)

    def remove(self, request: Request) -> None:
        """It ends without having started."""
        self._queue.remove(request)
        self._awaited.pop(request.rid, None)
        self._cache.drop_claim(request.rid)

    def admit(self, num_tokens: int) -> Admitted:
        """Start requests for `num_tokens` tokens in all. Who has no room is not passed by those behind."""
        admitted = Admitted([], [])
        if not self._queue or not self._may_start(num_tokens):
            return admitted
        num_reserved = sum(self._growth(request) for request in self._batch)
        for request in self._queue.front(self._view()):
            if not self._may_start(num_tokens):
                break
            if (awaited := self._awaited.get(request.rid)) is not None and awaited.coming:
                continue
            num_matched = self._num_cached(request)
            if num_matched == len(request.tokens):
                self.remove(request)
                request.note_cached(num_matched)
                admitted.cached_whole.append(request)
                continue
            if (awaited := self._find_awaited(request, num_matched)) is not None:
                self._awaited[request.rid] = awaited
                continue
            spare = num_reserved + self._growth(request, num_matched + num_tokens) if self._batch else 0
            part = self._batch.start(request, num_matched, num_tokens, spare=spare)
            if part is None:
                break
            self._queue.start(request)
            self._programs.begin(request)
            self._awaited.pop(request.rid, None)
            request.note_cached(request.num_computed)
            num_reserved += self._growth(request)
            num_tokens -= part.num_tokens
            admitted.parts.append(part)
        return admitted

    def _may_start(self, num_tokens: int) -> bool:
        return num_tokens > 0 and len(self._batch) < self._max_running

    def _view(self) -> View:
        return View(
            num_cached=self._num_cached,
            has_begun=self._programs.has_begun,
            running=list(self._batch),
            max_running=self._max_running,
            page_size=self._cache.page_size,
        )

    def _num_cached(self, request: Request) -> int:
        return self._cache.match(request.tokens, request.message.namespace, limit=request.reuse_limit)

    def _growth(self, request: Request, num_leased: int = 0) -> int:
        """The pages that a request will want beyond those it has; `num_leased` tokens' worth before it runs."""
        expected = len(request.tokens) + self._lengths.remaining(request.num_output, request.end - len(request.tokens))
        num_pages = self._cache.pages_for(min(num_leased, len(request.tokens)))
        if request.lease is not None:
            num_pages = len(request.lease.pages)
        return max(0, self._cache.pages_for(expected) - num_pages)

    def _find_awaited(self, request: Request, num_matched: int) -> Awaited | None:
        if not self._cache.enabled:
            return None
        return worth_awaiting(request, num_matched, self._batch, self._cache.page_size)
