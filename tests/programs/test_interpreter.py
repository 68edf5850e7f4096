"""The interpreter by itself: messages in, answers out, on an executor whose generations end when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

from ramiform.runtime.programs.executor import OperationResult, PendingResult
from ramiform.runtime.programs.interpreter import ProgramInterpreter
from ramiform.runtime.programs.running_program import StateProgress
from ramiform.runtime.protocol import session
from ramiform.runtime.protocol.core import Finish
from ramiform.runtime.protocol.errors import ErrorInfo, RequestError
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.protocol.session import (
    Append,
    Ask,
    Budget,
    Close,
    Concatenate,
    Done,
    Failed,
    Fork,
    Lost,
    Open,
    Operation,
    Play,
    Supply,
    Text,
)

GEN = session.Gen(sampling=SamplingParams(max_new_tokens=8))


class Model:
    """Keeps the generations that were asked for: the executor, the limit in tokens, the pending result."""

    def __init__(self) -> None:
        self.asked: list[tuple[Executor, int, PendingResult]] = []
        self.stopped: list[int] = []

    def answer(self, state: int, text: str, finish: Literal["stop", "length"] = "stop", num_tokens: int = 1) -> None:
        [entry] = [entry for entry in self.asked if entry[0].state.number == state]
        self.asked.remove(entry)
        executor, _, pending = entry
        executor.append_text(text)
        sequence = session.Sequence(
            text=text, ids=[], prompt_tokens=0, completion_tokens=num_tokens, cached_tokens=0, finish=Finish(finish)
        )
        pending.resolve(OperationResult(text, sequences=[sequence]))


class Executor:
    """Holds a text."""

    def __init__(self, model: Model, state: StateProgress, text: str = "") -> None:
        self.model = model
        self.state = state
        self.text = text
        self.forked_at = len(text)

    def append_text(self, text: str) -> str:
        self.text += text
        return text

    def begin_role(self, role: str) -> str:
        return self.append_text(f"<{role}>")

    def end_role(self) -> str:
        raise RequestError("no role to end: none is open", param="role")

    def append_generated(self, generated: session.Generated) -> OperationResult:
        return OperationResult(self.append_text(generated.text))

    def snapshot(self) -> str:
        return self.text

    def restore(self, snapshot: str) -> None:
        self.text = snapshot

    def supply(self, text: str, *, chosen: bool) -> OperationResult:
        return OperationResult(self.append_text(text))

    def generate(self, gen: session.Gen, on_delta: Any) -> PendingResult:
        pending = PendingResult(lambda: self.model.stopped.append(self.state.number))
        self.model.asked.append((self, gen.sampling.max_new_tokens, pending))
        return pending

    def select(self, select: session.Select) -> PendingResult:
        raise NotImplementedError

    def decide(self, questions: Any) -> PendingResult:
        raise NotImplementedError

    def fork(self, children: Sequence[StateProgress]) -> list[Executor]:
        return [Executor(self.model, child, self.text) for child in children]

    def since_fork(self) -> str:
        return self.text[self.forked_at :]

    def join(self, appended: Sequence[str]) -> OperationResult:
        return OperationResult(self.append_text("".join(appended)))

    def generation_ended(self) -> None:
        """Nothing is kept."""


class Client:
    """An interpreter with its model; `send` handles messages and plays what can be played."""

    def __init__(self) -> None:
        self.model = Model()
        self.answers: list[Any] = []
        self.expire: Callable[[], None] | None = None
        self.interpreter = ProgramInterpreter(
            self.answers.append, lambda state: Executor(self.model, state), self.call_later
        )

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Client:
        self.expire = callback
        return self

    def cancel(self) -> None:
        self.expire = None

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.interpreter.receive(message)
        self.interpreter.run()

    def append(self, state: int, *operations: Operation, first: int = 0) -> None:
        self.send(Append(state, first, list(operations)))

    @property
    def texts(self) -> dict[tuple[int, int], str]:
        return {(answer.state, answer.op): answer.text for answer in self.answers if isinstance(answer, Done)}

    @property
    def failures(self) -> dict[tuple[int, int], str]:
        return {
            (answer.state, answer.op): answer.error.message for answer in self.answers if isinstance(answer, Failed)
        }

    @property
    def asked(self) -> list[tuple[int, str]]:
        return [(executor.state.number, executor.text) for executor, _, _ in self.model.asked]


def test_nothing_is_played_before_run() -> None:
    client = Client()
    client.interpreter.receive(Play([Open(1, 1), Append(1, 0, [Text("a"), GEN]), Close((1,))]))
    client.interpreter.run()
    assert (client.answers, client.asked) == ([], [])  # closed in the message that opened it
    assert client.interpreter.num_states == client.interpreter.num_programs == 0


def test_forks_are_played_before_the_state_that_forked_goes_on() -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(1, GEN, Fork((2, 3)), GEN)
    client.append(3, GEN)
    client.append(2, Text("b"), GEN)
    client.model.answer(1, "a")
    assert client.asked == [(2, "ab"), (3, "a"), (1, "a")]


def test_a_join_waits_for_what_was_asked_of_its_forks_so_far() -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(1, Text("a"), Fork((2, 3)))
    client.append(2, GEN)
    client.append(3, GEN)
    client.append(1, Concatenate((2, 3)), GEN, first=2)
    client.append(2, Text(" after"), first=1)
    client.model.answer(3, " three")
    assert client.asked == [(2, "a")]
    client.model.answer(2, " two")
    assert client.texts[1, 2] == " two three"
    assert client.asked == [(1, "a two three")]
    assert client.texts[2, 1] == " after"


def test_a_failure_spreads_to_forks_and_joins_and_to_no_other_state() -> None:
    client = Client()
    client.send(Open(1, 1), Open(9, 9))
    client.append(1, Fork((2, 3)))
    client.append(2, session.RoleEnd(), Fork((4,)), Text("never"))
    client.append(4, Text("never"))
    client.append(3, GEN)
    client.append(1, Concatenate((2, 3)), Text("never"), first=1)  # does not wait for the other fork
    assert set(client.failures) == {(2, 0), (2, 1), (2, 2), (4, 0), (1, 1), (1, 2)}
    assert set(client.failures.values()) == {"no role to end: none is open"}
    client.append(9, Text("on"))
    assert client.texts[9, 0] == "on"


def test_operations_that_nobody_can_play_are_answered() -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(7, Text("x"))
    client.append(1, Text("x"), first=5)
    client.append(1, Fork((1,)))
    assert client.failures == {
        (7, 0): "operation 0 on state 7: there is no such state",
        (1, 5): "operation 5 on state 1: operation 0 comes next",
        (1, 0): "state 1 exists; a state must be new",
    }


def test_a_closed_state_is_played_as_far_as_a_join_needs_it() -> None:
    client = Client()
    client.send(Open(1, 1))
    client.append(1, Fork((2, 3)))
    client.append(2, GEN)
    client.append(3, Ask(), Text("x"))
    client.append(1, Concatenate((2,)), first=1)
    client.append(2, GEN, first=1)
    client.send(Close((2,)))
    client.model.answer(2, "joined")
    assert client.texts == {(1, 0): "", (1, 1): "joined"}
    assert client.asked == []  # its second generation is nobody's
    client.send(Supply(state=3, op=0, text="s"), Close((3,)))
    assert client.interpreter.num_states == 1


def test_closing_a_program_stops_what_it_generates() -> None:
    client = Client()
    client.send(Open(1, 1), Open(2, 2))
    client.append(1, Fork((3,)), GEN)
    client.append(3, GEN)
    client.append(2, GEN)
    pending = [pending for executor, _, pending in client.model.asked if executor.state.number != 2]
    client.send(Close((), (1,)))
    assert sorted(client.model.stopped) == [1, 3]
    for late in pending:
        late.resolve(OperationResult("late"))
    assert set(client.texts) == {(1, 0)}
    assert client.interpreter.num_states == 1


def test_a_budget_of_seconds_ends_the_program_and_a_closed_one_has_none() -> None:
    client = Client()
    client.send(Open(1, 1, Budget(seconds=0.5)))
    client.append(1, GEN)
    assert client.expire is not None
    client.expire()
    assert client.answers == [
        Lost(
            (1,),
            ErrorInfo(
                kind="request",
                message="the program did not end within its 0.5 s (timeout)",
                param="timeout",
                code="timeout",
            ),
        )
    ]
    assert client.model.stopped == [1]
    client.send(Open(2, 2, Budget(seconds=0.5)), Close((2,)))
    assert client.expire is None


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_generation_that_the_token_budget_cuts_ends_the_program(finish: Literal["stop", "length"]) -> None:
    client = Client()
    client.send(Open(1, 1, Budget(tokens=5)))
    client.append(1, GEN, Text("more"))
    [(_, limit, _)] = client.model.asked
    assert limit == 5
    client.model.answer(1, "cut?", finish, num_tokens=5)
    if finish == "stop":
        assert client.texts == {(1, 0): "cut?", (1, 1): "more"}
    else:
        [lost] = client.answers
        assert (lost.states, lost.error.code) == ((1,), "token_budget_exceeded")
