"""Does a server's memory stay? Hours of a mixed light load, and thousands of programs with large texts.

    python -P tests/chaos/soak.py [--seconds 7200] [--rate 3] [--programs 3200] [--out FILE]

The load comes to rest early: requests draw their texts from a pool and their answers are greedy, so that histories and
grammars repeat; the load deletes what it stores after a while; and large texts fill the log of records first. What
grows after ten minutes is then no store that is not full yet. The memory of each process is read every thirty seconds:
resident pages that are no file's, since the system drops and reloads those of files as it likes. Growth is the median
of the last ten samples over that of the ten after the tenth minute.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import statistics
import sys
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

import ramiform
from ramiform.runtime.frontend.records.log import MAX_LOG_BYTES
from ramiform.tests.chaos.server import ChaosServer, serving
from ramiform.tests.chaos.walk import Flags
from ramiform.tests.composition.mix import WORDS, branches, conversation, thoughts

SAMPLE_SECONDS = 30.0
SETTLING_SECONDS = 600.0  # what memory is at their end is what it should stay at
MAX_GROWTH = 2 << 20  # bytes after that
LARGE = 400_000  # characters of a program's text
MAX_ABOVE_START = MAX_LOG_BYTES + 100_000_000  # bytes that programs with large texts may take
WORKERS = 12
NUM_TEXTS = 200  # different ones in each kind of request
NUM_STORED = 50  # responses and conversations that the load leaves stored
TOOL = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}

CHAT = "/v1/chat/completions"
GREEDY = {"temperature": 0}

Load = Callable[["Clients"], Any]


class Clients:
    """Sends the requests of one run, with random words that make each another one."""

    def __init__(self, server: ChaosServer) -> None:
        self.http = server.at.client(limits=httpx.Limits(max_connections=None, max_keepalive_connections=WORKERS))
        self.programs = ramiform.RuntimeEndpoint(server.at.program_address)
        self.http_programs = ramiform.HttpRuntime(server.at.url)
        self.draw = random.Random(1)
        self.stored: deque[str] = deque()  # paths of responses and conversations
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()

    def words(self, number: int = 20) -> str:
        return " ".join(random.Random(self.draw.randrange(NUM_TEXTS)).choices(WORDS, k=number))

    def messages(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self.words()}]

    def store(self, path: str, body: dict[str, Any]) -> str:
        """Create an object, delete the oldest one beyond NUM_STORED, and return its id."""
        made = self.post(path, body)
        self.stored.append(f"{path}/{made['id']}")
        if len(self.stored) > NUM_STORED:
            self.http.delete(self.stored.popleft()).raise_for_status()
        return str(made["id"])

    def post(self, path: str, body: dict[str, Any], status: int = 200) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.status_code == status, (path, answer.status_code, answer.text[:500])
        return answer.json()

    def stream(self, path: str, body: dict[str, Any], leave_after: int | None = None) -> None:
        """Read a stream, to its end or up to so many lines."""
        with self.http.stream("POST", path, json=body | {"stream": True}) as answer:
            assert answer.status_code == 200, (path, answer.status_code, answer.read()[:500])
            for _ in itertools.islice(answer.iter_lines(), leave_after):
                pass


def _constrained(at: Clients) -> None:
    schema = {
        "type": "object",
        "properties": {f"{name}{place}": {"maximum": 99} for place, name in enumerate(at.words(3).split())},
        "additionalProperties": {"type": "integer", "maximum": 9},
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    at.post(CHAT, {"messages": at.messages(), "max_tokens": 24, "response_format": form} | GREEDY)


def _called(at: Clients) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": TOOL}}
    body = {"messages": at.messages(), "max_tokens": 40, "tools": [tool], "tool_choice": "required"}
    at.post(CHAT, body | GREEDY)


def _responses(at: Clients) -> None:
    first = at.store("/v1/responses", {"input": at.words(), "max_output_tokens": 16} | GREEDY)
    body = {"input": "And?", "max_output_tokens": 16, "previous_response_id": first, "store": False}
    at.stream("/v1/responses", body | GREEDY)


def _in_conversation(at: Clients) -> None:
    made = at.store("/v1/conversations", {"metadata": {"topic": at.words(2)}})
    body = {"input": at.words(), "max_output_tokens": 8, "conversation": made, "store": False}
    at.post("/v1/responses", body | GREEDY)


def _aborted(at: Clients) -> None:
    rid = uuid.uuid4().hex
    body = {"text": at.words(), "rid": rid, "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}
    with at.http.stream("POST", "/generate", json=body | {"stream": True}) as answer:
        for number, _ in enumerate(answer.iter_lines()):
            if number == 4:
                at.http.post("/abort_request", json={"rid": rid})


def large_program(at: Clients, over_http: bool) -> None:
    text = f"{at.draw.random()} {at.words(2_000)} " * (LARGE // 8_000)
    text = text[:LARGE].ljust(LARGE, ".")

    @ramiform.function
    def reads(s: ramiform.ProgramState) -> None:
        s += text

    state = reads.run(backend=at.http_programs if over_http else at.programs)
    state.sync()  # the server has it
    state.close()


def _program(function: ramiform.Program, **arguments: Any) -> Load:
    def run(at: Clients) -> None:
        state = function.run(text=at.words(), seed=at.draw.randrange(1 << 20), backend=at.programs, **arguments)
        state.text()
        state.close()

    return run


LOADS: dict[str, Load] = {
    "chat": lambda at: at.post(CHAT, {"messages": at.messages(), "max_tokens": 24, "logprobs": True} | GREEDY),
    "stream": lambda at: at.stream(CHAT, {"messages": at.messages(), "max_tokens": 24, "n": 2} | GREEDY),
    "client that leaves": lambda at: at.stream(
        CHAT, {"messages": at.messages(), "max_tokens": 300, "ignore_eos": True}, 8
    ),
    "aborted": _aborted,
    "completion": lambda at: at.post("/v1/completions", {"prompt": at.words(), "max_tokens": 24, "stop": ["xyz"]}),
    "constrained": _constrained,
    "called": _called,
    "responses": _responses,
    "conversation": _in_conversation,
    "messages": lambda at: at.post("/v1/messages", {"messages": at.messages(), "max_tokens": 24} | GREEDY),
    "messages, streamed": lambda at: at.stream("/v1/messages", {"messages": at.messages(), "max_tokens": 24} | GREEDY),
    "ollama": lambda at: at.stream("/api/chat", {"messages": at.messages(), "options": {"num_predict": 16} | GREEDY}),
    "regex": lambda at: at.post("/generate", {"text": at.words(), "sampling_params": {"regex": r"[a-z]{3} \d"}}),
    "tokens": lambda at: at.post("/tokenize", {"prompt": at.words(200)}),
    "refused": lambda at: at.post("/v1/completions", {"prompt": at.words(), "zebra": 1}, status=400),
    "unknown model": lambda at: at.post(CHAT, {"model": "none", "messages": at.messages()}, status=404),
    "metrics": lambda at: at.http.get("/metrics").raise_for_status(),
    "branches": _program(branches, width=2, concatenated=False),
    "thoughts": _program(thoughts),
    "talk": _program(conversation, turns=2),
    "large text": lambda at: large_program(at, False),
    "large text over HTTP": lambda at: large_program(at, True),
}
FILLS = {"large text": 200, "constrained": NUM_TEXTS}  # that many before the load


def own_bytes(pid: int) -> int:
    """Return the resident bytes of a process that are no file's."""
    [found] = re.findall(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found) << 10


class Memory:
    """Memory of a server's processes, read until the end of its block."""

    def __init__(self, server: ChaosServer, out: Path | None, counts: Counter[str]) -> None:
        kinds = {pid: kind for pid, kind in server.processes().items() if kind != "template"}
        self.names = {pid: "frontend" if kind == "main" else kind for pid, kind in kinds.items()}
        self.rows: list[tuple[float, dict[str, int]]] = []
        self._began, self._out, self._counts = time.monotonic(), out, counts
        self.read()

    def read(self) -> dict[str, int]:
        now = {name: own_bytes(pid) for pid, name in self.names.items()}
        self.rows.append((time.monotonic() - self._began, now))
        line = f"{self.rows[-1][0]:8.0f} s  " + "  ".join(
            f"{name} {size / 2**20:8.2f} MiB" for name, size in now.items()
        )
        line += f"  requests {self._counts.total()}"
        print(line, flush=True)
        if self._out is not None:
            with self._out.open("a") as file:
                file.write(line + "\n")
        return now

    @contextmanager
    def watched(self) -> Iterator[None]:
        over = threading.Event()

        def watch() -> None:
            while not over.wait(SAMPLE_SECONDS):
                self.read()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def growth(self) -> dict[str, int]:
        """Return the growth of each process after the first ten minutes, in bytes."""
        settled = [sizes for seconds, sizes in self.rows if seconds >= SETTLING_SECONDS]
        assert len(settled) >= 20, "ten minutes more are needed to tell growth"
        first, last = settled[:10], settled[-10:]
        return {
            name: int(statistics.median(row[name] for row in last) - statistics.median(row[name] for row in first))
            for name in self.names.values()
        }


def soak(server: ChaosServer, seconds: float, rate: float, out: Path | None) -> bool:
    """Conduct the load at `rate` requests a second. Return True if no process grew by more than MAX_GROWTH."""
    at = Clients(server)
    memory = Memory(server, out, at.counts)
    end = time.monotonic() + seconds
    failures: list[str] = []

    def conduct(name: str, load: Load) -> None:
        try:
            load(at)
        except Exception as error:  # of a client: the run goes on, and tells
            failures.append(f"{name}: {error!r}")
            name = "failed"
        with at.lock:
            at.counts[name] += 1

    with memory.watched(), ThreadPoolExecutor(WORKERS) as pool:
        for name, number in FILLS.items():
            list(pool.map(conduct, [name] * number, [LOADS[name]] * number))
        print(f"filled after {time.monotonic() - end + seconds:.0f} s", flush=True)
        due, names = time.monotonic(), list(LOADS)
        while due < end:
            name = at.draw.choice(names)
            pool.submit(conduct, name, LOADS[name])
            due += at.draw.expovariate(rate)
            time.sleep(max(0.0, due - time.monotonic()))
    growth = memory.growth()
    lines = [f"requests: {dict(at.counts)}", *failures[:10]]
    lines += [f"{name} grew by {size / 2**20:.2f} MiB after the first ten minutes" for name, size in growth.items()]
    print("\n".join(lines), flush=True)
    if out is not None:
        with out.open("a") as file:
            file.write("\n".join(lines) + "\n")
    return not failures and all(size <= MAX_GROWTH for size in growth.values())


def large_texts(server: ChaosServer, number: int, over_http: bool) -> bool:
    """Run programs with large texts. Return True if no process takes more than MAX_ABOVE_START for them."""
    at = Clients(server)
    memory = Memory(server, None, at.counts)
    start = memory.rows[0][1]
    with memory.watched(), ThreadPoolExecutor(2) as pool:
        for _ in pool.map(lambda _: large_program(at, over_http), range(number)):
            at.counts["large text"] += 1
    memory.read()
    most = {name: max(sizes[name] for _, sizes in memory.rows) - start[name] for name in start}
    sizes = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in most.items())
    print(f"{number} programs over {'HTTP' if over_http else 'ZMQ'}: most above the start, MiB: {sizes}")
    return all(size <= MAX_ABOVE_START for size in most.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=7200.0, help="of the mixed load; 0: none")
    parser.add_argument("--rate", type=float, default=3.0, help="requests a second after the stores are full")
    parser.add_argument(
        "--programs", type=int, default=0, help="with texts of 400 KB, on a server of their own, over ZMQ and over HTTP"
    )
    parser.add_argument("--out", type=Path, help="write the samples here too")
    options = parser.parse_args()
    good = True
    if options.seconds:
        with serving(Flags()) as server:
            good &= soak(server, options.seconds, options.rate, options.out)
    for over_http in (False, True) if options.programs else ():
        with serving(Flags()) as server:
            good &= large_texts(server, options.programs, over_http)
    sys.exit(not good)


if __name__ == "__main__":
    main()
