"""The user's own functions within a program: choices methods and tools, sync and async."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any, Literal

import jsonschema
import pytest

import ramiform
from ramiform import ChoicesDecision, ChoicesSamplingMethod, ProgramState, RequestError, gen, select, tool_schemas
from ramiform.lang.tools.tool_set import ToolSet
from ramiform.runtime.protocol import choices as methods
from ramiform.runtime.protocol import session

pytestmark = pytest.mark.usefixtures("endpoint")


def run(body: Any, **arguments: Any) -> ProgramState:
    return ramiform.function(body).run(**arguments)


class Last(ChoicesSamplingMethod):
    """Takes the last choice; keeps what it was called with."""

    def __init__(self) -> None:
        self.called: list[dict[str, Any]] = []

    def __call__(self, **arguments: Any) -> ChoicesDecision:
        self.called.append(arguments)
        return ChoicesDecision(arguments["choices"][-1], {"why": "last"})


def test_a_method_of_ones_own_gets_the_scores_and_decides(frontend: Any) -> None:
    method = Last()

    def body(s: ProgramState) -> None:
        s += "Which? " + select("x", ["a", "b", "c"], choices_method=method) + "!" + gen("y")

    state = run(body)
    assert state["x"] == "c"
    assert state.text() == "Which? c!<9>"
    [called] = method.called
    assert called == {
        "choices": ["a", "b", "c"],
        "normalized_prompt_logprobs": [0.0, -1.0, -2.0],
        "input_token_logprobs": [[(0.0, 7, None)], [(-1.0, 7, None)], [(-2.0, 7, None)]],
        "output_token_logprobs": [[], [], []],
        "unconditional_token_logprobs": None,
    }
    meta = state.get_meta_info("x")
    assert (meta["why"], meta["index"]) == ("last", 2)
    [operation] = frontend.operations(session.Select)
    assert not operation.append
    assert operation.method == "token_length_normalized"


def test_a_method_may_ask_for_the_scores_without_context(frontend: Any) -> None:
    class Without(Last):
        requires_unconditional_logprobs = True

    run(lambda s: s.__iadd__(select("x", ["a"], choices_method=Without())))
    assert frontend.operations(session.Select)[0].method == "unconditional_likelihood_normalized"


@pytest.mark.parametrize("decide", [lambda **_: "a", lambda **_: ChoicesDecision("nothing"), lambda **_: 1 / 0])
def test_a_method_that_decides_nothing_fails_the_state_with_the_programs_line(decide: Any) -> None:
    def body(s: ProgramState) -> None:
        s += select("x", ["a", "b"], choices_method=decide)

    with pytest.raises(RequestError, match=r"choices method|ZeroDivisionError") as caught:
        run(body)
    assert str(caught.value).startswith(__file__)


@pytest.mark.parametrize("wrong", ["no_such_method", 3, None])
def test_an_invalid_choices_method_is_refused(wrong: Any) -> None:
    with pytest.raises(RequestError, match="choices_method must be"):
        select("x", ["a"], choices_method=wrong)


def test_a_method_of_ones_own_takes_no_temperature() -> None:
    with pytest.raises(RequestError, match="temperature"):
        select("x", ["a"], temperature=0.5, choices_method=Last())


@pytest.mark.parametrize(
    "name", ["token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"]
)
def test_the_built_in_methods_can_be_called_and_decide_as_the_runtime_does(name: Any) -> None:
    given = [[-1.0, -3.0], [-0.5], [-1.0, -0.5, -0.25]]
    alone = [[-2.0, -2.0], [-0.1], [-1.0, -1.0, -1.0]]
    decision = getattr(ramiform, name)(
        choices=["a", "b", "c"],
        normalized_prompt_logprobs=methods.token_length_normalized(given),
        input_token_logprobs=[[(value, 1, None) for value in tokens] for tokens in given],
        output_token_logprobs=[[], [], []],
        unconditional_token_logprobs=[[(value, 1, None) for value in tokens] for tokens in alone],
    )
    assert decision.decision == "abc"[methods.decide(methods.scores(name, given, alone))]


# Tools


def lookup(name: str, limit: int = 3, kind: Literal["a", "b"] = "a") -> str:
    """Look something up.

    Args:
        name: what to look up
        limit (int): how many
    """
    return f"{name}/{limit}/{kind}"


def add(a: int, b: int) -> int:
    return a + b


async def slow_add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


def fails(why: str) -> str:
    raise LookupError(why)


CALL = '{"name": "%s", "arguments": %s}'


def test_calls_are_constrained_by_the_signatures() -> None:
    schema = json.loads(ToolSet([lookup, add]).constraint.source)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for good in (
        {"name": "lookup", "arguments": {"name": "x"}},
        {"name": "lookup", "arguments": {"name": "x", "limit": 2, "kind": "b"}},
        {"name": "add", "arguments": {"a": 1, "b": 2}},
    ):
        assert validator.is_valid(good), good
    for bad in (
        {"name": "add", "arguments": {"name": "x"}},
        {"name": "other", "arguments": {}},
        {"name": "add", "arguments": {"a": 1}},
        {"name": "add", "arguments": {"a": 1, "b": 2, "c": 3}},
        {"name": "lookup", "arguments": {"name": "x", "kind": "c"}},
        {"name": "add"},
    ):
        assert not validator.is_valid(bad), bad


def test_schemas_for_prompts_have_the_docstrings_words() -> None:
    [described] = tool_schemas([lookup])
    function = described["function"]
    assert (function["name"], function["description"]) == ("lookup", "Look something up.")
    assert function["parameters"]["required"] == ["name"]
    properties = function["parameters"]["properties"]
    assert properties["name"] == {"type": "string", "description": "what to look up"}
    assert properties["limit"]["description"] == "how many"
    assert properties["kind"]["enum"] == ["a", "b"]


def test_the_call_is_made_and_its_result_appended_and_in_the_variable(frontend: Any) -> None:
    frontend.script = lambda text, operation: CALL % ("lookup", '{"name": "x"}') if text == "Call: " else "then"

    def body(s: ProgramState) -> None:
        s += "Call: " + gen("x", tools=[lookup, add]) + gen("y")

    state = run(body)
    assert state["x"] == "x/3/a"
    assert state["y"] == "then"
    assert state.text() == "Call: " + CALL % ("lookup", '{"name": "x"}') + "\nResult: x/3/a\nthen"
    call = state.get_meta_info("x")["tool_call"]
    assert (call["name"], call["arguments"]) == ("lookup", {"name": "x", "limit": 3, "kind": "a"})


@pytest.mark.parametrize("tool", [add, slow_add])
@pytest.mark.parametrize("is_async", [False, True])
def test_sync_and_async_tools_work_in_sync_and_async_programs(frontend: Any, tool: Any, is_async: bool) -> None:
    frontend.script = lambda text, operation: CALL % (tool.__name__, '{"a": 2, "b": 3}')

    def sync_body(s: ProgramState) -> Any:
        s.tool("x", [tool], tool_result=" = {result}")
        return s["x"]

    async def async_body(s: ProgramState) -> Any:
        s.tool("x", [tool], tool_result=" = {result}")
        return await s.get("x")

    state = run(async_body if is_async else sync_body)
    assert state.ret_value == 5
    assert state.text().endswith("} = 5")


def test_a_tool_that_raises_is_a_result_or_an_error_by_choice(frontend: Any) -> None:
    frontend.script = lambda text, operation: CALL % ("fails", '{"why": "gone"}')

    def told(s: ProgramState) -> None:
        s.tool("x", [fails])

    state = run(told)
    assert state["x"] == "Error: LookupError: gone"
    assert state.text().endswith("\nResult: Error: LookupError: gone\n")
    assert state.get_meta_info("x")["tool_call"]["error"] == "LookupError: gone"

    def raised(s: ProgramState) -> None:
        s.tool("x", [fails], errors="raise")

    with pytest.raises(RequestError, match=r"the tool fails\(why='gone'\) raised LookupError: gone") as caught:
        run(raised)
    assert str(caught.value).startswith(__file__)
    assert caught.value.code == "tool_failed"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"name": "add", "argum', "truncated"),
        ('{"name": "add", "arguments": {"a": 1, "b": "x"}}', "b"),
        ('{"name": "add", "arguments": {"a": 1}}', "b"),
        ('{"name": "add", "arguments": {"a": 1, "b": 2}, "more": 3}', "more"),
        ('{"name": "other", "arguments": {}}', "no tool 'other', only add"),
        ("no call at all", "malformed"),
        ("[" * 100_000, ""),
    ],
)
def test_a_text_that_is_no_valid_call_is_a_tool_error_like_any_other(frontend: Any, text: str, reason: str) -> None:
    frontend.script = lambda before, operation: text
    state = run(lambda s: s.tool("x", [add]))
    assert state["x"].startswith(f"Error: the text {text!r} is not a call: ")
    assert reason in state["x"]
    assert state.text().endswith(f"\nResult: {state['x']}\n")
    call = state.get_meta_info("x")["tool_call"]
    assert (call["name"], call["arguments"]) == (None, None)
    assert call["error"] in state["x"]
    with pytest.raises(RequestError, match="is not a call") as caught:
        run(lambda s: s.tool("x", [add], errors="raise"))
    assert str(caught.value).startswith(__file__)
    assert caught.value.code == "invalid_call"


def test_tools_in_branches_work_at_the_same_time(frontend: Any) -> None:
    together = threading.Barrier(3, timeout=120)
    frontend.script = lambda text, operation: CALL % ("meet", json.dumps({"who": text}))

    def meet(who: str) -> str:
        together.wait()
        return who

    def body(s: ProgramState) -> None:
        branches = s.fork(3)
        branches += ["a", "b", "c"]
        for branch in branches:
            branch.tool("x", [meet])
        branches.join()

    assert run(body)["x"] == ["a", "b", "c"]


def test_results_are_text_as_json_where_they_are_no_strings(frontend: Any) -> None:
    def info(city: str) -> dict[str, Any]:
        return {"city": city, "degrees": 21}

    frontend.script = lambda text, operation: CALL % ("info", '{"city": "Paris"}')
    state = run(lambda s: s.tool("x", [info]))
    assert state["x"] == {"city": "Paris", "degrees": 21}
    assert state.text().endswith('\nResult: {"city":"Paris","degrees":21}\n')


def no_hints(a) -> None:  # type: ignore[no-untyped-def]
    """Refused."""


def anything(*args: int) -> None:
    """Refused."""


@pytest.mark.parametrize("tools", [[], lookup, [3], [no_hints], [anything], [lookup, lookup]])
def test_an_invalid_tool_is_refused(tools: Any) -> None:
    with pytest.raises(RequestError) as caught:
        gen("x", tools=tools)
    assert caught.value.param == "tools"


def test_a_compiled_program_with_tools_is_one_message_and_its_answers(frontend: Any) -> None:
    frontend.script = lambda text, operation: CALL % ("add", '{"a": 2, "b": 3}')

    def body(s: ProgramState) -> None:
        s.tool("x", [add])
        s += "done"

    compiled = ramiform.function(body)
    compiled.compile()
    assert compiled.run()["x"] == 5
    assert len(frontend.messages(session.Play)) == 1
    assert len(frontend.messages(session.Supply)) == 1
    assert frontend.messages(session.Append) == []
