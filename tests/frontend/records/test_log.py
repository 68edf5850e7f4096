"""The log of records stays within its bounds, and says what has changed. Judge: a list that keeps everything."""

from __future__ import annotations

import random
from typing import Any

from ramiform.runtime.frontend.records.log import MAX_RECORD_BYTES, Owner, ProgramLog
from ramiform.runtime.frontend.records.recorder import ProgramRecorder
from ramiform.runtime.protocol.errors import ErrorInfo
from ramiform.runtime.protocol.session import Append, Close, Done, Failed, Fork, Lost, Note, Open, Rollback, Text

OWNER = Owner("local")


def played(log: ProgramLog, number: int, text: str = "a") -> None:
    """Record a program of one operation."""
    recorder = ProgramRecorder(log, OWNER)
    recorder.receive(Open(number, number, title=f"p{number}"))
    recorder.receive(Append(number, 0, [Text(text)]))
    recorder.sent(Done(number, 0, text))
    recorder.ended(number, None)


def titles(log: ProgramLog, **options: Any) -> list[str]:
    return [one.row.title for one in log.rows(**options)]


def test_the_newest_records_stay_and_the_others_are_counted() -> None:
    log = ProgramLog(max_records=10)
    for number in range(25):
        played(log, number)
    assert titles(log) == [f"p{number}" for number in range(24, 14, -1)]
    assert (len(log), log.num_dropped) == (10, 15)


def test_the_bytes_of_all_records_are_bounded() -> None:
    log = ProgramLog(max_bytes=100_000)
    for number in range(50):
        played(log, number, "x" * 10_000)
        assert log.num_bytes <= 100_000
    assert titles(log)[0] == "p49"
    assert 1 < len(log) < 10


def test_records_that_run_outlive_those_that_have_ended() -> None:
    log = ProgramLog(max_records=3)
    recorder = ProgramRecorder(log, OWNER)
    recorder.receive(Open(100, 100, title="running"))
    for number in range(5):
        played(log, number)
    assert titles(log) == ["p4", "p3", "running"]


def test_a_record_of_a_program_without_end_is_bounded_and_says_so() -> None:
    log = ProgramLog()
    recorder = ProgramRecorder(log, OWNER)
    recorder.receive(Open(1, 1))
    for op in range(20):
        recorder.receive(Append(1, op, [Text("x" * (1 << 20))]))
        recorder.sent(Done(1, op, "x" * (1 << 20)))
    assert log.num_bytes < 2 * MAX_RECORD_BYTES + (2 << 20)
    found = log.view(log.rows()[0].row.id)
    assert found is not None
    assert found.view.cut
    assert 0 < len(found.view.states[0].events) < 20
    assert all(len(event.text or "") == 4000 and event.cut for event in found.view.states[0].events)


def test_pages_of_rows_follow_one_another() -> None:
    log = ProgramLog()
    for number in range(7):
        played(log, number)
    shown: list[str] = []
    before = None
    while page := log.rows(limit=3, before=before):
        shown += [one.row.title for one in page]
        before = page[-1].row.seq
    assert shown == titles(log)


def test_changes_are_all_that_changed_and_nothing_else() -> None:
    draw = random.Random(5)
    log = ProgramLog(max_records=20)
    known: dict[str, Any] = {}
    recorders: list[tuple[int, ProgramRecorder, int]] = []
    version = 0
    for number in range(1, 200):
        if draw.random() < 0.5 or not recorders:
            recorder = ProgramRecorder(log, OWNER)
            recorder.receive(Open(number, number, title=f"p{number}"))
            recorders.append((number, recorder, 0))
        else:
            state, recorder, op = recorders.pop(draw.randrange(len(recorders)))
            recorder.receive(Append(state, op, [Text("a")]))
            recorder.sent(Done(state, op, "a"))
            if draw.random() < 0.3:
                recorder.ended(state, None)
            else:
                recorders.append((state, recorder, op + 1))
        if draw.random() < 0.3:
            changes = log.rows_since(version)
            version = changes.version
            for id in changes.removed:
                known.pop(id, None)
            known |= {one.row.id: one.row.status for one in changes.rows}
            assert known == {one.row.id: one.row.status for one in log.rows()}
            assert log.rows_since(version).rows == []
            assert log.rows_since(version).removed == []


def test_a_failed_operation_is_the_programs_error_until_it_is_rolled_back() -> None:
    log = ProgramLog()
    recorder = ProgramRecorder(log, OWNER)
    recorder.receive(Open(1, 1))
    recorder.receive(Append(1, 0, [Text("a"), Text("b")], [Note(op=0, place="x.py:1"), Note(op=1, place="x.py:2")]))
    recorder.sent(Done(1, 0, "a"))
    recorder.sent(Failed(1, 1, ErrorInfo(kind="request", message="too long")))
    row = log.rows()[0].row
    assert (row.status, row.error, row.place) == ("running", "too long", "x.py:2")
    recorder.receive(Append(1, 2, [Rollback(0)]))
    recorder.sent(Done(1, 2, ""))
    recorder.ended(1, None)
    row = log.rows()[0].row
    assert (row.status, row.error, row.place) == ("done", None, None)


def test_a_lost_program_has_the_reason_that_comes_after_its_end() -> None:
    log = ProgramLog()
    recorder = ProgramRecorder(log, OWNER)
    recorder.receive(Open(1, 1))
    recorder.receive(Append(1, 0, [Fork((2, 3))], [Note(op=0, place="x.py:1")]))
    recorder.ended(1, None)
    recorder.sent(Lost((1, 2, 3), ErrorInfo(kind="request", message="the budget is spent")))
    row = log.rows()[0].row
    assert (row.status, row.error, row.place, row.states) == ("lost", "the budget is spent", "x.py:1", 3)


def test_messages_that_the_interpreter_refuses_leave_no_trace() -> None:
    log = ProgramLog()
    recorder = ProgramRecorder(log, OWNER)
    recorder.receive(Open(1, 1))
    recorder.receive(Append(1, 5, [Text("misnumbered")]))
    recorder.receive(Append(9, 0, [Text("of no state")]))
    recorder.sent(Failed(9, 0, ErrorInfo(kind="request", message="there is no such state")))
    recorder.receive(Open(1, 2))
    recorder.receive(Close((7,), (8,), ErrorInfo(kind="request", message="of no program")))
    recorder.ended(1, None)
    [only] = log.rows()
    found = log.view(only.row.id)
    assert found is not None
    assert (only.row.status, found.view.states[0].events) == ("done", [])


def test_views_without_texts_have_none() -> None:
    secret = "a secret of the user's"
    log = ProgramLog()
    recorder = ProgramRecorder(log, OWNER)
    recorder.receive(Open(1, 1, title="p"))
    recorder.receive(
        Append(1, 0, [Text(secret), Text("b")], [Note(op=0, place="x.py:1", code=f"s += {secret!r}", label=secret)])
    )
    recorder.sent(Done(1, 0, secret))
    recorder.sent(Failed(1, 1, ErrorInfo(kind="request", message=f"wrong: {secret}")))
    recorder.ended(1, None)
    shown = log.view(log.rows()[0].row.id)
    hidden = log.view(log.rows()[0].row.id, lambda owner: owner.way == "http")
    assert shown is not None
    assert hidden is not None
    assert secret in repr(shown.view)
    assert "secret" not in repr(hidden.view)
    assert (shown.view.texts, hidden.view.texts) == (True, False)
    assert [one.place for one in hidden.view.lines] == [one.place for one in shown.view.lines]
