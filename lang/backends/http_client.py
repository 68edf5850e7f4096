"""An HTTP client for JSON and server-sent events, with keep-alive connections and calls that can be aborted.

It uses the standard library and reads errors in OpenAI's format.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from ...runtime.protocol.errors import BusyError, RamiformError, RequestError, RuntimeFailed
from .model import ModelCall

_Use = Callable[[http.client.HTTPResponse], Any]
_CONNECTION_ERRORS = (http.client.HTTPException, OSError)


class HttpClient:
    """A client of the server at `url`, to which paths are appended. Any thread may use it.

    Raises RequestError for an invalid url. Calls raise RequestError for statuses 400 to 499, BusyError for 429, and
    RuntimeFailed when the server fails or is gone.
    """

    def __init__(self, url: str, api_key: str | None, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestError(f"{url!r} is not an HTTP address", param="url", code="invalid_address")
        self.url = url.rstrip("/")
        self._make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._where = (parts.hostname, parts.port)
        self._base = parts.path.rstrip("/")
        self._timeout = timeout
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def get(self, path: str) -> Any:
        return self._request("GET", path, None, ModelCall(), _read_json)

    def post(self, path: str, body: Any, call: ModelCall) -> Any:
        """Post `body` as JSON (bytes: it is JSON) and return the answer's JSON, or None if the answer has none."""
        return self._request("POST", path, body, call, _read_json)

    def stream(self, path: str, body: Any, call: ModelCall, on_event: Callable[[Any], None]) -> None:
        """Call `on_event` with the JSON of each event until [DONE]. Raises the error that an event reports."""
        self._request("POST", path, body, call, lambda response: _read_events(response, on_event))

    def close(self) -> None:
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def _request(self, method: str, path: str, body: Any, call: ModelCall, use: _Use) -> Any:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        while True:
            connection, is_fresh = self._connection()
            try:
                if is_fresh:
                    connection.connect()
                with call.aborted_by(lambda connection=connection: _abort(connection)):  # type: ignore[misc]
                    try:
                        connection.request(method, self._base + path, data, self._headers)
                        response = connection.getresponse()
                    except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                        if is_fresh:
                            raise
                        connection.close()
                        continue  # the server had closed the kept connection, and has not read the request
                    result = _answer(response, use)
            except _CONNECTION_ERRORS as error:
                connection.close()
                raise RuntimeFailed(f"{self.url}{path}: {_describe(error)}") from error
            except BaseException:
                connection.close()
                raise
            with self._lock:
                self._idle.append(connection)
            return result

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        host, port = self._where
        return self._make(host, port, timeout=self._timeout), True


def _abort(connection: http.client.HTTPConnection) -> None:
    """Wakes who reads from it."""
    if connection.sock is not None:
        with contextlib.suppress(OSError):  # it is closed already
            connection.sock.shutdown(socket.SHUT_RDWR)


def _answer(response: http.client.HTTPResponse, use: _Use) -> Any:
    if response.status < 300:
        return use(response)
    data = response.read()
    raise _error(response.status, data)


def _read_json(response: http.client.HTTPResponse) -> Any:
    data = response.read()
    try:
        return json.loads(data) if data else None
    except ValueError:
        if response.headers.get_content_type() == "application/json":
            raise RuntimeFailed(f"the answer is no JSON: {data[:200]!r}") from None
        return None  # a plain word, of a route that has nothing to say


def _read_events(response: http.client.HTTPResponse, on_event: Callable[[Any], None]) -> None:
    for data in _events(response):
        if data == b"[DONE]":
            response.read()  # to the end of the body, so that the connection can be used again
            return
        try:
            event = json.loads(data)
        except ValueError:
            raise RuntimeFailed(f"an event is no JSON: {data[:200]!r}") from None
        if isinstance(event, dict) and event.get("error"):
            raise _error(500, data)
        on_event(event)
    raise RuntimeFailed("the stream ended without [DONE]")


def _events(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while line := response.readline():
        if line.startswith(b"data:"):
            yield line[5:].strip()


def _error(status: int, data: bytes) -> RamiformError:
    """Return the error of an answer. Its format is that of OpenAI's API."""
    message, param, code = data[:500].decode("utf-8", "replace"), None, None
    with contextlib.suppress(ValueError):
        body = json.loads(data)
        found = body.get("error", body) if isinstance(body, dict) else None
        if isinstance(found, dict):
            message = str(found.get("message") or message)
            param = found.get("param")
            code = found.get("code")
            if isinstance(found.get("type"), str) and found["type"] == "invalid_request_error":
                status = min(status, 400)
    if status == 429:
        return BusyError(message)
    if status < 500:
        return RequestError(message, param=param, code=str(code or f"http_{status}"))
    return RuntimeFailed(message)


def _describe(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
