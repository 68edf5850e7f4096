"""Token usage and timings of a request."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...protocol.session import Sequence


class DraftCounts(NamedTuple):
    """Draft tokens that were verified, those of them that were accepted, and tokens per verification."""

    guessed: int = 0
    accepted: int = 0
    length: float = 0.0

    @classmethod
    def of(cls, sequences: Iterable[Sequence]) -> DraftCounts:
        """Add up the outputs of a request, or their stages."""
        counts, verified, accepted = 0, 0, 0
        for sequence in sequences:
            counts += sequence.num_guessed
            verified += sum(sequence.accepted_lengths)
            accepted += sum(length * count for length, count in enumerate(sequence.accepted_lengths))
        return cls(counts, accepted, 1 + accepted / verified if verified else 0.0)


NO_DRAFTS = DraftCounts()


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens: `cached` of the prompt's, `reasoning` of the completion's; and how these were drafted.

    `images` of the prompt's stand for images. `remembered` of the prompt's are ids that were generated in earlier
    answers; None: the route has no history.
    """

    prompt: int
    completion: int
    cached: int
    reasoning: int = 0
    remembered: int | None = None
    images: int = 0
    drafts: DraftCounts = NO_DRAFTS

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached}
            | ({} if self.remembered is None else {"remembered_tokens": self.remembered})
            | ({"image_tokens": self.images} if self.images else {}),
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning,
                "accepted_prediction_tokens": self.drafts.accepted,
                "rejected_prediction_tokens": self.drafts.guessed - self.drafts.accepted,
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
        drafts = usage.drafts
        drafted = {"draft_n": drafts.guessed, "draft_n_accepted": drafts.accepted, "accepted_length": drafts.length}
        return {
            "cache_n": usage.cached,
            "prompt_n": num_computed,
            "prompt_ms": prompt_ms,
            "prompt_per_second": 1e3 * num_computed / prompt_ms if prompt_ms else 0.0,
            "predicted_n": usage.completion,
            "predicted_ms": predicted_ms,
            "predicted_per_second": 1e3 * usage.completion / predicted_ms if predicted_ms else 0.0,
            **(drafted if drafts.guessed else {}),  # as llama.cpp does
        }
