"""Hostile connections: how much longer other clients wait while thousands of connections do a server harm.

    python -P bench/serving/hostile.py [--connections 10000] [--out bench/results/hostile_MACHINE_DATE.md]

Clients stream answers all the time, some over one connection and some over a new one for each request. In turn they are
alone, and beside hostile connections from other addresses: idle ones, heads and bodies that arrive a byte at a time,
garbage, floods of header fields, and readers that do not read. One that the server closes is opened again
after a while. The hostile connections are opened anew in each round, while the clients are measured.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import selectors
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

import typer

from ramiform.bench.harness import Out, cell, median_ratio, percentile, report, table
from ramiform.bench.raw_http import RawClient

TARGET = 2.0  # of each p99, with and without them
MAX_TOKENS = 16
NUM_CLIENTS = 6
HEAD = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
FIRST_BYTES = {  # of each kind of client
    "idle": b"",
    "slow head": HEAD[:40],
    "half body": HEAD + b'content-length: 100000\r\n\r\n{"text": "',
    "garbage": random.Random(1).randbytes(1000),
    "header flood": HEAD + b"".join(b"x-%d: %s\r\n" % (number, b"y" * 400) for number in range(160)),
    "no reader": b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n",
}
DRIP_SECONDS = 1.0  # between the bytes of a slow head or body


@dataclass(eq=False)
class Hostile:
    """One hostile client, which has one connection after the other."""

    kind: str
    address: str
    socket: socket.socket | None = None
    num_ended: int = 0  # connections


@dataclass
class Attack:
    """Hostile clients in one thread, driven by readiness and a queue of times."""

    port: int
    clients: list[Hostile]
    opening: float  # seconds until all connections are open; and from the end of one to the next
    due: list[tuple[float, int, Hostile, int]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def run(self, stop: int) -> None:
        """Attack until the descriptor `stop` is readable."""
        selector = selectors.EpollSelector()
        selector.register(stop, selectors.EVENT_READ)
        for number, client in enumerate(self.clients):  # at an even rate
            self._later(client, self.opening * number / len(self.clients))
        while True:
            wait = max(0.0, self.due[0][0] - time.monotonic()) if self.due else None
            for key, _ in selector.select(wait):
                if key.data is None:
                    return
                self._read(selector, key.data)
            while self.due and self.due[0][0] <= time.monotonic():
                _, _, client, num_ended = heapq.heappop(self.due)
                if client.num_ended == num_ended:  # else it was of a connection that has ended
                    self._act(selector, client)

    def _later(self, client: Hostile, seconds: float) -> None:
        heapq.heappush(self.due, (time.monotonic() + seconds, id(client), client, client.num_ended))

    def _act(self, selector: selectors.BaseSelector, client: Hostile) -> None:
        """Open the connection, or send one more byte."""
        try:
            if client.socket is None:
                self._open(selector, client)
            else:
                client.socket.send(b"x")
            if client.kind in ("slow head", "half body"):
                self._later(client, DRIP_SECONDS)
        except OSError:
            self._close(selector, client)

    def _open(self, selector: selectors.BaseSelector, client: Hostile) -> None:
        client.socket = connection = socket.socket()
        connection.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT: many ports per address
        if client.kind == "no reader":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.bind((client.address, 0))
        connection.settimeout(5.0)
        connection.connect(("127.0.0.1", self.port))
        connection.setblocking(False)
        self.counts["opened"] += 1
        connection.send(FIRST_BYTES[client.kind])
        if client.kind != "no reader":
            selector.register(connection, selectors.EVENT_READ, client)

    def _read(self, selector: selectors.BaseSelector, client: Hostile) -> None:
        assert client.socket is not None
        try:
            data = client.socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.counts[f"status {data[9:12].decode()}" if data.startswith(b"HTTP/1.1 ") else "data"] += 1
        else:
            self._close(selector, client)

    def _close(self, selector: selectors.BaseSelector, client: Hostile) -> None:
        self.counts["closed by the server"] += 1
        connection, client.socket = client.socket, None
        if connection is not None:
            if connection.fileno() in (selector.get_map() or {}):
                selector.unregister(connection)
            connection.close()
        client.num_ended += 1
        self._later(client, self.opening)


@dataclass
class Measured:
    """Waiting times of the other clients in a round, in milliseconds."""

    kept: list[float] = field(default_factory=list)  # from the request to the first token, on an open connection
    new: list[float] = field(default_factory=list)  # from connecting to the first token
    between: list[float] = field(default_factory=list)  # tokens
    failures: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        return {
            f"{name} p{percent}": percentile(values, percent)
            for name, values in (
                ("TTFT, all", self.kept + self.new),
                ("TTFT, kept connection", self.kept),
                ("TTFT, new connection", self.new),
                ("ITL", self.between),
            )
            for percent in (50, 99)
        }


async def measure(url: str, seconds: float) -> Measured:
    """Stream answers to NUM_CLIENTS clients for that long."""
    measured = Measured()
    end = time.monotonic() + seconds

    async def stream(client: RawClient, number: int, start: float) -> None:
        sampling = {"max_new_tokens": MAX_TOKENS, "ignore_eos": True, "temperature": 0}
        body = {"text": f"Client {number} asks for a story", "sampling_params": sampling, "stream": True}
        times, _ = await client.stream("/generate", body)
        first = measured.kept if number % 2 else measured.new
        first.append((time.perf_counter() - start - (times[-1] - times[0])) * 1000)
        measured.between += [(after - before) * 1000 for before, after in pairwise(times[:MAX_TOKENS])]

    async def keeps(number: int) -> None:
        async with RawClient(url) as client:
            while time.monotonic() < end:
                await stream(client, number, time.perf_counter())

    async def reconnects(number: int) -> None:
        while time.monotonic() < end:
            start = time.perf_counter()
            async with RawClient(url) as client:
                await stream(client, number, start)

    async def tried(number: int) -> None:
        while time.monotonic() < end:
            try:
                await (keeps if number % 2 else reconnects)(number)
            except (RuntimeError, OSError, EOFError) as error:
                measured.failures.append(repr(error)[:100])

    await asyncio.gather(*(tried(number) for number in range(NUM_CLIENTS)))
    return measured


def attacked(url: str, attack: Sequence[int], seconds: float) -> tuple[Measured, dict[str, str]]:
    """Measure beside the hostile connections, which are another process."""
    command = [sys.executable, "-P", __file__, "--attack", ",".join(map(str, attack))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as attacker:
        assert attacker.stdin is not None
        assert attacker.stdout is not None
        attacker.stdout.readline()  # it begins
        measured = asyncio.run(measure(url, seconds))
        attacker.stdin.close()
        counts = attacker.stdout.read()
    return measured, dict(line.split(": ", 1) for line in counts.splitlines())


def _attack(port: int, connections: int, addresses: int, opening: int) -> None:
    kinds = itertools.cycle(FIRST_BYTES)
    clients = [Hostile(next(kinds), f"127.0.0.{2 + n % addresses}") for n in range(connections)]
    attack = Attack(port, clients, opening)
    print("begins", flush=True)
    attack.run(sys.stdin.fileno())
    print(f"open at the end: {sum(client.socket is not None for client in clients)}")
    for name, count in sorted(attack.counts.items()):
        print(f"{name}: {count}")


def main(
    connections: Annotated[int, typer.Option(help="hostile connections, of all kinds")] = 10_000,
    opening: Annotated[
        int, typer.Option(help="seconds in which they are opened, and between one's end and the next")
    ] = 20,
    addresses: Annotated[int, typer.Option(help="loopback addresses that they come from")] = 8,
    seconds: Annotated[float, typer.Option(help="of a measurement")] = 30.0,
    rounds: Annotated[int, typer.Option(help="measurements of each kind, in turn")] = 3,
    out: Out = None,
    attack: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    if attack is not None:
        return _attack(*map(int, attack.split(",")))
    import ramiform

    quiet, hostile = [], []
    with ramiform.Runtime(port=0, log_level="error") as runtime:
        assert runtime.url is not None
        assert runtime.http_port is not None
        asyncio.run(measure(runtime.url, 3.0))  # warms up
        for _ in range(rounds):
            quiet.append(asyncio.run(measure(runtime.url, seconds)))
            hostile.append(attacked(runtime.url, (runtime.http_port, connections, addresses, opening), seconds))
            time.sleep(1.0)
    alone = [measured.figures() for measured in quiet]
    beside = [measured.figures() for measured, _ in hostile]
    rows = [
        {
            "milliseconds": name,
            "alone": cell(percentile([figures[name] for figures in alone], 50)),
            "beside them": cell(percentile([figures[name] for figures in beside], 50)),
            "ratio": median_ratio([f[name] for f in beside], [f[name] for f in alone]),
            "ratios of the rounds": ", ".join(f"{b[name] / a[name]:.2f}" for a, b in zip(alone, beside, strict=True)),
        }
        for name in alone[0]
    ]
    failures = Counter(failure for measured, _ in hostile for failure in measured.failures)
    requests = [f"{len(a.kept + a.new)} and {len(b.kept + b.new)}" for a, (b, _) in zip(quiet, hostile, strict=True)]
    lines = [
        table(rows),
        f"Target: each p99 at most {TARGET:g} times. Requests alone and beside them, by round: {'; '.join(requests)}.",
        f"Failed requests of the other clients: {dict(failures) or 'none'}.",
        f"Hostile clients of the last round: {', '.join(f'{name} {num}' for name, num in hostile[-1][1].items())}.",
    ]
    report("Hostile connections", *lines, out=out)


if __name__ == "__main__":
    typer.run(main)
