"""Records the programs of one client from its messages and the answers to them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...protocol.session import Answer, Append, Attempted, Close, Fork, Lost, Open, Play, Supply
from .log import Owner, ProgramLog
from .program import ProgramRecord

MAX_RUNS = 1000  # programs over HTTP that may go on
LAST_REQUEST_SECONDS = 30.0  # from the end of a program's request until it counts as the last one


@dataclass(eq=False)
class RecordedRun:
    """A program whose operations come by several requests, each of which repeats what the ones before were answered."""

    record: ProgramRecord | None = None
    num_playing: int = 0  # requests
    closing: asyncio.TimerHandle | None = None

    def forget(self) -> None:
        """Let go of the record, which the log has dropped, unless a request adds to it."""
        record = self.record
        if record is None or record.entry.is_kept or self.num_playing:
            return
        self.record = None
        if self.closing is not None:
            self.closing.cancel()
            self.closing = None
        record.finish()


class RecordedRuns:
    """The latest programs of this kind, by owner and the client's name of the run."""

    def __init__(self) -> None:
        self._runs: OrderedDict[tuple[Owner, str], RecordedRun] = OrderedDict()

    def find(self, owner: Owner, name: str) -> RecordedRun:
        run = self._runs.setdefault((owner, name), RecordedRun())
        self._runs.move_to_end((owner, name))
        if len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)
        return run


class ProgramRecorder:
    """Call `receive` before the interpreter gets a message, `sent` with what it sends, `ended` when a program is over.

    With `run` the messages are of one program that may be recorded already, and repeat `known` operations, by state.
    `name_of` returns the core's name of a program by the client's number.
    """

    def __init__(
        self,
        log: ProgramLog,
        owner: Owner,
        *,
        run: RecordedRun | None = None,
        known: Mapping[int, int] | None = None,
        name_of: Callable[[int], str] = str,
    ) -> None:
        self._log = log
        self._name_of = name_of
        self._owner = owner
        self._run = run
        self._known = known or {}
        self._programs: dict[int, ProgramRecord] = {}  # by the client's number
        self._of: dict[int, ProgramRecord] = {}  # by state
        self._over: list[ProgramRecord] = []  # ended, and an error may still follow

    def receive(self, message: Open | Append | Play | Supply | Close) -> None:
        """Record a client's message."""
        for record in self._over:
            for number in record.states:
                if self._of.get(number) is record:
                    del self._of[number]
        self._over.clear()
        self._receive(message)

    def sent(self, answer: Answer | Lost) -> None:
        """Record an answer."""
        if isinstance(answer, Lost):
            for record in {id(found): found for one in answer.states if (found := self._of.get(one))}.values():
                if next(iter(record.states)) in answer.states:
                    record.end(answer.error, lost=True)
                else:  # a part of it, whose caller goes on
                    record.close(answer.states)
        elif not isinstance(answer, Attempted) and (record := self._of.get(answer.state)) is not None:
            record.answer(answer)

    def ended(self, program: int, states: list[int] | None) -> None:
        """Record that states of a program have ended; None: all of it."""
        record = self._programs.get(program)
        if record is None:
            return
        if states is not None:
            record.close(tuple(states))
            return
        for number in record.programs:
            self._programs.pop(number, None)
        self._over.append(record)
        if self._run is None:
            record.end()
            return
        self._run.num_playing -= 1
        if not self._run.num_playing:
            record.end(is_final=False)
            self._run.closing = asyncio.get_running_loop().call_later(LAST_REQUEST_SECONDS, record.finish)
            self._run.forget()

    def _receive(self, message: Open | Append | Play | Supply | Close) -> None:
        match message:
            case Append(state=state):
                if (record := self._of.get(state)) is not None:
                    record.append(message if self._run is None else record.resume(message, self._known.get(state, 0)))
                    for operation in message.operations:
                        if isinstance(operation, Fork):
                            for child in operation.children:
                                self._of.setdefault(child, record)
            case Open(state=state, program=program) if state not in self._of:
                record = self._programs.get(program) or self._programs.get(message.caller or 0) or self._begin(message)
                if self._programs.setdefault(program, record) is record:
                    record.programs.append(program)
                self._of[state] = record
                record.open(state)
            case Play(messages=messages):
                for part in messages:
                    self._receive(part)
            case Supply(state=state, op=op, label=str(label)):
                if (record := self._of.get(state)) is not None:
                    record.supply(state, op, label)
            case Close(programs=programs, error=error) if error is not None:
                for program in programs:
                    if (record := self._programs.get(program)) is not None:
                        record.end(error)
            case _:
                return

    def _begin(self, opened: Open) -> ProgramRecord:
        run = self._run
        record = None if run is None else run.record
        if record is None:
            record = ProgramRecord(self._log, self._owner, opened.title, opened.traceparent)
        if run is not None:
            run.record = record
            record.entry.on_drop = run.forget
            run.num_playing += 1
            if run.closing is not None:
                run.closing.cancel()
                run.closing = None
        record.add_name(self._name_of(opened.program))
        return record
