"""The record of a program: what its client sent and was answered, with the times, and the events made of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

from ...programs.records.events import Event, ProgramWait, RunRecord, ShownImage, TracedState
from ...programs.records.steps import answer_fields, described, image_digest, image_label
from ...programs.records.totals import GENERATIONS
from ...programs.records.view import MAX_TEXT, ProgramRow, ProgramView, RowKey, RowOutcome, Status, excerpt_of, view_of
from ...protocol.errors import ErrorInfo
from ...protocol.session import (
    Append,
    AppendImage,
    Ask,
    Concatenate,
    Decide,
    Delta,
    Done,
    Failed,
    Fork,
    Gen,
    Generated,
    Note,
    Operation,
    Rollback,
    Select,
    Sync,
    Text,
)
from ...protocol.tree import label_of
from .log import Owner, ProgramLog

OPERATION_BYTES = 250  # of an operation without its text, and its answer
GENERATION_BYTES = 1300  # of one that asks the model: its settings, counts and times
IMAGE_BYTES = 250  # of an image's label and digest
STATE_BYTES = 700  # of a state that a fork opened
MAX_NAMES = 16  # for the core: those of a program's latest requests over HTTP

_NO_TITLE = "program"
_NOT_ANSWERED = "it ended before its operations were answered"


class StateRecord:
    """The operations of one state and their answers, with times on the monotonic clock."""

    __slots__ = (
        "answers",
        "arrivals",
        "began",
        "ended",
        "errors",
        "first_text",
        "forked_at",
        "images",
        "labels",
        "notes",
        "number",
        "operations",
        "parent",
    )

    def __init__(self, number: int, began: float, parent: StateRecord | None = None, forked_at: int = 0) -> None:
        self.number = number  # the client's
        self.parent = parent  # that forked it, or whose program called its own
        self.forked_at: int | None = forked_at  # the parent's operation that opened it; None: it was called
        self.began = began
        self.ended: float | None = None
        self.operations: list[Operation] = []
        self.arrivals: list[tuple[int, float]] = []  # from which operation on they arrived when
        self.answers: list[tuple[float, str | dict[str, Any] | ErrorInfo]] = []  # in the operations' order
        self.first_text: dict[int, float] = {}  # of streamed ones
        self.notes: list[tuple[float, Note]] = []
        self.errors: dict[int, ErrorInfo] = {}  # of operations, until a rollback removes them
        self.labels: dict[int, str] = {}  # of what the client supplied
        self.images: dict[int, tuple[str, ShownImage]] = {}  # labels and digests; the files are not kept

    def place_of(self, op: int) -> str | None:
        """Return the file:line of an operation, if the client told it."""
        place = None
        for _, note in self.notes:
            if note.op > op:
                break
            place = note.place or place
        return place

    def keep_until(self, op: int) -> None:
        """Forget operations from `op` on."""
        del self.operations[op:]
        del self.answers[op:]
        self.arrivals = [one for one in self.arrivals if one[0] < op]
        self.notes = [one for one in self.notes if one[1].op < op]
        self.errors = {number: error for number, error in self.errors.items() if number < op}
        for of_operation in (self.first_text, self.labels, self.images):
            for number in [number for number in of_operation if number >= op]:
                del of_operation[number]  # type: ignore[attr-defined]


class ProgramRecord:
    """The states of one program, in the order in which they began."""

    def __init__(self, log: ProgramLog, owner: Owner, title: str | None, traceparent: str | None = None) -> None:
        self.title = title or _NO_TITLE
        self.traceparent = traceparent  # of the client, where it is traced too
        self.trace_context = log.trace_context()
        self.states: dict[int, StateRecord] = {}  # by the client's number
        self.programs: list[int] = []  # its own number, and those of its parts
        self.names: tuple[str, ...] = ()  # that the core knows it by
        self.error: ErrorInfo | None = None  # that ended the whole program
        self.status: Status = "running"
        self.ended: float | None = None
        self.last_change: float | None = None  # a message, or an answer
        self.returned: float | None = None  # when the program's function had returned, if the client told
        self.cut = False  # operations were not recorded, for lack of room
        self._num_generations = 0
        self._prompt_tokens = self._cached_tokens = self._completion_tokens = 0
        self.entry = log.add(owner, self)

    # Recording

    def add_name(self, name: str) -> None:
        """Record that the core knows the program by this name too."""
        self.names = (*self.names, name)[-MAX_NAMES:]

    def open(self, state: int) -> None:
        """Record that a first state is opened."""
        if state not in self.states:
            self.states[state] = StateRecord(state, time.monotonic())
            self.entry.touch()

    def append(self, message: Append) -> None:
        """Record operations that have arrived."""
        state = self.states.get(message.state)
        if state is None or message.first != len(state.operations):
            return  # it is answered by an error, as misnumbered
        if not self.entry.has_room:
            self.cut = True
            return
        now = time.monotonic()
        num_bytes = OPERATION_BYTES * len(message.operations) + sum(map(_num_bytes, message.operations))
        num_generations = 0
        for op, operation in enumerate(message.operations, start=message.first):
            match operation:
                case Gen() | Select() | Decide():
                    num_generations += 1
                case Fork(children=children):
                    for child in children:
                        self.states.setdefault(child, StateRecord(child, now, state, op))
                case AppendImage(data=data):
                    state.images[op] = image_label(len(data)), ShownImage(image_digest(data))
                case Rollback(mark=mark):
                    state.errors = {number: error for number, error in state.errors.items() if number < mark}
        self._num_generations += num_generations
        state.arrivals.append((message.first, now))
        state.operations += [AppendImage(b"") if isinstance(each, AppendImage) else each for each in message.operations]
        for note in message.notes:
            state.notes.append((now, note))
            num_bytes += sys.getsizeof(note.code) + sys.getsizeof(note.place)
            for number in note.called:
                if (called := self.states.get(number)) is not None and called is not state and called.parent is None:
                    called.parent, called.forked_at = state, None
            if note.ended:
                self.returned = now
        self.last_change = now
        self.entry.touch(num_bytes)
        self._finish_returned()

    def answer(self, answer: Done | Failed | Delta) -> None:
        """Record an answer that is sent, or text of one."""
        state = self.states.get(answer.state)
        if state is None:
            return
        if isinstance(answer, Delta):
            if answer.op not in state.first_text:
                state.first_text[answer.op] = time.monotonic()
                self.entry.touch()
            return
        if answer.op != len(state.answers) or answer.op >= len(state.operations):
            return
        found: str | dict[str, Any] | ErrorInfo
        texts: list[str | None] = []
        if isinstance(answer, Failed):
            found = answer.error
            state.errors[answer.op] = answer.error
            texts = [answer.error.message]
        elif answer.sequences or answer.choice is not None or answer.answers is not None:
            found = self._generated(answer)
            texts = [found["text"], *found.get("samples", ())]
        else:
            found = answer.text[: MAX_TEXT + 1]
            texts = [found]
        self.last_change = time.monotonic()
        state.answers.append((self.last_change, found))
        self.entry.touch(sum(map(sys.getsizeof, texts)))
        self._finish_returned()

    def close(self, states: tuple[int, ...]) -> None:
        """Record that states have ended."""
        now = time.monotonic()
        for number in states:
            if (state := self.states.get(number)) is not None and state.ended is None:
                state.ended = now
                if len(state.answers) < len(state.operations):
                    self.last_change = now

    def supply(self, state: int, op: int, label: str) -> None:
        """Record what a text that the client supplied comes from."""
        if (found := self.states.get(state)) is not None and op < len(found.operations):
            found.labels[op] = label
            self.entry.touch(sys.getsizeof(label))

    def end(self, error: ErrorInfo | None = None, *, lost: bool = False, is_final: bool = True) -> None:
        """Record the end of the program, and the error that ended it. `lost`: not by the program itself.

        Only an error changes an end that is recorded already. Unless `is_final`, `resume` may follow.
        """
        if self.ended is not None:
            if self.error is None and error is not None:
                self.error, self.status = error, "lost" if lost else "failed"
                self.entry.touch()
            return
        self.ended = time.monotonic()
        self.close(tuple(self.states))
        self.error = error
        root = next(iter(self.states.values()), None)
        if error is not None:
            self.status = "lost" if lost else "failed"
        elif self._first_error() is not None:
            self.status = "failed"
        elif root is not None and len(root.answers) < len(root.operations):
            self.status = "lost"
        else:
            self.status = "done"
        self.entry.end(is_final=is_final)

    def finish(self) -> None:
        """Make an end final."""
        if self.ended is not None:
            self.entry.end()

    def resume(self, message: Append, num_known: int) -> Append:
        """Go on with a message that repeats the state's first `num_known` operations in the form that generates
        nothing; return it without those that are recorded."""
        self.ended, self.status, self.error = None, "running", None
        self.entry.is_running = True
        state = self.states.get(message.state)
        if state is None:
            return message
        state.ended = None
        num_kept = message.first
        for op, operation in enumerate(message.operations, start=message.first):
            if op >= min(num_known, len(state.answers)) or not _repeats(operation, state.operations[op]):
                break
            if isinstance(operation, Fork):
                self._add_branches(state, op, operation)
            num_kept = op + 1
        else:
            return msgspec.structs.replace(message, first=num_kept, operations=[], notes=[])
        dropped = state.operations[num_kept:]
        self._num_generations -= sum(isinstance(operation, Gen | Select | Decide) for operation in dropped)
        state.keep_until(num_kept)
        rest = message.operations[num_kept - message.first :]
        notes = [note for note in message.notes if note.op >= num_kept]
        return msgspec.structs.replace(message, first=num_kept, operations=rest, notes=notes)

    def _add_branches(self, state: StateRecord, op: int, fork: Fork) -> None:
        """Record the branches of a repeated fork that had no operation yet when it was recorded."""
        recorded = state.operations[op]
        assert isinstance(recorded, Fork)
        new = [child for child in fork.children if child not in recorded.children]
        if not new:
            return
        if not self.entry.has_room:
            self.cut = True
            return
        self.entry.touch(STATE_BYTES * len(new))
        for child in new:
            self.states.setdefault(child, StateRecord(child, time.monotonic(), state, op))
        state.operations[op] = Fork((*recorded.children, *new))

    def _generated(self, answer: Done) -> dict[str, Any]:
        fields = answer_fields(answer)
        if (tokens := fields.get("tokens")) is not None:
            self._prompt_tokens += tokens.prompt
            self._cached_tokens += tokens.cached
            self._completion_tokens += tokens.completion
        if (text := fields["text"]) is not None:
            fields["text"] = text[: MAX_TEXT + 1]
        if (samples := fields.get("samples")) is not None:
            fields["samples"] = [sample[: MAX_TEXT + 1] for sample in samples]
        return fields

    # Looking

    def row(self, now: float) -> ProgramRow:
        """Return the row, as of `now` on the monotonic clock."""
        status, error, place = self._outcome()
        entry = self.entry
        return ProgramRow(
            id=entry.id,
            seq=entry.seq,
            title=self.title,
            status=status,
            began_at=entry.began_at,
            seconds=(now if status == "running" else self.last_change or entry.began) - entry.began,
            states=len(self.states),
            generations=self._num_generations,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            completion_tokens=self._completion_tokens,
            error=error,
            place=place,
            excerpt=excerpt_of(self._prompt()),
            labels=self._labels(),
        )

    def _labels(self) -> tuple[str, ...]:
        return tuple(map(label_of, self.names))

    def _prompt(self) -> str:
        """Return the text before the first generation or branch."""
        texts = []
        for operation in next(iter(self.states.values())).operations if self.states else ():
            match operation:
                case Text(text=text):
                    texts.append(text[:MAX_TEXT])
                case Gen() | Select() | Decide() | Fork():
                    break
        return "".join(texts)

    def view(self, now: float, texts: bool) -> ProgramView:
        outcome, entry = RowOutcome(*self._outcome(), excerpt_of(self._prompt())), self.entry
        return view_of(
            self.run_record(),
            RowKey(entry.id, entry.seq, labels=self._labels()),
            outcome,
            source=self._source(),
            now=now - entry.began if outcome.status == "running" else None,
            texts=texts,
            cut=self.cut,
        )

    def run_record(self) -> RunRecord:
        """Return the record as traces have it. Times are seconds since its begin."""
        numbers = {number: index for index, number in enumerate(self.states)}
        began = self.entry.began
        states = [
            TracedState(
                number=numbers[state.number],
                parent=None if state.parent is None else numbers[state.parent.number],
                events=list(_events(state, numbers, began)),
                begin=_begin(state) - began,
                ended=None if state.ended is None else state.ended - began,
            )
            for state in list(self.states.values())
        ]
        returned = None if self.returned is None else self.returned - began
        return RunRecord(title=self.title, began_at=self.entry.began_at, states=states, body_ended=returned)

    def _outcome(self) -> tuple[Status, str | None, str | None]:
        """Return the status, the error and the place of the error. A program that has returned is done before its
        states are closed."""
        if self.error is not None:
            return self.status, self.error.message, self.error.line or self._waiting_place()
        status = self.status
        if (found := self._first_error()) is not None:
            state, op = found
            error = state.errors[op]
            return "failed" if self._has_returned else status, error.message, error.line or state.place_of(op)
        if status == "running" and self._has_returned:
            status = "done"
        return status, _NOT_ANSWERED if status == "lost" else None, None

    def _finish_returned(self) -> None:
        """Finish a program that has returned and is answered: its states may be held for long."""
        if self.returned is not None and not self.entry.is_final and self._has_returned:
            self.entry.finish()

    @property
    def _has_returned(self) -> bool:
        """Return whether the program has returned and all that it asked for is answered."""
        return self.returned is not None and all(
            len(state.answers) >= len(state.operations) for state in self.states.values() if state.ended is None
        )

    def _first_error(self) -> tuple[StateRecord, int] | None:
        """Return the first operation that failed, and is not rolled back."""
        failed = [
            (state.answers[op][0], state, op)
            for state in self.states.values()
            for op in state.errors
            if op < len(state.answers)
        ]
        if not failed:
            return None
        _, state, op = min(failed, key=lambda one: one[0])
        return state, op

    def _waiting_place(self) -> str | None:
        """Return the place of the first operation without an answer."""
        for state in self.states.values():
            if len(state.answers) < len(state.operations):
                return state.place_of(len(state.answers))
        return None

    def _source(self) -> dict[str, str]:
        notes = [note for state in self.states.values() for _, note in state.notes]
        waits = [wait for note in notes for wait in note.waits]
        return {one.place: one.code for one in (*notes, *waits) if one.code}


def _num_bytes(operation: Operation) -> int:
    """Return the bytes that an operation takes beyond OPERATION_BYTES, and the states that it opens."""
    match operation:
        case Text(text=text) | Generated(text=text):
            return sys.getsizeof(text)
        case AppendImage():
            return IMAGE_BYTES
        case Fork(children=children):
            return STATE_BYTES * len(children)
    own = GENERATION_BYTES if isinstance(operation, Gen | Select | Decide) else 0
    return own + len(msgspec.msgpack.encode(operation))


def _repeats(operation: Operation, recorded: Operation) -> bool:
    """Return whether an operation appends what the recorded one did, as clients repeat it."""
    match operation:
        case Generated():
            return isinstance(recorded, Gen | Select | Ask | Generated)
        case Sync():
            return isinstance(recorded, Select | Decide | Sync)
        case _:
            return type(operation) is type(recorded)


def _begin(state: StateRecord) -> float:
    """Return when a state began: a branch with the answer to its fork."""
    if state.parent is not None and state.forked_at is not None and state.forked_at < len(state.parent.answers):
        return state.parent.answers[state.forked_at][0]
    return state.began


def _events(state: StateRecord, numbers: dict[int, int], program_began: float) -> Iterator[Event]:
    """Yield the events of a state. Times are relative to the program's begin."""
    notes: dict[int, list[tuple[float, Note]]] = {}
    for arrived, note in state.notes:
        notes.setdefault(note.op, []).append((arrived, note))
    bounds = pairwise([*state.arrivals, (len(state.operations), 0.0)])
    arrivals = [arrived for (first, arrived), (end, _) in bounds for _ in range(first, end)]
    place, before = "", _begin(state) - program_began
    for op in range(len(state.operations) + 1):
        found = notes.get(op, ())
        for _, note in found:
            if note.gathered:
                states = tuple(numbers[one] for one in note.gathered if one in numbers)
                label = f"join x{len(note.gathered)}"
                yield Event(kind="gather", label=label, place=note.gathered_at, states=states, start=before, end=before)
            if note.called:
                states = tuple(numbers[one] for one in note.called if one in numbers)
                label = note.label or "call"
                yield Event(kind="call", label=label, place=note.called_at, states=states, start=before, end=before)
            place = note.place or place
        if op == len(state.operations):
            return
        event = _event(state, op, [note for _, note in found], numbers, place)
        answered = state.answers[op][0] - program_began if op < len(state.answers) else None
        start = max(before, arrivals[op] - program_began)
        if answered is not None:
            start = min(start, answered)
        if any(note.asked for _, note in found):
            start = before  # the program made its text before it sent it
        waits = [wait for arrived, note in found for wait in _waits(note, arrived - program_began, before, start)]
        first_text = state.first_text.get(op)
        yield msgspec.structs.replace(
            event,
            start=start,
            first_text=None if first_text is None else first_text - program_began,
            end=answered,
            waits=tuple(waits),
        )
        before = start if answered is None else max(start, answered)


def _event(state: StateRecord, op: int, notes: list[Note], numbers: dict[int, int], place: str) -> Event:
    """Return the event of an operation, without its times."""
    operation = state.operations[op]
    name = next((note.name for note in notes if note.name is not None), None)
    kind, label = described(operation, name)
    if any(note.asked for note in notes):
        kind = "ask"
    match operation:
        case Fork(children=children) | Concatenate(children=children):
            states = tuple(numbers[child] for child in children if child in numbers)
        case Rollback(mark=mark) if (marked := state.place_of(mark)) is not None:
            states, label = (), f"rollback to {marked.rpartition('/')[2]}"
        case _:
            states = ()
    told = state.labels.get(op) or next((one.label for one in notes if one.label is not None and not one.called), None)
    fields: dict[str, Any] = {}
    if op < len(state.answers):
        match state.answers[op][1]:
            case str(text):
                fields = {"text": text}
            case ErrorInfo(message=message):
                fields = {"error": message}
            case dict(found):
                fields = found
    if op in state.images:
        label, fields["image"] = state.images[op]
    variable = name if kind in GENERATIONS else None
    return Event(kind=kind, label=told or label, place=place, name=variable, states=states, **fields)


def _waits(note: Note, arrived: float, start: float, end: float) -> Iterator[ProgramWait]:
    """Yield the waits of a note whose message arrived then, as far as they lie between two times."""
    for wait in note.waits:
        began, ended = max(start, arrived - wait.began), min(end, arrived - wait.ended)
        if ended > began:
            yield ProgramWait(began, ended, wait.place)
