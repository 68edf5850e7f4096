"""A runtime at an HTTP address: used over ZMQ where possible, else over HTTP."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, RuntimeEndpoint, RuntimeFailed, assistant, gen, user
from ramiform.lang.backends.runtimes.http_channel import HttpChannel
from ramiform.lang.backends.runtimes.movable import MovableChannel
from ramiform.runtime.protocol.version import __version__

Answer = Callable[[int, dict[str, Any]], str]


@pytest.fixture
def answering() -> Iterator[Answer]:
    """Starts a server that answers everything with a status and a body, and gives its address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(status: int, body: dict[str, Any]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                """Not in the tests' output."""

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@ramiform.function
def greet(s: ProgramState) -> None:
    s += user("Say hello.")
    s += assistant(gen("greeting", max_tokens=8, temperature=0))


@pytest.mark.exhaustive
def test_an_http_address_of_this_machine_gives_the_runtime_s_own_connection(
    runtime: ramiform.Runtime, url: str
) -> None:
    with RuntimeEndpoint(url) as endpoint:
        channel = endpoint.connection()
        assert isinstance(channel, MovableChannel)  # over the runtime's own socket
        assert channel.address == runtime.address
        there = greet.run(backend=endpoint)
        assert ramiform.get_server_info(endpoint)["path"] == runtime.info.path
    here = greet.run(backend=runtime)
    assert there.messages() == here.messages()
    assert there.get_meta_info("greeting")["output_ids"] == here.get_meta_info("greeting")["output_ids"]


def test_where_its_socket_cannot_be_opened_only_http_is_used(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @ramiform.function
    def count(s: ProgramState) -> None:
        s += "One, two," + gen("next", max_tokens=3, temperature=0)

    with RuntimeEndpoint(url) as endpoint:
        expected = count.run(backend=endpoint)["next"]
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with RuntimeEndpoint(url) as endpoint:
        assert isinstance(endpoint.connection(), HttpChannel)
        assert count.run(backend=endpoint)["next"] == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "facts"),
    [
        (200, {"version": __version__}),
        (200, {"version": "0.0.0", "program_address": "ipc:///dev/null"}),
        (200, {"version": __version__, "program_address": "ipc:///nowhere/frontend"}),
        (200, {"version": __version__, "program_address": "tcp://127.0.0.1:1"}),
        (404, {"error": {"message": "no such route", "code": "not_found"}}),
    ],
    ids=["tells none", "another version", "no such socket", "no socket", "no such route"],
)
def test_a_server_that_tells_no_way_in_is_spoken_to_over_http(
    answering: Answer, status: int, facts: dict[str, Any]
) -> None:
    with RuntimeEndpoint(answering(status, facts)) as endpoint:
        assert isinstance(endpoint.connection(), HttpChannel)


@pytest.mark.slow
def test_a_wrong_key_is_an_error_at_once(answering: Answer) -> None:
    error = {"error": {"message": "invalid API key", "code": "invalid_api_key", "type": "invalid_request_error"}}
    endpoint = RuntimeEndpoint(answering(401, error), api_key="wrong")
    with pytest.raises(RequestError, match="invalid API key"):
        endpoint.connection()


def test_an_address_where_nothing_listens_is_named() -> None:
    endpoint = RuntimeEndpoint("http://127.0.0.1:1")
    with pytest.raises(RuntimeFailed, match=r"127\.0\.0\.1:1.*nothing listens"):
        endpoint.connection()
