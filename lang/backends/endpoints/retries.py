"""When a failed call of an endpoint is repeated: exponential back-off with jitter, or as the server asks."""

from __future__ import annotations

from dataclasses import dataclass

from ..http_errors import HttpFailure


@dataclass(frozen=True)
class RetryPolicy:
    """`max_retries` calls after the first. Waits double from `first_delay` to `max_delay` seconds."""

    max_retries: int = 4
    first_delay: float = 0.5
    max_delay: float = 16.0

    def delay(self, num_failed: int, failure: HttpFailure, draw: float) -> float | None:
        """Return the seconds to wait after `num_failed` calls, None if the call is not to be repeated.

        `draw` from [0, 1) spreads the calls of many clients: a half to the whole of the back-off. It never shortens
        the time that the server asked for.
        """
        if not failure.may_repeat or num_failed > self.max_retries:
            return None
        if failure.retry_after is not None:
            return failure.retry_after * (1 + 0.1 * draw)
        longest = min(self.first_delay * 2.0 ** min(num_failed - 1, 30), self.max_delay)
        return longest * (0.5 + 0.5 * draw)
