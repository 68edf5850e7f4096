"""Cost and savings of the language: overhead per operation, programs per second, round trips, tokens.

    python -P bench/lang.py [MODEL] [--tiny] [--json FILE]

Prints Markdown. The runtime is real and its model generates one token where only the way there is measured; the floor
of each figure, the same messages written to the wire by hand, stands beside it.
"""

from __future__ import annotations

import gc
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import httpx
import typer

import ramiform
from ramiform import ProgramState, gen
from ramiform.bench.harness import Json, Model, table, write_json
from ramiform.lang.backends.backend import get_server_info
from ramiform.runtime.protocol import session
from ramiform.runtime.protocol.client import Connection
from ramiform.runtime.protocol.errors import ErrorInfo

HEADER = (
    "Ada Brown lives in Paris and works as a driver. Tom Weber lives in Rome and likes chess. "
    "Nadia Haddad comes from Cairo, where she studies birds. Liam Lind has a flat in Oslo and a boat.\n"
) * 3
Row = dict[str, Any]


class Counting:
    """A backend that counts what a program sends; everything else is the runtime's."""

    def __init__(self, connection: Connection) -> None:
        self.num_messages = 0
        self._connection = connection

    def connection(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def send(self, message: Any) -> None:
        self.num_messages += 1
        self._connection.send(message)


class Listening:
    """Waits for the last of some answers, as bare as can be."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.last = -1

    def receive(self, message: Any) -> None:
        if message.op == self.last:
            self.arrived.set()

    def fail(self, error: ErrorInfo) -> None:
        raise error.to_exception()


@ramiform.function
def texts(s: ProgramState, size: int) -> None:
    for _ in range(size):
        s += "x"


@ramiform.function
def forks(s: ProgramState, size: int) -> None:
    for _ in range(size):
        branches = s.fork(2)
        branches += "x"
        branches.join()


@ramiform.function
def small(s: ProgramState, number: int) -> None:
    s += f"Question {number}: What is {number} plus 1?\nAnswer:"
    s += gen("answer", max_tokens=1, temperature=0)


@ramiform.function
async def small_async(s: ProgramState, number: int) -> None:
    small(s, number)
    await s.get("answer")


@ramiform.function
def interview(s: ProgramState, name: str) -> None:
    """Two generations in a row, then three branches: what each sees begins with what the one before has seen."""
    s += HEADER + f"Question: Where does {name} live?\nAnswer:" + gen("where", max_tokens=8, temperature=0)
    s += f"\nQuestion: What does {name} like?\nAnswer:" + gen("likes", max_tokens=8, temperature=0)
    branches = s.fork(3)
    branches += lambda index: f"\nFact {index} about {name}:" + gen("fact", max_tokens=8, temperature=0)
    branches.join()


def over_http(url: str, names: Sequence[str]) -> tuple[float, int, int, int]:
    """Run the programs with a client that resends the text; return seconds, tokens sent and prefilled, calls."""
    sent = prefilled = calls = 0
    with httpx.Client(timeout=600) as client:

        def complete(text: str) -> str:
            nonlocal sent, prefilled, calls
            sampling = {"max_new_tokens": 8, "temperature": 0}
            answer = client.post(f"{url}/generate", json={"text": text, "sampling_params": sampling}).json()
            meta = answer["meta_info"]
            sent, calls = sent + meta["prompt_tokens"], calls + 1
            prefilled += meta["prompt_tokens"] - meta["cached_tokens"]
            return str(answer["text"])

        start = time.perf_counter()
        for name in names:
            text = HEADER + f"Question: Where does {name} live?\nAnswer:"
            text += complete(text)
            text += f"\nQuestion: What does {name} like?\nAnswer:"
            text += complete(text)
            for index in range(3):
                complete(text + f"\nFact {index} about {name}:")
        return time.perf_counter() - start, sent, prefilled, calls


def over_wire(run: Callable[[], Sequence[ProgramState]]) -> tuple[float, int, int, int]:
    """Run programs of the language; return the figures of `over_http`. Appended tokens count as sent once."""
    start = time.perf_counter()
    states = run()
    seconds = time.perf_counter() - start
    sent = prefilled = calls = 0
    for state in states:
        metas = [state.get_meta_info(name) for name in ("where", "likes")] + state.get_meta_info("fact")
        sent += max(meta["prompt_tokens"] for meta in metas)
        prefilled += sum(meta["prompt_tokens"] - meta["cached_tokens"] for meta in metas)
        calls += len(metas)
    return seconds, sent, prefilled, calls


def by_hand(connection: Connection, size: int) -> float:
    """Seconds for `size` Text operations, a message each, without the language."""
    listening = Listening()
    listening.last = size - 1
    state = connection.attach(listening)
    start = time.perf_counter()
    connection.send(session.Open(state, state))
    for op in range(size):
        connection.send(session.Append(state, op, [session.Text("x")]))
    listening.arrived.wait()
    seconds = time.perf_counter() - start
    connection.detach(state)
    return seconds


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def median(repeat: int, run: Callable[[], float]) -> float:
    """Return the median of `repeat` runs after one that warms up."""
    run()
    gc.collect()
    return statistics.median(run() for _ in range(repeat))


def imports(repeat: int) -> list[Row]:
    """Milliseconds of a new process that does this and ends, its interpreter's start included, and without it."""
    scripts = {
        "nothing": "pass",
        "import ramiform": "import ramiform",
        "import ramiform, and what connects to a runtime": "import ramiform, ramiform.runtime.protocol.client",
    }
    taken = {
        name: median(repeat, lambda script=script: seconds(lambda: _in_process(script)))  # type: ignore[misc]
        for name, script in scripts.items()
    }
    return [
        {"a process that does": name, "ms": total * 1e3, "ms without the interpreter": (total - taken["nothing"]) * 1e3}
        for name, total in taken.items()
    ]


def _in_process(script: str) -> None:
    subprocess.run([sys.executable, "-P", "-c", script], check=True)


def recorded(program: ramiform.Program, size: int) -> float:
    """Seconds until the program has been said, without waiting for what it does."""

    @ramiform.function
    def body(s: ProgramState) -> None:
        nonlocal taken
        start = time.perf_counter()
        program(s, size)
        taken = time.perf_counter() - start

    taken = 0.0
    body.run()
    return taken


def overheads(connection: Connection, size: int, repeat: int) -> list[Row]:
    compiled = {program: ramiform.function(program.function) for program in (texts, forks)}
    for program in compiled.values():
        program.compile(size=1)
    per_text = {
        "by hand": lambda: by_hand(connection, size),
        "said": lambda: recorded(texts, size),
        "run": lambda: seconds(lambda: texts.run(size=size)),
        "compiled": lambda: seconds(lambda: compiled[texts].run(size=size)),
    }
    rows: list[Row] = [
        {"operation": f"text, {name}", "us": median(repeat, run) / size * 1e6} for name, run in per_text.items()
    ]
    per_fork = {
        "said": lambda: recorded(forks, size),
        "run": lambda: seconds(lambda: forks.run(size=size)),
        "compiled": lambda: seconds(lambda: compiled[forks].run(size=size)),
    }
    for name, run in per_fork.items():
        rows.append(
            {"operation": f"fork of 2 with a text each and join, {name}", "us": median(repeat, run) / size * 1e6}
        )
    return rows


def throughput(size: int, repeat: int) -> list[Row]:
    batch = [{"number": number} for number in range(size)]
    compiled = ramiform.function(small.function)
    compiled.compile(number=1)
    ways: dict[str, Callable[[], Any]] = {
        "threads": lambda: small.run_batch(batch),
        "async": lambda: small_async.run_batch(batch),
        "compiled": lambda: compiled.run_batch(batch),
    }
    return [
        {"way": name, "programs": size, "programs/s": size / median(repeat, lambda run=run: seconds(run))}  # type: ignore[misc]
        for name, run in ways.items()
    ]


def round_trips(connection: Connection, url: str) -> list[Row]:
    """Messages from the client for one program; a call over HTTP is one, and waits for its answer besides."""
    compiled = ramiform.function(interview.function)
    compiled.compile(name="Ada Brown")
    rows: list[Row] = []
    for name, program in (("plain", interview), ("compiled", compiled)):
        counting = Counting(connection)
        program.run(name="Ada Brown", backend=counting)
        rows.append({"way": name, "messages": counting.num_messages})
    return [*rows, {"way": "HTTP", "messages": over_http(url, ["Ada Brown"])[3]}]


def against_http(url: str, num_programs: int) -> list[Row]:
    names = [f"Ada {number}" for number in range(num_programs)]
    compiled = ramiform.function(interview.function)
    compiled.compile(name="Ada")
    arguments = [{"name": name} for name in names]
    ways: dict[str, Callable[[], tuple[float, int, int, int]]] = {
        "HTTP, text resent": lambda: over_http(url, names),
        "language, one after the other": lambda: over_wire(lambda: [interview.run(**one) for one in arguments]),
        "language, compiled batch": lambda: over_wire(lambda: compiled.run_batch(arguments)),
    }
    rows = []
    for name, run in ways.items():
        run()  # warm
        ramiform.flush_cache()
        taken, sent, prefilled, calls = run()
        rows.append({"way": name, "calls": calls, "tokens sent": sent, "tokens prefilled": prefilled, "s": taken})
    return rows


def main(
    model: Model = None,
    repeat: Annotated[int, typer.Option(help="runs of each figure, after one that warms up")] = 5,
    operations: Annotated[int, typer.Option(help="in a program whose overhead is measured")] = 500,
    programs: Annotated[int, typer.Option(help="at once")] = 1000,
    tiny: Annotated[bool, typer.Option(help="as little as shows that it works")] = False,
    output: Json = None,
) -> None:
    if tiny:
        repeat, operations, programs = 1, 10, 20
    with ramiform.Runtime(model, port=0, log_level="error") as runtime:
        ramiform.set_default_backend(runtime)
        connection = runtime.connection()
        info = get_server_info()
        assert runtime.url is not None
        tables = {
            "Importing": imports(repeat),
            "Overhead per operation": overheads(connection, operations, repeat),
            "Programs at once": throughput(programs, repeat),
            "Round trips of a program of 5 generations": round_trips(connection, runtime.url),
            "Ten programs against a client that resends": against_http(runtime.url, 10),
        }
    print(
        f"{info['name']}, {info['dtype']} on {info['device']}, Python {platform.python_version()}, median of {repeat}\n"
    )
    for title, rows in tables.items():
        print(f"### {title}\n\n{table(rows)}\n")
    write_json({"info": info, "repeat": repeat, "tables": tables}, output)


if __name__ == "__main__":
    typer.run(main)
