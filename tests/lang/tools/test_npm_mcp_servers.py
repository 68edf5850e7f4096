"""Tools of MCP servers that others wrote, in Node: `make test` installs them in tests/serving/node."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import pytest

import ramiform
from ramiform import AgentResult, McpProgress, McpTools, ProgramState, Scripted
from ramiform.lang.tools.mcp_server import McpError

pytest.importorskip("mcp", reason="the extra mcp")
pytestmark = pytest.mark.slow
SERVERS = Path(__file__).parents[2] / "serving/node/node_modules/@modelcontextprotocol"


class Start(Protocol):
    def __call__(self, name: str, *arguments: str, **options: Any) -> AbstractContextManager[McpTools]: ...


@pytest.fixture(scope="module")
def start(node: Path) -> Start:
    def started(name: str, *arguments: str, **options: Any) -> McpTools:
        script = SERVERS / f"server-{name}/dist/index.js"
        return ramiform.mcp([str(node), str(script), *arguments], timeout=120, **options)

    return started


told: list[McpProgress] = []


@pytest.fixture(scope="module")
def everything(start: Start) -> Iterator[McpTools]:
    with start("everything", on_progress=told.append) as tools:
        yield tools


def by_name(tools: McpTools, name: str) -> Any:
    return next(one for one in tools if one.name == name)


def test_a_script_calls_the_tools_of_server_everything(everything: McpTools) -> None:
    assert by_name(everything, "echo")(message="hi") == "Echo: hi"
    assert by_name(everything, "get-sum")(a=1, b=2) == "The sum of 1 and 2 is 3."
    weather = by_name(everything, "get-structured-content")(location="Chicago")
    assert set(weather) == {"temperature", "conditions", "humidity"}
    assert "[image image/png]" in by_name(everything, "get-tiny-image")()
    with pytest.raises(McpError, match="expected number"):
        by_name(everything, "get-sum")(a="x", b=2)


@pytest.mark.exhaustive
def test_a_tool_that_needs_a_task_runs_as_one_for_an_agent_and_tells_its_progress(everything: McpTools) -> None:
    del told[:]
    call = {"name": "simulate-research-query", "arguments": {"topic": "owls"}}
    turn = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"

    def body(s: ProgramState) -> AgentResult:
        return s.agent(everything, "Go.")

    [made] = ramiform.function(body).run(backend=Scripted([turn, "Done."])).ret_value.calls
    assert made.error is None
    assert made.result.startswith("# Research Report: owls")
    messages = [one.message for one in told]
    assert messages[0] == "Gathering sources..."
    assert len(messages) == len({*messages}) > 1
    assert by_name(everything, "trigger-long-running-operation")(duration=0.2, steps=2).startswith("Long running")
    assert told[-1] == McpProgress("trigger-long-running-operation", None, 2, 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ended_by", ["timeout", "close"])
def test_a_task_that_is_given_up_is_cancelled_at_the_server(start: Start, ended_by: str) -> None:
    began = threading.Event()
    with start("everything", on_progress=lambda progress: began.set()) as tools:
        research = by_name(tools, "simulate-research-query")
        statuses = record_statuses(tools)
        if ended_by == "timeout":
            tools._timeout = 0.3
            with pytest.raises(McpError, match=r"no answer within 0\.3 s"):
                research(topic="owls")
        else:
            closing = threading.Thread(target=lambda: began.wait() and tools.close())
            closing.start()
            with pytest.raises(McpError, match="was closed"):
                research(topic="owls")
            closing.join()
    assert statuses[-1] == "cancelled"


def record_statuses(tools: McpTools) -> list[str]:
    """Note the statuses of tasks in the answers of the server from now on."""
    statuses: list[str] = []
    assert tools._client is not None
    session = tools._client.session
    send = session.send_request

    async def noted(*arguments: Any, **options: Any) -> Any:
        answer = await send(*arguments, **options)
        statuses.append(getattr(answer, "status", ""))
        return answer

    session.send_request = noted  # type: ignore[method-assign]
    return statuses


def test_server_filesystem_reads_and_writes_below_its_folder_only(start: Start, tmp_path: Path) -> None:
    with start("filesystem", str(tmp_path)) as tools:
        by_name(tools, "write_file")(path=str(tmp_path / "a.txt"), content="one\ntwo\n")
        assert (tmp_path / "a.txt").read_text() == "one\ntwo\n"
        assert "two" in str(by_name(tools, "read_text_file")(path=str(tmp_path / "a.txt")))
        with pytest.raises(McpError, match="outside allowed directories"):
            by_name(tools, "read_text_file")(path="/etc/hostname")


@pytest.mark.exhaustive
def test_server_memory_gives_back_what_it_was_told(start: Start, tmp_path: Path) -> None:
    with start("memory", env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}) as tools:
        entity = {"name": "Oslo", "entityType": "city", "observations": ["is cold"]}
        by_name(tools, "create_entities")(entities=[entity])
        graph = by_name(tools, "read_graph")()
        assert graph["entities"] == [entity]
        assert by_name(tools, "search_nodes")(query="cold")["entities"] == [entity]
