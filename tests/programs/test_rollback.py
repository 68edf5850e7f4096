"""Rollbacks and checked generations in the interpreter by itself."""

from __future__ import annotations

import msgspec
import pytest

from ramiform.runtime.protocol.errors import ErrorInfo, RequestError
from ramiform.runtime.protocol.session import (
    Answer,
    Append,
    Ask,
    Attempted,
    Close,
    Concatenate,
    Done,
    Failed,
    Fork,
    Mark,
    Open,
    Retry,
    Rollback,
    Supply,
    Text,
)

from .test_interpreter import GEN, Client

CHECKED = msgspec.structs.replace(GEN, checked=True)
BROKEN = ErrorInfo.of(RequestError("broken", code="broken"))


def outcomes(client: Client, state: int) -> list[str]:
    """The answers of a state in order: the text of a Done, the code of a Failed."""
    answers: list[Answer] = [answer for answer in client.answers if answer.state == state]
    assert [answer.op for answer in answers if not isinstance(answer, Attempted)] == sorted(
        answer.op for answer in answers if not isinstance(answer, Attempted)
    )
    return [
        answer.text if isinstance(answer, Done) else f"!{answer.error.code}" if isinstance(answer, Failed) else "?"
        for answer in answers
    ]


def content(client: Client, state: int) -> str:
    """The state's text, as the next generation sees it."""
    [executor] = [executor for executor, _, _ in client.model.asked if executor.state.number == state]
    return executor.text


def test_the_content_returns_to_the_mark_and_a_mark_can_be_used_again() -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(1, Text("a"), Mark(), Text("b"))
    client.append(1, Rollback(1), Text("c"), first=3)
    client.append(1, Rollback(1), Text("d"), GEN, first=5)
    assert outcomes(client, 1) == ["a", "", "b", "", "c", "", "d"]
    assert content(client, 1) == "ad"


def test_what_arrives_together_with_its_rollback_is_not_played() -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(1, Mark(), Text("b"), GEN, Rollback(0), Text("c"))
    assert outcomes(client, 1) == ["", "!rolled_back", "!rolled_back", "", "c"]
    assert client.model.asked == []


def test_a_running_generation_is_stopped_at_once_and_those_after_it_never_begin() -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(1, Mark(), GEN, Text("x"), GEN, Ask())
    assert len(client.model.asked) == 1
    client.append(1, Rollback(0), Text("y"), GEN, first=5)
    assert client.model.stopped == [1]
    assert outcomes(client, 1) == ["", "!rolled_back", "!rolled_back", "!rolled_back", "!rolled_back", "", "y"]
    client.model.asked.pop(0)
    assert content(client, 1) == "y"
    client.model.answer(1, "z")
    assert outcomes(client, 1)[-1] == "z"


def test_what_is_before_the_mark_is_played_to_its_end() -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(1, GEN, Mark(), GEN, Rollback(1), Text("y"))
    assert client.model.stopped == []
    client.model.answer(1, "x")
    assert outcomes(client, 1) == ["x", "", "!rolled_back", "", "y"]


def test_operations_that_forks_need_run_out_unless_the_forks_are_closed() -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(1, Mark(), GEN, Fork((2, 3)), GEN, Rollback(0), Text("y"))
    assert client.model.stopped == []
    client.append(2, Text("child"))
    client.model.answer(1, "x")
    assert outcomes(client, 1) == ["", "x", "", "!rolled_back", "", "y"]
    assert outcomes(client, 2) == ["child"]
    client.append(1, GEN, Fork((4,)), first=6)
    client.send(Close((4,)))
    client.append(1, Rollback(0), first=8)
    assert client.model.stopped == [1]
    assert outcomes(client, 1)[6:] == ["!rolled_back", "!rolled_back", ""]


def test_the_join_of_a_fork_that_rolls_back_waits_for_its_content() -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(1, Text("p"), Fork((2,)))
    client.append(2, Text("a"), Mark(), GEN, Rollback(1), Text("b"))
    client.append(1, Concatenate((2,)), first=2)
    assert outcomes(client, 1) == ["p", "", "ab"]


def test_a_failed_operation_since_the_mark_is_forgotten() -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(1, Mark(), Ask(), Text("b"))
    client.send(Supply(state=1, op=1, error=BROKEN))
    client.append(1, Rollback(0), Text("c"), Ask(), Text("d"), first=3)
    assert outcomes(client, 1) == ["", "!broken", "!broken", "", "c"]
    client.send(Supply(state=1, op=5, error=BROKEN))
    client.append(1, Rollback(0), Text("e"), first=7)
    assert outcomes(client, 1)[5:] == ["!broken", "!broken", "", "e"]


def test_an_error_before_the_mark_stays() -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(1, Ask(), Mark(), Text("b"))
    client.send(Supply(state=1, op=0, error=BROKEN))
    client.append(1, Rollback(1), Text("c"), first=3)
    assert outcomes(client, 1) == ["!broken"] * 5


@pytest.mark.parametrize("mark", [0, 1, 2, 7, -1])
def test_a_rollback_to_what_is_no_mark_fails(mark: int) -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(1, Text("a"), Text("b"), Rollback(mark), Text("c"))
    assert outcomes(client, 1)[-2:] == ["!bad_mark", "!bad_mark"]


def test_a_mark_that_a_rollback_has_removed_is_no_mark() -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(1, Mark(), Mark(), Rollback(0), Rollback(1))
    assert outcomes(client, 1)[-1] == "!bad_mark"


def test_a_checked_generation_waits_until_an_attempt_is_accepted() -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(1, Text("a"), CHECKED, Text("b"), GEN)
    client.model.answer(1, "no")
    assert outcomes(client, 1) == ["a", "?"]
    client.send(Supply(state=1, op=1, retry=Retry(gen=CHECKED, operations=[Text("<no!>")])))
    assert content(client, 1) == "a<no!>"
    client.send(Supply(state=1, op=1))  # no attempt waits for it
    client.model.answer(1, "yes")
    assert outcomes(client, 1) == ["a", "?", "?"]
    client.send(Supply(state=1, op=1))
    assert outcomes(client, 1) == ["a", "?", "?", "yes", "b"]
    assert content(client, 1) == "ayesb"


def test_a_rejected_generation_fails_and_a_rollback_recovers() -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(1, Mark(), CHECKED)
    client.model.answer(1, "no")
    client.send(Supply(state=1, op=1, error=BROKEN))
    client.append(1, Rollback(0), Text("b"), first=2)
    assert outcomes(client, 1) == ["", "?", "!broken", "", "b"]


def test_an_attempt_is_given_up_by_a_rollback_and_by_a_close() -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(1, Mark(), CHECKED)
    client.append(1, Rollback(0), CHECKED, first=2)
    assert client.model.stopped == [1]
    client.model.asked.pop(0)
    client.model.answer(1, "late")
    client.append(1, Rollback(0), Text("b"), first=4)
    client.send(Supply(state=1, op=3, retry=Retry(gen=CHECKED)))
    assert outcomes(client, 1) == ["", "!rolled_back", "", "?", "!rolled_back", "", "b"]
    client.append(1, CHECKED, Fork((2,)), first=6)
    client.send(Append(2, 0, [Text("child")]), Close((1,)))
    assert outcomes(client, 2) == ["!state_closed"]
    assert client.model.stopped == [1, 1]
