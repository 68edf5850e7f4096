"""Agents with answers of a type, conditions that end them, and other agents that take over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

import ramiform
from ramiform import Agent, AgentResult, ProgramState, RequestError, Scripted
from ramiform.runtime.protocol import session
from ramiform.tests.lang.tools.test_agent import add, both, call, fails, get_weather, run


@dataclass
class Weather:
    city: str
    degrees: int


@dataclass
class Sum:
    total: int


OSLO = '{"city": "Oslo", "degrees": 4}'


@both
def test_the_answer_is_a_value_of_the_type(is_async: bool) -> None:
    state = run([call("get_weather", city="Oslo"), "It is 4 degrees.", OSLO], is_async=is_async, schema=Weather)
    result: AgentResult = state.ret_value
    assert result.value == Weather("Oslo", 4)
    assert (result.answer, result.steps, result.stopped_by) == ("It is 4 degrees.", 2, "answer")
    *_, words, question, typed = state.messages()
    assert (words["content"], typed["content"]) == ("It is 4 degrees.", OSLO)
    assert question["role"] == "user"
    assert "- degrees (integer)" in question["content"]


@both
def test_an_invalid_answer_is_told_why_and_asked_for_again(is_async: bool) -> None:
    seen: list[str] = []
    answers = iter(["Words.", '{"city": "Oslo"}', OSLO.replace("4", "400"), OSLO])

    def answer(text: str) -> str:
        seen.append(text)
        return next(answers)

    def plausible(value: Weather) -> None:
        if value.degrees > 60:
            raise ValueError("no place is so hot")

    state = run(Scripted(answer), is_async=is_async, schema=Weather | Sum, check=plausible)
    assert state.ret_value.value == Weather("Oslo", 4)
    assert "degrees" in seen[2].rpartition("not valid")[2]
    assert "no place is so hot" in seen[3]
    assert "no place is so hot" not in state.text()
    with pytest.raises(RequestError, match="no valid Weather in 1 attempt") as caught:
        run(["Words.", "no JSON"], is_async=is_async, schema=Weather, retries=0)
    assert caught.value.code == "invalid_result"


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (int, "42", 42),
        (Literal["a", "b"], '"b"', "b"),
        (list[Sum], '[{"total": 1}]', [Sum(1)]),
        (Sum | None, "null", None),
    ],
)
def test_any_type_may_be_the_answer(schema: Any, text: str, value: Any) -> None:
    assert run(["Words.", text], schema=schema).ret_value.value == value


def test_an_agent_that_does_not_finish_is_asked_for_nothing() -> None:
    again = call("add", a=1, b=1)
    result: AgentResult = run([again, again], schema=Sum, max_steps=2).ret_value
    assert (result.stopped_by, result.finished, result.value) == ("max_steps", False, None)
    assert len(result.calls) == 2


@both
def test_a_tool_whose_name_is_until_ends_the_agent(is_async: bool) -> None:
    answers = [call("fails", why="x"), call("add", a=1, b=2), '{"total": 3}']
    result: AgentResult = run(answers, is_async=is_async, until="add", schema=Sum).ret_value
    assert (result.stopped_by, result.steps, result.value) == ("until", 2, Sum(3))
    result = run([call("fails", why="x"), "No."], is_async=is_async, until="fails").ret_value
    assert result.stopped_by == "answer"  # a call that failed does not end it


billing = Agent("billing", [add], "You add up bills.", "questions about money", handoffs=["desk"])
poet = Agent("poet", instructions="You write rhymes.")
desk = Agent("desk", [get_weather], "You are at the desk.", handoffs=[billing, poet])


@both
def test_an_agent_hands_over_and_gets_the_conversation_back(is_async: bool) -> None:
    answers = [
        call("get_weather", city="Oslo"),
        call("hand_over_to_billing"),
        call("add", a=1, b=2),
        call("hand_over_to_desk"),
        call("hand_over_to_poet"),
        "A rhyme.",
        '{"total": 3}',
    ]
    state = run(answers, is_async=is_async, tools=desk, schema=Sum)
    result: AgentResult = state.ret_value
    assert (result.agent, result.answer, result.steps, result.value) == ("poet", "A rhyme.", 6, Sum(3))
    names = [one.name for one in result.calls]
    assert names == ["get_weather", "hand_over_to_billing", "add", "hand_over_to_desk", "hand_over_to_poet"]
    first, *rest = state.messages()
    assert first == {"role": "system", "content": "You are at the desk."}
    offered = next(one.tools for one in state._log.operations if isinstance(one, session.RoleBegin))
    assert offered is not None
    assert "questions about money" in offered.schemas
    told = [one["content"] for one in rest if one["role"] == "tool"]
    assert told[1].startswith("You are billing now.\nYou add up bills.\n")
    assert '"add"' in told[1]
    assert '"hand_over_to_desk"' in told[1]
    assert '"get_weather"' not in told[1]
    assert told[4] == "You are poet now.\nYou write rhymes.\nAnswer in words."


def test_the_tools_of_the_agent_before_are_no_longer_there() -> None:
    answers = [call("hand_over_to_billing"), call("get_weather", city="Oslo"), "Done."]
    result: AgentResult = run(answers, tools=desk).ret_value
    assert result.agent == "billing"
    assert result.calls[1].name is None
    assert "there is no tool 'get_weather', only add, hand_over_to_desk" in str(result.calls[1].error)


def test_the_steps_of_all_agents_count_together() -> None:
    answers = [call("hand_over_to_billing"), call("hand_over_to_desk")] * 5
    result: AgentResult = run(answers, tools=desk, max_steps=3).ret_value
    assert (result.stopped_by, result.steps, result.agent) == ("max_steps", 3, "billing")


def test_an_agent_without_tools_answers_as_it_was_told() -> None:
    state = run(["A rhyme."], tools=poet)
    assert (state.ret_value.answer, state.ret_value.agent) == ("A rhyme.", "poet")
    assert state.messages()[0] == {"role": "system", "content": "You write rhymes."}


def test_an_agent_that_joins_a_chat_is_introduced_by_a_system_message() -> None:
    @ramiform.function
    def program(s: ProgramState) -> AgentResult:
        s += ramiform.user("Hello.") + ramiform.assistant("Hello!")
        return s.agent(poet, "Write.")

    messages = program.run(backend=Scripted(["A rhyme."])).messages()
    assert messages[2] == {"role": "system", "content": "You write rhymes."}


def test_a_checkpoint_goes_on_behind_a_handover(tmp_path: Path) -> None:
    @ramiform.function
    def program(s: ProgramState) -> AgentResult:
        return s.agent(desk, "Go.", schema=Sum)

    answers = [call("hand_over_to_billing"), call("add", a=1, b=2), "3.", '{"total": 3}']
    path = tmp_path / "run.jsonl"
    with pytest.raises(ramiform.RamiformError):
        program.run(backend=Scripted(answers[:2]), checkpoint=path)
    result = program.run(backend=Scripted(answers[2:]), checkpoint=path).ret_value
    assert (result.value, result.agent, len(result.calls)) == (Sum(3), "billing", 2)


@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"check": bool}, "check", "give schema"),
        ({"retries": 1}, "retries", "give schema"),
        ({"schema": Sum, "retries": -1}, "retries", "must be an int"),
        ({"schema": object()}, "schema", "schema must be"),
        ({"until": "nothing"}, "until", "names no tool"),
        ({"until": 3}, "until", "or a tool's name"),
    ],
)
def test_what_an_agent_cannot_take_is_refused_by_name(options: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        run([], tools=[add, fails], **options)
    assert caught.value.param == param


def test_agents_that_are_wrong_are_refused_by_name() -> None:
    with pytest.raises(RequestError, match="letters, digits"):
        Agent("a b")
    with pytest.raises(RequestError, match="handoffs are agents or their names"):
        Agent("a", handoffs=[3])  # type: ignore[list-item]
    with pytest.raises(RequestError, match="hands over to 'nobody'"):
        run([], tools=Agent("a", handoffs=["nobody"]))
    with pytest.raises(RequestError, match="two agents have the name 'a'"):
        run([], tools=Agent("a", handoffs=[Agent("a")]))


@pytest.mark.slow
def test_the_model_that_ships_answers_with_a_value(runtime: Any, backend: Any) -> None:
    @ramiform.function
    def program(s: ProgramState) -> AgentResult:
        return s.agent([get_weather], "What is the weather in Oslo?", schema=Weather, temperature=0, max_tokens=100)

    assert isinstance(program.run().ret_value.value, Weather)
