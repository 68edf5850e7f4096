"""Interprets one program state: plays its operations in order, each as soon as what it needs is there."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..protocol.errors import ErrorInfo, RamiformError, RequestError
from ..protocol.sampling import TokenLogprob
from ..protocol.session import (
    Answer,
    AppendImage,
    Ask,
    Attempted,
    Decide,
    Delta,
    Done,
    Failed,
    Gen,
    Generated,
    Mark,
    Retry,
    RoleBegin,
    RoleEnd,
    Rollback,
    Select,
    Sequence,
    Sync,
    Text,
)
from .checked_generation import CheckedGeneration
from .executor import OperationResult, PendingResult, StateExecutor
from .running_program import RunningProgram, StateProgress

logger = logging.getLogger("ramiform.programs")


@dataclass(frozen=True)
class ForkStep:
    """Begin `children` with the content as it is at this point."""

    children: tuple[StateInterpreter, ...]


@dataclass(frozen=True, eq=False)
class JoinStep:
    """Append what each child reports to have appended. A report is None until it is there."""

    parent: StateInterpreter
    reports: list[Any]  # ErrorInfo, or what `StateExecutor.since_fork` returns

    @property
    def ready(self) -> bool:
        """True once every report is there, or one before the first missing report is an error."""
        for report in self.reports:
            if report is None or isinstance(report, ErrorInfo):
                return report is not None
        return True


@dataclass(frozen=True, eq=False)
class ReportStep:
    """Report to a join what was appended since the fork, up to this point. The client gets no answer."""

    join: JoinStep
    index: int

    def report(self, appended: Any) -> None:
        self.join.reports[self.index] = appended
        self.join.parent.wake()


# An ErrorInfo as a step is an operation that was wrong from the start.
Step = (
    Text
    | RoleBegin
    | RoleEnd
    | Gen
    | Generated
    | Select
    | Ask
    | Decide
    | Mark
    | Rollback
    | Sync
    | ForkStep
    | JoinStep
    | ReportStep
    | ErrorInfo
)
ROLLED_BACK = ErrorInfo.of(RequestError("the state was rolled back to before this operation", code="rolled_back"))
_GENERATION = (Gen, Select, Decide)  # operations that ask the model; a tuple: isinstance of a union is slow
_WAITING = (Ask, JoinStep)  # steps that wait for more than their turn


class RunQueue:
    """States that can go on. The states that a step wakes are played before the state that woke them goes on."""

    def __init__(self) -> None:
        self._woken: list[StateInterpreter] = []
        self._running = False

    def add(self, state: StateInterpreter) -> None:
        self._woken.append(state)

    def run(self) -> None:
        """Play until no state can go on. A call from within `run` does nothing."""
        if self._running:
            return
        self._running = True
        try:
            stack = self._take()  # a stack and no recursion: forks of forks may be deep
            while stack:
                if not stack[-1].play_next():
                    stack.pop()
                if self._woken:
                    stack += self._take()
        finally:
            self._running = False

    def _take(self) -> list[StateInterpreter]:
        """Return the states woken since the last call, the first one last."""
        woken, self._woken = self._woken, []
        woken.reverse()
        return woken


class StateInterpreter:
    """Plays steps once it has an executor. Every operation is answered once, by Done or Failed, through `send`."""

    def __init__(
        self,
        number: int,
        program: RunningProgram,
        parent: StateInterpreter | None,
        queue: RunQueue,
        send: Callable[[Answer], None],
    ) -> None:
        self.number = number
        self.program = program
        self.progress = StateProgress(number, program)
        self.parent = parent
        self.next_op = 0
        self._queue = queue
        self._send = send
        self._executor: StateExecutor | None = None  # None until the fork that it comes from is played
        self._failure: ErrorInfo | None = None
        self._failed_at: int | None = None  # the operation that failed; None if the state itself did
        self._known_marks: list[int] = []  # Marks that were added and no Rollback removes
        self._marks: dict[int, Any] = {}  # those that were played, with the executor's snapshots
        self._steps: deque[tuple[int, Step]] = deque()
        self._playing: tuple[int, Step, PendingResult] | None = None
        self._supplies: dict[int, str | ErrorInfo | None] = {}  # of every Ask that is not played; None: not there yet

    @property
    def idle(self) -> bool:
        """True when nothing is left to play."""
        return not self._steps and self._playing is None

    @property
    def is_playing(self) -> bool:
        """True while a step is pending."""
        return self._playing is not None

    def wake(self) -> None:
        """Let the queue play this state."""
        self._queue.add(self)

    def begin(self, executor: StateExecutor) -> None:
        self._executor = executor
        self.wake()

    def fail(self, error: ErrorInfo) -> None:
        """Answer every step, and those to come, with `error`."""
        self._failure, self._failed_at = error, None
        self.wake()

    def add(self, step: Step) -> None:
        """Add the next operation. A Rollback stops those before it that nothing else waits for."""
        if isinstance(step, Mark):
            self._known_marks.append(self.next_op)
        elif isinstance(step, Rollback) and step.mark not in self._known_marks:
            step = ErrorInfo.of(
                RequestError(f"operation {step.mark} is no mark of this state", param="mark", code="bad_mark")
            )
        elif isinstance(step, Rollback):
            self._known_marks = [mark for mark in self._known_marks if mark <= step.mark]
            if self._failure is None:
                self._stop_after(step.mark)
        self._add(self.next_op, step)
        self.next_op += 1

    def add_report(self, join: JoinStep, index: int) -> None:
        """Report to `join` once all steps added so far are played."""
        self._add(-1, ReportStep(join, index))

    def supply(self, op: int, supplied: str | ErrorInfo | Retry) -> None:
        """Give an Ask, or the attempt of a checked Gen, what it waits for.

        The first supply counts; one for an operation that waits for none is dropped.
        """
        if op in self._supplies and self._supplies[op] is None and not isinstance(supplied, Retry):
            self._supplies[op] = supplied
            self.wake()
        elif self._playing is not None and self._playing[0] == op:
            _, _, pending = self._playing
            if isinstance(pending, CheckedGeneration):
                pending.take_verdict(supplied)

    def close(self) -> None:
        """Answer no more. Play only what other states still wait for: this state's forks, and reports to joins."""
        self._send = _discard
        self.progress.closed = True
        while self._steps and not isinstance(self._steps[-1][1], ForkStep | ReportStep):
            step = self._steps.pop()[1]
            if isinstance(step, _GENERATION):
                self.progress.num_generations -= 1
            self._generation_ended(step)
        for op in self._supplies:
            self.supply(op, self._closed_error())  # nobody else will
        if self._playing is not None and isinstance(self._playing[2], CheckedGeneration):
            self._stop_playing(self._closed_error())  # nobody will check its attempts
            self.wake()
        if not self._steps:
            self.abort()

    def abort(self) -> None:
        """Answer no more and play no more. States that wait for this one fail."""
        self._send = _discard
        self.progress.closed = True
        self._failure, self._failed_at = self._closed_error(), None
        error = self._failure
        if self._playing is not None:
            _, step, pending = self._playing
            self._playing = None
            pending.cancel()
            self._generation_ended(step)
        while self._steps:
            op, step = self._next()
            self._refuse(op, step, error)
            self._generation_ended(step)

    def play_next(self) -> bool:
        """Play the next step if it can be played; return True if it was."""
        if self._playing is not None or not self._steps:
            return False
        op, step = self._steps[0]
        if self._failure is not None and self._recovers(step):
            self._failure = None
        if self._failure is not None:
            self._next()
            self._refuse(op, step, self._failure)
            self._generation_ended(step)
            return True
        if self._executor is None:
            return False
        if isinstance(step, _WAITING) and not self._is_ready(op, step):
            return False
        self._next()
        try:
            result = self._play(self._executor, op, step)
        except Exception as error:
            if not isinstance(error, RamiformError):
                logger.exception("an operation failed on an internal error")
            self._finish(op, step, ErrorInfo.of(error))
        else:
            if isinstance(result, PendingResult):
                self._playing = op, step, result
                result.then(self._resolve)
            else:
                self._finish(op, step, result)
        return True

    def _add(self, op: int, step: Step) -> None:
        self._steps.append((op, step))
        if isinstance(step, _GENERATION):
            self.progress.num_generations += 1
            self.program.num_generations += 1
        elif isinstance(step, Ask):
            self._supplies[op] = None

    def _next(self) -> tuple[int, Step]:
        op, step = self._steps.popleft()
        if isinstance(step, _GENERATION):
            self.progress.num_generations -= 1
        return op, step

    def _generation_ended(self, step: Step) -> None:
        if isinstance(step, _GENERATION):
            self.program.num_generations -= 1
            if self._executor is not None:
                self._executor.generation_ended()

    def _is_ready(self, op: int, step: Ask | JoinStep) -> bool:
        return step.ready if isinstance(step, JoinStep) else self._supplies[op] is not None

    def _play(self, executor: StateExecutor, op: int, step: Step) -> OperationResult | PendingResult | None:
        """Play a step and return its result; None for a step that the client gets no answer to."""
        match step:
            case Text(text=text):
                return _result(executor.append_text(text))
            case AppendImage(data=data):
                return executor.append_image(data)
            case RoleBegin(role=role, tools=tools):
                return _result(executor.begin_role(role, tools))
            case RoleEnd():
                return _result(executor.end_role())
            case Gen(checked=True):
                if self.progress.closed:
                    raise self._closed_error().to_exception()  # nobody would check its attempts
                return CheckedGeneration(executor, self.program, step, partial(self._send_attempt, op))
            case Gen():
                self._limited = self.program.limit(step)
                return executor.generate(self._limited, partial(self._send_delta, op))
            case Generated():
                return executor.append_generated(step)
            case Select():
                return executor.select(step)
            case Decide():
                return executor.decide(step)
            case Ask(chosen=chosen):
                supplied = self._supplies.pop(op)
                if isinstance(supplied, ErrorInfo):
                    raise supplied.to_exception()
                assert supplied is not None
                return executor.supply(supplied, chosen=chosen)
            case Mark():
                self._marks[op] = executor.snapshot()
                return OperationResult("")
            case Rollback(mark=mark):
                executor.restore(self._marks[mark])
                self._marks = {number: kept for number, kept in self._marks.items() if number <= mark}
                return OperationResult("")
            case Sync(ids=True):
                return executor.token_ids()
            case Sync():
                return OperationResult("")
            case ForkStep(children=children):
                for child in children:
                    child.progress.width = len(children)
                for child, own in zip(children, executor.fork([c.progress for c in children]), strict=True):
                    child.begin(own)
                return OperationResult("")
            case JoinStep(reports=reports):
                for report in reports:
                    if isinstance(report, ErrorInfo):
                        raise report.to_exception()
                return executor.join(reports)
            case ReportStep():
                step.report(executor.since_fork())
                return None
            case ErrorInfo():
                raise step.to_exception()

    def _resolve(self, result: OperationResult | ErrorInfo) -> None:
        """Go on with the result of the step that was pending."""
        assert self._playing is not None
        op, step, _ = self._playing
        self._playing = None
        if isinstance(step, Gen) and not step.checked and isinstance(result, OperationResult):
            try:
                self.program.check_uncut(step, self._limited, result.sequences or [])
            except RequestError as error:
                result = ErrorInfo.of(error)
        self._finish(op, step, result)
        self.wake()
        self._queue.run()

    def _finish(self, op: int, step: Step, result: OperationResult | ErrorInfo | None) -> None:
        if isinstance(result, ErrorInfo):
            self._failure, self._failed_at = result, op
            self._refuse(op, step, result)
        elif result is not None:
            self._send(Done(self.number, op, *result))
        self._generation_ended(step)

    def _refuse(self, op: int, step: Step, error: ErrorInfo) -> None:
        match step:
            case ReportStep():
                step.report(error)
                return
            case ForkStep(children=children):
                for child in children:
                    child.fail(error)
        self._send(Failed(self.number, op, error))

    def _send_delta(self, op: int, text: str, ids: list[int], logprobs: list[TokenLogprob] | None) -> None:
        self._send(Delta(self.number, op, text, ids, logprobs))

    def _send_attempt(self, op: int, sequence: Sequence) -> None:
        self._send(Attempted(self.number, op, sequence))

    def _recovers(self, step: Step) -> bool:
        """Return whether the step rolls back to a mark before the operation that failed."""
        return isinstance(step, Rollback) and self._failed_at is not None and step.mark < self._failed_at

    def _stop_playing(self, error: ErrorInfo) -> None:
        """Fail the operation that is being played."""
        assert self._playing is not None
        op, step, pending = self._playing
        self._playing = None
        pending.cancel()
        self._finish(op, step, error)

    def _stop_after(self, mark: int) -> None:
        """Fail the first operation after `mark` that no fork and no join waits for, and thereby those that follow."""
        needed = max((n for n, (op, step) in enumerate(self._steps) if op <= mark or _is_shared(step)), default=-1)
        if needed == -1 and self._playing is not None and self._playing[0] > mark:
            self._stop_playing(ROLLED_BACK)
        elif needed + 1 < len(self._steps):
            op, step = self._steps[needed + 1]
            if isinstance(step, _GENERATION):
                self.progress.num_generations -= 1
            self._generation_ended(step)
            self._supplies.pop(op, None)
            if isinstance(step, ForkStep):
                for child in step.children:
                    child.fail(ROLLED_BACK)
            self._steps[needed + 1] = op, ROLLED_BACK

    def _closed_error(self) -> ErrorInfo:
        return ErrorInfo.of(RequestError(f"state {self.number} was closed", code="state_closed"))


def _is_shared(step: Step) -> bool:
    """Return whether other states wait for the step."""
    if isinstance(step, ForkStep):
        return not all(child.progress.closed and child.idle for child in step.children)
    return isinstance(step, ReportStep)


def _discard(answer: Answer) -> None:
    """Send nothing: the state is closed."""


def _result(appended: str | PendingResult) -> OperationResult | PendingResult:
    return OperationResult(appended) if isinstance(appended, str) else appended
