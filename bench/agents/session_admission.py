"""Admission of replayed sessions by program: which turns wait, so that memory has few programs whole, not many in part.
Knows no scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from typing import Literal, Protocol

from ramiform.radix.cache import PrefixCache

AdmissionRule = Literal["none", "forecast", "clairvoyant"]


class AdmittedSession(Protocol):
    """A session, whose turns may have to wait."""

    name: str
    blocks: list[int]

    @property
    def next_use(self) -> float: ...


@dataclass(frozen=True)
class AdmissionSettings:
    """`rule` says how it is known who comes back within `horizon` seconds. No turn waits longer than `longest`."""

    rule: AdmissionRule = "none"
    longest: float = 0.0  # seconds
    horizon: float = 60.0  # seconds


class ProgramAdmission:
    """Lets a turn wait whose context would push out contexts that are used again sooner.

    A turn that finds three quarters of its context starts at once. Any other one starts when what it has to compute
    fits in what is free or kept for sessions that do not come back within the horizon, or when it has waited long
    enough.
    """

    def __init__(self, cache: PrefixCache, settings: AdmissionSettings) -> None:
        self._cache, self._settings = cache, settings
        self._waiting: list[tuple[AdmittedSession, float, Callable[[], None]]] = []  # since when, and how to start it
        self._live: dict[str, AdmittedSession] = {}
        self._running: dict[str, int] = {}  # blocks that turns which have started compute
        self.num_delayed = 0
        self.longest_delay = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, session: AdmittedSession, now: float, start: Callable[[], None]) -> None:
        """Start a turn now, or in a later call of `start_those_that_fit`."""
        self._live[session.name] = session
        self._waiting.append((session, now, start))
        self.start_those_that_fit(now)
        self.num_delayed += any(waiting is session for waiting, _, _ in self._waiting)

    def note_answered(self, session: AdmittedSession) -> None:
        """Note that a turn has ended."""
        self._running.pop(session.name, None)

    def end(self, session: AdmittedSession) -> None:
        """Note that a session has ended."""
        self._live.pop(session.name, None)

    def start_those_that_fit(self, now: float) -> None:
        """Start turns, the oldest first. One that does not fit is overtaken by those that find their contexts."""
        room: int | None = None
        for entry in list(self._waiting):
            session, since, start = entry
            missing = self._missing(session.blocks)
            is_late = now - since >= self._settings.longest
            if not is_late and 4 * missing > len(session.blocks):
                room = self._room(now) if room is None else room
                if missing > room:
                    room = 0  # the next ones do not take its place
                    continue
                room -= missing
            self._waiting.remove(entry)
            self._running[session.name] = missing
            self.longest_delay = max(self.longest_delay, now - since)
            start()

    def _missing(self, blocks: Sequence[int]) -> int:
        return len(blocks) - self._cache.match(blocks)

    def _room(self, now: float) -> int:
        """Return the blocks that are not held for sessions which run, or come back soon."""
        kept = sum(self._running.values())
        waiting = {session.name for session, _, _ in self._waiting}
        for name, session in self._live.items():
            if name in self._running or (name not in waiting and self._returns_soon(session, now)):
                kept += self._cache.match(session.blocks)
        return self._cache.num_pages - kept

    def _returns_soon(self, session: AdmittedSession, now: float) -> bool:
        """Return True if the session comes back within the horizon: by the forecast as likely as not."""
        if self._settings.rule == "clairvoyant":
            return session.next_use <= now + self._settings.horizon
        forecast, owner = self._cache.forecast, (f"/{session.name}", 0)
        wait = forecast.wait(owner)
        forecast.now = now
        return forecast.is_waiting(owner) and forecast.rate(wait.group, wait.since) * self._settings.horizon >= log(2)
