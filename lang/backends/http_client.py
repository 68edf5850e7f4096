"""An HTTP client for JSON and server-sent events, with keep-alive connections and calls that can be aborted.

It uses the standard library, and makes each call once; `endpoint_client` repeats those that may succeed later.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from ...runtime.protocol.errors import RequestError, RuntimeFailed
from .http_errors import HttpFailure, failure_of_answer, failure_of_connection, failure_of_event
from .model import ModelCall

MAX_ANSWER_BYTES = 256 << 20
MAX_LINE_BYTES = 64 << 20  # of a stream of events
CONNECT_SECONDS = 60.0  # at most; a call's timeout may be shorter

# Takes the JSON of an event. "end": it is the last one. "leave": what follows is not wanted.
OnEvent = Callable[[Any], Literal["end", "leave"] | None]
Exchange = Callable[[http.client.HTTPResponse], Any]  # reads the answer of a call
_CONNECTION_ERRORS = (http.client.HTTPException, OSError)


class HttpClient:
    """A client of the server at `url`, to which paths are appended. Any thread may use it.

    Raises RequestError for an invalid url. Calls raise RequestError for statuses 400 to 499, BusyError for 429, and
    RuntimeFailed when the server fails or is gone. `timeout` seconds may pass between two pieces of an answer.
    """

    def __init__(self, url: str, api_key: str | None, timeout: float) -> None:
        try:
            parts = urlsplit(url)
            where = parts.hostname, parts.port
        except ValueError as error:
            raise RequestError(
                f"{url!r} is not an HTTP address: {error}", param="url", code="invalid_address"
            ) from None
        if parts.username is not None or parts.password is not None:  # would show in messages, and not be sent
            raise RequestError(
                "an address may hold no user name or password: give api_key", param="url", code="invalid_address"
            )
        if parts.scheme not in ("http", "https") or where[0] is None:
            raise RequestError(f"{url!r} is not an HTTP address", param="url", code="invalid_address")
        self.url = url.rstrip("/")
        self._make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._where = where[0], where[1]
        self._base = parts.path.rstrip("/")
        self._timeout = timeout
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._idle: list[http.client.HTTPConnection] = []
        self._closed = False
        self._lock = threading.Lock()

    def get(self, path: str) -> Any:
        return self._request("GET", path, None, ModelCall(), read_json)

    def post(self, path: str, body: Any, call: ModelCall) -> Any:
        """Post `body` as JSON (bytes: it is JSON) and return the answer's JSON, or None if the answer has none."""
        return self._request("POST", path, body, call, read_json)

    def stream(self, path: str, body: Any, call: ModelCall, on_event: OnEvent) -> None:
        """Call `on_event` with the JSON of each event until the last. Raises the error that an event reports."""
        self._request("POST", path, body, call, events_to(on_event))

    def close(self) -> None:
        """Close the connections: the idle ones now, the others at the end of their calls."""
        with self._lock:
            self._closed = True
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def _request(self, method: str, path: str, body: Any, call: ModelCall, use: Exchange) -> Any:
        try:
            return self.exchange(method, path, body, call, use)
        except HttpFailure as failure:
            message = f"{self.url}{path}: {failure}" if failure.status is None else None
            raise failure.to_error(message) from failure.__cause__

    def exchange(
        self,
        method: str,
        path: str,
        body: Any,
        call: ModelCall,
        use: Exchange,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Make one call, with further headers and a timeout of its own.

        Raises HttpFailure, or RuntimeFailed if it was cancelled or the answer is malformed.
        """
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        seconds = self._timeout if timeout is None else timeout
        while True:
            connection = self._connection()
            try:
                if is_fresh := connection.sock is None:
                    connection.timeout = min(seconds, CONNECT_SECONDS)
                    connection.connect()
                connection.sock.settimeout(seconds)
                with call.aborted_by(lambda connection=connection: _abort(connection)):  # type: ignore[misc]
                    try:
                        connection.request(method, self._base + path, data, {**self._headers, **(headers or {})})
                        response = connection.getresponse()
                    except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                        if is_fresh:
                            raise
                        connection.close()
                        continue  # the server had closed the kept connection, and has not read the request
                    with response:  # of a connection that the server ends, it holds the socket alone
                        result = _answer(response, use)
                        is_read = response.isclosed()
            except _CONNECTION_ERRORS as error:
                connection.close()
                raise failure_of_connection(error) from error
            except BaseException:
                connection.close()
                raise
            with self._lock:
                is_kept = is_read and not self._closed
                if is_kept:
                    self._idle.append(connection)
            if not is_kept:
                connection.close()  # the rest of the answer is on its way, or nobody closes an idle connection
            return result

    def _connection(self) -> http.client.HTTPConnection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        host, port = self._where
        return self._make(host, port)


def read_json(response: http.client.HTTPResponse) -> Any:
    """Return the JSON of an answer, None for an empty body or plain text. Raises RuntimeFailed for invalid JSON."""
    data = _read(response)
    try:
        return json.loads(data) if data else None
    except (ValueError, RecursionError):
        if response.headers.get_content_type() == "application/json":
            raise RuntimeFailed(f"the answer is no JSON: {data[:200]!r}") from None
        return None


def events_to(on_event: OnEvent) -> Exchange:
    """Return a reader of server-sent events that calls `on_event` with the JSON of each, until the last or [DONE]."""

    def read(response: http.client.HTTPResponse) -> None:
        for data in _events(response):
            if data == b"[DONE]":
                break
            try:
                event = json.loads(data)
            except (ValueError, RecursionError):
                raise RuntimeFailed(f"an event is no JSON: {data[:200]!r}") from None
            if isinstance(event, dict) and event.get("error"):
                raise failure_of_event(data)
            if (wish := on_event(event)) == "leave":
                return
            if wish == "end":
                break
        else:
            raise failure_of_connection(ConnectionError("the stream ended without [DONE]"))
        _read(response)  # to the end of the body, so that the connection can be used again

    return read


def _abort(connection: http.client.HTTPConnection) -> None:
    """Shut the connection down, which ends a read that waits in another thread."""
    if connection.sock is not None:
        with contextlib.suppress(OSError):  # it is closed already
            connection.sock.shutdown(socket.SHUT_RDWR)


def _answer(response: http.client.HTTPResponse, use: Exchange) -> Any:
    if response.status < 300:
        return use(response)
    headers = {name.lower(): value for name, value in response.headers.items()}
    raise failure_of_answer(response.status, headers, _read(response))


def _read(response: http.client.HTTPResponse) -> bytes:
    data = response.read(MAX_ANSWER_BYTES + 1)
    if len(data) > MAX_ANSWER_BYTES:
        raise RuntimeFailed(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
    return data


def _events(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while line := response.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise RuntimeFailed(f"an event is longer than {MAX_LINE_BYTES} bytes")
        if line.startswith(b"data:"):
            yield line[5:].strip()
