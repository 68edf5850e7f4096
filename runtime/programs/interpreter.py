"""Interprets the programs of one client: opens, forks, joins and closes their states as the client's messages say.

Messages go in by method, answers come out through a function. Nothing is played before `run` is called.
"""

from __future__ import annotations

from collections.abc import Callable

from ..protocol.errors import BusyError, ErrorInfo, RequestError
from ..protocol.session import (
    Answer,
    Append,
    Close,
    Concatenate,
    Failed,
    Fork,
    Lost,
    Open,
    Operation,
    Play,
    Supply,
)
from .executor import StateExecutor
from .running_program import CallLater, ProgramPart, RunningProgram, StateProgress
from .state_interpreter import ForkStep, JoinStep, RunQueue, StateInterpreter, Step


class ProgramInterpreter:
    """Interprets the programs of one client, in one thread. A program ends with its last state, or when its budget is
    spent (`Lost`).

    `open_executor(state)` makes the executor of a program's first state, those of forks come from it;
    `states_ended(program, states)` is called when a client closed states, and with None when a program is over;
    `call_later(seconds, callback)` calls back on the interpreter's thread.
    """

    def __init__(
        self,
        send: Callable[[Answer | Lost], None],
        open_executor: Callable[[StateProgress], StateExecutor],
        call_later: CallLater,
        *,
        states_ended: Callable[[int, list[int] | None], None] | None = None,
        max_states: int | None = None,
    ) -> None:
        self._send = send
        self._open_executor = open_executor
        self._call_later = call_later
        self._states_ended = states_ended or _ignore
        self._max_states = max_states
        self._queue = RunQueue()
        self._states: dict[int, StateInterpreter] = {}
        self._programs: dict[int, RunningProgram] = {}
        self._closing: list[StateInterpreter] = []  # closed, with something left to play for other states

    @property
    def num_states(self) -> int:
        return len(self._states)

    @property
    def num_programs(self) -> int:
        return len(self._programs)

    @property
    def is_playing(self) -> bool:
        """True while an operation is played; what waits for the program or for other states does not count."""
        return any(state.is_playing for state in (*self._states.values(), *self._closing))

    def run(self) -> None:
        """Play every state that can go on."""
        self._queue.run()

    def receive(self, message: Open | Append | Play | Supply | Close) -> None:
        """Handle a client's message. Raises RequestError for an Open whose state exists."""
        match message:
            case Play():
                self._play(message)
            case Open():
                self._open(message)
            case Append(state=number):
                if message.operations and (state := self._states.get(number)) is not None:
                    state.program.complete = False  # it was said to be, and goes on
                self._append(message)
            case Supply(state=number, op=op, text=text, error=error, retry=retry):
                if (state := self._states.get(number)) is not None:
                    state.supply(op, error or retry or text)
            case Close():
                self._close(message)

    def close_all(self) -> tuple[int, ...]:
        """End every program; return the numbers of the states that there were."""
        numbers = tuple(self._states)
        for program in list(self._programs.values()):
            self._end(program)
        return numbers

    def _play(self, message: Play) -> None:
        """Handle each part as a message of its own. `complete` holds for the programs that are opened here."""
        if message.complete:
            for part in message.messages:
                if isinstance(part, Open) and part.program not in self._programs:
                    self._new_program(part).complete = True
        for part in message.messages:
            match part:
                case Open():
                    self._open(part)
                case Append() if message.complete:
                    self._append(part)
                case Append():
                    self.receive(part)
                case Close():
                    self._close(part)

    def _open(self, message: Open) -> None:
        """Open a program's first state. With too many states it is lost at once."""
        self._check_new((message.state,))
        program = self._programs.get(message.program) or self._new_program(message)
        try:
            state = self._create(message.state, program, None)
        except BusyError as error:
            if not program.states:
                self._forget(program)
            self._send(Lost((message.state,), ErrorInfo.of(error)))
            return
        state.begin(self._open_executor(state.progress))

    def _append(self, message: Append) -> None:
        """Add operations. Each is answered, also when the state is unknown or they are misnumbered."""
        state = self._states.get(message.state)
        if state is None or message.first != state.next_op:
            reason = "there is no such state" if state is None else f"operation {state.next_op} comes next"
            error = ErrorInfo.of(
                RequestError(
                    f"operation {message.first} on state {message.state}: {reason}", param="state", code="bad_state"
                )
            )
            for op in range(message.first, message.first + len(message.operations)):
                self._send(Failed(message.state, op, error))
            return
        for operation in message.operations:
            try:
                step = self._step(state, operation)
            except (RequestError, BusyError) as wrong:
                step = ErrorInfo.of(wrong)
            state.add(step)
        state.wake()

    def _close(self, message: Close) -> None:
        """Forget states and programs. A state that others wait for is played on until they have what they need."""
        for number in message.programs:
            if (program := self._programs.get(number)) is not None:
                self._end(program)
        self._closing = [state for state in self._closing if not state.idle]
        closed: dict[RunningProgram, list[int]] = {}
        for number in message.states:
            state = self._states.pop(number, None)
            if state is not None:
                state.close()
                self._closing.append(state)
                state.program.discard(number)
                closed.setdefault(state.program, []).append(number)
        for program, numbers in closed.items():
            if program.whole.states:
                self._states_ended(program.whole.number, numbers)
            if not program.states:
                self._end(program)  # no state is left that could wait for what its closed states do

    def _lose(self, program: RunningProgram, error: ErrorInfo) -> None:
        """End a program and tell the client why."""
        numbers = tuple(program.states)
        self._end(program)
        self._send(Lost(numbers, error))

    def _end(self, program: RunningProgram) -> None:
        """End a program and what it has called."""
        if self._programs.get(program.number) is not program:
            return  # it ended with its caller
        for part in list(program.parts):
            self._end(part)
        if self._programs.get(program.number) is not program:
            return  # the last of these had its only states
        ended = list(program.states)
        for number in ended:
            self._states.pop(number).abort()
            program.discard(number)
        for state in self._closing:
            if state.program is program:
                state.abort()
        self._forget(program)
        if program.whole is program:
            return
        if not program.whole.states:
            self._end(program.whole)
        elif ended:
            self._states_ended(program.whole.number, ended)

    def _forget(self, program: RunningProgram) -> None:
        program.end()
        del self._programs[program.number]
        if program.whole is program:
            self._states_ended(program.number, None)

    def _new_program(self, opened: Open) -> RunningProgram:
        """Return the program of an Open: a part of its caller, if that is still there."""
        number, budget = opened.program, opened.budget
        caller = None if opened.caller is None else self._programs.get(opened.caller)
        if caller is None:
            program = RunningProgram(number, budget, self._lose, self._call_later)
        else:
            program = ProgramPart(number, budget, self._lose, self._call_later, caller)
        self._programs[number] = program
        return program

    def _create(self, number: int, program: RunningProgram, parent: StateInterpreter | None) -> StateInterpreter:
        """Create a state. Raises BusyError when there are too many."""
        self._check_room(1)
        state = StateInterpreter(number, program, parent, self._queue, self._send)
        self._states[number] = state
        program.add(number)
        return state

    def _step(self, state: StateInterpreter, operation: Operation) -> Step:
        """Return the step of an operation. Forks exist from here on: their operations may arrive before they begin."""
        match operation:
            case Fork(children=children):
                self._check_new(children)
                self._check_room(len(children))
                return ForkStep(tuple(self._create(child, state.program, state) for child in children))
            case Concatenate(children=children):
                forks = [self._child(state, child) for child in children]
                join = JoinStep(state, [None] * len(forks))
                for index, fork in enumerate(forks):
                    fork.add_report(join, index)
                    fork.wake()
                return join
            case _:
                return operation

    def _check_room(self, num_new: int) -> None:
        if self._max_states is not None and len(self._states) + num_new > self._max_states:
            raise BusyError(f"a client may have at most {self._max_states} states")

    def _check_new(self, numbers: tuple[int, ...]) -> None:
        taken = next((number for number in numbers if number in self._states), None)
        if taken is not None:
            raise RequestError(f"state {taken} exists; a state must be new", param="state", code="bad_state")
        if len(set(numbers)) < len(numbers):
            raise RequestError(
                f"a fork's states must be new and differ, got {numbers}", param="children", code="bad_state"
            )

    def _child(self, state: StateInterpreter, number: int) -> StateInterpreter:
        child = self._states.get(number)
        if child is None or child.parent is not state:
            raise RequestError(f"state {number} is not a fork of this one", param="children", code="bad_state")
        return child


def _ignore(program: int, states: list[int] | None) -> None:
    """The default of `states_ended`."""
