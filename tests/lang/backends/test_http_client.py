"""The HTTP client against a server of sockets: every connection is closed in the end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from ramiform.lang.backends.http_client import HttpClient
from ramiform.lang.backends.model import ModelCall

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def read_head(connection: socket.socket) -> None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(4096)


@pytest.mark.parametrize("head", [b"", b"Connection: close\r\n"], ids=["kept alive", "ended by the server"])
def test_a_call_that_ends_after_close_closes_its_connection(listener: socket.socket, head: bytes) -> None:
    client = HttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}", None, timeout=60)
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(client.post("/x", None, ModelCall())))
    thread.start()
    connection, _ = listener.accept()
    with connection:
        read_head(connection)
        client.close()
        connection.sendall(ANSWER + head + b"\r\n{}")
        thread.join()
        assert answers == [{}]
        assert connection.recv(1) == b""  # the client has closed its side


def test_an_idle_connection_is_used_again(listener: socket.socket) -> None:
    client = HttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}", None, timeout=60)
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.extend(client.get("/x") for _ in range(2)))
    thread.start()
    connection, _ = listener.accept()
    with connection:
        for _ in range(2):
            read_head(connection)
            connection.sendall(ANSWER + b"\r\n{}")
        thread.join()
        client.close()
        assert connection.recv(1) == b""
    assert answers == [{}, {}]
