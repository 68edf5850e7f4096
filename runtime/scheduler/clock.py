"""When a request came, first got a place, and had its first token. Knows the times that it is told; reads no clock."""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.core import Timings


@dataclass
class RequestClock:
    """Seconds on one clock. A request that is retracted keeps its first times: what that costs is decoding."""

    arrived: float
    started: float | None = None
    answered: float | None = None

    def start(self, now: float) -> None:
        if self.started is None:
            self.started = now

    def answer(self, now: float) -> None:
        if self.answered is None:
            self.answered = now

    def timings(self, now: float) -> Timings:
        """Of a request that ends now. The three add up to its time in the core."""
        started = now if self.started is None else self.started
        answered = now if self.answered is None else self.answered
        return Timings(queue=started - self.arrived, prefill=answered - started, decode=now - answered)
