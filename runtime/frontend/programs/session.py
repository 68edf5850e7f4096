"""One client's program states: opened, forked, joined and closed as its messages say; each played by its own player.

Knows no sockets: messages in by method, answers out through a function.
"""

from __future__ import annotations

from collections.abc import Callable

from ...protocol.errors import BusyError, ErrorInfo, RequestError
from ...protocol.session import (
    Append,
    Budget,
    Close,
    Concatenate,
    Delta,
    Done,
    Failed,
    Fork,
    Lost,
    Open,
    Operation,
    Play,
    Supply,
)
from ..text.generation import Generator
from .content import TokenContent
from .running_program import RunningProgram
from .state_interpreter import ForkStep, JoinStep, StateInterpreter, Step

MAX_STATES = 100_000  # per client


class _State:
    """What the session remembers of a state besides its player."""

    def __init__(self, player: StateInterpreter, program: RunningProgram, parent: _State | None) -> None:
        self.player = player
        self.program = program
        self.parent = parent
        self.next_op = 0


class Session:
    """`name` tells this client's programs from those of others. Every program it opens ends with its last state."""

    def __init__(self, name: str, generator: Generator, send: Callable[[Done | Failed | Delta | Lost], None]) -> None:
        self._name = name
        self._generator = generator
        self._send = send
        self._states: dict[int, _State] = {}
        self._programs: dict[int, RunningProgram] = {}
        self._leaving: dict[StateInterpreter, RunningProgram] = {}  # closed, with something left to do

    @property
    def num_states(self) -> int:
        return len(self._states)

    def open(self, message: Open) -> None:
        """Raises RequestError when the number is taken. With too many states it is lost at once."""
        self._check_new((message.state,))
        program = self._programs.get(message.program) or self._new_program(message.program, message.budget)
        try:
            state = self._create(message.state, program, None)
        except BusyError as error:
            self._send(Lost((message.state,), ErrorInfo.of(error)))
            if not program.states:
                self._forget(program)
            return
        state.player.begin(TokenContent(self._generator.tokenizer, self._generator.encoder))

    def play(self, message: Play) -> None:
        """Each part as if it had come by itself; `complete` holds for the programs that are opened here."""
        if message.complete:
            for part in message.messages:
                if isinstance(part, Open) and part.program not in self._programs:
                    self._new_program(part.program, part.budget).complete = True
        for part in message.messages:
            match part:
                case Open():
                    self.open(part)
                case Append():
                    self._append(part)
                case Close():
                    self.close(part)

    def append(self, message: Append) -> None:
        """Let the operations be played. Each is answered, also when the state is unknown or they are misnumbered."""
        if (state := self._states.get(message.state)) is not None:
            state.program.complete = False  # it was said to be, and goes on
        self._append(message)

    def supply(self, message: Supply) -> None:
        """What an Ask waits for. For a state that is gone there is nobody to tell."""
        if (state := self._states.get(message.state)) is not None:
            state.player.supply(message.op, message.text if message.error is None else message.error)

    def close(self, message: Close) -> None:
        """Forget states. One that others wait for goes on unseen until they have what they need."""
        for number in message.programs:
            if (program := self._programs.get(number)) is not None:
                self._end(program)
        self._leaving = {player: program for player, program in self._leaving.items() if not player.is_over}
        ended: dict[RunningProgram, list[int]] = {}
        for number in message.states:
            state = self._states.pop(number, None)
            if state is not None:
                state.player.close()
                self._leaving[state.player] = state.program
                state.program.states.discard(number)
                ended.setdefault(state.program, []).append(number)
        for program, numbers in ended.items():
            if program.states:
                self._generator.core.end_states(program.name, numbers)
            else:
                self._end(program)  # nobody is left for whom its states could go on

    def close_all(self) -> tuple[int, ...]:
        """The client is gone: end everything. The states that there were."""
        numbers = tuple(self._states)
        for program in list(self._programs.values()):
            self._end(program)
        for player in self._leaving:
            player.abort()
        self._leaving.clear()
        return numbers

    def _lose(self, program: RunningProgram, error: ErrorInfo) -> None:
        """End a program and tell the client why."""
        numbers = tuple(program.states)
        self._end(program)
        self._send(Lost(numbers, error))

    def _end(self, program: RunningProgram) -> None:
        for number in program.states:
            self._states.pop(number).player.abort()
        program.states.clear()
        for player, other in self._leaving.items():
            if other is program:
                player.abort()
        self._forget(program)

    def _forget(self, program: RunningProgram) -> None:
        program.end()
        del self._programs[program.number]
        self._generator.core.end_states(program.name, None)

    def _new_program(self, number: int, budget: Budget | None) -> RunningProgram:
        program = RunningProgram(number, f"{self._name}:{number}", budget, self._lose)
        self._programs[number] = program
        return program

    def _append(self, message: Append) -> None:
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
            op = state.next_op
            state.next_op += 1
            try:
                step = self._step(state, operation)
            except (RequestError, BusyError) as wrong:
                step = ErrorInfo.of(wrong)
            state.player.add(op, step)

    def _create(self, number: int, program: RunningProgram, parent: _State | None) -> _State:
        """Raises BusyError when there are too many states."""
        if len(self._states) >= MAX_STATES:
            raise BusyError(f"a client may have at most {MAX_STATES} states")
        state = _State(StateInterpreter(number, program, self._generator, self._send), program, parent)
        self._states[number] = state
        program.states.add(number)
        return state

    def _step(self, state: _State, operation: Operation) -> Step:
        """What a player is to do. Forks exist from here on, so that operations on them may arrive before they begin."""
        match operation:
            case Fork(children=children):
                self._check_new(children)
                if len(self._states) + len(children) > MAX_STATES:
                    raise BusyError(f"a client may have at most {MAX_STATES} states")
                return ForkStep(tuple(self._create(child, state.program, state).player for child in children))
            case Concatenate(children=children):
                return JoinStep(tuple(self._child(state, child).report() for child in children))
            case _:
                return operation

    def _check_new(self, numbers: tuple[int, ...]) -> None:
        taken = next((number for number in numbers if number in self._states), None)
        if taken is not None:
            raise RequestError(f"state {taken} exists; a state must be new", param="state", code="bad_state")
        if len(set(numbers)) < len(numbers):
            raise RequestError(
                f"a fork's states must be new and differ, got {numbers}", param="children", code="bad_state"
            )

    def _child(self, state: _State, number: int) -> StateInterpreter:
        child = self._states.get(number)
        if child is None or child.parent is not state:
            raise RequestError(f"state {number} is not a fork of this one", param="children", code="bad_state")
        return child.player
