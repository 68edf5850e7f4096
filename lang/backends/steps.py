"""A state of a program that is played in this process, and what it has left to do. Knows no threads and no models."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ...runtime.protocol.errors import ErrorInfo, RequestError
from ...runtime.protocol.sampling import SamplingParams
from ...runtime.protocol.session import (
    Ask,
    Budget,
    Decide,
    Fork,
    Gen,
    RoleBegin,
    RoleEnd,
    Select,
    Supply,
    Sync,
    Text,
)
from .model import Model, ModelCall
from .transcript import Transcript, TranscriptPart


@dataclass(eq=False)
class Join:
    """Append what each child reports to have appended; `Tell` brings the reports."""

    state: State
    reports: list[tuple[TranscriptPart, ...] | ErrorInfo | None]


@dataclass(frozen=True, eq=False)
class Tell:
    """Report to a join what was appended since the fork, up to here. No client sees it."""

    join: Join
    index: int


Step = Text | RoleBegin | RoleEnd | Gen | Select | Ask | Decide | Fork | Sync | Join | Tell | ErrorInfo


class Program:
    """What its states share. `on_expiry` is called, on another thread, when its time is over."""

    def __init__(self, number: int, budget: Budget | None, on_expiry: Callable[[Program], None]) -> None:
        self.number = number
        self.states: dict[int, State] = {}
        self._budget = budget or Budget()
        self._tokens_left = self._budget.tokens
        self._timer: threading.Timer | None = None
        if self._budget.seconds is not None:
            self._timer = threading.Timer(self._budget.seconds, on_expiry, (self,))
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def afford(self, gen: Gen) -> Gen:
        """`gen` with no more tokens than are left. Raises RequestError when none are."""
        if self._tokens_left is None or gen.n * gen.sampling.max_new_tokens <= self._tokens_left:
            return gen
        most = self._tokens_left // gen.n
        if most <= 0:
            raise self.exhausted()
        least = min(gen.sampling.min_new_tokens, most)
        sampling: SamplingParams = msgspec.structs.replace(gen.sampling, max_new_tokens=most, min_new_tokens=least)
        return msgspec.structs.replace(gen, sampling=sampling)

    def spend(self, num_tokens: int) -> bool:
        """Whether they were left."""
        if self._tokens_left is None:
            return True
        self._tokens_left -= num_tokens
        return self._tokens_left >= 0

    def exhausted(self) -> RequestError:
        return RequestError(
            f"the program has spent its budget of {self._budget.tokens} generated tokens (max_total_tokens)",
            param="max_total_tokens",
            code="token_budget_exceeded",
        )

    def expired(self) -> RequestError:
        message = f"the program did not end within its {self._budget.seconds:g} s (timeout)"
        return RequestError(message, param="timeout", code="timeout")


@dataclass(eq=False)
class State:
    """`transcript` is None until the fork that it comes from is played; `call` is what a model does for it."""

    number: int
    program: Program
    parent: State | None = None
    transcript: Transcript | None = None
    start: Transcript | None = None  # as it was at the fork
    steps: deque[tuple[int, Step]] = field(default_factory=deque)
    next_op: int = 0
    failure: ErrorInfo | None = None
    call: ModelCall | None = None
    supplied: dict[int, Supply] = field(default_factory=dict)
    closed: bool = False

    def trim(self) -> bool:
        """Nobody listens any more: drop what no other state waits for. Whether anything is left."""
        self.closed = True
        while self.steps and not isinstance(self.steps[-1][1], Fork | Tell):
            self.steps.pop()
        return bool(self.steps)

    def cancel(self) -> None:
        if self.call is not None:
            self.call.cancel()
            self.call = None


def after(model: Model, state: State, op: int, step: Step) -> Transcript:
    """What the state holds once `step`, which needs no model, is played. Raises RamiformError when it cannot be."""
    transcript = state.transcript
    assert transcript is not None
    match step:
        case Text(text=text):
            return transcript.add_text(text)
        case RoleBegin(role=role):
            return transcript.begin(role, model.begin_role(role))
        case RoleEnd():
            return transcript.end(model.end_role(transcript.open_role or ""))
        case Ask():
            given = state.supplied.pop(op)
            if given.error is not None:
                raise given.error.to_exception()
            return transcript.add_text(given.text)
        case Join(reports=reports):
            for report in reports:
                assert report is not None
                if isinstance(report, ErrorInfo):
                    raise report.to_exception()
                transcript = transcript.join(report)
            return transcript
        case Tell(join=join, index=index):
            assert state.start is not None
            try:
                join.reports[index] = transcript.since(state.start)
            except RequestError as error:
                join.reports[index] = ErrorInfo.of(error)
            return transcript
        case ErrorInfo():
            raise step.to_exception()
        case _:
            return transcript  # Fork and Sync append nothing
