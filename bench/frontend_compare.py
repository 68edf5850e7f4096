"""The frontend of this checkout beside another's: processor time per token, ratios of runs that alternate.

    git worktree add /tmp/before COMMIT
    python -P bench/frontend_compare.py /tmp/before [--rounds 8] [--out bench/results/frontend_MACHINE_DATE.md]

Both serve the model that ships, both at once; one works while the other waits. Processor time is that of the frontend
process, from its clock. On a machine that others use too a single figure says little and the ratio of neighbours much.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

import ramiform
from ramiform.bench.harness import Out, median_ratio, table, write
from ramiform.bench.raw_http import RawClient

WAYS = (("/v1/completions", True), ("/v1/chat/completions", True), ("/v1/completions", False))  # streamed or whole
LOADS = ((1, 300), (8, 100), (32, 60))  # streams at once, tokens of each
START = "import sys; sys.argv = ['ramiform', 'serve', *sys.argv[1:]]; from ramiform.cli import main; main()"


@dataclass(frozen=True)
class Server:
    pid: int
    url: str
    model: str

    @property
    def processor_seconds(self) -> float:
        """Processor time of the process that serves HTTP, without the core."""
        return time.clock_gettime((~self.pid << 3) | 2)  # as clock_getcpuclockid(3) makes it


@contextmanager
def serving(checkout: Path, folder: Path) -> Iterator[Server]:
    """Serve the runtime of a checkout, as the package `ramiform`."""
    folder.mkdir()
    (folder / "ramiform").symlink_to(checkout.resolve())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ["--port", str(port), "--num-pages", "4096", "--max-running", "64", "--log-level", "warning"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", START, *arguments],
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(folder)},
    )
    try:
        url = f"http://127.0.0.1:{port}"
        yield Server(process.pid, url, _model(process, url))
    finally:
        process.terminate()
        process.wait()


def _model(process: subprocess.Popen[bytes], url: str) -> str:
    """Wait until the server answers, and return the name of its model."""
    while process.poll() is None:
        try:
            answer = httpx.get(f"{url}/v1/models")
        except httpx.TransportError:
            time.sleep(0.1)
            continue
        if answer.status_code == 200:
            return str(answer.json()["data"][0]["id"])
        time.sleep(0.1)
    raise RuntimeError(f"the server ended with {process.returncode}")


def load(server: Server, route: str, streamed: bool, num: int, num_tokens: int) -> tuple[float, float]:
    """Return the frontend's processor microseconds per token, requests included, and tokens per second."""

    async def one(index: int) -> None:
        body: dict[str, Any] = {"model": server.model, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
        text = f"Ada went to house {index}"
        asked = {"messages": [{"role": "user", "content": text}]} if "chat" in route else {"prompt": text}
        async with RawClient(server.url) as client:
            _, answer = await client.stream(route, body | asked | {"stream": streamed})
        assert answer.endswith(b"data: [DONE]\n\n") or not streamed

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, range(num)))

    before, start = server.processor_seconds, time.perf_counter()
    asyncio.run(all_of_them())
    seconds = time.perf_counter() - start
    return (server.processor_seconds - before) / (num * num_tokens) * 1e6, num * num_tokens / seconds


def main(
    other: Annotated[Path, typer.Argument(help="a checkout of ramiform to compare with")],
    rounds: Annotated[int, typer.Option(help="of every load on both, the first of which does not count")] = 8,
    out: Out = None,
) -> None:
    costs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    rates: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours = stack.enter_context(serving(Path(ramiform.__file__).parent, folder / "this"))
        theirs = stack.enter_context(serving(other, folder / "other"))
        for number in range(rounds):
            for num, num_tokens in LOADS:
                for route, streamed in WAYS:
                    order = (theirs, ours) if number % 2 else (ours, theirs)
                    found = {server: load(server, route, streamed, num, num_tokens) for server in order}
                    if number:
                        name = f"{num} at once, {route}, {'streamed' if streamed else 'whole'}"
                        costs[name].append((found[theirs][0], found[ours][0]))
                        rates[name].append((found[theirs][1], found[ours][1]))
    rows = []
    for name in costs:
        row: dict[str, Any] = {"requests": name}
        for unit, pairs in (("us a token", costs[name]), ("tokens/s", rates[name])):
            others, mine = zip(*pairs, strict=True)
            row |= {f"{unit}, other": statistics.median(others), f"{unit}, this": statistics.median(mine)}
            row[f"{unit}, ratio"] = median_ratio(mine, others)
        rows.append(row)
    write(table(rows), out)


if __name__ == "__main__":
    typer.run(main)
