"""The requests that a program's history makes. Judge: the interpreter with which the server plays them."""

from __future__ import annotations

from typing import Any

import msgspec

from ramiform.lang.backends.runtimes.program_history import ProgramHistory, ProgramRequest
from ramiform.runtime.protocol.core import Finish
from ramiform.runtime.protocol.errors import ErrorInfo, RequestError
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.protocol.session import (
    Append,
    Ask,
    Choice,
    Concatenate,
    Done,
    Fork,
    Gen,
    Generated,
    Open,
    Operation,
    Select,
    Sequence,
    Sync,
    Text,
)

GEN = Gen(sampling=SamplingParams(max_new_tokens=4))
SCORES = Select(choices=("a", "b"), append=False)


def generated(text: str) -> list[Sequence]:
    return [
        Sequence(
            text=text, ids=[len(text)], prompt_tokens=1, completion_tokens=1, cached_tokens=0, finish=Finish("length")
        )
    ]


def answer(history: ProgramHistory, number: int, count: int = 1) -> None:
    """Answer the next operations of a state."""
    state = history.states[number]
    for _ in range(count):
        operation = state.operations[state.num_answered]
        done = Done(number, state.num_answered, "")
        if isinstance(operation, Gen):
            done = msgspec.structs.replace(done, sequences=generated(f"<{number}.{state.num_answered}>"))
        elif isinstance(operation, Select):
            scored = Choice(index=0, text="a", scores=[], normalized_prompt_logprobs=[], token_logprobs=[])
            done = msgspec.structs.replace(done, choice=scored)
        state.answer(done)


def said(request: ProgramRequest | None) -> list[tuple[int, list[Operation]]]:
    """The operations of each message, read as the server reads them; neighbours of one state together."""
    assert request is not None
    messages = msgspec.json.decode(msgspec.json.encode(request.messages), type=list[Open | Append])
    found: list[tuple[int, list[Operation]]] = []
    for one in messages:
        if isinstance(one, Append) and found and found[-1][0] == one.state:
            found[-1][1].extend(one.operations)
        elif isinstance(one, Append):
            found.append((one.state, one.operations))
    return found


def begun(*operations: Operation) -> ProgramHistory:
    history = ProgramHistory(1)
    history.open(1)
    history.append(1, list(operations))
    return history


def test_what_was_generated_is_said_with_its_ids_and_not_asked_again() -> None:
    history = begun(Text("a"), GEN, Select(choices=("a", "b")))
    assert said(history.next_request()) == [(1, [Text("a"), GEN, Select(choices=("a", "b"))])]
    assert history.next_request() is None  # it runs
    answer(history, 1, 3)
    assert history.next_request() is None  # there is nothing to play
    history.append(1, [GEN])
    request = history.next_request()
    chosen = [Text("a"), Generated(text="<1.1>", ids=[5]), Generated(text="a", chosen=True), GEN]
    assert said(request) == [(1, chosen)]
    assert request is not None
    assert request.known == {1: 3}


def test_a_request_ends_before_an_ask_and_the_next_one_has_its_text() -> None:
    history = begun(Text("a"), SCORES, Ask(chosen=True), GEN, Ask())
    request = history.next_request()
    assert said(request) == [(1, [Text("a"), SCORES])]
    assert request is not None
    assert not request.is_last
    answer(history, 1, 2)
    assert history.next_request() is None
    history.supply(1, 2, "b")
    history.supply(1, 2, "another, too late")
    assert said(history.next_request()) == [(1, [Text("a"), Sync(), Generated(text="b", chosen=True), GEN])]
    answer(history, 1, 2)
    history.supply(1, 4, "tool")
    request = history.next_request()
    assert said(request)[0][1][-1] == Text("tool")
    assert request is not None
    assert request.is_last


def test_a_supplied_error_fails_the_state_once_what_is_before_is_answered() -> None:
    history = begun(GEN, Ask())
    history.next_request()
    error = ErrorInfo.of(RequestError("no"))
    history.supply(1, 1, error)
    assert history.new_failures() == []
    answer(history, 1)
    assert history.new_failures() == [(history.states[1], error)]


def test_a_branch_goes_on_while_another_runs_and_a_join_waits_for_both() -> None:
    history = begun(Text("a"), Fork((2, 3)))
    history.append(2, [GEN])
    history.append(3, [GEN])
    assert said(history.next_request()) == [(1, [Text("a"), Fork((2, 3))]), (2, [GEN]), (3, [GEN])]
    answer(history, 1, 2)
    answer(history, 2)
    history.append(2, [Text("b"), GEN])
    history.append(1, [Concatenate((2, 3)), GEN])
    # The fork is said again without the branch that runs, and the join is left out.
    assert said(history.next_request()) == [
        (1, [Text("a"), Fork((2,))]),
        (2, [Generated(text="<2.0>", ids=[5]), Text("b"), GEN]),
    ]
    answer(history, 2, 2)
    assert history.next_request() is None  # branch 3 still generates what it appended before the join
    answer(history, 3)
    [*_, (state, joined)] = said(history.next_request())
    assert (state, joined) == (1, [Concatenate((2, 3)), GEN])


def test_what_a_branch_appended_after_the_join_is_no_part_of_it() -> None:
    history = begun(Fork((2,)))
    history.append(2, [Text("in")])
    history.append(1, [Concatenate((2,))])
    history.append(2, [Text("out")])
    told = said(history.next_request())
    assert told == [(1, [Fork((2,))]), (2, [Text("in")]), (1, [Concatenate((2,))]), (2, [Text("out")])]


def test_a_closed_branch_is_said_only_as_far_as_others_need_it() -> None:
    history = begun(Text("a"), Fork((2, 3)))
    history.append(2, [Text("b"), GEN])
    history.append(3, [Text("c"), Fork((4,)), GEN])
    history.append(4, [GEN])
    history.close([2, 3])
    assert said(history.next_request()) == [
        (1, [Text("a"), Fork((3,))]),
        (3, [Text("c"), Fork((4,))]),
        (4, [GEN]),
    ]
    assert not history.is_over
    history.close([1, 4])
    assert history.is_over


def test_failures_reach_forks_and_joins() -> None:
    history = begun(GEN, Fork((2,)))
    history.append(2, [GEN])
    error = ErrorInfo.of(RequestError("no"))
    history.states[1].failure = error
    assert history.new_failures() == [(history.states[2], error)]

    history = begun(Fork((2,)), Text("a"), Concatenate((2,)))
    assert said(history.next_request()) == [(1, [Fork((2,)), Text("a"), Concatenate((2,))])]
    answer(history, 1, 3)

    history = begun(Fork((2,)))
    history.append(2, [GEN])
    history.append(1, [Concatenate((2,))])
    history.states[2].failure = error
    history.next_request()
    answer(history, 1)
    assert history.new_failures() == [(history.states[1], error)]


def test_a_fork_into_a_state_that_exists_and_a_join_of_another_states_fork_are_refused() -> None:
    def refusal(*operations: Any) -> str:
        history = begun(Fork((2,)))
        history.append(2, [Fork((3,))])
        try:
            history.append(1, list(operations))
        except RequestError as error:
            return str(error)
        raise AssertionError("it was accepted")

    assert "state 3 exists" in refusal(Fork((3,)))
    assert "state 3 is not a fork" in refusal(Concatenate((3,)))
