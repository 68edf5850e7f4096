"""Tools of MCP servers: commands that talk over their standard input and output, and URLs.

The connection lives in an event loop of its own, in a thread, so that sync and async programs use it alike.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import shlex
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ...runtime.protocol.errors import RequestError
from .declaration import DeclaredTool, tool

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Event, Task

    from mcp import Client
    from mcp_types import CallToolResult
    from mcp_types import Tool as ListedTool

T = TypeVar("T")

MAX_TOOLS = 1000  # of a server
MAX_RESULT = 1 << 20  # characters of a result
CLOSE_SECONDS = 10.0  # the official client takes up to 7 to end a server that does not answer
POLL_SECONDS = 1.0  # between two questions for a task's status, where the server does not say it
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.05, 5.0  # whatever the server says
CANCEL_SECONDS = 2.0  # that cancelling a task may take


class McpError(Exception):
    """An error of an MCP server, or of the connection to it: a tool error like any other."""


@dataclass(frozen=True)
class McpProgress:
    """Progress of a call that is under way, as its server tells it."""

    tool: str
    message: str | None
    progress: float | None = None  # of `total`; None for tasks, which tell a message only
    total: float | None = None


@dataclass(frozen=True, eq=False)
class McpTool(DeclaredTool[..., Any]):
    """A tool of an MCP server. Its function is async; calling it waits for the result, but in an event loop."""

    wait_for: Callable[[dict[str, Any]], Any] = dict  # the arguments -> the result, blocking

    def __call__(self, **arguments: Any) -> Any:
        """Return the result, or in a running event loop its coroutine. Raises McpError."""
        asyncio = sys.modules.get("asyncio")  # not loaded: no loop runs
        if asyncio is not None and asyncio._get_running_loop() is not None:
            return super().__call__(**arguments)
        return self.wait_for(arguments)


class McpTools(Sequence[DeclaredTool[..., Any]]):
    """The tools of an MCP server. `with`, `async with` or `await` connects; leaving the block, or `close`, ends it."""

    def __init__(
        self,
        server: str | Sequence[str],
        timeout: float,
        env: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        on_progress: Callable[[McpProgress], Any] | None,
    ) -> None:
        self._name = _shown_name(server)
        self._server = server
        self._timeout = timeout
        self._env = env
        self._headers = headers
        self._on_progress = on_progress
        self._tools: list[DeclaredTool[..., Any]] | None = None
        self._thread: threading.Thread | None = None
        self._loop: AbstractEventLoop | None = None
        self._stop: Event | None = None
        self._client: Client | None = None
        self._calls: set[Task[Any]] = set()  # under way
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        names = "not connected" if self._tools is None else ", ".join(one.name for one in self._tools)
        return f"McpTools({self._name!r}: {names})"

    @overload
    def __getitem__(self, index: int) -> DeclaredTool[..., Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[DeclaredTool[..., Any]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._connected()[index]

    def __len__(self) -> int:
        return len(self._connected())

    def __enter__(self) -> McpTools:
        opened = self._open()
        try:
            self._opened(opened.result())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __await__(self) -> Generator[Any, None, McpTools]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> McpTools:
        import asyncio

        opened = self._open()
        try:
            self._opened(await asyncio.wrap_future(opened))
        except BaseException:  # also a definition that cannot be used
            self._end()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """End the connection, and the command. Calls that are under way fail. Idempotent."""
        self._end()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    async def aclose(self) -> None:
        """Do as `close` does, in an event loop."""
        import asyncio

        await asyncio.to_thread(self.close)

    def _connected(self) -> list[DeclaredTool[..., Any]]:
        if self._tools is None:
            raise RequestError(
                f"the tools of the MCP server {self._name!r} are known once it is connected: write `with`, "
                "`async with` or `await` before it",
                param="tools",
            )
        return self._tools

    def _opened(self, listed: list[ListedTool]) -> None:
        left_out = [one.name for one in listed if _needs_task(one) and not self._runs_tasks()]
        if left_out:
            warnings.warn(
                f"the MCP server {self._name!r} runs no tasks, so its tools that need one are left out: "
                f"{', '.join(left_out)}",
                RuntimeWarning,
                stacklevel=3,
            )
        self._tools = [self._declared(one) for one in listed if one.name not in left_out]

    def _runs_tasks(self) -> bool:
        capabilities = self._client.server_capabilities if self._client is not None else None
        requests = capabilities.tasks.requests if capabilities is not None and capabilities.tasks is not None else None
        return requests is not None and requests.tools is not None and requests.tools.call is not None

    def _declared(self, listed: ListedTool) -> McpTool:
        async def call(**arguments: Any) -> Any:
            import asyncio

            return _value_of(await asyncio.wrap_future(self._begin(listed, arguments)), listed)

        def wait_for(arguments: dict[str, Any]) -> Any:
            answered = self._begin(listed, arguments)
            try:
                return _value_of(answered.result(), listed)
            finally:
                answered.cancel()  # where the program was interrupted

        definition = {"name": listed.name, "description": listed.description or "", "inputSchema": listed.input_schema}
        return McpTool(**vars(tool(definition, call)), wait_for=wait_for)

    # In the program's thread or loop

    def _open(self) -> Future[list[ListedTool]]:
        """Start the thread; return the future of the server's tools."""
        _check_installed()
        with self._lock:
            if self._thread is not None:
                raise RequestError(f"the MCP server {self._name!r} is connected already", param="server")
            opened: Future[list[ListedTool]] = Future()
            self._thread = threading.Thread(target=self._run, args=(opened,), name="ramiform-mcp", daemon=True)
            self._thread.start()
        return opened

    def _end(self) -> None:
        with self._lock:
            if self._loop is not None and self._stop is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._stop.set)

    def _begin(self, listed: ListedTool, arguments: dict[str, Any]) -> Future[CallToolResult]:
        import asyncio

        with self._lock:
            if self._loop is None or self._client is None:
                raise McpError(f"the MCP server {self._name!r} is not connected any more")
            request = self._request(self._client, listed, arguments)
            return asyncio.run_coroutine_threadsafe(request, self._loop)

    # In the connection's loop

    def _run(self, opened: Future[list[ListedTool]]) -> None:
        import asyncio

        try:
            asyncio.run(self._serve(opened))
        except BaseException as error:
            if not opened.done():
                opened.set_exception(self._refusal(error))

    async def _serve(self, opened: Future[list[ListedTool]]) -> None:
        import asyncio

        importlib.import_module("mcp")  # may take seconds, which are not the server's

        stop = asyncio.Event()
        with self._lock:
            self._loop, self._stop = asyncio.get_running_loop(), stop
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self._timeout):
                    client = await self._connect(stack)
                    listed = await _list_tools(client)
                self._client = client
                opened.set_result(listed)
                await stop.wait()
                self._client = None
                for call in self._calls:
                    call.cancel()
                if self._calls:  # tasks are cancelled at the server
                    await asyncio.wait(self._calls, timeout=CANCEL_SECONDS)
        finally:
            with self._lock:
                self._client = self._loop = None

    async def _connect(self, stack: contextlib.AsyncExitStack) -> Client:
        from mcp import Client, StdioServerParameters, stdio_client

        if isinstance(self._server, str) and _is_url(self._server):
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            # Without a limit of its own on reading: the server may take as long as the call's timeout.
            http = httpx2.AsyncClient(headers=dict(self._headers or {}), timeout=httpx2.Timeout(30.0, read=None))
            await stack.enter_async_context(http)
            transport = streamable_http_client(self._server, http_client=http)
        else:
            command, *arguments = shlex.split(self._server) if isinstance(self._server, str) else self._server
            given = StdioServerParameters(command=command, args=arguments, env=dict(self._env or {}))
            transport = stdio_client(given, errlog=sys.__stderr__ or sys.stderr)
        return await stack.enter_async_context(Client(transport, read_timeout_seconds=self._timeout))

    async def _request(self, client: Client, listed: ListedTool, arguments: dict[str, Any]) -> CallToolResult:
        import asyncio

        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            async with asyncio.timeout(self._timeout + 1):  # the client's own limit comes first, and tells the server
                if _needs_task(listed):
                    return await self._run_task(client, listed, arguments)

                async def note(progress: float, total: float | None, message: str | None) -> None:
                    self._tell(McpProgress(listed.name, message, progress, total))

                told = None if self._on_progress is None else note
                return await client.call_tool(listed.name, arguments, progress_callback=told)
        except asyncio.CancelledError:
            if self._client is not None:
                raise
            raise McpError(f"the connection to the MCP server {self._name!r} was closed") from None
        except TimeoutError:
            raise McpError(f"no answer within {self._timeout:g} s") from None
        except McpError:
            raise
        except Exception as error:
            raise McpError(str(_leaf(error)) or type(error).__name__) from error
        finally:
            self._calls.discard(task)

    async def _run_task(self, client: Client, listed: ListedTool, arguments: dict[str, Any]) -> CallToolResult:
        """Create a task, ask for its status until it ends, and return its result. Cancels what does not end."""
        import asyncio

        import mcp_types as types
        from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER

        kept = types.TaskMetadata(ttl=int(1000 * (self._timeout + 60)))
        params = types.CallToolRequestParams(name=listed.name, arguments=arguments, task=kept)
        # The session's own request refuses an answer to tools/call that is a task.
        raw = await client.session._dispatcher.send_raw_request(
            "tools/call",
            params.model_dump(by_alias=True, mode="json", exclude_none=True),
            {"timeout": self._timeout, "headers": {MCP_PROTOCOL_VERSION_HEADER: client.protocol_version}},
        )
        task: types.Task = types.CreateTaskResult.model_validate(raw, by_name=False).task
        told: str | None = None
        try:
            while task.status == "working":
                if (message := task.status_message) is not None and message != told:
                    told = message
                    self._tell(McpProgress(listed.name, message))
                seconds = POLL_SECONDS if task.poll_interval is None else task.poll_interval / 1000
                await asyncio.sleep(min(max(seconds, MIN_POLL_SECONDS), MAX_POLL_SECONDS))
                status = types.GetTaskRequest(params=types.GetTaskRequestParams(task_id=task.task_id))
                task = await client.session.send_request(status, types.GetTaskResult)
            if task.status == "input_required":
                raise McpError(f"the task asks for input, which a program cannot give: {task.status_message or ''}")
            if task.status == "cancelled":
                raise McpError(f"the server cancelled the task: {task.status_message or ''}")
            payload = types.GetTaskPayloadRequest(params=types.GetTaskPayloadRequestParams(task_id=task.task_id))
            result = await client.session.send_request(payload, types.CallToolResult)
        except BaseException:
            if task.status in ("working", "input_required"):
                cancel = types.CancelTaskRequest(params=types.CancelTaskRequestParams(task_id=task.task_id))
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(CANCEL_SECONDS):
                        await client.session.send_request(cancel, types.CancelTaskResult)
            raise
        if not result.is_error:
            await client.session.validate_tool_result(listed.name, result)
        return result

    def _tell(self, progress: McpProgress) -> None:
        if self._on_progress is not None:
            self._on_progress(progress)

    def _refusal(self, error: BaseException) -> RequestError:
        leaf = _leaf(error)
        reason = f"no answer within {self._timeout:g} s" if isinstance(leaf, TimeoutError) else str(leaf)
        if isinstance(self._server, str):
            reason = reason.replace(self._server, self._name)
        message = f"the MCP server {self._name!r} cannot be used: {reason or type(leaf).__name__}"
        return RequestError(message, param="server", code="mcp_failed")


def mcp(
    server: str | Sequence[str],
    *,
    timeout: float = 30.0,
    env: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    on_progress: Callable[[McpProgress], Any] | None = None,
) -> McpTools:
    """Return the tools of an MCP server, once connected: `with mcp(...) as tools:`, `tools = await mcp(...)`.

    `server` is the URL of a server that speaks streamable HTTP, with `headers` for each request, or a command, as one
    string or in parts, with `env` beside the usual variables. `timeout` seconds bound connecting, and each call.
    `on_progress` is called with what the server tells of a call, in the thread of the connection, which it must not
    block. Tools that need a task run as one, or are left out with a warning where the server runs no tasks. Raises
    RequestError for a server that cannot be used, and where the package `mcp` is not installed.
    """
    parts = [server] if isinstance(server, str) else server
    if (
        not isinstance(parts, Sequence)
        or not parts
        or not all(isinstance(part, str) and part.strip() for part in parts)
    ):
        raise RequestError(f"server must be a command or a URL, got {server!r}", param="server")
    if not isinstance(timeout, int | float) or not 0 < timeout < 1e6:
        raise RequestError(f"timeout must be a positive number of seconds, got {timeout!r}", param="timeout")
    if on_progress is not None and not callable(on_progress):
        raise RequestError(f"on_progress must be a function, got {on_progress!r}", param="on_progress")
    is_url = isinstance(server, str) and _is_url(server)
    if is_url and env is not None:
        raise RequestError("env is for commands; a URL takes headers", param="env")
    if not is_url and headers is not None:
        raise RequestError("headers are for URLs; a command takes env", param="headers")
    if isinstance(server, str) and not is_url:
        try:
            shlex.split(server)
        except ValueError as error:
            raise RequestError(f"the command {server!r} cannot be read: {error}", param="server") from None
    return McpTools(server, timeout, env, headers, on_progress)


def _shown_name(server: str | Sequence[str]) -> str:
    """Return a command as one line, or a URL without user name, password and query, which may hold a key."""
    if not isinstance(server, str):
        return shlex.join(server)
    if not _is_url(server):
        return server
    scheme, _, rest = server.partition("//")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}//{host.rpartition('@')[2]}{slash}{path}"


def _is_url(server: str) -> bool:
    return server.startswith(("http://", "https://"))


def _check_installed() -> None:
    if importlib.util.find_spec("mcp") is None:
        raise RequestError(
            "MCP servers need the package mcp: pip install 'ramiform[mcp]'", param="server", code="missing_package"
        )


async def _list_tools(client: Client) -> list[ListedTool]:
    listed: list[ListedTool] = []
    cursor: str | None = None
    while len(listed) < MAX_TOOLS:
        page = await client.list_tools(cursor=cursor)
        listed += page.tools
        if (cursor := page.next_cursor) is None:
            return listed
    raise McpError(f"more than {MAX_TOOLS} tools")


def _needs_task(listed: ListedTool) -> bool:
    return listed.execution is not None and listed.execution.task_support == "required"


def _value_of(result: CallToolResult, listed: ListedTool) -> Any:
    """Return the structured content, or else the text. Raises McpError for an error that the tool tells."""
    text = "\n".join(map(_text_of, result.content))
    if len(text) > MAX_RESULT:
        raise McpError(f"the result has more than {MAX_RESULT} characters")
    if result.is_error:
        raise McpError(text or "the tool failed")
    structured = result.structured_content
    if structured is None:
        return text
    # The official server wraps what is no object so.
    is_wrapped = set((listed.output_schema or {}).get("properties", ())) == {"result"}
    value = structured["result"] if is_wrapped and "result" in structured else structured
    if len(value if isinstance(value, str) else json.dumps(value)) > MAX_RESULT:
        raise McpError(f"the result has more than {MAX_RESULT} characters")
    return value


def _text_of(block: Any) -> str:
    """Return the text of a content block; of others their kind, since models read text only."""
    if isinstance(text := getattr(block, "text", None), str):
        return text
    resource = getattr(block, "resource", None)
    if isinstance(text := getattr(resource, "text", None), str):
        return text
    described: Callable[[str], Any] = lambda name: getattr(block, name, None) or getattr(resource, name, None)  # noqa: E731
    return f"[{block.type} {described('uri') or described('mime_type') or ''}]"


def _leaf(error: BaseException) -> BaseException:
    """Return the first error in nested groups."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error
