"""Token usage and timings of a request."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens: `cached` of the prompt's, `reasoning` of the completion's.

    `remembered` of the prompt's are ids that were generated in earlier answers; None: the route has no history.
    """

    prompt: int
    completion: int
    cached: int
    reasoning: int = 0
    remembered: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached}
            | ({} if self.remembered is None else {"remembered_tokens": self.remembered}),
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }


class Stopwatch:
    """Measures from a request's arrival to its first and last token; reported as llama.cpp's `timings`."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._first: float | None = None

    def tick(self, first: float | None = None) -> None:
        """Record a token; only the first one counts. `first`: when its output's first one came, by default now."""
        if first is not None:
            self._first = first if self._first is None else min(self._first, first)
        elif self._first is None:
            self._first = time.monotonic()

    def timings(self, usage: Usage) -> dict[str, Any]:
        """Return the timings, with now as the time of the last token."""
        now = time.monotonic()
        first = now if self._first is None else self._first
        num_computed = usage.prompt - usage.cached
        prompt_ms, predicted_ms = 1e3 * (first - self._began), 1e3 * (now - first)
        return {
            "cache_n": usage.cached,
            "prompt_n": num_computed,
            "prompt_ms": prompt_ms,
            "prompt_per_second": 1e3 * num_computed / prompt_ms if prompt_ms else 0.0,
            "predicted_n": usage.completion,
            "predicted_ms": predicted_ms,
            "predicted_per_second": 1e3 * usage.completion / predicted_ms if predicted_ms else 0.0,
        }
