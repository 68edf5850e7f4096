"""An agent with a checkpoint does not call its tools again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ramiform
from ramiform import AgentResult, ProgramState, RequestError, Scripted

made: list[str] = []


def buy(thing: str) -> dict[str, str]:
    """Buy a thing"""
    made.append(thing)
    return {"bought": thing}


async def sell(thing: str) -> str:
    """Sell a thing"""
    made.append(thing)
    return "sold"


def lose(thing: str) -> str:
    """Lose a thing"""
    made.append(thing)
    raise LookupError(thing)


def make(thing: str) -> object:
    """Make a thing"""
    return object()


def call(name: str, thing: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {'thing': thing}})}\n</tool_call>"


@ramiform.function
def trade(s: ProgramState) -> Any:
    result = s.agent([buy, sell, lose, make], "Trade.")
    again = s.agent([buy], "More.")
    return [result.answer, *((one.name, one.result, one.text, one.error) for one in (*result.calls, *again.calls))]


@ramiform.function
async def trade_async(s: ProgramState) -> Any:
    result: AgentResult = await s.agent_async([buy, sell, lose], "Trade.")
    return [result.answer, *((one.name, one.result, one.text, one.error) for one in result.calls)]


@pytest.fixture(autouse=True)
def _nothing_made() -> None:
    made.clear()


ANSWERS = [call("buy", "tea") + call("sell", "salt") + call("lose", "map"), call("buy", "ink"), "Done."]


def test_a_run_that_ended_calls_no_tool_again(tmp_path: Path) -> None:
    answers = [*ANSWERS, call("buy", "oil"), "Enough."]
    first = trade.run(backend=Scripted(answers), checkpoint=tmp_path / "run.jsonl")
    assert sorted(made) == ["ink", "map", "oil", "salt", "tea"]
    made.clear()
    again = trade.run(backend=Scripted([]), checkpoint=tmp_path / "run.jsonl")
    assert made == []
    assert again.ret_value == first.ret_value
    assert again.ret_value[1:3] == [
        ("buy", {"bought": "tea"}, '{"bought":"tea"}', None),
        ("sell", "sold", "sold", None),
    ]
    assert "LookupError" in again.ret_value[3][3]
    assert again.messages() == first.messages()


def test_an_async_agent_that_failed_goes_on_after_the_calls_that_it_made(tmp_path: Path) -> None:
    with pytest.raises(RequestError):
        trade_async.run(backend=Scripted(ANSWERS[:2]), checkpoint=tmp_path / "run.jsonl")
    assert sorted(made) == ["ink", "map", "salt", "tea"]
    made.clear()
    again = trade_async.run(backend=Scripted(ANSWERS[2:]), checkpoint=tmp_path / "run.jsonl")
    assert made == []
    assert again.ret_value[0] == "Done."
    assert [one[0] for one in again.ret_value[1:]] == ["buy", "sell", "lose", "buy"]


def test_agents_of_branches_have_calls_of_their_own(tmp_path: Path) -> None:
    @ramiform.function
    def both(s: ProgramState) -> Any:
        s += ramiform.system("Trade.")
        branches = s.fork(2)
        return [branch.agent([buy], f"Branch {index}.").calls[0].result for index, branch in enumerate(branches)]

    answers = [call("buy", "tea"), "Done.", call("buy", "ink"), "Done."]
    expected = [{"bought": "tea"}, {"bought": "ink"}]
    assert both.run(backend=Scripted(answers), checkpoint=tmp_path / "run.jsonl").ret_value == expected
    made.clear()
    assert both.run(backend=Scripted([]), checkpoint=tmp_path / "run.jsonl").ret_value == expected
    assert made == []


def test_a_result_that_a_file_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"the tool make returned <object object.*which a checkpoint cannot keep"):
        trade.run(backend=Scripted([call("make", "a")]), checkpoint=tmp_path / "run.jsonl")


def test_errors_that_end_the_program_are_not_kept(tmp_path: Path) -> None:
    @ramiform.function
    def losing(s: ProgramState) -> None:
        s.agent([lose], "Go.", tool_errors="raise")

    for _ in range(2):
        with pytest.raises(RequestError, match=r"the tool lose.*raised LookupError"):
            losing.run(backend=Scripted([call("lose", "map")]), checkpoint=tmp_path / "run.jsonl")
    assert made == ["map", "map"]
