"""The operations and answers of a program, which every request to a server without states repeats.

Knows operations, answers and which of them need which; knows nothing of HTTP, threads or time.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ....runtime.protocol import session
from ....runtime.protocol.errors import ErrorInfo, RequestError


@dataclass(eq=False)
class StateHistory:
    """A state: its operations, and how many of them were answered. Answered ones are kept as they are played again.

    `num_sent` is how many a request that runs will answer; else it is `num_answered`.
    """

    number: int
    parent: StateHistory | None = None
    forked_at: int = 0  # the parent's operation that opened it
    operations: list[session.Operation] = field(default_factory=list)
    num_answered: int = 0
    num_sent: int = 0
    failure: ErrorInfo | None = None  # of the first operation without an answer, and thereby of those behind it
    failed: list[tuple[int, int, ErrorInfo]] = field(default_factory=list)  # operations [first, end), since rolled back
    closed: bool = False
    num_needed: int = 0  # operations that are played although the state is closed: other states need them
    joins: dict[int, list[tuple[StateHistory, int]]] = field(default_factory=dict)  # by operation: child, its length
    supplied: dict[int, str | ErrorInfo | None] = field(default_factory=dict)  # of each Ask; None: not yet
    labels: dict[int, str] = field(default_factory=dict)  # of what was supplied to an Ask
    notes: list[session.Note] = field(default_factory=list)  # for a server that wants them
    attempt: session.Done | None = None  # of the checked Gen that comes next: it waits for a verdict
    retry: session.Retry | None = None  # of the checked Gen that comes next: how it is generated again

    @property
    def is_running(self) -> bool:
        return self.num_sent > self.num_answered

    @property
    def num_wanted(self) -> int:
        """Return how many operations are to be played."""
        return self.num_needed if self.closed else len(self.operations)

    @property
    def ended(self) -> bool:
        """Return whether none of its operations is left to be played."""
        return self.failure is not None or self.num_wanted <= self.num_answered

    def failure_of(self, operation: int) -> ErrorInfo | None:
        """Return the error with which an operation failed."""
        for first, end, error in self.failed:
            if first <= operation < end:
                return error
        return self.failure if operation >= self.num_answered else None

    @property
    def fork_failure(self) -> ErrorInfo | None:
        """Return the error of the fork that should have opened this state."""
        return None if self.parent is None else self.parent.failure_of(self.forked_at)

    @property
    def next_rollback(self) -> int | None:
        """Return the first rollback behind the next operation that removes it."""
        for op in range(self.num_answered + 1, len(self.operations)):
            operation = self.operations[op]
            if isinstance(operation, session.Rollback) and operation.mark < self.num_answered:
                return op
        return None

    def recover(self, rollback: int) -> None:
        """Go on with a rollback: the operations before it that have failed are played no more."""
        assert self.failure is not None
        self.failed.append((self.num_answered, rollback, self.failure))
        for op in range(self.num_answered, rollback):
            self.operations[op] = session.Sync()
            self.joins.pop(op, None)
            self.supplied.pop(op, None)
        self.num_answered = rollback
        self.num_sent = max(self.num_sent, rollback)
        self.failure = self.attempt = self.retry = None

    def is_needed(self, first: int, end: int) -> bool:
        """Return whether other states wait for one of the operations from `first` to before `end`."""
        forks = any(isinstance(operation, session.Fork) for operation in self.operations[first:end])
        joins = () if self.parent is None else self.parent.joins.values()
        return forks or any(child is self and first < count <= end for joined in joins for child, count in joined)

    def played(self, first: int, end: int) -> Iterator[session.Operation]:
        """Yield operations as a request has them: in place of an Ask the operation that appends its text."""
        for index in range(first, end):
            operation = self.operations[index]
            if isinstance(operation, session.Gen) and operation.checked:  # it is checked here, not at the server
                gen = operation
                if self.retry is not None and index == self.num_answered:
                    yield from self.retry.operations
                    gen = self.retry.gen
                operation = msgspec.structs.replace(gen, checked=False, stream=False)
            if isinstance(operation, session.Ask):
                text = self.supplied[index]
                assert isinstance(text, str)
                operation = session.Generated(text=text, chosen=True) if operation.chosen else session.Text(text)
            yield operation

    def played_notes(self, first: int, end: int) -> list[session.Note]:
        """Return the notes of operations, numbered as a request has these."""
        notes = [note for note in self.notes if first <= note.op < end]
        notes += [
            session.Note(op=op, label=self.labels.get(op), asked=True) for op in self.supplied if first <= op < end
        ] * bool(self.notes)
        moved = self.num_before_retry
        shifted = [
            msgspec.structs.replace(note, op=note.op + moved) if moved and note.op >= self.num_answered else note
            for note in notes
        ]
        return sorted(shifted, key=lambda note: note.op)

    @property
    def num_before_retry(self) -> int:
        """Return how many operations a request has before the next Gen beside those of the program."""
        return 0 if self.retry is None else len(self.retry.operations)

    @property
    def next_is_checked(self) -> bool:
        """Return whether the next operation is a checked Gen."""
        operation = self.operations[self.num_answered] if self.num_answered < len(self.operations) else None
        return isinstance(operation, session.Gen) and operation.checked

    def attempted(self, done: session.Done) -> None:
        """Note an attempt of the checked Gen that comes next. No request is needed until its verdict."""
        self.attempt, self.retry = done, None
        self.num_sent = self.num_answered

    def answer(self, done: session.Done) -> None:
        """Note the answer to the first operation without one."""
        *_, operation = self.played(self.num_answered, self.num_answered + 1)
        self.operations[self.num_answered] = replayed(operation, done)
        self.num_answered += 1
        self.attempt = self.retry = None
        self.num_sent = max(self.num_sent, self.num_answered)


@dataclass(frozen=True, eq=False)
class ProgramRequest:
    """Messages that play the playable operations of a program. `ends`: how many of each state's are then answered."""

    messages: list[dict[str, Any]]
    known: dict[int, int]  # by state: operations whose answers are there
    ends: dict[StateHistory, int]
    is_last: bool  # nothing of the program is left out
    rid: str = field(default_factory=lambda: uuid.uuid4().hex)  # by which the server finds it

    @property
    def unanswered(self) -> list[StateHistory]:
        """Return the states that still need answers of this request."""
        return [state for state, end in self.ends.items() if state.num_answered < end and not state.ended]

    @property
    def generates(self) -> bool:
        """Return whether an operation without an answer is a Gen."""
        return any(
            isinstance(operation, session.Gen)
            for state, end in self.ends.items()
            for operation in state.operations[state.num_answered : end]
        )


class ProgramHistory:
    """The states of one program, and every message of it in the order in which it came."""

    def __init__(self, number: int, told: dict[str, str] | None = None) -> None:
        """`told`: fields of the message that opens the program, for a server that wants notes."""
        self.number = number
        self._told = told or {}
        self.states: dict[int, StateHistory] = {}  # those that are open, or that others need
        self._messages: list[tuple[StateHistory, int, int]] = []  # operations [first, end) of a state

    @property
    def is_over(self) -> bool:
        """Return whether all states are closed, so that no answer is needed."""
        return all(state.closed for state in self.states.values())

    def open(self, number: int) -> None:
        self.states[number] = StateHistory(number)

    def append(self, number: int, operations: list[session.Operation], notes: list[session.Note] | None = None) -> None:
        """Add operations. Raises RequestError for a fork into a state that exists, or a join of what is no fork."""
        state = self.states[number]
        state.notes += notes or []
        first = len(state.operations)
        for index, operation in enumerate(operations, start=first):
            match operation:
                case session.Fork(children=children):
                    for child in children:
                        if child in self.states:
                            raise RequestError(f"state {child} exists; a state must be new", param="state")
                        self.states[child] = StateHistory(child, state, index)
                    state.num_needed = index + 1
                case session.Concatenate(children=children):
                    state.joins[index] = [(child, len(child.operations)) for child in self._forks(state, children)]
                    for joined, needed in state.joins[index]:
                        joined.num_needed = max(joined.num_needed, needed)
                case session.Ask():
                    state.supplied[index] = None
            state.operations.append(operation)
        if self._messages and self._messages[-1][0] is state:
            _, first, _ = self._messages.pop()
        self._messages.append((state, first, len(state.operations)))

    def supply(self, number: int, operation: int, given: str | ErrorInfo, label: str | None = None) -> None:
        """Give an Ask its text, or the error that prevents it. The first one counts."""
        state = self.states.get(number)
        if state is not None and operation in state.supplied and state.supplied[operation] is None:
            state.supplied[operation] = given
            if label is not None:
                state.labels[operation] = label

    def close(self, numbers: Iterable[int]) -> None:
        """Mark states as closed: their answers are needed only where other states depend on them."""
        closed = ErrorInfo.of(RequestError("the state was closed", code="state_closed"))
        for number in numbers:
            if (state := self.states.get(number)) is not None:
                state.closed = True
                for operation in state.supplied:
                    self.supply(number, operation, closed)  # nobody else will

    def new_failures(self) -> list[tuple[StateHistory, ErrorInfo]]:
        """Return states that fail without being played: forks and joins of failed states, and refused Asks."""
        return [
            (state, error)
            for state in self.states.values()
            if state.failure is None and not state.is_running and (error := _cannot_go_on(state)) is not None
        ]

    def next_request(self) -> ProgramRequest | None:
        """Return a request for everything that can be played now, or None. Its targets run from then on."""
        ends = self._playable()
        targets = {state: end for state, end in ends.items() if end > state.num_answered}
        if not targets:
            return None
        limits = _needed(targets)
        request = ProgramRequest(
            messages=list(self._said(limits)),
            known={state.number: _num_known(state, limit) for state, limit in limits.items()},
            ends=targets,
            is_last=all(state.ended or ends.get(state) == state.num_wanted for state in self.states.values()),
        )
        for state, end in targets.items():
            state.num_sent = end
        return request

    def _playable(self) -> dict[StateHistory, int]:
        """Return, for states that do not run, how many operations can be answered by one request."""
        ends = {
            state: _before_ask(state)
            for state in self.states.values()
            if state.failure is None and not state.is_running
        }
        changed = True
        while changed:  # until no state is left that waits for one which is not in the request
            changed = False
            for state, end in ends.items():
                if (reduced := _reduced(state, end, ends)) < end:
                    ends[state] = reduced
                    changed = True
        return ends

    def _said(self, limits: dict[StateHistory, int]) -> Iterator[dict[str, Any]]:
        """Yield the messages up to `limits`, with answered operations in the form that generates nothing."""
        for state in limits:
            if state.parent is None:
                yield {"type": "open", "state": state.number, "program": self.number, **self._told}
        for state, first, end in self._messages:
            end = min(end, limits.get(state, 0))
            if first < end:
                operations = [_with_needed_forks(one, limits) for one in state.played(first, end)]
                said = {"type": "append", "state": state.number, "first": first, "operations": operations}
                notes = state.played_notes(first, end)
                yield {**said, "notes": notes} if notes else said

    def _forks(self, state: StateHistory, numbers: tuple[int, ...]) -> list[StateHistory]:
        children = [self.states.get(number) for number in numbers]
        for number, child in zip(numbers, children, strict=True):
            if child is None or child.parent is not state:
                raise RequestError(f"state {number} is not a fork of this one", param="children", code="bad_state")
        return [child for child in children if child is not None]


def replayed(operation: session.Operation, done: session.Done) -> session.Operation:
    """Return the operation that appends, without asking the model, what `operation` appended."""
    match operation:
        case session.Gen():
            assert done.sequences is not None
            return session.Generated(text=done.sequences[0].text, ids=done.sequences[0].ids)
        case session.Select(append=True):
            assert done.choice is not None
            return session.Generated(text=done.choice.text, chosen=True)
        case session.Select() | session.Decide():
            return session.Sync()
        case _:
            return operation


def _num_known(state: StateHistory, limit: int) -> int:
    """Return how many of a state's first `limit` operations need no answer."""
    if limit <= state.num_answered:
        return limit
    return state.num_answered + state.num_before_retry


def _with_needed_forks(operation: session.Operation, limits: dict[StateHistory, int]) -> session.Operation:
    if not isinstance(operation, session.Fork):
        return operation
    needed = {state.number for state in limits}
    return session.Fork(tuple(child for child in operation.children if child in needed))


def _before_ask(state: StateHistory) -> int:
    """Return how many operations there are before the first Ask that has no text, or up to the first checked Gen."""
    waiting = [op for op, given in state.supplied.items() if op >= state.num_answered and not isinstance(given, str)]
    for op in range(state.num_answered, state.num_wanted):
        operation = state.operations[op]
        if isinstance(operation, session.Gen) and operation.checked:
            waiting.append(op if state.attempt is not None else op + 1)
            break
    return max(state.num_answered, min([state.num_wanted, *waiting]))


def _reduced(state: StateHistory, end: int, ends: dict[StateHistory, int]) -> int:
    """Return `end`, or fewer operations if forks or joins wait for states that play only to their `ends`."""

    def is_played(other: StateHistory, count: int) -> bool:
        return count <= max(other.num_answered, ends.get(other, 0)) and other.failure_of(count - 1) is None

    if end <= state.num_answered:
        return end
    if state.parent is not None and not is_played(state.parent, state.forked_at + 1):
        return state.num_answered
    for operation, children in state.joins.items():
        if state.num_answered <= operation < end and not all(is_played(child, count) for child, count in children):
            return operation
    return end


def _needed(targets: dict[StateHistory, int]) -> dict[StateHistory, int]:
    """Return how many operations of which states a request for `targets` has to hold."""
    limits: dict[StateHistory, int] = {}
    rest = list(targets.items())
    while rest:
        state, limit = rest.pop()
        before = limits.get(state, -1)
        if limit <= before:
            continue
        limits[state] = limit
        if state.parent is not None:
            rest.append((state.parent, state.forked_at + 1))
        for operation, children in state.joins.items():
            if before <= operation < limit:
                rest += children
    return limits


def _cannot_go_on(state: StateHistory) -> ErrorInfo | None:
    """Return the error of the state's next operation, if that can never be played."""
    if (error := state.fork_failure) is not None:
        return error
    if state.ended:
        return None
    given = state.supplied.get(state.num_answered)
    if isinstance(given, ErrorInfo):
        return given
    for child, count in state.joins.get(state.num_answered, ()):
        if (error := child.failure_of(count - 1)) is not None:
            return error
    return None
