"""Running programs and their states: the generations still to come, and what is left of a program's budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ..protocol.errors import ErrorInfo, RequestError
from ..protocol.sampling import SamplingParams
from ..protocol.session import Budget, Gen, Sequence


class Timer(Protocol):
    """Interface of a running timer: that of asyncio.TimerHandle and threading.Timer."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]  # call a function, on the interpreter's thread, after seconds


class RunningProgram:
    """`abort(program, error)` is called once, when the budget is spent: it must end every state of the program."""

    def __init__(
        self,
        number: int,
        budget: Budget | None,
        abort: Callable[[RunningProgram, ErrorInfo], None],
        call_later: CallLater,
    ) -> None:
        self.number = number  # the client's
        self.states: set[int] = set()
        self.parts: list[RunningProgram] = []  # that it has called, and that have budgets of their own
        self.num_generations = 0  # asked for by its states and not ended
        self.complete = False  # nothing more will be asked for
        self._budget = budget or Budget()
        self._tokens_left = self._budget.tokens
        self._abort = abort
        self._timer: Timer | None = None
        if self._budget.seconds is not None:
            self._timer = call_later(self._budget.seconds, self._expire)

    @property
    def whole(self) -> RunningProgram:
        """Return the program that this one is a part of; itself, if none has called it."""
        return self

    @property
    def has_token_budget(self) -> bool:
        return self._tokens_left is not None

    @property
    def tokens_left(self) -> int | None:
        return self._tokens_left

    def add(self, state: int) -> None:
        """Count a state as the program's."""
        self.states.add(state)

    def discard(self, state: int) -> None:
        """Count a state no more."""
        self.states.discard(state)

    def end(self) -> None:
        """Stop the timer: the program has no states any more."""
        if self._timer is not None:
            self._timer.cancel()

    def limit(self, gen: Gen) -> Gen:
        """Return `gen` with no more tokens than are left for each of its samples.

        Aborts the program and raises RequestError when none are left.
        """
        if self._tokens_left is None or gen.n * gen.sampling.max_new_tokens <= self._tokens_left:
            return gen
        most = self._tokens_left // gen.n
        if most <= 0:
            raise self.exhaust()
        least = min(gen.sampling.min_new_tokens, most)
        sampling: SamplingParams = msgspec.structs.replace(gen.sampling, max_new_tokens=most, min_new_tokens=least)
        return msgspec.structs.replace(gen, sampling=sampling)

    def spend(self, num_tokens: int) -> None:
        """Deduct tokens. Aborts the program and raises RequestError when that is more than is left."""
        if self._tokens_left is None:
            return
        self._tokens_left -= num_tokens
        if self._tokens_left < 0:
            raise self.exhaust()

    def check_uncut(self, gen: Gen, limited: Gen, sequences: list[Sequence]) -> None:
        """Abort the program and raise RequestError when the budget, and not `gen` itself, ended one of `sequences`."""
        most = limited.sampling.max_new_tokens
        if most < gen.sampling.max_new_tokens and any(
            sequence.finish.type == "length" and sequence.completion_tokens >= most for sequence in sequences
        ):
            raise self.exhaust()

    def exhaust(self) -> RequestError:
        """Abort the program because its tokens are spent; return the error."""
        error = RequestError(
            f"the program has spent its budget of {self._budget.tokens} generated tokens (max_total_tokens)",
            param="max_total_tokens",
            code="token_budget_exceeded",
        )
        self._abort(self, ErrorInfo.of(error))
        return error

    def _expire(self) -> None:
        error = RequestError(
            f"the program did not end within its {self._budget.seconds:g} s (timeout)", param="timeout", code="timeout"
        )
        self._abort(self, ErrorInfo.of(error))


class ProgramPart(RunningProgram):
    """A program that another one has called, with a budget of its own beside that one's, which it spends too."""

    def __init__(
        self,
        number: int,
        budget: Budget | None,
        abort: Callable[[RunningProgram, ErrorInfo], None],
        call_later: CallLater,
        caller: RunningProgram,
    ) -> None:
        super().__init__(number, budget, abort, call_later)
        self.caller = caller
        caller.parts.append(self)

    @property
    def whole(self) -> RunningProgram:
        return self.caller.whole

    @property
    def has_token_budget(self) -> bool:
        return super().has_token_budget or self.caller.has_token_budget

    @property
    def tokens_left(self) -> int | None:
        return min((left for left in (self._tokens_left, self.caller.tokens_left) if left is not None), default=None)

    def add(self, state: int) -> None:
        super().add(state)
        self.caller.add(state)

    def discard(self, state: int) -> None:
        super().discard(state)
        self.caller.discard(state)

    def end(self) -> None:
        super().end()
        if self in self.caller.parts:
            self.caller.parts.remove(self)

    def limit(self, gen: Gen) -> Gen:
        return self.caller.limit(super().limit(gen))

    def spend(self, num_tokens: int) -> None:
        self.caller.spend(num_tokens)
        super().spend(num_tokens)

    def check_uncut(self, gen: Gen, limited: Gen, sequences: list[Sequence]) -> None:
        if self.tokens_left == self._tokens_left:
            super().check_uncut(gen, limited, sequences)
        else:
            self.caller.check_uncut(gen, limited, sequences)


@dataclass(eq=False)
class StateProgress:
    """Facts of a state that its executor reads: which state it is, and how much of it is still to come."""

    number: int  # the client's
    program: RunningProgram
    width: int = 1  # how many states were forked together with this one
    num_generations: int = 0  # asked for and not begun
    closed: bool = False  # by the client: nobody reads its answers

    @property
    def finished(self) -> bool:
        """True once the state needs no more generations."""
        return self.closed or (self.program.complete and not self.num_generations)
