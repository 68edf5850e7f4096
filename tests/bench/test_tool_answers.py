"""The count of answers from a tool's result: what counts as answered, and what does not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ramiform import AgentResult, Scripted
from ramiform.bench.agents.tool_answers import (
    FRESH_QUESTIONS,
    QUESTIONS,
    WAYS,
    ask,
    get_price,
    get_weather,
    is_answered,
    row_of,
)

OSLO = QUESTIONS[0]


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def result(*answers: str) -> AgentResult:
    ended: AgentResult = ask.run(OSLO.text, WAYS["json"], backend=Scripted(answers)).ret_value
    return ended


@pytest.mark.parametrize(
    ("answers", "counts"),
    [
        ([call("get_weather", city="Oslo"), "It is 23 degrees."], True),
        ([call("get_weather", city="Rome"), call("get_weather", city="Oslo"), "It is 23 degrees."], True),
        ([call("get_weather", city="Oslo"), "It is cold."], False),
        ([call("get_weather", city="Rome"), "It is 23 degrees."], False),
        ([call("get_price", item="Oslo"), "It is 23 degrees."], False),
        (["It is 23 degrees."], False),
        ([call("get_weather", city="Oslo")] * 2 + ["It is 23 degrees."], True),
        ([call("get_weather", city="Oslo")] * 2 + ["It is 230 degrees."], False),
    ],
)
def test_an_answer_counts_with_the_right_call_and_its_value(answers: list[str], counts: bool) -> None:
    assert is_answered(OSLO, result(*answers)) is counts


def test_the_tools_know_the_value_of_each_question() -> None:
    tools = {"get_weather": get_weather, "get_price": get_price}
    both = [*QUESTIONS, *FRESH_QUESTIONS]
    assert len(QUESTIONS) == len(FRESH_QUESTIONS) == 20
    assert len({one.value for one in both}) == 40
    for one in both:
        assert one.argument in one.text
        assert one.value in str(tools[one.tool](one.argument))


def test_a_row_counts_calls_by_how_they_were_found() -> None:
    row = row_of("json", QUESTIONS, [result(call("get_weather", city="Oslo"), "23"), result("Cold.")], 1.0)
    assert (row["answered"], row["right call"], row["no call"], row["turns"]) == (1, 1, 1, 3)
    assert row["calls found by"] == "bare JSON 1"
