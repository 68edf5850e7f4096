"""Limits what background requests take of a step, so that live requests, which somebody waits for, come first.

Knows rows, tokens and seconds; knows no requests.
"""

from __future__ import annotations

import sys

from ..protocol.config import PAGE_SIZE
from .plan import ForwardPlan, ForwardResult

LIVELY_SECONDS = 20.0  # after the last live request, during which the next one may come at any moment
STEP_SECONDS = 0.01  # that a step of background requests may take in such a time
MIN_TOKENS = PAGE_SIZE  # of a step, which fewer would not make shorter: the weights have to be read


class BackgroundShare:
    """Rows and tokens of one step that background requests may have; what they take is counted."""

    def __init__(self, num_rows: int = sys.maxsize, num_tokens: int = sys.maxsize) -> None:
        self._num_rows = num_rows
        self._num_tokens = num_tokens

    def offer(self, num_tokens: int) -> int:
        """Return how many of the tokens that a request would take it may have."""
        return min(num_tokens, self._num_tokens) if self._num_rows else 0

    def take(self, num_tokens: int) -> None:
        """Deduct a row of that many tokens."""
        self._num_rows -= 1
        self._num_tokens -= num_tokens

    def extend(self, num_tokens: int) -> int:
        """Deduct more tokens for a row, as many as there are; return their number."""
        num_tokens = min(num_tokens, self._num_tokens)
        self._num_tokens -= num_tokens
        return num_tokens

    def close(self) -> None:
        """Leave no more to background requests."""
        self._num_rows = self._num_tokens = 0


class BackgroundPace:
    """Chooses the share of background requests in each step.

    Beside a live request it is one row, with a page of prompt at most, so that its answer comes about as fast as alone;
    none while a live prompt is computed. For a while after the last live one, steps stay short for the next one. Else
    background requests have all there is.
    """

    def __init__(self) -> None:
        self._lively_until = float("-inf")
        self._seconds_per_token: float | None = None  # of the last step that was long enough to tell

    def share(self, now: float, *, has_live: bool) -> BackgroundShare:
        """Return the share in a step that begins now; `has_live`: a live request runs or waits."""
        if has_live:
            self._lively_until = now + LIVELY_SECONDS
            return BackgroundShare(1, PAGE_SIZE)
        if now >= self._lively_until or self._seconds_per_token is None:
            return BackgroundShare()
        return BackgroundShare(num_tokens=max(MIN_TOKENS, int(STEP_SECONDS / self._seconds_per_token)))

    def observe(self, plan: ForwardPlan, result: ForwardResult) -> None:
        """Record how long a step took."""
        if plan.num_tokens >= MIN_TOKENS:
            self._seconds_per_token = max(1e-9, result.seconds / (plan.num_tokens * result.num_decodes))
