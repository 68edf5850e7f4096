"""A generation whose attempts the client checks: generate, ask, and go on with the accepted attempt or another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..protocol.errors import ErrorInfo, RamiformError
from ..protocol.sampling import TokenLogprob
from ..protocol.session import Gen, Generated, Retry, RoleBegin, RoleEnd, Sequence, Text
from .executor import OperationResult, PendingResult, StateExecutor
from .running_program import RunningProgram


class CheckedGeneration(PendingResult):
    """Result of a checked Gen, pending until the client accepts an attempt or rejects the last one.

    Each attempt begins with the content before the Gen. `on_attempt` sends it to the client, which answers by
    `take_verdict`. The state goes on with the accepted text and nothing else.
    """

    def __init__(
        self, executor: StateExecutor, program: RunningProgram, gen: Gen, on_attempt: Callable[[Sequence], None]
    ) -> None:
        super().__init__(self._stop_attempt)
        self._executor = executor
        self._program = program
        self._on_attempt = on_attempt
        self._before: Any = executor.snapshot()
        self._is_extended = False  # the content holds operations of a Retry before the attempt
        self._running: PendingResult | None = None
        self._attempt: OperationResult | None = None  # waits for its verdict
        self._begin(gen)

    def take_verdict(self, verdict: str | ErrorInfo | Retry) -> None:
        """Go on by the client's verdict; a string accepts the attempt. Dropped unless an attempt waits for one."""
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        try:
            match verdict:
                case ErrorInfo():
                    self.resolve(verdict)
                case Retry():
                    self._executor.restore(self._before)
                    self._is_extended = bool(verdict.operations)
                    for operation in verdict.operations:
                        self._append(operation)
                    self._begin(verdict.gen)
                case _ if self._is_extended:
                    self._accept(attempt)
                case _:
                    self.resolve(attempt)
        except RamiformError as error:
            self.resolve(ErrorInfo.of(error))

    def _begin(self, gen: Gen) -> None:
        limited = self._program.limit(gen)
        self._running = self._executor.generate(limited, _ignore_delta)
        self._running.then(lambda result: self._end_attempt(gen, limited, result))

    def _end_attempt(self, gen: Gen, limited: Gen, result: OperationResult | ErrorInfo) -> None:
        self._running = None
        if isinstance(result, ErrorInfo):
            self.resolve(result)
            return
        assert result.sequences is not None
        try:
            self._program.check_uncut(gen, limited, result.sequences)
        except RamiformError as error:
            self.resolve(ErrorInfo.of(error))
            return
        self._attempt = result
        self._on_attempt(result.sequences[0])

    def _accept(self, attempt: OperationResult) -> None:
        """Return to the content before the Gen and append the accepted text, as it was generated."""
        assert attempt.sequences is not None
        self._executor.restore(self._before)
        [sequence] = attempt.sequences
        appended = self._executor.append_generated(Generated(text=sequence.text, ids=sequence.ids))
        if isinstance(appended, PendingResult):
            self._running = appended
            appended.then(lambda result: self.resolve(result if isinstance(result, ErrorInfo) else attempt))
        else:
            self.resolve(attempt)

    def _append(self, operation: Text | RoleBegin | RoleEnd) -> None:
        match operation:
            case Text(text=text):
                self._executor.append_text(text)
            case RoleBegin(role=role):
                self._executor.begin_role(role)
            case RoleEnd():
                self._executor.end_role()

    def _stop_attempt(self) -> None:
        if self._running is not None:
            self._running.cancel()


def _ignore_delta(text: str, ids: list[int], logprobs: list[TokenLogprob] | None) -> None:
    """Stream nothing: an attempt may be rejected."""
