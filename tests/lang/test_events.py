"""Events of runs and values that come, on a scripted frontend, on answers, and over HTTP."""

from __future__ import annotations

import asyncio
import enum
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import httpx
import pytest
import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

import ramiform
from ramiform import ProgramState, RequestError, Scripted, assistant, gen, one_or_more, select, seq, user
from ramiform.lang.states.events import ProgramEvent
from ramiform.runtime.protocol.errors import ErrorInfo


class Item(BaseModel):
    name: str


def weather(place: str) -> str:
    """Return the weather."""
    return f"sun in {place}"


CALL = '{"name": "weather", "arguments": {"place": "Oslo"}}'


def of_type(events: list[ProgramEvent], *kinds: str) -> list[tuple[Any, ...]]:
    return [(one.type, one.name, one.text if one.value is None else one.value) for one in events if one.type in kinds]


@ramiform.function
def program(s: ProgramState) -> None:
    s += user("Go") + assistant(gen("a") + "!")
    s += assistant(gen("n", dtype=int) + select("c", ["x", "y"]) + gen("item", schema=Item))
    s += assistant(gen("t", tools=[weather]))
    s.decide(sure="Is it so?")


ANSWERS = ["hello", "7", 1, '{"name": "pen"}', CALL, "yes"]


def test_events_tell_variables_pieces_values_and_messages() -> None:
    events = list(program.run(backend=Scripted(ANSWERS)).events())
    assert of_type(events, "variable", "piece", "value", "tool_call", "tool_result")[:-1] == [
        ("variable", "a", None), ("piece", "a", "hello"), ("value", "a", "hello"),
        ("variable", "n", None), ("piece", "n", "7"), ("value", "n", 7),
        ("variable", "c", None), ("piece", "c", "y"), ("value", "c", "y"),
        ("variable", "item", None), ("piece", "item", '{"name": "pen"}'), ("value", "item", Item(name="pen")),
        ("variable", "t", None), ("piece", "t", CALL),
        ("tool_call", "weather", None), ("tool_result", "weather", "sun in Oslo"), ("value", "t", "sun in Oslo"),
    ]  # fmt: skip
    assert events[-2].name == "sure"
    assert events[-1] == ProgramEvent(type="end")
    assert [one.role for one in events if one.type == "message"] == ["user", "assistant", "assistant", "assistant"]
    lines = [one.line for one in events if one.type == "line"]
    assert [int(str(line).rpartition(":")[2]) - int(str(lines[0]).rpartition(":")[2]) for line in lines] == [0, 1, 2, 3]
    [call] = [one for one in events if one.type == "tool_call"]
    assert call.arguments == {"place": "Oslo"}


def test_a_choice_is_told_as_what_it_stands_for() -> None:
    class Mood(enum.Enum):
        GLAD = "glad"
        SAD = "sad"

    @ramiform.function
    def body(s: ProgramState) -> None:
        s += select("mood", Mood)

    state = body.run(backend=Scripted([1]))
    assert [one.value for one in state.events() if one.type == "value"] == [state["mood"]] == [Mood.SAD]


def test_every_event_is_json() -> None:
    events = list(program.run(backend=Scripted(ANSWERS)).events())
    read = [json.loads(event.json()) for event in events]
    assert [one["type"] for one in read] == [event.type for event in events]
    values = {one["name"]: one["value"] for one in read if one["type"] == "value"}
    assert values["item"] == {"name": "pen"}
    assert values["sure"]["probability"] == 1.0
    assert json.loads(ProgramEvent(type="value", name="x").json()) == {"type": "value", "name": "x", "value": None}
    odd = ProgramEvent(type="value", name="x", value=object())
    assert json.loads(odd.json())["value"].startswith("<object")


def test_branches_are_told_with_their_parents() -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += "Go"
        outer = s.fork(2)
        outer += gen("x")
        inner = outer[1].fork(1)
        inner += gen("y")
        inner.join()
        outer.join()
        s["x"], s["y"]

    events = list(body.run(backend=Scripted(["0", "1", "2"]), stream=True).events())
    assert [(one.branch, one.parent) for one in events if one.type == "branch"] == [(1, 0), (2, 0), (3, 2)]
    assert sorted((one.branch, one.name, one.value) for one in events if one.type == "value") == [
        (1, "x", "0"), (2, "x", "1"), (3, "y", "2"),
    ]  # fmt: skip


def test_called_programs_are_told_by_their_names() -> None:
    @ramiform.function
    def inner(s: ProgramState, number: int) -> str:
        s += gen("deep")
        return str(s["deep"])

    @ramiform.function
    def outer(s: ProgramState) -> None:
        s += inner(1) + gen("x")
        side = s.fresh()
        side += gen("beside")
        assert side["beside"]

    state = outer.run(backend=Scripted(["a", "b", "c"]), stream=True)
    state.text()  # all has ended, and nobody holds the state of the call or the side
    events = list(state.events())
    assert [(one.branch, one.parent, one.name) for one in events if one.type == "branch"] == [
        (1, 0, "inner"), (2, 0, "fresh"),
    ]  # fmt: skip
    assert sorted((one.branch, one.name, one.value) for one in events if one.type == "value") == [
        (0, "x", "b"), (1, "deep", "a"), (2, "beside", "c"),
    ]  # fmt: skip


def test_turns_of_an_agent_are_variables_and_its_calls_events() -> None:
    @ramiform.function
    def body(s: ProgramState) -> Any:
        return s.agent([weather], "Weather?").answer

    turn = f"<tool_call>\n{CALL}\n</tool_call>"
    state = body.run(backend=Scripted([turn, "Sun."]))
    assert (state["turn_1"], state["turn_2"], state.ret_value) == (turn, "Sun.", "Sun.")
    events = list(state.events())
    assert of_type(events, "variable", "tool_call", "tool_result") == [
        ("variable", "turn_1", None), ("tool_call", "weather", None),
        ("tool_result", "weather", "sun in Oslo"), ("variable", "turn_2", None),
    ]  # fmt: skip


def test_a_rollback_is_told_and_what_comes_behind_it() -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        mark = s.mark()
        s += gen("x")
        s["x"]
        s.rollback(mark)
        s += gen("x")

    events = list(body.run(backend=Scripted(["a", "b"])).events())
    assert [one.type for one in events if one.type in ("value", "rollback")] == ["value", "rollback", "value"]
    assert [one.value for one in events if one.type == "value"] == ["a", "b"]


def test_failures_are_events() -> None:
    @ramiform.function
    def typed(s: ProgramState) -> None:
        s += gen("n", dtype=int)

    @ramiform.function
    def raises(s: ProgramState) -> None:
        s += gen("a")
        raise LookupError("mine")

    state = typed.run(stream=True, backend=Scripted(["x"]))
    events = list(state.events())
    assert "invalid literal" in str(next(one for one in events if one.type == "value").error)
    assert "invalid literal" in str(events[-1].error)
    assert list(raises.run(stream=True, backend=Scripted(["x"])).events())[-1].error == "mine"
    with pytest.raises(RequestError):
        state.sync()


@pytest.mark.usefixtures("endpoint")
def test_events_come_while_the_program_runs_and_after_it_fails(frontend: Any) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += "Go" + gen("x")
        s += gen("y")

    frontend.script = lambda text, operation: ["one", frontend.HOLD]
    state = body.run(stream=True)
    events = state.events()
    told = [next(events) for _ in range(4)]
    assert [one.type for one in told] == ["line", "text", "variable", "piece"]
    frontend.play_on(
        lambda text, operation: ["one", "two"] if text == "Go" else ErrorInfo(kind="request", message="no more")
    )
    rest = list(events)
    assert "".join(one.text or "" for one in [*told, *rest] if one.type == "piece") == "onetwo"
    assert "no more" in str(rest[-1].error)


@pytest.mark.usefixtures("endpoint")
def test_event_loops_follow_the_events_of_many_runs(frontend: Any) -> None:
    @ramiform.function
    async def body(s: ProgramState, number: int) -> None:
        s += f"Go {number}" + gen("x")

    frontend.script = lambda text, operation: list(text)

    async def follow(number: int) -> list[ProgramEvent]:
        state = await body.arun(number, stream=True)
        return [event async for event in state.async_events()]

    async def main() -> list[list[ProgramEvent]]:
        return await asyncio.gather(*map(follow, range(8)))

    for number, events in enumerate(asyncio.run(main())):
        assert "".join(one.text or "" for one in events if one.type == "piece") == f"Go {number}"
        assert events[-1].type == "end"


# Values


@pytest.mark.usefixtures("endpoint")
def test_items_come_before_the_list_is_whole(frontend: Any) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += "Go" + gen("items", schema=list[Item])

    frontend.script = lambda text, operation: ['[{"name": "a"}', ", ", frontend.HOLD]
    state = body.run(stream=True)
    values = state.value_iter("items")
    assert next(values) == Item(name="a")
    frontend.play_on(lambda text, operation: ['[{"name": "a"}', ", ", '{"name": "b"}]'])
    assert list(values) == [Item(name="b")]
    assert state["items"] == [Item(name="a"), Item(name="b")]


@pytest.mark.usefixtures("endpoint")
def test_captures_of_a_repetition_come_one_after_the_other(frontend: Any) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        line = seq("- ", gen("name", stop=":"), ":", gen("size", schema=Literal[1, 2]), "\n")
        s += seq(one_or_more(line), "Sum: ", gen("sum", dtype=int))

    frontend.script = lambda text, operation: ["- pen:1\n- ", frontend.HOLD]
    state = body.run(stream=True)
    names, sizes = state.text_iter("name"), state.value_iter("size")
    assert (next(names), next(sizes)) == ("pen", 1)
    frontend.play_on(lambda text, operation: ["- pen:1\n- ", "cup:2\nSum: 3"])
    assert (list(names), list(sizes), list(state.value_iter("sum"))) == (["cup"], [2], [3])
    assert state["name"] == ["pen", "cup"]


def test_values_of_other_variables_come_once() -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += gen("text") + gen("n", dtype=int) + select("c", ["x", "y"]) + gen("many", n=2)
        s["own"] = {"a": 1}

    state = body.run(backend=Scripted(["hello", "7", 0, ["p", "q"]]))
    assert [list(state.value_iter(name)) for name in ("text", "n", "c", "many", "own")] == [
        ["hello"], [7], ["x"], [["p", "q"]], [{"a": 1}],
    ]  # fmt: skip
    with pytest.raises(KeyError):
        list(state.value_iter("none"))


def test_a_text_that_is_not_of_its_type_raises_as_a_read_does() -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += gen("items", schema=list[Item])

    state = body.run(stream=True, backend=Scripted(['[{"name": "a"}, {"name": 3}]']))
    values = state.value_iter("items")
    assert next(values) == Item(name="a")
    with pytest.raises(RequestError, match=r"test_events\.py.*\[1\]\.name") as caught:
        list(values)
    assert caught.value.code == "invalid_result"

    async def main() -> list[Any]:
        return [value async for value in state.value_async_iter("items")]

    with pytest.raises(RequestError, match="not of type"):
        asyncio.run(main())


# Over HTTP


@contextmanager
def served(application: Any) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    host, port = server.servers[0].sockets[0].getsockname()
    yield f"http://{host}:{port}"
    server.should_exit = True
    thread.join()


@pytest.mark.slow
def test_a_service_sends_the_events_and_a_client_that_leaves_ends_the_program() -> None:
    closed: list[ProgramState] = []
    going = threading.Event()

    @ramiform.function
    def body(s: ProgramState, waits: bool) -> None:
        s += user("Hi") + assistant(gen("x"))
        s["x"]
        if waits:
            going.wait(60)
            s += user("More") + assistant(gen("y"))

    async def answer(request: Request) -> StreamingResponse:
        state = await body.arun(request.query_params["waits"] == "1", stream=True, backend=Scripted(["hello", "?"]))

        async def stream() -> AsyncIterator[bytes]:
            try:
                async for event in state.server_sent_events():
                    yield event
            finally:
                closed.append(state)

        return StreamingResponse(stream(), media_type="text/event-stream")

    with served(Starlette(routes=[Route("/", answer)])) as url:
        lines = httpx.get(url, params={"waits": "0"}).text.splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        assert [one["type"] for one in events if one["type"] in ("variable", "piece", "value", "end")] == [
            "variable", "piece", "value", "end",
        ]  # fmt: skip
        assert [line[7:] for line in lines if line.startswith("event: ")] == [one["type"] for one in events]
        with httpx.stream("GET", url, params={"waits": "1"}) as response:
            next(line for line in response.iter_lines() if '"value"' in line)
        while len(closed) < 2:
            threading.Event().wait(0.01)
        going.set()
        with pytest.raises(ramiform.RuntimeFailed, match="closed"):
            closed[1].sync()
