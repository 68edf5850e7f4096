"""Collects the events of recorded states from their logs and times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...runtime.programs.records.events import Event, ProgramWait, RunRecord, ShownImage, TracedState
from ...runtime.programs.records.steps import answer_fields, image_digest
from ...runtime.protocol.session import AppendImage
from ..expressions.image_files import thumbnail
from ..operations.operation_log import OperationLog
from ..operations.recording import OperationTimes, Recording, ThreadWait
from .plan import PlannedStep, states_of

Waits = Callable[[int, float, float], tuple[ProgramWait, ...]]  # of a thread, between two times


def record_of(recording: Recording) -> RunRecord:
    """Return what a recording holds so far; the run may still go on."""
    waits = {thread: list(found) for thread, found in list(recording.waits.items())}

    def waits_between(thread: int, start: float, end: float) -> tuple[ProgramWait, ...]:
        return tuple(_between(waits.get(thread, []), start, end))

    states = traced_states(list(recording.logs), recording.times, recording.sent, waits_between)
    ended, thread = recording.body_ended, recording.body_thread
    last = states[0].events[-1].end if states[0].events else recording.body_began
    return RunRecord(
        title=recording.title,
        began_at=recording.began_at,
        states=states,
        body_began=recording.body_began,
        body_ended=ended,
        last_waits=() if None in (ended, thread, last) else waits_between(thread, last, ended),  # type: ignore[arg-type]
    )


def traced_states(
    logs: Sequence[tuple[int, OperationLog]],
    all_times: Sequence[OperationTimes],
    sent: float | None = None,
    waits_between: Waits = lambda thread, start, end: (),
) -> list[TracedState]:
    """Return the states of recorded logs. Operations recorded before `sent` were sent at that time."""
    states = []
    forked_at: dict[int, float] = {}
    called: set[int] = set()
    for planned, (_, log), times in zip(states_of(logs), logs, all_times, strict=False):
        begin = forked_at.get(planned.number, 0.0)
        if planned.number in called and times.recorded:
            begin = max(begin, times.recorded[0])
        with log.changed:
            events = list(_events(planned.steps, log, times, begin, sent or 0.0, waits_between))
        for event in events:
            if event.kind == "call":
                called.update(event.states)
            if event.kind in ("fork", "call"):
                forked_at.update(dict.fromkeys(event.states, event.start if event.end is None else event.end))
        states.append(TracedState(number=planned.number, parent=planned.parent, events=events, begin=begin))
    return states


def _events(
    steps: tuple[PlannedStep, ...],
    log: OperationLog,
    times: OperationTimes,
    begin: float,
    sent: float,
    waits_between: Waits,
) -> Iterator[Event]:
    op = 0
    for step in steps:
        if step.operation is None:  # variables gathered, or a program called: no operation was sent
            yield Event(kind=step.kind, label=step.label, place=step.place, states=step.states, start=begin, end=begin)
            continue
        done = log.done[op] if op < len(log.done) else None
        recorded = times.recorded[op] if op < len(times.recorded) else begin
        end = times.answered[op] if op < len(times.answered) else None
        start = max(begin, recorded, sent if recorded < sent else 0.0)
        start = start if end is None else max(begin, min(start, end))
        error = log.error if op == len(log.done) else log.failed.get(op)  # the latter was removed by a rollback
        failed = None if error is None else error.message
        yield Event(
            kind=step.kind,
            label=step.label,
            place=step.place,
            name=step.name,
            states=step.states,
            start=start,
            first_text=times.first_text.get(op),
            end=end,
            error=failed,
            saved=log.saved.get(op, 0.0),
            waits=waits_between(times.threads[op], begin, start) if op < len(times.threads) and start > begin else (),
            image=shown_image(step.operation.data) if isinstance(step.operation, AppendImage) else None,
            **({} if done is None else answer_fields(done)),
        )
        begin = start if end is None else end
        op += 1


def shown_image(data: bytes) -> ShownImage:
    """Return what a trace has of an image."""
    return ShownImage(image_digest(data), thumbnail(data))


def _between(waits: list[ThreadWait], start: float, end: float) -> Iterator[ProgramWait]:
    """Yield the parts of a thread's waits, which are in order, that lie between two times."""
    low, high = 0, len(waits)
    while low < high:  # the first wait that ends after `start`
        middle = (low + high) // 2
        if waits[middle].end <= start:
            low = middle + 1
        else:
            high = middle
    for wait in waits[low:]:
        if wait.start >= end:
            return
        yield ProgramWait(max(wait.start, start), min(wait.end, end), wait.place)
