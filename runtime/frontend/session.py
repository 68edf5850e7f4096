"""One client's program states: opened, forked, joined and closed as its messages say; each played by its own player.

Knows no sockets: messages in by method, answers out through a function.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

from ..protocol.errors import BusyError, ErrorInfo, RequestError
from ..protocol.session import (
    Append,
    Close,
    Concatenate,
    Delta,
    Done,
    Failed,
    Fork,
    Open,
    Operation,
)
from .content import Content
from .generation import Generator
from .player import Branch, Join, Player, Step

MAX_STATES = 100_000  # per client


class _State:
    """What the session remembers of a state besides its player."""

    def __init__(self, player: Player, program: str, parent: _State | None) -> None:
        self.player = player
        self.program = program
        self.parent = parent
        self.next_op = 0


class Session:
    """`name` tells this client's programs from those of others."""

    def __init__(self, name: str, generator: Generator, send: Callable[[Done | Failed | Delta], None]) -> None:
        self._name = name
        self._generator = generator
        self._send = send
        self._states: dict[int, _State] = {}
        self._num_states: Counter[str] = Counter()  # by program
        self._leaving: set[Player] = set()  # closed, with something left to do

    @property
    def num_states(self) -> int:
        return len(self._states)

    def open(self, message: Open) -> None:
        """Raises RequestError when the number is taken, BusyError when there are too many states."""
        state = self._create(message.state, f"{self._name}:{message.program}", None)
        state.player.begin(Content(self._generator.tokenizer, self._generator.encoder))

    def append(self, message: Append) -> None:
        """Let the operations be played. Each is answered, also when the state is unknown or they are misnumbered."""
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

    def close(self, message: Close) -> None:
        """Forget states. One that others wait for goes on unseen until they have what they need."""
        self._leaving = {player for player in self._leaving if not player.is_over}
        ended: defaultdict[str, list[int]] = defaultdict(list)
        for number in message.states:
            state = self._states.pop(number, None)
            if state is not None:
                state.player.close()
                self._leaving.add(state.player)
                ended[state.program].append(number)
        for program, numbers in ended.items():
            self._num_states[program] -= len(numbers)
            is_over = not self._num_states[program]
            if is_over:
                del self._num_states[program]
            self._generator.core.end_states(program, None if is_over else numbers)

    def close_all(self) -> None:
        """The client is gone: end everything."""
        for player in (*self._leaving, *(state.player for state in self._states.values())):
            player.abort()
        for program in self._num_states:
            self._generator.core.end_states(program, None)
        self._num_states.clear()
        self._states.clear()
        self._leaving.clear()

    def _create(self, number: int, program: str, parent: _State | None) -> _State:
        if number in self._states:
            raise RequestError(f"state {number} exists", param="state", code="bad_state")
        if len(self._states) >= MAX_STATES:
            raise BusyError(f"a client may have at most {MAX_STATES} states")
        state = _State(Player(number, program, self._generator, self._send), program, parent)
        self._states[number] = state
        self._num_states[program] += 1
        return state

    def _step(self, state: _State, operation: Operation) -> Step:
        """What a player is to do. Forks exist from here on, so that operations on them may arrive before they begin."""
        match operation:
            case Fork(children=children):
                self._check_new(children)
                return Branch(tuple(self._create(child, state.program, state).player for child in children))
            case Concatenate(children=children):
                return Join(tuple(self._child(state, child).report() for child in children))
            case _:
                return operation

    def _check_new(self, children: tuple[int, ...]) -> None:
        taken = next((child for child in children if child in self._states), None)
        if taken is not None or len(set(children)) < len(children):
            raise RequestError(f"a fork's states must be new, got {children}", param="children", code="bad_state")
        if len(self._states) + len(children) > MAX_STATES:
            raise BusyError(f"a client may have at most {MAX_STATES} states")

    def _child(self, state: _State, number: int) -> Player:
        child = self._states.get(number)
        if child is None or child.parent is not state:
            raise RequestError(f"state {number} is not a fork of this one", param="children", code="bad_state")
        return child.player
