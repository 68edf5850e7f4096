"""Pure tools that begin before their turn ends: they change when a tool runs, and nothing that is said."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ramiform
from ramiform import AgentResult, HttpRuntime, ProgramState, RequestError, Scripted, system, tool
from ramiform.lang.states.early_calls import CallReader
from ramiform.lang.tools.call_format import InvalidCall, call_format, read_calls
from ramiform.lang.tools.tool_set import ToolSet
from ramiform.runtime.protocol import session
from ramiform.runtime.protocol.errors import ErrorInfo

both = pytest.mark.parametrize("is_async", [False, True])


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def agent(tools: Any, *, is_async: bool = False, **options: Any) -> Any:
    """Return a program, sync or async, whose agent has the tools."""

    def body(s: ProgramState) -> AgentResult:
        return s.agent(tools, "Go.", **options)

    async def async_body(s: ProgramState) -> AgentResult:
        return await s.agent_async(tools, "Go.", **options)

    return ramiform.function(async_body if is_async else body)


def turns(*answers: Any) -> Callable[[str, Any], Any]:
    """Return a script of the fake frontend: the answer of each turn, by the number of turns so far."""
    return lambda text, operation: answers[text.count("<|assistant|>") - 1]


def told(state: ProgramState) -> Any:
    """Return all that an agent said and was told."""
    result = state.ret_value
    calls = [(one.step, one.name, one.arguments, one.result, one.text, one.error) for one in result.calls]
    return state.text(), result.answer, result.steps, result.stopped_by, calls


# When calls begin


@both
@pytest.mark.parametrize("is_async_tool", [False, True])
def test_a_pure_tool_begins_before_its_turn_ends_and_others_after(
    endpoint: Any, frontend: Any, is_async: bool, is_async_tool: bool
) -> None:
    made: list[str] = []
    written = [call("order", what="tea"), call("look", what="ink")[: -len("}\n</tool_call>")]]

    def end_turn() -> None:
        made.append("look")  # the turn goes on only now
        frontend.play_on(turns([*written, "}\n</tool_call>"], "Done."))

    def look(what: str) -> str:
        """Look"""
        end_turn()
        return f"blue {what}"

    async def look_async(what: str) -> str:
        """Look"""
        await asyncio.sleep(0)
        end_turn()
        return f"blue {what}"

    def order(what: str) -> str:
        """Order"""
        made.append("order")
        return what

    frontend.script = turns([*written, frontend.HOLD])
    pure = tool(look_async if is_async_tool else look, name="look", pure=True)
    state = agent([pure, order], is_async=is_async).run(trace=True)
    assert made == ["look", "order"]
    assert [one.text for one in state.ret_value.calls] == ["tea", "blue ink"]
    assert [one.saved > 0 for one in state.ret_value.calls] == [False, True]
    assert state.trace.saved == state.ret_value.calls[1].saved <= state.ret_value.calls[1].seconds
    assert "ms saved by early tools" in str(state.trace)
    assert "ms early" in str(state.trace)
    [*_, label] = [event.label for event in state.trace.events if event.kind == "ask"]
    assert label.startswith("tool look, marker, 0.")


def test_an_agent_without_pure_tools_streams_nothing(endpoint: Any, frontend: Any) -> None:
    frontend.script = turns("Done.")
    agent([lambda_tool("a")]).run()
    agent([lambda_tool("a", pure=True)]).run()
    assert [gen.stream for gen in frontend.operations(session.Gen)] == [False, True]


def lambda_tool(name: str, **options: Any) -> Any:
    def echo(x: int) -> int:
        """Echo"""
        return x

    return tool(echo, name=name, **options)


# What is not used is given up


def hanging(log: list[str]) -> Callable[..., Any]:
    """Return a tool that ends only when it is cancelled; it takes a while to clean up."""

    async def hang(why: str) -> str:
        """Hang"""
        log.append("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            log.append("cleaned up")
            raise
        return why

    return hang


def begun(log: list[str], frontend: Any, script: Any) -> Any:
    """Let the frontend go on once the tool has begun."""
    thread = threading.Thread(target=lambda: (_wait_for(lambda: "begun" in log), frontend.play_on(script)))
    thread.start()
    return thread


def _wait_for(condition: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(12_000):
        if condition():
            return
        waited.wait(0.01)
    raise AssertionError("it never came true")


@both
@pytest.mark.parametrize("how", ["no call", "fails"])
def test_a_call_that_the_turn_does_not_make_is_cancelled_and_awaited(
    endpoint: Any, frontend: Any, is_async: bool, how: str
) -> None:
    log: list[str] = []
    written = call("hang", why="x").removesuffix("</tool_call>")
    end = "and so on" if how == "no call" else ErrorInfo(kind="request", message="the model is gone")
    frontend.script = turns([written, frontend.HOLD])
    thread = begun(log, frontend, turns([written, end], "Done."))
    program = agent([tool(hanging(log), pure=True)], is_async=is_async)
    if how == "fails":
        with pytest.raises(ramiform.RamiformError, match="the model is gone"):
            program.run()
    else:
        state = program.run()
        assert [one.name for one in state.ret_value.calls] == [None]
    assert log == ["begun", "cleaned up"]
    thread.join()


# Nothing that is said changes


def weather(city: str) -> dict[str, object]:
    """Get the weather of a city"""
    if city == "nowhere":
        raise LookupError(city)
    return {"weather": "sunny", "city": city}


async def distance(start: str, end: str) -> int:
    """Measure"""
    await asyncio.sleep(0)
    if start == end:
        raise TimeoutError("it takes too long")
    return len(start) * len(end)


TURNS = [
    call("weather", city="Oslo") + call("weather", city="Oslo") + call("weather", city="nowhere"),
    call("distance", start="a", end="bc") + "and" + call("distance", start="a", end="a") + call("distance", start="a"),
    f"{call('nothing')}<tool_call>\nno call\n</tool_call>" + call("weather", city='"}\\'),
    call("weather", city="Rome") + '<tool_call>\n{"name": "weather", "arguments": {"city": "Ber',
    "Done.",
]


def in_pieces(text: str, draw: random.Random) -> list[str]:
    pieces = []
    while text:
        size = draw.randint(1, 9)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


@pytest.mark.slow
@both
@pytest.mark.parametrize("tool_errors", ["text", "raise"])
def test_transcripts_are_those_of_tools_that_are_not_pure(is_async: bool, tool_errors: str) -> None:
    draw = random.Random(7)
    outcomes = []
    for options in ({}, {"pure": True}, {"pure": True, "speculate": True}):
        tools = [tool(weather, **options), tool(distance, **options)]
        program = agent(tools, is_async=is_async, tool_errors=tool_errors)
        for _ in range(4):  # a speculating agent knows what comes from the third one on
            script = Scripted([in_pieces(turn, draw) for turn in TURNS])
            try:
                outcomes.append(told(program.run(backend=script)))
            except RequestError as error:
                outcomes.append((error.code, str(error)))
    assert all(outcome == outcomes[0] for outcome in outcomes[1:])


@pytest.fixture(params=["zmq", "http"])
def transport(request: Any, runtime: ramiform.Runtime, url: str) -> Iterator[Any]:
    if request.param == "zmq":
        yield runtime
    else:
        over_http = HttpRuntime(url)
        yield over_http
        over_http.close()


def test_transcripts_of_the_model_that_ships_are_the_same_over_both_transports(transport: Any) -> None:
    def get_weather(city: str) -> dict[str, object]:
        """Get the weather of a city"""
        return {"weather": "snowy", "temperature": 4}

    @ramiform.function
    def asked(s: ProgramState, city: str, tools: Any) -> AgentResult:
        s += system("You are a helpful assistant.", tools=tools)
        return s.agent(tools, f"What is the weather in {city}?", temperature=0, max_tokens=60)

    outcomes = []
    for options in ({}, {"pure": True, "speculate": True}):
        tools = [tool(get_weather, **options)]
        # Two of one city, so that the third, of another, expects the first: the guess is wrong.
        outcomes.append([told(asked.run(city, tools, backend=transport)) for city in ("Oslo", "Oslo", "Paris")])
    assert outcomes[0][0][4][0][1] == "get_weather"
    assert outcomes[1] == outcomes[0]


# Predicted arguments


def shop(log: list[str], found: Callable[[], None] = lambda: None) -> list[Any]:
    def search(what: str) -> dict[str, object]:
        """Search"""
        return {"hits": [{"id": len(what)}, {"id": 0}]}

    async def read(id: int, unit: str) -> str:
        """Read"""
        log.append(f"read {id}")
        try:
            found()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            log.append(f"gave up {id}")
            raise
        return f"{id} {unit}"

    return [search, tool(read, pure=True, speculate=True)]


def look_up(what: str, id: int) -> list[str]:
    return [call("search", what=what), call("read", id=id, unit="cm"), "Done."]


@both
def test_a_call_that_followed_twice_begins_with_the_result_that_it_follows(
    endpoint: Any, frontend: Any, is_async: bool
) -> None:
    log: list[str] = []
    script = turns(*look_up("apple", 5))
    tools = shop(log, lambda: frontend.play_on(script))
    program = agent(tools, is_async=is_async)
    for what in ("tea", "salt"):
        script = turns(*look_up(what, len(what)))
        frontend.script = script
        program.run()
    script = turns(*look_up("apple", 5))
    frontend.script = turns(script("<|assistant|>", None), frontend.HOLD)  # the second turn waits for the guess
    result: AgentResult = program.run().ret_value
    assert log == ["read 3", "read 4", "read 5"]
    assert [one.text for one in result.calls] == ['{"hits":[{"id":5},{"id":0}]}', "5 cm"]
    assert result.calls[1].saved > 0


@both
def test_a_wrong_guess_is_cancelled_and_changes_nothing(is_async: bool) -> None:
    log: list[str] = []
    program = agent(shop(log), is_async=is_async)
    for what in ("tea", "salt"):
        program.run(backend=Scripted(look_up(what, len(what))))
    state = program.run(backend=Scripted(look_up("apple", 0)))
    assert [one.text for one in state.ret_value.calls][1] == "0 cm"
    assert [one.arguments for one in state.ret_value.calls][1] == {"id": 0, "unit": "cm"}
    fresh = agent(shop([]), is_async=is_async).run(backend=Scripted(look_up("apple", 0)))
    assert told(state) == told(fresh)


@both
def test_a_guess_that_failed_is_called_again_when_the_model_calls_it(
    endpoint: Any, frontend: Any, is_async: bool
) -> None:
    log: list[str] = []

    def found() -> None:
        if log.count("read 5") == 1:
            frontend.play_on(turns(*look_up("apple", 5)))
            raise ConnectionError("once")

    program = agent(shop(log, found), is_async=is_async)
    for what in ("tea", "salt"):
        frontend.script = turns(*look_up(what, len(what)))
        program.run()
    frontend.script = turns(look_up("apple", 5)[0], frontend.HOLD)
    state = program.run()
    assert log == ["read 3", "read 4", "read 5", "read 5"]
    assert [(one.text, one.error) for one in state.ret_value.calls][1] == ("5 cm", None)


def test_only_pure_tools_may_be_called_on_a_guess() -> None:
    with pytest.raises(RequestError, match="pure=True") as caught:
        tool(weather, speculate=True)
    assert caught.value.param == "speculate"
    with pytest.raises(RequestError, match="speculate must be"):
        tool(weather, pure=True, speculate=3)  # type: ignore[call-overload]


# Reading calls as they are written


@pytest.mark.parametrize("name", ["hermes", "json", "llama3_json"])
def test_calls_are_found_in_a_text_that_grows_as_in_the_whole(name: str) -> None:
    draw, form = random.Random(3), call_format(name)
    tools = ToolSet([tool(weather), tool(distance)])
    values = ["a", '"', "\\", "}", '\\"}', "</tool_call>", "<tool_call>", "é😀", "{[", ""]
    for _ in range(300):
        text = ""
        for _ in range(draw.randint(1, 5)):
            city = "".join(draw.choices(values, k=3))
            arguments = json.dumps({form.arguments: {"city": city}}, ensure_ascii=draw.random() < 0.5)[1:]
            written = form.before + '{"name": "weather", ' + arguments + form.after
            text += draw.choice([written, written, "some words ", form.before + "no call" + form.after])
        reader = CallReader(form)
        found = [json.loads(one) for piece in in_pieces(text, draw) for one in reader.feed(piece)]
        _, calls, _ = read_calls(text, tools, form)
        whole = [{"name": c.tool.name, form.arguments: c.arguments} for c in calls if not isinstance(c, InvalidCall)]
        assert found == whole


def test_a_call_is_found_with_the_bracket_that_closes_its_arguments() -> None:
    reader = CallReader(call_format("hermes"))
    text = 'Well. <tool_call>\n{"name": "f", "arguments": {"a": [{}, "}"], "b": {"c": 1}}'
    found = list(itertools.chain.from_iterable(map(reader.feed, text[:-1])))
    assert found == []
    assert [json.loads(one) for one in reader.feed(text[-1])] == [
        {"name": "f", "arguments": {"a": [{}, "}"], "b": {"c": 1}}}
    ]
