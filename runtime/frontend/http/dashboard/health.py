"""The server's health over the last minutes: a point every few seconds always, each second while somebody looks.

The first frontend measures for all of them, since counters of the core and sums over frontends have one owner then;
the others ask it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import NamedTuple

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from ....protocol.core import CoreStats
from ....protocol.errors import RamiformError
from ....protocol.metrics import FrontendMetrics, Histogram
from ...core.client import CoreClient
from ...core.frontend_peers import FrontendPeers
from ..transport.streaming import json_response

logger = logging.getLogger("ramiform.frontend")

INTERVAL = 5.0  # seconds between points
WATCHED_INTERVAL = 1.0  # while somebody looks
KEPT_SECONDS = 900.0
PEER_WATCH_SECONDS = 3.0  # for which a question of another frontend counts as looking


class HealthPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Loads at time `t`, in seconds since the epoch, and what happened since the point before: rates in tokens per
    second, times in seconds, counts. A share is null where there was nothing to share."""

    t: float
    running: int
    waiting: int
    kv_use: float
    cached_share: float  # of the KV pages
    hit_rate: float | None  # of the prompt tokens
    prompt_rate: float
    output_rate: float
    ttft: tuple[float, float] | None  # median and 95th percentile
    itl: tuple[float, float] | None
    accept: float | None  # of the guessed tokens
    evicted_pages: int
    retractions: int
    errors: int
    requests: int  # that ended


class HealthSample(NamedTuple):
    """Counters at one moment."""

    at: float  # monotonic
    core: CoreStats
    frontends: FrontendMetrics


def point_between(before: HealthSample, after: HealthSample, now: float) -> HealthPoint:
    """Return the point of the time between two samples. `now` is in seconds since the epoch."""
    old, new = before.core, after.core
    seconds = max(after.at - before.at, 1e-3)
    num_prompt = new.num_prompt_tokens - old.num_prompt_tokens
    num_guessed = new.num_guessed_tokens - old.num_guessed_tokens
    ended, had_ended = after.frontends.outcomes, before.frontends.outcomes
    return HealthPoint(
        t=round(now, 2),
        running=new.num_running,
        waiting=new.num_waiting,
        kv_use=round(new.kv_use, 4),
        cached_share=round(new.num_cached_pages / new.num_pages, 4) if new.num_pages else 0.0,
        hit_rate=_share(new.num_cached_tokens - old.num_cached_tokens, num_prompt),
        prompt_rate=round(num_prompt / seconds, 1),
        output_rate=round((new.num_output_tokens - old.num_output_tokens) / seconds, 1),
        ttft=_percentiles(before.frontends.ttft, after.frontends.ttft),
        itl=_percentiles(before.frontends.itl, after.frontends.itl),
        accept=_share(new.num_accepted_tokens - old.num_accepted_tokens, num_guessed),
        evicted_pages=new.num_evicted_pages - old.num_evicted_pages,
        retractions=new.num_retractions - old.num_retractions,
        errors=ended.get("error", 0) - had_ended.get("error", 0),
        requests=sum(ended.values()) - sum(had_ended.values()),
    )


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole > 0 else None


def _percentiles(before: Histogram, after: Histogram) -> tuple[float, float] | None:
    """Return median and 95th percentile of the values that came in between, or None if none did."""
    counts = [new - old for new, old in zip(after.counts, before.counts, strict=True)]
    return (_quantile(after.bounds, counts, 0.5), _quantile(after.bounds, counts, 0.95)) if sum(counts) else None


def _quantile(bounds: list[float], counts: list[int], share: float) -> float:
    """Return a quantile of values in buckets, interpolated; values beyond the last bound count as that bound."""
    target = share * sum(counts)
    for index, total in enumerate(accumulate(counts)):
        if total >= target and counts[index]:
            low = bounds[index - 1] if index else 0.0
            high = bounds[min(index, len(bounds) - 1)]
            return round(low + (high - low) * (1 - (total - target) / counts[index]), 6)
    return bounds[-1]


class HealthHistory:
    """The points of the last KEPT_SECONDS. Call `start` in the event loop."""

    def __init__(self, core: CoreClient, peers: FrontendPeers) -> None:
        self.points: deque[HealthPoint] = deque()
        self._core = core
        self._peers = peers
        self._num_watchers = 0
        self._peer_watches_until = 0.0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        if peers.is_first:
            peers.on("health", self._answer_peer)

    def start(self) -> None:
        measure = self._measure if self._peers.is_first else self._fetch
        self._task = asyncio.create_task(measure(), name="health history")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Have a point each second inside the block."""
        self._num_watchers += 1
        self._wake.set()
        try:
            yield
        finally:
            self._num_watchers -= 1

    async def history(self) -> list[HealthPoint]:
        """Return the points, oldest first. Raises RuntimeFailed when the first frontend does not answer."""
        if self._peers.is_first:
            return list(self.points)
        return await self._ask_first(0.0)

    @property
    def _is_watched(self) -> bool:
        return self._num_watchers > 0 or time.monotonic() < self._peer_watches_until

    async def _measure(self) -> None:
        before: HealthSample | None = None
        while True:
            try:
                await self._core.ready()
                stats = await self._core.stats()
                after = HealthSample(time.monotonic(), stats, await self._peers.total())
            except RamiformError as error:  # the core is gone, or a frontend is too busy to answer
                logger.debug("the health of the server cannot be measured: %s", error)
                before = None
                await asyncio.sleep(INTERVAL)
                continue
            if before is not None:
                self._add(point_between(before, after, time.time()))
            before = after
            await self._pause(after.at)

    async def _pause(self, since: float) -> None:
        """Wait for the interval that holds, which becomes shorter when somebody begins to look."""
        while True:
            self._wake.clear()
            interval = WATCHED_INTERVAL if self._is_watched else INTERVAL
            seconds = since + interval - time.monotonic()
            if seconds <= 0:
                return
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                return

    async def _fetch(self) -> None:
        """Fetch the points of the first frontend, while somebody looks here."""
        while True:
            if not self._num_watchers:
                self._wake.clear()
                await self._wake.wait()
            newest = self.points[-1].t if self.points else 0.0
            try:
                for point in await self._ask_first(newest):
                    self._add(point)
            except RamiformError as error:
                logger.debug("the health of the server is not known here: %s", error)
            await asyncio.sleep(WATCHED_INTERVAL / 2)

    async def _ask_first(self, after: float) -> list[HealthPoint]:
        answers = await self._peers.ask("health", str(after), list[HealthPoint])
        return answers[0] if answers else []

    async def _answer_peer(self, about: str | None) -> list[HealthPoint]:
        after = float(about or 0)
        if after:
            self._peer_watches_until = time.monotonic() + PEER_WATCH_SECONDS
            self._wake.set()
        return [point for point in self.points if point.t > after]

    def _add(self, point: HealthPoint) -> None:
        self.points.append(point)
        while self.points[0].t < point.t - KEPT_SECONDS:
            self.points.popleft()


class HealthApi:
    """Route of the history."""

    def __init__(self, history: HealthHistory) -> None:
        self._history = history

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["page"])
        router.add_api_route("/v1/ramiform/health", self.health, methods=["GET"], response_model=None)
        return router

    async def health(self) -> Response:
        """Return the points of the last 15 minutes, oldest first."""
        return json_response({"points": await self._history.history(), "interval": INTERVAL})
