"""Requests that wait until their prompts' pages have come from another runtime, without lease.

Knows futures; how pages are fetched is the caller's matter. A request goes on from where the pages end.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from .jump_forward import Retokenise
from .request import Request
from .rows.mask_preparation import Submit

# Begins to fetch the prompt of a request that has arrived into the cache. None: it is computed here.
FetchPrefix = Callable[[Request], "Future[None] | None"]


class SchedulerCalls(NamedTuple):
    """Functions of other parts that the scheduler calls."""

    retokenise: Retokenise
    prepare_masks: Submit | None = None  # runs slow work of a grammar in a thread; None: it is done when it is needed
    fetch_prefix: FetchPrefix | None = None  # None: no other runtime computes prompts


class RemotePrefixes:
    """The waiting requests, and the futures that end when their pages are there, or will not come."""

    def __init__(self, fetch: FetchPrefix | None) -> None:
        self._fetch = fetch
        self._waiting: dict[str, tuple[Request, Future[None]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, request: Request, now: float) -> bool:
        """Let a request wait if its prompt is fetched; return True then."""
        future = None if self._fetch is None else self._fetch(request)
        if future is not None:
            self._waiting[request.rid] = request, future
            request.clock.wait("transfer", now)
        return future is not None

    def take(self, now: float) -> list[Request]:
        """Return the requests that need not wait any more."""
        done = [request for request, future in self._waiting.values() if future.done()]
        for request in done:
            del self._waiting[request.rid]
            request.clock.wait("queue", now)
        return done

    def drop(self, request: Request) -> bool:
        """Cancel the wait of a request that ends; return False if it does not wait here."""
        waiting = self._waiting.pop(request.rid, None)
        if waiting is not None:
            waiting[1].cancel()
        return waiting is not None
