"""Cost of a draft source per step without guesses, and its gain when the speculation policy decides.

It runs in one process, step by step in turn with plain decoding, and measures processor time, so that a busy machine
can run it.

    python -P bench/speculation/steps.py [--batches 1,4,16] [--kinds extraction,loop] [--rounds 8] [--source suffix]

`shut`: guessing is closed by force; what remains is what having a source costs. `adaptive`: as served, by the clock of
processor time. Ratios are speeds over plain decoding's: medians, over rounds, of seconds a token in the same round. The
outputs are compared token for token on the way.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import product
from typing import Annotated, cast

import torch
import typer
from msgspec.structs import replace

from ramiform.bench.harness import Batches, numbers, table
from ramiform.bench.speculation.sources import bodies
from ramiform.runtime.core.main import LoadedCore, load_core
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.config import CoreConfig, SpeculativeName
from ramiform.runtime.protocol.core import Generate, Tokens
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.scheduler.scheduler import Scheduler
from ramiform.runtime.scheduler.speculation_policy import SpeculationPolicy
from ramiform.runtime.tokenizer import load_tokenizer


class Shut(SpeculationPolicy):
    """Measures, and lets nothing be guessed."""

    def is_open(self, num_rows: int) -> bool:
        return False

    def may_guess(self, num_rows: int) -> bool:
        return False


class Decoding:
    """One core and the requests of a round, a step at a time."""

    def __init__(self, speculative: SpeculativeName, policy: SpeculationPolicy | None = None) -> None:
        self._core: LoadedCore = load_core(CoreConfig(model=None, speculative=speculative))
        assert isinstance(self._core.scheduler, Scheduler)
        if policy is not None:
            self._core.scheduler._drafting._policy = policy
        self._since = 0.0  # processor time of what came after the last result

    def begin(self, requests: Sequence[Generate], batch: int) -> None:
        self._to_come, self._batch = list(requests), batch
        self._num_running = self.num_passes = 0
        self.seconds, self.outputs = 0.0, dict[str, list[int]]()

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.outputs.values()))

    def step(self) -> bool:
        """Run one step; return False if there was none."""
        scheduler, began = self._core.scheduler, time.thread_time()
        while self._to_come and self._num_running < self._batch:
            scheduler.handle(self._to_come.pop(0), 0.0)
            self._num_running += 1
        plan = scheduler.plan(0.0)
        if plan is None:
            return False
        result = self._core.engine.run(plan)
        computed = time.thread_time()
        answers = scheduler.commit(plan, replace(result, seconds=computed - began + self._since), 0.0)
        for answer in answers:
            assert isinstance(answer, Tokens), answer
            self.outputs.setdefault(answer.rid, []).extend(answer.ids)
            self._num_running -= answer.finish is not None
        ended = time.thread_time()
        self._since = ended - computed
        self.seconds += ended - began
        self.num_passes += sum(row.sample is not None for row in plan.rows)
        return True


def requests_of(kind: str, temperature: float, size: int, first: int = 0) -> list[Generate]:
    """Those of `bench/speculation/sources.py` from number `first` on, of a kind without a grammar."""
    tokenizer, requests = load_tokenizer(SHIPPED_MODEL), []
    for index, body in enumerate(bodies(kind, temperature, size, first), first):
        params = body["sampling_params"]
        sampling = SamplingParams(
            max_new_tokens=params["max_new_tokens"],
            temperature=temperature,
            seed=index,
            ignore_eos=params.get("ignore_eos", False),
        )
        requests.append(Generate(rid=str(index), tokens=tokenizer.encode(body["text"]), sampling=sampling))
    return requests


def main(
    batches: Batches = "1,4,16",
    kinds: Annotated[str, typer.Option(help="Of text, with commas; not json.")] = "extraction,react,chat",
    rounds: Annotated[int, typer.Option(help="Of each cell, after one to warm up.")] = 8,
    source: Annotated[str, typer.Option(help="Draft source: eagle, suffix or ngram.")] = "eagle",
) -> None:
    """Print a table: for every kind, temperature and batch, the speeds over plain decoding's."""
    name_of_source = cast(SpeculativeName, source)
    cores = {
        "plain": Decoding("off"),
        "shut": Decoding(name_of_source, Shut()),
        "adaptive": Decoding(name_of_source),
    }
    torch.set_num_threads(1)
    rows = []
    for kind, temperature, batch in product(kinds.split(","), (0.0, 1.0), numbers(batches)):
        count = max(8, 2 * batch)
        ratios: dict[str, list[float]] = {name: [] for name in cores}
        for number in range(rounds + 1):
            requests = requests_of(kind, temperature, count, number * count)
            for core in cores.values():
                core.begin(requests, batch)
            going = dict(cores)
            while going:
                going = {name: core for name, core in going.items() if core.step()}
            plain = cores["plain"]
            for name, core in cores.items():
                assert core.outputs == plain.outputs, f"{name}: other tokens than plain decoding"
                ratios[name].append(plain.seconds / core.seconds)
        adaptive = cores["adaptive"]
        rows.append(
            {
                "text": kind,
                "T": f"{temperature:g}",
                "batch": batch,
                "plain us/token": 1e6 * cores["plain"].seconds / cores["plain"].num_tokens,
                "shut": statistics.median(ratios["shut"][1:]),
                "adaptive": statistics.median(ratios["adaptive"][1:]),
                "adaptive, first round": ratios["adaptive"][0],
                "adaptive tau": adaptive.num_tokens / adaptive.num_passes,
            }
        )
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    print()
    print(table(rows))


if __name__ == "__main__":
    typer.run(main)
