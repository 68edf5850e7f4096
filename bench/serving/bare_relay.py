"""Lower bound of the cost of a streamed token: a process that waits, takes a message from ZMQ and writes it to TCP.

    with BareRelay() as relay:
        relay.run(100, gap)

It has no event loop and leaves the message as it is, so its cost is that of the system and of ZMQ.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import tempfile
import time
from types import TracebackType

import zmq

EVENT = b"x" * 330  # bytes of a chunk of /v1/completions


def relay(address: str, port: int) -> None:
    """Forward every message at `address` to the connection at `port`, until an empty message."""
    messages = zmq.Context().socket(zmq.DEALER)
    messages.connect(address)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll = select.epoll()
        poll.register(messages.fileno(), select.EPOLLIN)
        messages.send(b"here")
        while True:
            while messages.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                data = messages.recv(zmq.NOBLOCK)
                if not data:
                    return
                connection.sendall(data)
            poll.poll()


class BareRelay:
    """The relaying process, with a ROUTER socket and a TCP connection of this process at its ends."""

    def __enter__(self) -> BareRelay:
        self._directory = tempfile.TemporaryDirectory()
        address = f"ipc://{self._directory.name}/relay"
        self._messages = zmq.Context.instance().socket(zmq.ROUTER)
        self._messages.bind(address)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = str(listener.getsockname()[1])
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ramiform.bench.serving.bare_relay", address, port]
            )
            self._connection, _ = listener.accept()
        self._peer, _ = self._messages.recv_multipart()
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, num: int, gap: float) -> None:
        """Send `num` events, `gap` seconds apart, and read each before the next is sent."""
        for _ in range(num):
            self._messages.send_multipart([self._peer, EVENT])
            missing = len(EVENT)
            while missing:
                missing -= len(self._connection.recv(missing))
            time.sleep(gap)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._messages.send_multipart([self._peer, b""])
        self._process.wait()
        self._messages.close()
        self._connection.close()
        self._directory.cleanup()


if __name__ == "__main__":
    relay(sys.argv[1], int(sys.argv[2]))
