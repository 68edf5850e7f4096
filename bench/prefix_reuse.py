"""Prefix reuse of six agent workloads: with the cache on, off, and against the optimum.

    python -P bench/prefix_reuse.py [MODEL] [--only runtime | --only scheduler] [--json FILE]

On a runtime, with memory for everything: hit rate, latency and throughput, medians of `--repeat` runs with the cache on
and off in turn. In the scheduler alone, in virtual time and without noise, with memory for everything and for a quarter
of it: the hit rate of every `--order` with every `--eviction`. `optimum` is what no cache can exceed; `bound` what no
eviction can, with that memory and the requests running when they did under `program`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import typer

import ramiform
from ramiform.bench.harness import Json, Model, interleaved, medians, percentile, table, write_json
from ramiform.bench.optimum import bounded_hits, optimal_hits
from ramiform.bench.programs import Run, Workload
from ramiform.bench.sessions import Player, word_tokens
from ramiform.bench.simulation import VOCABULARY, Simulated, simulate
from ramiform.bench.workloads import make_workloads
from ramiform.runtime.models.checkpoint import find_checkpoint
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.tokenizer import load_tokenizer

ORDERS: tuple[Literal["fcfs", "lpm", "program"], ...] = ("fcfs", "lpm", "program")
EVICTIONS: tuple[Literal["lru", "lfu", "program"], ...] = ("lru", "lfu", "program")
AMPLE = 1 << 16  # pages


def figures(run: Run) -> dict[str, float]:
    ttfts = [request.ttft for request in run.requests]
    return {
        "hit rate %": 100 * run.num_hits / run.num_prompt_tokens,
        "of optimum %": 100 * run.num_hits / optimal_hits(run.requests),
        "TTFT ms": 1e3 * statistics.median(ttfts),
        "p95": 1e3 * percentile(ttfts, 95),
        "requests/s": len(run.requests) / run.seconds,
        "output tok/s": run.num_output_tokens / run.seconds,
    }


def play(player: Player, workload: Workload, _: int) -> Run:
    """Play a workload on an empty cache."""
    player.connection.call("flush_cache")
    return player.run(workload)


def on_runtimes(workloads: Sequence[Workload], players: dict[str, Player], repeat: int) -> list[dict[str, Any]]:
    """A row for each workload: with the cache, and how many times better than without. The first run warms up."""
    rows = []
    for workload in workloads:
        runs = interleaved(repeat, {name: partial(play, player, workload) for name, player in players.items()})
        run = runs["off"][-1]
        on, off = (medians([figures(run) for run in runs[name]]) for name in ("on", "off"))
        optimum = 100 * optimal_hits(run.requests) / run.num_prompt_tokens
        rows.append(
            {
                "workload": workload.name,
                "requests": len(run.requests),
                "prompt tokens": run.num_prompt_tokens,
                "optimum %": optimum,
                **on,
                "TTFT, off / on": off["TTFT ms"] / on["TTFT ms"],
                "p95, off / on": off["p95"] / on["p95"],
                "tok/s, on / off": on["output tok/s"] / off["output tok/s"],
            }
        )
    return rows


def quarter_of(ample: Simulated) -> int:
    """Return a quarter of the pages that a run with memory for everything used."""
    longest = max(len(request.computed) for request in ample.run.requests)
    return max(ample.peak_pages // 4, 2 * -(-longest // 16))  # or nothing could run beside the longest


def in_scheduler(workloads: Sequence[Workload]) -> list[dict[str, Any]]:
    """A row for each workload and order, a column for each eviction; hit rates in percent of the prompt tokens."""
    rows = []
    for workload in workloads:
        ample = simulate(workload, CoreConfig(), AMPLE)
        optimum, num_tokens = optimal_hits(ample.run.requests), ample.run.num_prompt_tokens
        num_pages = quarter_of(ample)
        for order in ORDERS:
            runs = {
                eviction: simulate(workload, CoreConfig(order=order, eviction=eviction), num_pages)
                for eviction in EVICTIONS
            }
            rates = {eviction: 100 * simulated.run.num_hits / num_tokens for eviction, simulated in runs.items()}
            rows.append(
                {
                    "workload": workload.name,
                    "order": order,
                    "ample: of optimum %": 100 * ample.run.num_hits / optimum,
                    "optimum %": 100 * optimum / num_tokens,
                    "pages": num_pages,
                    "of": ample.peak_pages,
                    **rates,
                    "program - lru": rates["program"] - rates["lru"],
                    "bound": 100 * bounded_hits(runs["program"].events, 16 * num_pages) / num_tokens,
                    "seconds, lru / program": runs["lru"].run.seconds / runs["program"].run.seconds,
                }
            )
    return rows


def main(
    model: Model = None,
    only: Annotated[str | None, typer.Option(help="runtime or scheduler; default: both")] = None,
    size: Annotated[float, typer.Option(help="scales the number of programs")] = 1.0,
    length: Annotated[float, typer.Option(help="scales the number of tokens")] = 1.0,
    alive: Annotated[float, typer.Option(help="how many of a workload's agents are alive at once")] = 0.5,
    pause: Annotated[float, typer.Option(help="scales how long tools and users take")] = 1.0,
    repeat: Annotated[int, typer.Option(help="measured runs of each workload on the runtimes")] = 3,
    seed: Annotated[int, typer.Option(help="of the workloads")] = 0,
    output: Json = None,
) -> None:
    shape = {"size": size, "length": length, "alive": alive, "pause": pause, "seed": seed}
    result: dict[str, Any] = {"shape": shape, "repeat": repeat}
    if only != "runtime":
        result["scheduler"] = in_scheduler(make_workloads(range(VOCABULARY.vocab_size), **shape))
        print("\nIn the scheduler, with a quarter of the pages: hit rate in % by eviction\n")
        print(table(result["scheduler"]))
    if only != "scheduler":
        tokenizer = load_tokenizer(find_checkpoint(model))
        workloads = make_workloads(word_tokens(tokenizer), **shape)
        with ramiform.Runtime(model) as on, ramiform.Runtime(model, prefix_cache=False) as off:
            players = {"on": Player(on.connection(), tokenizer), "off": Player(off.connection(), tokenizer)}
            for player in players.values():
                player.connection.connect()
            result["runtime"] = on_runtimes(workloads, players, repeat)
            print(f"\nOn {on.info.name}, {on.info.dtype} on {on.info.device}, medians of {repeat}\n")
        print(table(result["runtime"]))
    write_json(result, output)


if __name__ == "__main__":
    typer.run(main)
