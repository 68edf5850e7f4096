"""Who starts to run: waiting requests, in order, while there are places, tokens and pages for them."""

from __future__ import annotations

from dataclasses import dataclass

from ...radix.cache import PrefixCache
from .batch import Batch, Part
from .queue import in_order
from .request import Request
from .sharing import Awaited, worth_awaiting


@dataclass(frozen=True)
class Admitted:
    """Requests that run from now on, and those that need no computing: they want no tokens and are cached whole."""

    parts: list[Part]
    cached_whole: list[Request]


class Admission:
    """The waiting requests of a batch."""

    def __init__(self, cache: PrefixCache, batch: Batch, max_running: int) -> None:
        self._cache = cache
        self._batch = batch
        self._max_running = max_running
        self._requests: dict[str, Request] = {}
        self._awaited: dict[str, Awaited] = {}  # what a waiting request waits for, if another computes its prefix

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        assert request.rid not in self._requests
        self._requests[request.rid] = request

    def remove(self, request: Request) -> None:
        del self._requests[request.rid]
        self._awaited.pop(request.rid, None)

    def admit(self, num_tokens: int) -> Admitted:
        """Start requests for `num_tokens` tokens in all. Who has no room is not passed by those behind."""
        admitted = Admitted([], [])
        if not self._may_start(num_tokens):
            return admitted
        for request in in_order(self._requests.values(), self._batch):
            if not self._may_start(num_tokens):
                break
            awaited = self._awaited.get(request.rid)
            if awaited is not None and awaited.coming:
                continue
            num_matched = self._cache.match(request.tokens, request.message.namespace, limit=request.reuse_limit)
            if num_matched == len(request.tokens):
                self.remove(request)
                request.note_cached(num_matched)
                admitted.cached_whole.append(request)
                continue
            if (awaited := self._find_awaited(request, num_matched)) is not None:
                self._awaited[request.rid] = awaited
                continue
            part = self._batch.start(request, num_matched, num_tokens)
            if part is None:
                break
            self.remove(request)
            request.note_cached(request.num_computed)
            num_tokens -= part.num_tokens
            admitted.parts.append(part)
        return admitted

    def _may_start(self, num_tokens: int) -> bool:
        return num_tokens > 0 and len(self._batch) < self._max_running

    def _find_awaited(self, request: Request, num_matched: int) -> Awaited | None:
        if not self._cache.enabled:
            return None
        return worth_awaiting(request, num_matched, self._batch, self._cache.page_size)
