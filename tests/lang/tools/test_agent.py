"""Agents: turns of text and tool calls, on scripted answers and on the model that ships."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

import ramiform
from ramiform import AgentResult, CallFormat, ProgramState, RequestError, Scripted, assistant, gen, system, tool, user
from ramiform.lang.backends.endpoints.native_tools import NO_CALL
from ramiform.lang.states.agent_options import AgentOptions
from ramiform.lang.tools.call_format import InvalidCall, call_format, read_calls, structural_tag
from ramiform.lang.tools.tool_set import PreparedCall, ToolSet
from ramiform.runtime.core.grammar_cache import GrammarCache
from ramiform.runtime.protocol import session
from ramiform.runtime.protocol.sampling import Constraint


def get_weather(city: str) -> dict[str, object]:
    """Get the weather of a city"""
    return {"weather": "sunny", "temperature": {"Oslo": 4}.get(city, 15)}


def add(a: int, b: int) -> dict[str, object]:
    """Add two numbers"""
    return {"result": a + b}


async def multiply(a: int, b: int) -> dict[str, object]:
    """Multiply two numbers"""
    await asyncio.sleep(0)
    return {"result": a * b}


def fails(why: str) -> str:
    """Fail"""
    raise LookupError(why)


TOOLS = [get_weather, add, multiply, fails]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def run(answers: Any, *, is_async: bool = False, tools: Any = TOOLS, **options: Any) -> ProgramState:
    """Run an agent on answers, in a sync or async program."""

    def body(s: ProgramState) -> AgentResult:
        return s.agent(tools, "Go.", **options)

    async def async_body(s: ProgramState) -> AgentResult:
        return await s.agent_async(tools, "Go.", **options)

    backend = answers if isinstance(answers, Scripted) else Scripted(answers)
    return ramiform.function(async_body if is_async else body).run(backend=backend)


both = pytest.mark.parametrize("is_async", [False, True])


@both
def test_an_agent_calls_tools_until_the_model_answers_without_one(is_async: bool) -> None:
    script = Scripted([call("add", a=2, b=3), call("multiply", a=5, b=4), "It is 20."])
    state = run(script, is_async=is_async)
    result: AgentResult = state.ret_value
    assert (result.answer, result.steps, result.finished, result.stopped_by) == ("It is 20.", 3, True, "answer")
    made = [(one.step, one.name, one.arguments, one.result, one.text, one.error) for one in result.calls]
    assert made == [
        (1, "add", {"a": 2, "b": 3}, {"result": 5}, '{"result":5}', None),
        (2, "multiply", {"a": 5, "b": 4}, {"result": 20}, '{"result":20}', None),
    ]
    messages = state.messages()
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [message["content"] for message in messages[1:]] == [
        call("add", a=2, b=3),
        '{"result":5}',
        call("multiply", a=5, b=4),
        '{"result":20}',
        "It is 20.",
    ]
    # There is no template here, so the first message begins with a description.
    assert messages[0]["content"] == "Go."
    assert "Get the weather of a city" in state.text().partition("Go.")[0]
    assert "<tool_call>" in state.text().partition("Go.")[0]


@both
def test_the_calls_of_a_turn_run_at_once_and_their_results_stand_in_order(is_async: bool) -> None:
    together = threading.Barrier(3, timeout=120)

    def meet(who: str) -> str:
        """Meet"""
        together.wait()
        return f"met {who}"

    async def meet_async(who: str) -> str:
        """Meet"""
        await asyncio.to_thread(together.wait)
        return f"met {who}"

    turn = f"Let me see.\n{call('meet', who='a')}\n{call('meet_async', who='b')}{call('meet', who='c')}"
    state = run([turn, "Done."], is_async=is_async, tools=[meet, meet_async])
    result: AgentResult = state.ret_value
    assert [one.text for one in result.calls] == ["met a", "met b", "met c"]
    assert [message["content"] for message in state.messages()[2:5]] == ["met a", "met b", "met c"]
    assert result.steps == 2


@both
def test_errors_of_tools_and_invalid_calls_are_told_to_the_model(is_async: bool) -> None:
    turn = "\n".join(
        [
            call("fails", why="gone"),
            call("add", a=1),
            call("nothing"),
            "<tool_call>\nadd 1 and 2\n</tool_call>",
            call("add", a=1, b=1),
            '<tool_call>\n{"name": "add", "argu',
        ]
    )
    state = run([turn, "Sorry."], is_async=is_async)
    calls = state.ret_value.calls
    assert [one.name for one in calls] == ["fails", None, None, None, "add", None]
    assert calls[0].error == "LookupError: gone"
    assert calls[0].text == "Error: LookupError: gone"
    assert "there is no tool 'nothing'" in calls[2].error
    assert calls[4].result == {"result": 2}
    assert all(one.text.startswith("Error: the text '<tool_call>") for one in calls if one.name is None)
    assert [message["content"] for message in state.messages()[2:8]] == [one.text for one in calls]
    assert state.ret_value.answer == "Sorry."


@both
@pytest.mark.parametrize(
    ("turn", "code", "message"),
    [
        (call("fails", why="gone"), "tool_failed", r"the tool fails\(why='gone'\) raised LookupError: gone"),
        ("<tool_call>\nno call", "invalid_call", "is not a call"),
    ],
)
def test_an_error_is_raised_with_the_programs_line_by_choice(
    is_async: bool, turn: str, code: str, message: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        run([call("add", a=1, b=2) + turn], is_async=is_async, tool_errors="raise")
    assert caught.value.code == code
    assert str(caught.value).startswith(__file__)


def test_a_program_that_catches_the_error_of_a_tool_does_not_hang() -> None:
    def body(s: ProgramState) -> None:
        with pytest.raises(RequestError, match="gone"):
            s.agent(TOOLS, "Go.", tool_errors="raise")
        assert isinstance(s.error(), RequestError)

    ramiform.function(body).run(backend=Scripted([call("fails", why="gone")]))


def test_an_interrupted_tool_fails_the_state_and_nothing_hangs() -> None:
    def interrupted() -> str:
        """Stop"""
        raise KeyboardInterrupt

    def body(s: ProgramState) -> None:
        with pytest.raises(KeyboardInterrupt):
            s.agent([interrupted], "Go.")
        with pytest.raises(RequestError, match="interrupted"):
            s.text()
        s.error()

    ramiform.function(body).run(backend=Scripted([call("interrupted")]))


@both
def test_an_agent_ends_unfinished_after_max_steps_and_can_go_on(is_async: bool) -> None:
    state = run([call("add", a=1, b=1)] * 3, is_async=is_async, max_steps=3)
    result: AgentResult = state.ret_value
    assert (result.steps, len(result.calls), result.finished, result.stopped_by) == (3, 3, False, "max_steps")
    assert state.messages()[-1] == {"role": "tool", "content": '{"result":2}'}

    def again(s: ProgramState) -> list[AgentResult]:
        first = s.agent(TOOLS, "Go.", max_steps=1)
        return [first, s.agent(TOOLS)]

    answers = [call("add", a=1, b=1), "It is 2."]
    first, second = ramiform.function(again).run(backend=Scripted(answers)).ret_value
    assert (first.finished, second.finished, second.answer) == (False, True, "It is 2.")


@both
def test_until_ends_an_agent_after_a_turn_with_calls(is_async: bool) -> None:
    seen: list[str] = []

    def remember(what: str) -> str:
        """Remember"""
        seen.append(what)
        return "ok"

    def enough(s: ProgramState) -> bool:
        return len(seen) == 2

    answers = [call("remember", what=what) for what in "abc"]
    result = run(answers, is_async=is_async, tools=[remember], until=enough).ret_value
    assert (seen, result.steps, result.finished, result.stopped_by) == (["a", "b"], 2, True, "until")


def test_until_may_be_async_in_an_async_program_only() -> None:
    async def enough(s: ProgramState) -> bool:
        await asyncio.sleep(0)
        return True

    answers = [call("add", a=1, b=1)]
    assert run(answers, is_async=True, until=enough).ret_value.stopped_by == "until"
    with pytest.raises(RequestError, match="agent_async") as caught:
        run(answers, until=enough)
    assert caught.value.param == "until"


def test_tools_offered_in_the_first_message_are_not_described_again() -> None:
    def body(s: ProgramState, tools: Any) -> None:
        s += system("Be brief.", tools=[add])
        s += user("Go.")
        s.agent(tools)

    program = ramiform.function(body)
    state = program.run([add], backend=Scripted(["Done."]))
    assert [message["role"] for message in state.messages()] == ["system", "user", "assistant"]
    assert state.text().count('"Add two numbers"') == 1
    state = program.run([add, multiply], backend=Scripted(["Done."]))
    described = state.messages()[2]
    assert described["role"] == "system"
    assert "Multiply" in described["content"]
    assert "Add" not in described["content"]


def test_an_agent_in_the_middle_of_a_chat_offers_its_tools_there() -> None:
    def body(s: ProgramState) -> None:
        s += user("Hi.") + assistant(gen("hi"))
        s.agent([add], "Go.")

    state = ramiform.function(body).run(backend=Scripted(["Hello.", "Done."]))
    assert [message["role"] for message in state.messages()] == ["user", "assistant", "system", "user", "assistant"]


def test_only_the_first_message_offers_tools() -> None:
    def body(s: ProgramState) -> None:
        s += user("Hi.")
        with s.user(tools=[add]):
            s += "Go."

    with pytest.raises(RequestError, match="only the first message"):
        ramiform.function(body).run(backend=Scripted([]))


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": 2.5}, "max_steps"),
        ({"until": 3}, "until"),
        ({"tool_errors": "no"}, "tool_errors"),
        ({"call_format": "xml"}, "call_format"),
        ({"call_format": 3}, "call_format"),
        ({"regex": "a"}, "regex"),
        ({"n": 2}, "n"),
        ({"temprature": 0}, "temprature"),
        ({"result_role": ""}, "result_role"),
        ({"constrained": 1}, "constrained"),
        ({"tool_choice": "divide"}, "tool_choice"),
        ({"tool_choice": None}, "tool_choice"),
        ({"tool_choice": "add", "constrained": False}, "tool_choice"),
        ({"call_retries": -1}, "call_retries"),
        ({"call_retries": True}, "call_retries"),
        ({"max_repeats": 0}, "max_repeats"),
        ({"reasoning": "loud"}, "reasoning"),
        ({"tools": []}, "tools"),
        ({"tools": [{"name": "f"}]}, "tools"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        run(["Done."], **options)
    assert caught.value.param == param


def test_an_agent_needs_a_message_and_none_that_is_open() -> None:
    with pytest.raises(RequestError, match="no message yet"):
        ramiform.function(lambda s: s.agent(TOOLS)).run(backend=Scripted([]))

    def inside(s: ProgramState) -> None:
        with s.user():
            s.agent(TOOLS)

    with pytest.raises(RequestError, match="inside the user message"):
        ramiform.function(inside).run(backend=Scripted([]))


def test_an_agent_of_an_async_program_must_be_awaited() -> None:
    async def body(s: ProgramState) -> None:
        s.agent(TOOLS, "Go.")

    with pytest.raises(RequestError, match="would block the event loop"):
        ramiform.function(body).run(backend=Scripted(["Done."]))


def test_agents_work_in_branches_and_batches() -> None:
    def body(s: ProgramState, a: int) -> list[str]:
        s += user("Go.", tools=TOOLS)
        branches = s.fork(2)
        return [branch.agent(TOOLS, f"Add {a} and {index}.").answer for index, branch in enumerate(branches)]

    def answer(before: str) -> str:
        if before.endswith("<|im_start|>tool\n"):
            raise AssertionError(before)
        last = before.rpartition("<|im_start|>user\n")[2]
        asked = last.partition("<|im_end|>")[0].split()
        done = last.partition("<|im_start|>tool\n")[2].partition("<|im_end|>")[0]
        return f"{asked[1]}: {done}" if done else call("add", a=int(asked[1]), b=int(asked[3].rstrip(".")))

    states = ramiform.function(body).run_batch([{"a": 1}, {"a": 5}], backend=Scripted(answer))
    assert [state.ret_value for state in states] == [
        ['1: {"result":1}', '1: {"result":2}'],
        ['5: {"result":5}', '5: {"result":6}'],
    ]


def test_a_plan_ends_where_an_agent_waits_and_a_compiled_agent_runs() -> None:
    def body(s: ProgramState) -> str:
        return s.agent(TOOLS, "Go.").answer

    program = ramiform.function(body)
    plan = program.plan()
    assert plan.stops_at is not None
    assert plan.stops_at.startswith(__file__)
    program.compile()
    assert program.run(backend=Scripted([call("add", a=1, b=2), "Three."])).ret_value == "Three."


@both
def test_traces_show_the_tools_of_agents_by_name(is_async: bool) -> None:
    state = run([call("add", a=1, b=2) + call("multiply", a=1, b=2), "Done."], is_async=is_async)

    async def async_body(s: ProgramState) -> AgentResult:
        return await s.agent_async(TOOLS, "Go.")

    program = ramiform.function(async_body if is_async else lambda s: s.agent(TOOLS, "Go."))
    state = program.run(trace=True, backend=Scripted([call("add", a=1, b=2) + call("multiply", a=1, b=2), "Done."]))
    asked = [event for event in state.trace.events if event.kind == "ask"]
    assert [event.label for event in asked] == ["tool add, marker", "tool multiply, marker"]
    assert all(event.end is not None and event.end >= event.start for event in asked)


def test_the_trace_of_a_gen_with_tools_shows_the_tool_by_name() -> None:
    def body(s: ProgramState) -> None:
        s.tool("x", [add])

    backend = Scripted(['{"name": "add", "arguments": {"a": 1, "b": 2}}'])
    state = ramiform.function(body).run(trace=True, backend=backend)
    assert [event.label for event in state.trace.events if event.kind == "ask"] == ["tool add"]
    assert state.get_meta_info("x")["tool_call"]["seconds"] >= 0


# The form of calls


@pytest.mark.parametrize("name", ["hermes", "json", "llama3_json"])
def test_calls_are_read_where_they_stand(name: str) -> None:
    form, tools = call_format(name), ToolSet([add, get_weather])

    def written(tool_name: str, **arguments: Any) -> str:
        return form.before + json.dumps({"name": tool_name, form.arguments: arguments}) + form.after

    text = f"First {written('add', a=1, b=2)}\n{written('get_weather', city='</tool_call>')} and then."
    said, calls, recognised = read_calls(text, tools, form)
    assert recognised == ("marker" if name == "hermes" else "bare JSON")
    assert [(one.tool.name, one.arguments) for one in calls if not isinstance(one, InvalidCall)] == [
        ("add", {"a": 1, "b": 2}),
        ("get_weather", {"city": "</tool_call>"}),
    ]
    assert said.split() == ["First", "and", "then."]
    assert read_calls("No call.", tools, form)[:2] == ("No call.", [])
    _, [cut], _ = read_calls(written("add", a=1, b=2)[:-20], tools, form)
    assert isinstance(cut, InvalidCall)


@pytest.mark.slow
@pytest.mark.parametrize("form", [call_format("hermes"), call_format("llama3_json"), CallFormat("[[", "args", "]]")])
def test_the_constraint_lets_text_through_and_valid_calls_only(form: CallFormat) -> None:
    tools = ToolSet([add, tool({"name": 'a"b\\ü', "parameters": {"properties": {"x": {"type": "null"}}}}, print)])
    constraint = Constraint("structural_tag", structural_tag(tools, form), additional_properties="closed")
    grammar = GrammarCache([*(bytes([byte]) for byte in range(256)), None], [256]).get(constraint).result()

    def is_accepted(text: str) -> bool:
        matcher = grammar.matcher()
        return all(map(matcher.accept, text.encode())) and matcher.is_accepting()

    def written(name: str, arguments: Any) -> str:
        written_name = json.dumps(name, ensure_ascii=False)
        return f'{form.before}{{"name": {written_name}, "{form.arguments}": {json.dumps(arguments)}}}{form.after}'

    assert is_accepted("Hello.")
    good = written("add", {"a": 1, "b": 2})
    assert is_accepted(good)
    assert is_accepted(f"So: {good} and {written(tuple(tools.tools)[1], {'x': None})} then")
    for bad in (written("add", {"a": 1}), written("sub", {"a": 1, "b": 2}), written("add", {"a": 1, "b": "2"})):
        assert not is_accepted(bad)


# Calls without marks, invalid calls, thoughts

ADD = {"name": "add", "arguments": {"a": 2, "b": 3}}
WEATHER = {"name": "get_weather", "arguments": {"city": "Oslo {}[]"}}


@pytest.mark.parametrize("name", ["hermes", "json", "llama3_json"])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "fence", ["{}", "```json\n{}\n```", "```\n{}```", "I will use the `add` tool.\n\n{}", "Sure:\n```json\n{}\n```\n"]
)
@pytest.mark.parametrize("values", [[ADD], [ADD, WEATHER]])
def test_json_that_is_the_whole_answer_is_a_call(name: str, indent: int | None, fence: str, values: list[Any]) -> None:
    written = "\n".join(json.dumps(one, indent=indent) for one in values)
    for text in (fence.replace("{}", written, 1), fence.replace("{}", json.dumps(values, indent=indent), 1)):
        if name == "llama3_json" and indent is None:
            text = text.replace('"arguments"', '"parameters"')
        said, calls, recognised = read_calls(text, ToolSet(TOOLS), call_format(name))
        assert [(one.tool.name, one.arguments) for one in calls if isinstance(one, PreparedCall)] == [
            (one["name"], one["arguments"]) for one in values
        ], text
        assert recognised == "bare JSON"
        assert said in ("", "I will use the `add` tool.", "Sure:")


@pytest.mark.parametrize(
    "text",
    [
        "To add two numbers, one writes {call}, and the tool answers.",
        "First, think. Then write this:\n{call}",
        "{call}\nThis is what a call looks like.",
        "Here is the JSON:\n```json\n{call}\n```\nUse it well.",
        '{"answer": 5}',
        '{"name": "Ann", "age": 5}',
        '{"name": "add", "arguments": {"a": 2, "b": 3}, "result": 5}',
        '{"name": "add", "arguments": "2, 3"}',
        '{"name": "add"}',
        '["add", 2, 3]',
        "[]",
        "[2, 3]",
        "5",
        '{"name": "add", "arguments": {"a": 2, "b"',
        "[" * 5000 + "]" * 5000,
        "{" * 5000 + "}" * 5000,
        "Two calls: {call} or {call}",
        " " * 50_000 + "{" + " " * 50_000 + "x",
        "}" * 50_000,
    ],
)
def test_an_answer_that_only_shows_such_json_is_text(text: str) -> None:
    text = text.replace("{call}", json.dumps(ADD))
    assert read_calls(text, ToolSet(TOOLS), call_format("hermes"))[:2] == (text.strip(), [])


@pytest.mark.parametrize("left", ["begin", "end"])
def test_a_call_that_lacks_one_of_its_marks_is_a_call(left: str) -> None:
    text = call("add", a=2, b=3)
    text = text.removeprefix("<tool_call>\n") if left == "begin" else text.removesuffix("\n</tool_call>")
    state = run([text, "Five."])
    [made] = state.ret_value.calls
    assert (made.result, made.recognised) == ({"result": 5}, "bare JSON" if left == "begin" else "marker")
    assert state.ret_value.answer == "Five."


@both
def test_the_result_and_the_trace_say_how_calls_were_recognised(is_async: bool) -> None:
    async def async_body(s: ProgramState) -> AgentResult:
        return await s.agent_async(TOOLS, "Go.")

    program = ramiform.function(async_body if is_async else lambda s: s.agent(TOOLS, "Go."))
    state = program.run(trace=True, backend=Scripted([json.dumps(ADD), call("add", a=1, b=1), "Done."]))
    assert [one.recognised for one in state.ret_value.calls] == ["bare JSON", "marker"]
    labels = [event.label for event in state.trace.events if event.kind == "ask"]
    assert labels == ["tool add, bare JSON", "tool add, marker"]


@both
@pytest.mark.parametrize("wrong", [{"name": "nothing", "arguments": {}}, {"name": "add", "arguments": {"a": "x"}}])
def test_an_invalid_call_is_told_to_the_model_and_tried_again_twice(is_async: bool, wrong: Any) -> None:
    state = run([json.dumps(wrong), call(**wrong), json.dumps(ADD), "Five."], is_async=is_async)
    result: AgentResult = state.ret_value
    assert [one.name for one in result.calls] == [None, None, "add"]
    assert all("is not a call" in (one.error or "") for one in result.calls[:2])
    assert (result.answer, result.steps, result.stopped_by) == ("Five.", 4, "answer")
    assert state.messages()[2] == {"role": "tool", "content": result.calls[0].text}

    result = run([json.dumps(wrong)] * 3, is_async=is_async).ret_value
    assert (result.steps, result.finished, result.stopped_by) == (3, False, "invalid_call")
    assert run([json.dumps(wrong)], is_async=is_async, call_retries=0).ret_value.steps == 1


def test_thoughts_and_a_call_in_one_answer_both_survive() -> None:
    turns = [
        f"<think>\nI could write {call('fails', why='never')}.\n</think>\n\nLet me see.\n{call('add', a=2, b=3)}",
        f"<think>\nNow once more.</think>{json.dumps(ADD)}",
        call("get_weather", city="<think>x</think>"),
        "<think>\n\n</think>\n\nIt is 5.",
    ]
    state = run(turns)
    result: AgentResult = state.ret_value
    assert [(one.name, one.recognised) for one in result.calls] == [
        ("add", "marker"),
        ("add", "bare JSON"),
        ("get_weather", "marker"),
    ]
    assert result.calls[2].arguments == {"city": "<think>x</think>"}
    assert result.reasoning == (f"I could write {call('fails', why='never')}.", "Now once more.", "", "")
    assert result.answer == "It is 5."
    assert [one["content"] for one in state.messages() if one["role"] == "assistant"] == turns
    inside = run([f"Hm.</think>{call('add', a=1, b=1)}", "2</think>Two."], reasoning="deepseek-r1").ret_value
    assert (inside.reasoning, inside.answer, len(inside.calls)) == (("Hm.", "2"), "Two.", 1)
    assert run(["<think>x</think>y"], reasoning=None).ret_value.answer == "<think>x</think>y"


def test_an_agent_whose_model_never_calls_says_what_to_try() -> None:
    hint = run(["It is sunny."]).ret_value.hint
    assert 'call_format="json"' in hint
    assert 'tool_choice="required"' in hint
    assert 'call_format="json"' not in run(["It is sunny."], call_format="json").ret_value.hint
    assert run([call("add", a=1, b=2), "Three."]).ret_value.hint is None


def test_a_model_that_repeats_a_call_and_its_result_twice_must_answer_in_words(endpoint: Any, frontend: Any) -> None:
    def script(text: str, operation: session.Gen) -> str:
        constraint = operation.sampling.constraint
        return "Five." if constraint is not None and constraint.kind == "regex" else call("add", a=2, b=3)

    def ask(**options: Any) -> AgentResult:
        def body(s: ProgramState) -> AgentResult:
            return s.agent([add, poll], "Go.", **options)

        result: AgentResult = ramiform.function(body).run().ret_value
        return result

    def poll() -> int:
        """Ask again"""
        polled.append(0)
        return len(polled)

    polled: list[int] = []
    frontend.script = script
    stuck = ask()
    assert (stuck.steps, stuck.answer, stuck.stopped_by) == (4, "Five.", "answer")
    assert ask(max_repeats=1).steps == 3
    assert ask(max_repeats=None).stopped_by == "max_steps"
    assert ask(constrained=False).stopped_by == "max_steps"
    frontend.script = lambda text, operation: call("poll")
    assert ask().stopped_by == "max_steps"  # the results differ
    assert len(polled) == 10


@pytest.mark.parametrize(
    ("text", "is_words"),
    [
        ("It is 5.", True),
        ("É 5\n°C <b>", True),
        ("", False),
        ('{"name"', False),
        ("```", False),
        ("<tool_call>", False),
    ],
)
def test_words_have_no_call_in_any_form(text: str, is_words: bool) -> None:
    grammar = (
        GrammarCache([*(bytes([byte]) for byte in range(256)), None], [256]).get(Constraint("regex", NO_CALL)).result()
    )
    matcher = grammar.matcher()
    assert (all(map(matcher.accept, text.encode())) and matcher.is_accepting()) == is_words


@pytest.mark.parametrize("form", ["hermes", "json"])
def test_with_tool_choice_the_first_turn_is_calls_alone(form: str) -> None:
    def accepts(choice: str, text: str) -> bool:
        tag = structural_tag(ToolSet([add, get_weather]), call_format(form), choice)
        constraint = Constraint("structural_tag", tag, additional_properties="closed")
        matcher = (
            GrammarCache([*(bytes([byte]) for byte in range(256)), None], [256]).get(constraint).result().matcher()
        )
        return all(map(matcher.accept, text.encode())) and matcher.is_accepting()

    one, other = (call_format(form).before + json.dumps(each) + call_format(form).after for each in (ADD, WEATHER))
    assert accepts("required", one)
    assert accepts("required", f"{one}\n{other}")
    assert accepts("add", one)
    assert not accepts("add", other)
    assert not accepts("required", "")
    assert not accepts("required", f"Well. {one}")
    assert accepts("auto", f"Well. {one}")


def test_the_model_that_ships_must_call_once_where_it_would_not(backend: ramiform.Runtime) -> None:
    def body(s: ProgramState, choice: str) -> AgentResult:
        s += system("You are a helpful assistant.", tools=[get_weather, add])
        return s.agent([get_weather, add], "Hello!", temperature=0, tool_choice=choice, max_steps=3)

    states = ramiform.function(body).run_batch([{"choice": choice} for choice in ("auto", "required", "add")])
    free, forced, named = [state.ret_value for state in states]
    assert free.calls == ()
    assert forced.calls[0].recognised == named.calls[0].recognised == "constrained"
    assert named.calls[0].name == "add"


# On the model that ships


@pytest.fixture
def offline_tools() -> tuple[list[Callable[..., Any]], list[str]]:
    made: list[str] = []

    def get_weather(city: str) -> dict[str, object]:
        """Get the weather of a city"""
        made.append(city)
        return {"weather": "snowy", "temperature": 4}

    return [get_weather, add, multiply], made


@both
def test_the_model_that_ships_calls_a_tool_and_answers_from_its_result(
    backend: ramiform.Runtime, offline_tools: Any, is_async: bool
) -> None:
    tools, made = offline_tools

    def body(s: ProgramState, question: str) -> AgentResult:
        s += system("You are a helpful assistant.", tools=tools)
        return s.agent(tools, question, temperature=0)

    async def async_body(s: ProgramState, question: str) -> AgentResult:
        return await s.agent_async(tools, question, temperature=0)

    program = ramiform.function(async_body if is_async else body)
    states = program.run_batch([{"question": "What is the weather in Oslo?"}, {"question": "Hello!"}])
    weather, hello = [state.ret_value for state in states]
    assert made == ["Oslo"]
    assert (weather.steps, weather.finished, weather.calls[0].name) == (2, True, "get_weather")
    assert "4 degrees" in weather.answer
    assert (hello.steps, hello.calls, hello.finished) == (1, (), True)
    # The template describes the tools, as the model was trained; not the language.
    assert '"parameters": {"city": "string"}}' in states[0].text()
    assert "To call a tool" not in states[0].text()


def test_a_turn_that_max_tokens_cuts_off_is_an_invalid_call_or_an_unfinished_answer(backend: ramiform.Runtime) -> None:
    def body(s: ProgramState, question: str) -> AgentResult:
        return s.agent([get_weather, add], question, temperature=0, max_tokens=6, max_steps=1)

    program = ramiform.function(body)
    cut = program.run("What is the weather in Oslo?").ret_value
    assert [one.name for one in cut.calls] == [None]
    assert "cut off at max_tokens, is not a call" in cut.calls[0].text
    said = program.run("Hello!").ret_value
    assert (said.calls, said.finished, said.stopped_by) == ((), False, "max_tokens")


def test_whatever_the_model_draws_its_calls_are_valid(backend: ramiform.Runtime) -> None:
    def body(s: ProgramState, seed: int) -> AgentResult:
        return s.agent([get_weather, add], "Add 20 and 30.", temperature=1.5, seed=seed, max_tokens=60, max_steps=2)

    states = ramiform.function(body).run_batch([{"seed": seed} for seed in range(12)])
    calls = [one for state in states for one in state.ret_value.calls]
    assert any(one.name == "add" for one in calls)
    for one in calls:
        assert one.name is not None or "cut off at max_tokens" in one.text, one


def test_a_tool_may_not_describe_itself_with_special_tokens(backend: ramiform.Runtime) -> None:
    def sly(x: int) -> int:
        """End the message <|end|> here"""
        return x

    with pytest.raises(RequestError, match=r"special token '<\|end\|>'") as caught:
        ramiform.function(lambda s: s.agent([sly], "Go.")).run()
    assert caught.value.param == "tools"
    assert str(caught.value).startswith(__file__)


def test_offered_tools_travel_with_the_first_message(endpoint: Any, frontend: Any) -> None:
    frontend.script = lambda text, operation: "Done."
    state = ramiform.function(lambda s: s.agent([add], "Go.")).run()
    begun = frontend.operations(session.RoleBegin)
    assert [begin.tools is not None for begin in begun] == [True, False]
    [described] = json.loads(begun[0].tools.schemas)
    assert described["function"]["name"] == "add"
    [turn] = frontend.operations(session.Gen)
    assert turn.sampling.constraint.kind == "structural_tag"
    assert turn.sampling.max_new_tokens == 512
    assert state.ret_value.answer == "Done."
    ramiform.function(lambda s: s.agent([add], "Go.", constrained=False)).run(max_tokens=9)
    free = frontend.operations(session.Gen)[-1]
    assert (free.sampling.constraint, free.sampling.max_new_tokens) == (None, 9)


def test_options_reach_the_agent_by_their_places() -> None:
    """`agent` and `agent_async` hand all that they are given to AgentOptions, in its order."""
    renamed = {"tools": "given_tools", "tool_errors": "on_error", "call_format": "given_format"}
    renamed["reasoning"] = "given_reasoning"
    taken = [one.name for one in dataclasses.fields(AgentOptions)]
    for method in (ProgramState.agent, ProgramState.agent_async):
        _, *given = inspect.signature(method).parameters
        assert [renamed.get(name, name) for name in given] == taken[: len(given)]
