"""Counts of what a backend has asked an endpoint for: tokens, requests, retries."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from ....runtime.protocol.core import Finish
from ....runtime.protocol.session import Sequence


@dataclass(frozen=True)
class CountedTokens:
    """Tokens of one answer. `cached` are those of the prompt that the endpoint had computed before."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def sequence(self, text: str, finish: Finish) -> Sequence:
        """Return the sequence of a text with these tokens. Endpoints give no ids."""
        return Sequence(
            text=text,
            ids=[],
            prompt_tokens=self.prompt,
            completion_tokens=self.completion,
            cached_tokens=self.cached,
            finish=finish,
        )


def usage_of(answer: Any) -> dict[str, Any] | None:
    """Return the counts in an answer's JSON, None if it has none."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    return usage if isinstance(usage, dict) and usage else None


def token_count(value: object) -> int:
    """Return a count as an endpoint's JSON has it; 0 for anything but a natural number."""
    return value if type(value) is int and value > 0 else 0


class TokenUsage:
    """Tokens, requests and retries of a backend, from its beginning or the last `reset`. Any thread may use it.

    `uncounted` are answers for which the endpoint gave no counts; their tokens are missing in the others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Set all counts to 0."""
        with self._lock:
            self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0
            self.requests = self.retries = self.uncounted = 0

    @property
    def total_tokens(self) -> int:
        """Return the tokens of prompts and completions."""
        with self._lock:
            return self.prompt_tokens + self.completion_tokens

    def count_request(self, *, is_retry: bool) -> None:
        """Count a request that is sent."""
        with self._lock:
            self.requests += 1
            self.retries += is_retry

    def count_answer(self, counts: CountedTokens | None) -> None:
        """Count the tokens of an answer; None: it does not say them."""
        with self._lock:
            if counts is None:
                self.uncounted += 1
                return
            self.prompt_tokens += counts.prompt
            self.cached_tokens += counts.cached
            self.completion_tokens += counts.completion

    def __repr__(self) -> str:
        with self._lock:
            fields = ", ".join(f"{name}={value}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"TokenUsage({fields})"
