"""Tools of real MCP servers, in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ramiform
from ramiform import AgentResult, McpTools, ProgramState, RequestError, Scripted, tool_schemas
from ramiform.lang.tools import mcp_server
from ramiform.lang.tools.mcp_server import MAX_RESULT, McpError

pytest.importorskip("mcp", reason="the extra mcp")
from mcp_types import ToolExecution

pytestmark = pytest.mark.slow
SERVER = [sys.executable, str(Path(__file__).with_name("mcp_server_of_tests.py"))]


def call(name: str, /, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def agent(tools: Any, *calls: str) -> AgentResult:
    def body(s: ProgramState) -> AgentResult:
        return s.agent(tools, "Go.")

    result: AgentResult = ramiform.function(body).run(backend=Scripted([*calls, "Done."])).ret_value
    return result


@pytest.fixture(scope="module")
def tools() -> Iterator[McpTools]:
    with ramiform.mcp(SERVER, timeout=120, env={"COLOUR": "blue"}) as connected:
        yield connected


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with subprocess.Popen([*SERVER, "http"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "the server did not start"
        while True:  # it prints its port before it listens
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", int(port))):
                break
            assert process.poll() is None
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
        process.kill()


@pytest.mark.exhaustive
def test_the_tools_of_a_command_are_described_as_the_server_does(tools: McpTools) -> None:
    described = {one["function"]["name"]: one["function"] for one in tool_schemas(tools)}
    assert described["add"]["description"] == "Add two numbers"
    assert list(described["add"]["parameters"]["properties"]) == ["a", "b"]
    assert described["add"]["parameters"]["required"] == ["a", "b"]
    assert len(tools) == len(described)
    assert "add, get_weather" in repr(tools)


def test_calls_of_one_turn_are_made_and_answered(tools: McpTools) -> None:
    turn = "\n".join(
        [
            call("add", a=2, b=3),
            call("get_weather", city="Oslo"),
            call("describe", place={"name": "Ben", "height": 8}),
            call("environment", name="COLOUR"),
        ]
    )
    results = [one.result for one in agent(tools, turn).calls]
    assert results == [
        5,
        {"weather": "sunny", "temperature": 4},
        "Ben is 8 m high",
        "blue",
    ]


def test_errors_of_the_server_and_invalid_arguments_are_tool_errors(tools: McpTools) -> None:
    refused, wrong, nested, long = agent(
        tools,
        call("refuse", why="no"),
        call("add", a="x", b=1),
        call("describe", place={"name": "Ben"}),
        call("fill", characters=MAX_RESULT + 1),
    ).calls
    assert refused.error is not None
    assert refused.error.startswith("McpError: ")
    assert "refuse" in refused.error
    assert wrong.error is not None
    assert "is not a call" in wrong.error
    assert nested.error is not None
    assert "'height' is a required property" in nested.error
    assert long.error == f"McpError: the result has more than {MAX_RESULT} characters"


def test_a_gen_calls_them_too_also_beside_functions(tools: McpTools) -> None:
    def half(of: int) -> float:
        """Halve"""
        return of / 2

    def body(s: ProgramState) -> None:
        s.tool("x", [half, *tools])

    backend = Scripted(['{"name": "add", "arguments": {"a": 1, "b": 2}}'])
    assert ramiform.function(body).run(backend=backend)["x"] == 3


@pytest.mark.exhaustive
def test_an_async_program_uses_them_in_its_loop_and_cancelled_calls_end(tools: McpTools) -> None:
    async def body(s: ProgramState) -> AgentResult:
        return await s.agent_async(own, "Go.")

    async def main() -> tuple[AgentResult, AgentResult]:
        nonlocal own
        async with ramiform.mcp(SERVER, timeout=120) as own:
            state = await ramiform.function(body).arun(backend=Scripted([call("add", a=1, b=2), "Three."]))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(own[[one.name for one in own].index("sleep")](), 0.01)
        late = await ramiform.function(body).arun(backend=Scripted([call("add", a=1, b=2), "Oh."]))
        return state.ret_value, late.ret_value

    own: Any = None
    result, late = asyncio.run(main())
    assert (result.calls[0].result, result.answer) == (3, "Three.")
    assert late.calls[0].error is not None
    assert "not connected any more" in late.calls[0].error


@pytest.mark.exhaustive
def test_await_connects_and_aclose_ends() -> None:
    async def main() -> Any:
        own = await ramiform.mcp(" ".join(SERVER), timeout=120)
        try:
            return await own[0](a=20, b=3)
        finally:
            await own.aclose()

    assert asyncio.run(main()) == 23


@pytest.mark.exhaustive
def test_a_server_that_dies_or_does_not_answer_is_a_tool_error() -> None:
    with ramiform.mcp(SERVER, timeout=120) as own:
        died, after = agent(own, call("die"), call("add", a=1, b=2)).calls
    for one in (died, after):
        assert one.error is not None
        assert one.error.startswith("McpError: ")
    with ramiform.mcp(SERVER, timeout=120) as own:
        own._timeout = 0.05  # of calls from now on; the server needs longer to start
        [slow] = agent(own, call("sleep")).calls
    assert slow.error is not None
    assert "timed out" in slow.error or "no answer within" in slow.error


@pytest.mark.exhaustive
def test_closing_ends_the_calls_that_are_under_way() -> None:
    async def main() -> None:
        own = await ramiform.mcp(SERVER, timeout=120)
        sleeping = asyncio.ensure_future(own[[one.name for one in own].index("sleep")]())
        await asyncio.sleep(0.05)
        await own.aclose()
        with pytest.raises(McpError, match="closed"):
            await sleeping

    asyncio.run(main())


@pytest.mark.exhaustive
def test_a_server_over_http_works_alike(url: str) -> None:
    with ramiform.mcp(url, timeout=120, headers={"X-Test": "1"}) as own:
        made = agent(own, call("add", a=2, b=3) + call("get_weather", city="Rome")).calls
    assert [one.result for one in made] == [5, {"weather": "sunny", "temperature": 4}]


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ("no-such-command-at-all --x", "No such file"),
        ([sys.executable, "-c", "pass"], "closed"),
        ("http://127.0.0.1:9/mcp", "connect"),
    ],
)
def test_a_server_that_does_not_start_is_refused(server: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught, ramiform.mcp(server, timeout=120):
        pass
    assert (caught.value.param, caught.value.code) == ("server", "mcp_failed")


@pytest.mark.exhaustive
def test_a_server_that_never_speaks_is_refused_in_time() -> None:
    silent = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(RequestError, match=r"no answer within 0\.5 s"), ramiform.mcp(silent, timeout=0.5):
        pass


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"server": ""}, "server"),
        ({"server": []}, "server"),
        ({"server": 3}, "server"),
        ({"server": "a 'b"}, "server"),
        ({"server": "a", "timeout": 0}, "timeout"),
        ({"server": "a", "timeout": "x"}, "timeout"),
        ({"server": "a", "on_progress": 3}, "on_progress"),
        ({"server": "a", "headers": {}}, "headers"),
        ({"server": "http://127.0.0.1/", "env": {}}, "env"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        ramiform.mcp(**arguments)
    assert caught.value.param == param


def test_a_script_without_an_event_loop_calls_them_as_functions(tools: McpTools, url: str) -> None:
    add, _, _, refuse, *_ = tools
    assert add(a=20, b=3) == 23
    with pytest.raises(McpError, match="refuse"):
        refuse(why="no")

    async def in_a_loop() -> Any:
        return await add(a=1, b=2)

    assert asyncio.run(in_a_loop()) == 3
    with ramiform.mcp(url, timeout=120) as own:
        assert own[0](a=4, b=5) == 9
    with pytest.raises(McpError, match="not connected any more"):
        own[0](a=4, b=5)


@pytest.mark.exhaustive
def test_tools_that_need_a_task_are_left_out_where_the_server_runs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = mcp_server._list_tools

    async def with_a_task(client: Any) -> Any:
        listed = await asks(client)
        return [listed[0].model_copy(update={"execution": ToolExecution(task_support="required")}), *listed[1:]]

    monkeypatch.setattr(mcp_server, "_list_tools", with_a_task)
    with pytest.warns(RuntimeWarning, match="left out: add") as warned, ramiform.mcp(SERVER, timeout=120) as own:
        assert own[0].name == "get_weather"
    assert warned[0].filename == __file__


def test_the_tools_are_not_known_before_the_connection() -> None:
    with pytest.raises(RequestError, match="known once it is connected"):
        ramiform.gen("x", tools=ramiform.mcp("some command"))


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"pip install 'ramiform\[mcp\]'") as caught, ramiform.mcp("some command"):
        pass
    assert caught.value.code == "missing_package"


def test_importing_the_language_loads_no_mcp() -> None:
    code = "import sys, ramiform; ramiform.mcp('x'), ramiform.tool; print({'mcp', 'asyncio'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_model_that_ships_calls_a_tool_of_a_server(backend: ramiform.Runtime, tools: McpTools) -> None:
    wanted = [one for one in tools if one.name in ("add", "get_weather")]

    def body(s: ProgramState) -> AgentResult:
        return s.agent(wanted, "What is the weather in Oslo?", temperature=0)

    result: AgentResult = ramiform.function(body).run().ret_value
    assert [(one.name, one.arguments) for one in result.calls] == [("get_weather", {"city": "Oslo"})]
    assert result.finished
    assert "4 degrees" in result.answer


@pytest.mark.exhaustive
def test_messages_name_a_url_without_its_keys() -> None:
    tools = ramiform.mcp("http://user:secret@127.0.0.1:9/mcp?key=secret", timeout=5.0)
    assert "'http://127.0.0.1:9/mcp'" in repr(tools)
    with pytest.raises(RequestError) as raised, tools:
        pass
    assert "secret" not in str(raised.value)
