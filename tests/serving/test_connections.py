"""Slow, hostile and vanished clients on raw sockets; other clients notice nothing."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from .prompts import CHAT

DEADLINE = 120.0  # seconds; far more than it takes
PATH = "/v1/chat/completions"
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"

Connect = Callable[[], socket.socket]


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    """Connections that are closed when the test ends."""
    parts = urlsplit(url)
    with ExitStack() as stack:
        yield lambda: stack.enter_context(socket.create_connection((parts.hostname, parts.port), timeout=120))


@pytest.fixture(autouse=True)
def unharmed(http: httpx.Client, model: str) -> Iterator[None]:
    """Someone else's answer is the same before and after, and then nothing runs and every page is back."""
    asked = {"model": model, "messages": CHAT, "temperature": 0}

    def answer() -> str:
        return http.post(PATH, json=asked).json()["choices"][0]["message"]["content"]  # type: ignore[no-any-return]

    before = answer()
    yield
    assert answer() == before
    deadline = time.monotonic() + DEADLINE
    while True:
        load = http.get("/get_server_info").json()
        free = load["num_free_pages"] + load["num_cached_pages"]
        if not load["num_running"] and not load["num_waiting"] and free == load["num_pages"]:
            break
        assert time.monotonic() < deadline, load


def request(**fields: Any) -> bytes:
    data = json.dumps({"messages": CHAT} | fields)
    return f"{HEAD}Content-Length: {len(data)}\r\n\r\n{data}".encode()


def received(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    parts = []
    while piece := connection.recv(65536):
        parts.append(piece)
    return b"".join(parts)


def test_requests_that_never_end_keep_nobody_waiting(connect: Connect, http: httpx.Client, model: str) -> None:
    beginnings = [b"", b"POST", HEAD.encode(), f"{HEAD}Content-Length: 100\r\n\r\n{{".encode()]
    beginnings.append(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n5\r\n".encode())
    for beginning in beginnings * 40:
        connect().sendall(beginning)
    assert http.post(PATH, json={"model": model, "messages": CHAT, "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_says_it_is_done_sending_is_let_go(connect: Connect, model: str, stream: bool) -> None:
    connection = connect()
    connection.sendall(request(model=model, stream=stream, max_tokens=1500, ignore_eos=True))
    connection.shutdown(socket.SHUT_WR)
    assert b"HTTP/1.1 5" not in received(connection)  # a whole answer or none: the connection ends


def test_a_client_that_never_reads_is_the_only_one_to_wait(connect: Connect, http: httpx.Client, model: str) -> None:
    deaf = connect()
    deaf.sendall(
        request(model=model, stream=True, n=16, max_tokens=400, ignore_eos=True, logprobs=True, top_logprobs=20)
    )
    assert deaf.recv(1) == b"H"  # it has begun
    assert http.post(PATH, json={"model": model, "messages": CHAT, "max_tokens": 1}).status_code == 200


def test_a_connection_that_is_cut_in_every_place_of_a_request(connect: Connect, model: str) -> None:
    whole = request(model=model, max_tokens=8, stream=True)
    for end in range(0, len(whole) + 1, 7):
        connection = connect()
        connection.sendall(whole[:end])
        # A reset, not a goodbye.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 5000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the start of TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
    ],
    ids=["NUL", "TLS", "version", "path", "negative length", "two lengths", "long header"],
)
def test_what_is_no_http_is_refused(connect: Connect, data: bytes) -> None:
    connection = connect()
    connection.sendall(data + b"\r\n\r\n")
    assert connection.recv(12).split()[1].startswith(b"4")


def test_a_body_longer_than_allowed_is_refused_before_it_comes(connect: Connect) -> None:
    connection = connect()
    connection.sendall(f"{HEAD}Content-Length: {1 << 40}\r\n\r\n".encode())
    head, _, body = received(connection).partition(b"\r\n\r\n")
    assert b" 413 " in head
    assert json.loads(body)["error"]["code"] == "request_too_large"


def test_a_body_that_grows_beyond_what_is_allowed_is_refused(connect: Connect) -> None:
    connection = connect()
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    connection.sendall(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
    for _ in range(33):  # one MiB more than the default allows
        connection.sendall(chunk)
    connection.sendall(b"0\r\n\r\n")
    assert b" 413 " in connection.recv(4096)


def test_a_client_that_reads_only_after_sending_gets_the_error_of_a_long_body(url: str) -> None:
    """`urllib` asks for the connection to be closed, and does not read before it has sent all."""
    for _ in range(3):
        asked = urllib.request.Request(f"{url}/v1/completions", data=b" " * (100 << 20))
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(asked, timeout=120)
        with caught.value as answer:
            assert (answer.code, json.load(answer)["error"]["code"]) == (413, "request_too_large")


def test_requests_in_one_go_are_answered_in_order(connect: Connect, model: str) -> None:
    connection = connect()
    last = b"GET /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    connection.sendall(request(model=model, max_tokens=1) + request(model="none") + last)
    answers = received(connection).split(b"HTTP/1.1 ")[1:]
    assert [int(answer[:3]) for answer in answers] == [200, 404, 404]
