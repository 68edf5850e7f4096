"""Rate limits that a client keeps by itself: requests and tokens in any minute."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field

from ....runtime.protocol.errors import RequestError, RuntimeFailed
from ..model import ModelCall

WINDOW_SECONDS = 60.0
SHORTEST_WAIT = 1e-3  # a rounded time may end just before a permit does


@dataclass(eq=False)
class Permit:
    """A request that was let through: when, and its tokens, first as estimated and then as counted."""

    began: float
    num_tokens: int


@dataclass
class SlidingWindow:
    """The requests of the last minute. It knows no clock: every method is told the time."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    permits: deque[Permit] = field(default_factory=deque)

    def delay(self, now: float, num_tokens: int) -> float:
        """Return the seconds until a request of `num_tokens` keeps both limits; 0: now."""
        while self.permits and self.permits[0].began <= now - WINDOW_SECONDS:
            self.permits.popleft()
        num_requests, used = len(self.permits), sum(permit.num_tokens for permit in self.permits)
        if self._fits(num_requests, used, num_tokens):
            return 0.0
        for permit in self.permits:
            num_requests, used = num_requests - 1, used - permit.num_tokens
            if self._fits(num_requests, used, num_tokens):
                return max(permit.began + WINDOW_SECONDS - now, SHORTEST_WAIT)
        raise AssertionError("a request that fits no empty window was not refused")

    def take(self, now: float, num_tokens: int) -> Permit:
        """Note a request that begins now."""
        self.permits.append(Permit(now, num_tokens))
        return self.permits[-1]

    def _fits(self, num_requests: int, used: int, num_tokens: int) -> bool:
        return (self.requests_per_minute is None or num_requests < self.requests_per_minute) and (
            self.tokens_per_minute is None or used + num_tokens <= self.tokens_per_minute
        )


class RateLimiter:
    """Lets requests through in the order in which they come, as the limits allow. Any thread may use it."""

    def __init__(self, requests_per_minute: int | None, tokens_per_minute: int | None) -> None:
        self._window = SlidingWindow(requests_per_minute, tokens_per_minute)
        self._is_limited = requests_per_minute is not None or tokens_per_minute is not None
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    def acquire(self, num_tokens: int, call: ModelCall) -> Permit:
        """Wait until a request of about `num_tokens` may be sent.

        Raises RequestError if it can never be sent, RuntimeFailed if the call is cancelled.
        """
        if not self._is_limited:
            return Permit(0.0, num_tokens)
        most = self._window.tokens_per_minute
        if most is not None and num_tokens > most:
            raise RequestError(
                f"a request of about {num_tokens} tokens, prompt and max_tokens together, exceeds "
                f"tokens_per_minute = {most}",
                param="tokens_per_minute",
            )
        ticket, cancelled = object(), threading.Event()

        def abort() -> None:
            with self._changed:
                cancelled.set()
                self._changed.notify_all()

        with call.aborted_by(abort), self._changed:
            self._waiting.append(ticket)
            try:
                while not cancelled.is_set():
                    delay = None
                    if self._waiting[0] is ticket:
                        delay = self._window.delay(time.monotonic(), num_tokens)
                        if not delay:
                            return self._window.take(time.monotonic(), num_tokens)
                    self._changed.wait(delay)
                raise RuntimeFailed("the call was cancelled")
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()

    def settle(self, permit: Permit, num_tokens: int) -> None:
        """Replace the estimate of a permit by the tokens that its answer counted."""
        with self._changed:
            permit.num_tokens = num_tokens
            self._changed.notify_all()
