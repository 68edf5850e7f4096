"""Fetches the prompts of requests from prefill runtimes. A fetch that fails ends early, and the request is computed
here from where the pages end.

Values in, values out: the sockets are the caller's.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from ...radix.packed_tokens import pack
from ..engine.kv_pool import PAGE_SIZE
from ..scheduler.queue_policies import shared_prefix_length
from ..scheduler.request import Request
from ..scheduler.rows.pictures import whole_pages
from .messages import CancelFetch, FetchEnded, FetchPrefix, PagesSent, PagesTaken, ToServer
from .pages import CachePages

logger = logging.getLogger("ramiform.transfer")

# Seconds without pages until a prompt is computed here. A prompt may wait in the prefill runtime's queue, and the
# end of a process or of its connection is noticed by itself.
_SILENCE_SECONDS = 20.0
OVERLOAD = 2  # a prefill runtime that has cached a prompt's beginning may have this many times the least one's tokens


@dataclass(eq=False)
class Fetch:
    """Pages [`first`, `end`) of a prompt are still to come from a peer. Every request that needs them waits for its
    `waiter`."""

    call: int
    peer: int
    tokens: list[int]  # of whole pages, as the cache knows them
    namespace: str
    first: int
    heard: float
    pin: tuple[str, int]  # id and rank of the first request, which pins what has come
    waiters: list[Future[None]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return len(self.tokens) // PAGE_SIZE

    @property
    def is_wanted(self) -> bool:
        return any(not waiter.cancelled() for waiter in self.waiters)


@dataclass
class FetchCounters:
    """Totals since start."""

    num_tokens: int = 0  # whose pages came from other runtimes
    num_early_tokens: int = 0  # of these, those that came while later tokens of their prompt were computed
    num_failures: int = 0  # fetches that ended before all pages had come


class PrefixFetcher:
    """Fetches in progress, from the peers with the numbers of `connected`."""

    def __init__(
        self, pages: CachePages, send: Callable[[int, ToServer], None], *, min_tokens: int, clock: Callable[[], float]
    ) -> None:
        self._pages = pages
        self._send = send
        self._min_tokens = min_tokens
        self._clock = clock
        self._calls = itertools.count(1)
        self._fetches: dict[int, Fetch] = {}
        self.connected: set[int] = set()
        self.counters = FetchCounters()

    @property
    def active(self) -> bool:
        return bool(self._fetches)

    def fetch(self, request: Request) -> Future[None] | None:
        """Begin to fetch the prompt of a request that has just arrived. Returns None if it is to be computed here.

        The future ends when the pages are cached, or will not come.
        """
        if not self.connected or request.rope_length:  # pages of a part of the prompt would be rotated otherwise
            return None
        namespace, pictures = request.message.namespace, request.message.pictures
        end = whole_pages(pictures, request.reuse_limit, PAGE_SIZE)
        prefix = request.cache_tokens[: end * PAGE_SIZE]
        cached = self._pages.num_cached(prefix, namespace)
        if (end - cached) * PAGE_SIZE < self._min_tokens:
            return None
        waiter: Future[None] = Future()
        running = self._find_running(prefix, namespace, cached)
        if running is None:
            call, peer = next(self._calls), self._choose(prefix, namespace)
            running = Fetch(call, peer, prefix, namespace, cached, self._clock(), (request.rid, request.rank))
            self._fetches[call] = running
            priority = request.message.priority
            message = FetchPrefix(
                call=call,
                tokens=request.tokens[: end * PAGE_SIZE],
                namespace=namespace,
                first=cached,
                priority=priority,
                pictures=[picture for picture in pictures if picture.end <= end * PAGE_SIZE],
            )
            self._send(peer, message)
        running.waiters.append(waiter)
        return waiter

    def take(self, peer: int, message: PagesSent, bytes_PB: torch.Tensor) -> None:
        """Cache pages that have come."""
        fetch = self._fetches.get(message.call)
        if fetch is None or fetch.peer != peer:
            return
        fetch.heard = self._clock()
        until = message.first + message.count
        fits = message.first == fetch.first and until <= fetch.end and len(bytes_PB) == message.count
        pin = None if fetch.waiters[0].cancelled() else fetch.pin
        if not fits or not self._pages.write(
            fetch.tokens[: until * PAGE_SIZE], fetch.namespace, message.first, bytes_PB, pin
        ):
            self._stop(fetch)  # no room, or what came before is gone: the scheduler decides what to do
            return
        fetch.first = until
        self.counters.num_tokens += message.count * PAGE_SIZE
        self.counters.num_early_tokens += message.count * PAGE_SIZE * message.is_early
        self._send(peer, PagesTaken(message.call, message.count, message.slots))

    def end(self, peer: int, message: FetchEnded) -> None:
        """Let the requests of a fetch go on."""
        fetch = self._fetches.get(message.call)
        if fetch is None or fetch.peer != peer:
            return
        if message.error is not None:
            logger.warning("a prompt is computed here: %s", message.error.message)
        self._finish(fetch)

    def lose(self, peer: int) -> None:
        """End the fetches from a peer that is gone."""
        self.connected.discard(peer)
        for fetch in [fetch for fetch in self._fetches.values() if fetch.peer == peer]:
            self._finish(fetch)

    def work(self, now: float) -> None:
        """End the fetches that nobody wants any more, or whose peers are silent."""
        for fetch in list(self._fetches.values()):
            if not fetch.is_wanted or now - fetch.heard > _SILENCE_SECONDS:
                self._stop(fetch)

    def _stop(self, fetch: Fetch) -> None:
        self._send(fetch.peer, CancelFetch(fetch.call))
        self._finish(fetch)

    def _finish(self, fetch: Fetch) -> None:
        self._fetches.pop(fetch.call, None)
        self.counters.num_failures += fetch.first < fetch.end and fetch.is_wanted
        for waiter in fetch.waiters:
            if not waiter.cancelled():
                waiter.set_result(None)

    def _find_running(self, prefix: Sequence[int], namespace: str, cached: int) -> Fetch | None:
        """Find a fetch whose pages are most of what `prefix` lacks: samples and branches of one prompt share it."""
        for fetch in self._fetches.values():
            if fetch.namespace != namespace:
                continue
            num_pages = shared_prefix_length(prefix, fetch.tokens) // PAGE_SIZE
            if 2 * (num_pages - cached) * PAGE_SIZE >= max(1, len(prefix) - cached * PAGE_SIZE):
                return fetch
        return None

    def _choose(self, prefix: Sequence[int], namespace: str) -> int:
        """Choose the peer that prompts with this beginning go to, unless it has too much to do."""
        loads = dict.fromkeys(sorted(self.connected), 0)
        for fetch in self._fetches.values():
            if fetch.peer in loads:
                loads[fetch.peer] += (fetch.end - fetch.first) * PAGE_SIZE
        beginning = namespace.encode() + pack(prefix[: 4 * PAGE_SIZE])
        favourite = max(loads, key=lambda peer: hashlib.sha256(beginning + peer.to_bytes(4, "big")).digest())
        least = min(loads, key=lambda peer: loads[peer])
        return favourite if loads[favourite] <= OVERLOAD * loads[least] + len(prefix) else least
