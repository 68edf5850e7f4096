"""Memory of a server under hours of constraints that it has not seen before.

    python -P bench/serving/soak.py [--hours 2] [--cores 0.25] [--cases FOLDER] --lines FILE [--name 2core-cpu_202611]
    python -P bench/serving/soak.py --read --lines FILE

A server of its own, with random weights of one layer, answers JSON schemas, patterns, grammars, tools and prompts,
over four routes. Nearly all are new: names, bounds and prompts are drawn, and FOLDER has MaskBench's files. Four
clients send them as fast as `--cores` allows, the server's processor time included. Each minute a line of JSON is
written to FILE: memory of each process from /proc (RSS, PSS, private), and what the server counts itself. The report
fits a line through the last hour.
"""

from __future__ import annotations

import json
import random
import statistics
import string
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import httpx
import psutil
import typer

import ramiform
from ramiform.bench.grammar.cases import load_cases
from ramiform.bench.harness import table, write
from ramiform.bench.random_models import tiny_llama

RESULTS = Path(__file__).parents[1] / "results"
COUNTED = ("grammars", "grammar_bytes", "grammar_renewals_total", "cached_pages", "generated_tokens_total")
NUM_CLIENTS = 4
MAX_TOKENS = 64


def word(rng: random.Random, length: int = 8) -> str:
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, length)))


def pattern(rng: random.Random) -> str:
    """Draw a regular expression of a few parts, with classes, bounds and alternatives of its own."""
    low = rng.randint(0, 4)
    parts = [
        rng.choice([word(rng), r"\d", r"\w", f"[{rng.choice('abcde')}-{rng.choice('vwxyz')}0-{rng.randint(1, 9)}]"])
        + rng.choice(["", "+", "*", f"{{{low},{low + rng.randint(1, 12)}}}"])
        for _ in range(rng.randint(1, 5))
    ]
    return rng.choice(["", "^"]) + f"(?:{'|'.join(word(rng) for _ in range(3))})?" + "".join(parts)


def schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """Draw a JSON schema; objects have names that no other schema has."""
    kind = rng.choice(["string", "integer", "number", "enum", "boolean"] + ["object", "array", "anyOf"] * depth)
    low = rng.randint(0, 99)
    match kind:
        case "object":
            members = {word(rng, 12): schema(rng, depth - 1) for _ in range(rng.randint(1, 6))}
            required = rng.sample(sorted(members), rng.randint(0, len(members)))
            return {
                "type": "object",
                "properties": members,
                "required": required,
                "additionalProperties": rng.random() < 0.2,
            }
        case "array":
            return {"type": "array", "items": schema(rng, depth - 1), "minItems": low % 3, "maxItems": low % 3 + 4}
        case "anyOf":
            return {"anyOf": [schema(rng, depth - 1) for _ in range(rng.randint(2, 3))]}
        case "string":
            bounds = {"minLength": low % 5, "maxLength": low}
            return {"type": kind} | rng.choice([bounds, {"pattern": pattern(rng)}, {"format": "date-time"}])
        case "integer" | "number":
            return {"type": kind, "minimum": low, "maximum": low + rng.randint(0, 10**6)}
        case "enum":
            return {"enum": [word(rng) for _ in range(rng.randint(1, 9))]}
    return {"type": kind}


def grammar(rng: random.Random) -> str:
    """Draw a Lark grammar of nested lists of words."""
    words = " | ".join(json.dumps(word(rng)) for _ in range(rng.randint(2, 12)))
    return f'start: item ("{rng.choice(",;|")}" item)*\nitem: "(" start ")" | NAME | {words}\nNAME: /{pattern(rng)}/'


def request(rng: random.Random, schemas: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """Draw a route and a body."""
    prompt = " ".join(word(rng) for _ in range(rng.randint(4, 60)))
    sampling = {"temperature": 1.0, "seed": rng.randrange(2**31)}
    chat = {"messages": [{"role": "user", "content": prompt}], "max_tokens": MAX_TOKENS, **sampling}
    known = rng.choice(schemas) if schemas and rng.random() < 0.4 else None
    drawn = schema(rng) if known is None else known
    native = {"text": prompt, "sampling_params": {"max_new_tokens": MAX_TOKENS, "temperature": 1.0}}
    match rng.randrange(8):
        case 0 | 1:
            asked = {"type": "json_schema", "json_schema": {"name": "drawn", "schema": drawn}}
            return "/v1/chat/completions", {**chat, "response_format": asked, "stream": rng.random() < 0.5}
        case 2:
            tool = {"name": word(rng, 12), "parameters": {"type": "object", "properties": {word(rng): schema(rng, 2)}}}
            body = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"}
            return "/v1/chat/completions", chat | body
        case 3:
            return "/v1/completions", {"prompt": prompt, "max_tokens": MAX_TOKENS, "regex": pattern(rng), **sampling}
        case 4:
            native["sampling_params"] |= {"json_schema": json.dumps(drawn), "stop": [word(rng)]}
        case 5:
            native["sampling_params"] |= {"ebnf": grammar(rng)}
        case 6:
            native["sampling_params"] |= {"regex": pattern(rng), "n": 2, "stop_regex": pattern(rng)}
        case _:
            body = {"input": prompt, "max_output_tokens": MAX_TOKENS, "temperature": 1.0, "store": rng.random() < 0.1}
            return "/v1/responses", body
    return "/generate", native


class Load:
    """Clients that share a budget of processor time with the server."""

    def __init__(self, url: str, processes: Sequence[psutil.Process], cores: float, schemas: Sequence[Any]) -> None:
        self.outcomes: Counter[str] = Counter()
        self.ended = threading.Event()
        self._url, self._processes, self._cores, self._schemas = url, processes, cores, schemas
        self._began, self._spent = time.monotonic(), self._cpu_seconds()
        self._threads = [threading.Thread(target=self._send, args=(seed,)) for seed in range(NUM_CLIENTS)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self.ended.set()
        for thread in self._threads:
            thread.join()

    def _cpu_seconds(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)

    def _send(self, seed: int) -> None:
        rng = random.Random(seed)
        with httpx.Client(base_url=self._url, timeout=600) as client:
            while not self.ended.is_set():
                route, body = request(rng, self._schemas)
                answer = client.post(route, json=body)
                self.outcomes[f"{answer.status_code}"] += 1
                if answer.status_code not in (200, 400):
                    raise RuntimeError(f"{answer.status_code} of {route}: {answer.text[:500]}")
                excess = (self._cpu_seconds() - self._spent) / self._cores - (time.monotonic() - self._began)
                self.ended.wait(max(0.01, excess))

    def check(self) -> None:
        """Raise RuntimeError if a client has given up."""
        if not all(thread.is_alive() for thread in self._threads):
            raise RuntimeError("a client failed; its error is above")


def memory(process: psutil.Process) -> dict[str, float]:
    """Read a process's memory in MiB, its threads and its descriptors."""
    fields = {}
    for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":")
        fields[name] = int(value.split()[0]) / 1024
    return {
        "rss": fields["Rss"],
        "pss": fields["Pss"],
        "private": fields["Private_Clean"] + fields["Private_Dirty"],
        "threads": process.num_threads(),
        "descriptors": process.num_fds(),
    }


def counts(url: str) -> dict[str, float]:
    """Read what the server counts of itself."""
    values = {}
    for line in httpx.get(f"{url}/metrics", timeout=120).text.splitlines():
        name = line.split("{")[0].split(" ")[0].removeprefix("ramiform_")
        if line.startswith("ramiform_") and name in COUNTED:
            values[name] = float(line.rsplit(" ", 1)[1])
    return values


def soak(hours: float, cores: float, cases: Path | None, lines: Path) -> None:
    """Serve, send and sample until the time is up. Raises RuntimeError when an answer is neither 200 nor 400."""
    schemas = [case.schema for case in load_cases(cases)] if cases else []
    with tempfile.TemporaryDirectory() as temporary, lines.open("w") as file:
        checkpoint = tiny_llama(Path(temporary))
        with ramiform.Runtime(str(checkpoint), port=0, num_pages=4096, log_level="warning") as runtime:
            assert runtime.url is not None
            frontend = psutil.Process(runtime.pid)
            core = max(frontend.children(), key=lambda child: child.memory_info().rss)
            load = Load(runtime.url, [frontend, core, psutil.Process()], cores, schemas)
            began = time.monotonic()
            try:
                for minute in range(int(hours * 60) + 1):
                    time.sleep(max(0.0, began + 60 * minute - time.monotonic()))
                    load.check()
                    sampled = {"frontend": memory(frontend), "core": memory(core), "counts": counts(runtime.url)}
                    line = {"minute": minute, **sampled, "answers": dict(load.outcomes)}
                    file.write(json.dumps(line) + "\n")
                    file.flush()
            finally:
                load.close()


def report(samples: Sequence[dict[str, Any]]) -> str:
    """Write the samples of every tenth minute, and the slopes of the last hour, as Markdown."""
    rows = [
        {
            "minute": sample["minute"],
            "answers": sum(sample["answers"].values()),
            **{f"{name} RSS MiB": sample[name]["rss"] for name in ("frontend", "core")},
            **{f"{name} private MiB": sample[name]["private"] for name in ("frontend", "core")},
            "grammars": int(sample["counts"].get("grammars", 0)),
            "grammars MiB": sample["counts"].get("grammar_bytes", 0) / 2**20,
            "cached pages": int(sample["counts"].get("cached_pages", 0)),
        }
        for sample in samples
        if sample["minute"] % 10 == 0 or sample is samples[-1]
    ]
    last = samples[-61:]
    minutes = [sample["minute"] for sample in last]
    slopes = []
    for name in ("frontend", "core"):
        for measure in ("rss", "pss", "private"):
            values = [sample[name][measure] for sample in last]
            slope = statistics.linear_regression(minutes, values).slope * 60
            spread = statistics.stdev(values)
            slopes.append({"process": name, "memory": measure, "MiB an hour": slope, "deviation MiB": spread})
    window = f"Lines fitted through minutes {minutes[0]} to {minutes[-1]}:"
    return f"{table(rows)}\n\n{window}\n\n{table(slopes)}"


def main(
    lines: Annotated[Path, typer.Option(help="file of samples, a JSON object a line")],
    hours: Annotated[float, typer.Option(help="duration")] = 2.0,
    cores: Annotated[float, typer.Option(help="processor time of clients and server together")] = 0.25,
    cases: Annotated[Path | None, typer.Option(help="folder of MaskBench's files")] = None,
    read: Annotated[bool, typer.Option(help="only report what is in the file")] = False,
    name: Annotated[str | None, typer.Option(help="write bench/results/soak_NAME.md")] = None,
) -> None:
    if not read:
        soak(hours, cores, cases, lines)
    samples = [json.loads(line) for line in lines.read_text().splitlines()]
    write(report(samples), None if name is None else RESULTS / f"soak_{name}.md")


if __name__ == "__main__":
    typer.run(main)
