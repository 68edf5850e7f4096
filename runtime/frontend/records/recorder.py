"""Records the programs of one client from its messages and the answers to them."""

from __future__ import annotations

from typing import Any

from ...protocol.session import Answer, Append, Attempted, Close, Fork, Lost, Open, Play, Supply
from .log import Owner, ProgramLog
from .program import ProgramRecord


class ProgramRecorder:
    """Call `receive` before the interpreter gets a message, `sent` with what it sends, `ended` when a program is over.

    `context` is what the caller's trace context is, for exports.
    """

    def __init__(self, log: ProgramLog, owner: Owner, context: Any = None) -> None:
        self._log = log
        self._owner = owner
        self._context = context
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
                record.end(answer.error, lost=True)
        elif not isinstance(answer, Attempted) and (record := self._of.get(answer.state)) is not None:
            record.answer(answer)

    def ended(self, program: int, states: list[int] | None) -> None:
        """Record that states of a program have ended; None: all of it."""
        record = self._programs.get(program) if states is not None else self._programs.pop(program, None)
        if record is None:
            return
        if states is not None:
            record.close(tuple(states))
        else:
            record.end()
            self._over.append(record)

    def _receive(self, message: Open | Append | Play | Supply | Close) -> None:
        match message:
            case Append(state=state):
                if (record := self._of.get(state)) is not None:
                    record.append(message)
                    for operation in message.operations:
                        if isinstance(operation, Fork):
                            for child in operation.children:
                                self._of.setdefault(child, record)
            case Open(state=state, program=program) if state not in self._of:
                record = self._programs.get(program)
                if record is None:
                    record = self._programs[program] = ProgramRecord(self._log, self._owner, message.title)
                    record.context = self._context
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
