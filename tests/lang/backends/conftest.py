"""A server on a real socket that plays answers one after the other and keeps the requests that it received."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass
class Answer:
    """One answer: JSON, or with `events` a stream of them, each `data:` line as given, cut off after the last."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    events: list[Any] | None = None
    breaks: bool = False  # the connection is closed without an answer
    holds: bool = False  # nothing is answered until the client leaves


@dataclass
class Received:
    """One request: its path with the query, its headers by lower-case name, and its body."""

    path: str
    headers: dict[str, str]
    body: Any


class JsonServer:
    """`answers` are played in order, the last one again and again; or `reply` makes them from requests."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [Answer({})]
        self.reply: Callable[[Received], Answer] | None = None
        self.requests: list[Received] = []
        self.holding, self.was_left = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                self.play(server._answer(Received(self.path, headers, body)))

            def play(self, answer: Answer) -> None:
                if answer.breaks or answer.holds:
                    self.close_connection = True
                if answer.holds:
                    server.holding.set()
                    assert self.connection.recv(1) == b""
                    server.was_left.set()
                if answer.breaks or answer.holds:
                    return
                data = json.dumps(answer.body).encode()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if answer.events is not None:
                    self.send_header("Content-Type", "text/event-stream")
                    self.send_header("Connection", "close")
                    self.end_headers()
                    lines = [each if isinstance(each, str) else json.dumps(each) for each in answer.events]
                    self.wfile.write("".join(f"event: x\ndata: {line}\n\n" for line in lines).encode())
                    self.close_connection = True
                    return
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: Any) -> None:
                """Tests read `requests`."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def _answer(self, request: Received) -> Answer:
        with self._lock:
            self.requests.append(request)
            if self.reply is not None:
                return self.reply(request)
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[JsonServer]:
    made = JsonServer()
    yield made
    made.close()
