"""What the frontend keeps of a program besides its states: how much of it is still to come, and what it may use.

Knows counts and a clock; nothing of contents or clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from ...protocol.core import ProgramProgress
from ...protocol.errors import ErrorInfo, RequestError
from ...protocol.sampling import SamplingParams
from ...protocol.session import Budget


class RunningProgram:
    """`lose(error)` is called once, when the budget is spent: it is to end every state of the program."""

    def __init__(
        self, number: int, name: str, budget: Budget | None, lose: Callable[[RunningProgram, ErrorInfo], None]
    ) -> None:
        self.number = number  # the client's
        self.name = name
        self.states: set[int] = set()
        self.num_generations = 0  # asked for by its states and not ended
        self.complete = False  # nothing more will be asked for
        self._budget = budget or Budget()
        self._tokens_left = self._budget.tokens
        self._lose = lose
        self._timer: asyncio.TimerHandle | None = None
        if self._budget.seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._budget.seconds, self._expire)

    @property
    def has_token_budget(self) -> bool:
        return self._tokens_left is not None

    def outlook(self, width: int) -> ProgramProgress:
        """Of one of its generations, that has begun."""
        return ProgramProgress(self.num_generations - 1, width, self.complete)

    def end(self) -> None:
        """It has no states any more."""
        if self._timer is not None:
            self._timer.cancel()

    def afford(self, sampling: SamplingParams, n: int) -> SamplingParams:
        """`sampling` with no more tokens than are left for each of `n` samples. Raises RequestError when none are."""
        if self._tokens_left is None or n * sampling.max_new_tokens <= self._tokens_left:
            return sampling
        most = self._tokens_left // n
        if most <= 0:
            raise self.exhaust()
        least = min(sampling.min_new_tokens, most)
        return msgspec.structs.replace(sampling, max_new_tokens=most, min_new_tokens=least)

    def spend(self, num_tokens: int) -> None:
        """Raises RequestError when that is more than is left."""
        if self._tokens_left is None:
            return
        self._tokens_left -= num_tokens
        if self._tokens_left < 0:
            raise self.exhaust()

    def exhaust(self) -> RequestError:
        """End the program because its tokens are spent; the error that its states are told."""
        error = RequestError(
            f"the program has spent its budget of {self._budget.tokens} generated tokens (max_total_tokens)",
            param="max_total_tokens",
            code="token_budget_exceeded",
        )
        self._lose(self, ErrorInfo.of(error))
        return error

    def _expire(self) -> None:
        error = RequestError(
            f"the program did not end within its {self._budget.seconds:g} s (timeout)", param="timeout", code="timeout"
        )
        self._lose(self, ErrorInfo.of(error))
