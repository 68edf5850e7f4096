"""Quality and cost of a quantised KV cache on the shipped model.

It measures perplexity, right answers, agreement with the unquantised cache, memory and speed.

    python -P bench/quantisation/kv_quality.py [--cases N] [--documents N] [--repeat N] [--out FILE]

Cases and documents are those of `examples/demo_model/evaluate.py`, held out from training; statistics are those of the
built-in text. Speeds are medians of interleaved runs, given as float32's time over the other's: above 1 is faster.
`bench/kv_quality.py` measures trained models.
"""

from __future__ import annotations

import itertools
import logging
import statistics
from collections import defaultdict
from typing import Annotated

import typer

from ramiform.bench import offline
from ramiform.bench.harness import Cases, Documents, Out, matrix, report
from ramiform.bench.quantisation.skills import SEED, Answers, Greedy, answers, change, held_out_tokens
from ramiform.examples.demo_model.corpus.mix import SKILLS, cases_of
from ramiform.runtime.core.main import LoadedCore, load_core
from ramiform.runtime.engine.kv_pool import PAGE_SIZE, bytes_per_page
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.protocol.config import CoreConfig, KvDtypeName
from ramiform.tools.quantize.perplexity import perplexity

SCENARIOS = (
    offline.Scenario("single stream, 1.5k context", 1, 1500, 64),
    offline.Scenario("batch 8, 1k context", 8, 1000, 24, num_shared=992),
    offline.Scenario("prefill 1k", 1, 1024, 1, counts="prompt"),
)
KINDS: tuple[KvDtypeName, ...] = ("fp32", "bf16", "fp8", "int8", "int4")


def agreement(texts: list[str], exact: list[str]) -> tuple[float, float]:
    """In percent: the answers that are the same, and the part of an answer, on average, up to the first difference."""
    same, parts = 0, []
    for ours, theirs in zip(texts, exact, strict=True):
        same += ours == theirs
        common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
        parts.append(common / max(1, len(ours), len(theirs)))
    return 100 * same / len(exact), 100 * statistics.mean(parts)


Rows = dict[str, list[str]]  # a cell for each kind


def sizes(cores: dict[KvDtypeName, LoadedCore]) -> Rows:
    config = read_config(SHIPPED_MODEL)
    pools = [core.engine._device.pool for core in cores.values()]
    per_token = [bytes_per_page(config, pool.dtype, is_scaled=pool.is_scaled) // PAGE_SIZE for pool in pools]
    return {
        "bytes of a token": [f"{number:,}" for number in per_token],
        "tokens in 1 GiB": [f"{core.info.num_slots:,}" for core in cores.values()],
    }


def quality(cores: dict[KvDtypeName, LoadedCore], num_cases: int, num_documents: int) -> Rows:
    tokens = held_out_tokens(num_documents)
    prompts = [case.prompt for skill in SKILLS if skill != "react" for case in cases_of(skill, SEED + 1, num_cases)]
    rows: Rows = defaultdict(list)
    exact: list[str] = []
    dense: Answers = {}
    baseline = 0.0
    for core in cores.values():
        found = perplexity(core.engine, tokens, 512)
        baseline = baseline or found
        texts = Greedy(core)(prompts, one_line=False)
        exact = exact or texts
        same, part = agreement(texts, exact)
        right = answers(core, num_cases)
        dense = dense or right
        every = change(list(itertools.chain(*dense.values())), list(itertools.chain(*right.values())))
        rows["perplexity"].append(f"{found:.5f}")
        rows["- more than fp32's"].append(f"{found / baseline - 1:+.4%}")
        rows["same greedy answer as fp32"].append(f"{same:.1f} %")
        rows["- the same up to the first difference"].append(f"{part:.1f} %")
        rows["right answers lost, won"].append(f"-{every.lost}, +{every.won} of {every.cases}")
        rows["- in points"].append(f"{every.points:+.1f} ± {every.margin:.1f}")
        for skill, shares in right.items():
            rows[f"right, {skill}"].append(f"{100 * statistics.mean(shares):.0f} %")
    return rows


def speeds(cores: dict[KvDtypeName, LoadedCore], repeat: int) -> Rows:
    rows: Rows = {}
    for scenario in SCENARIOS:
        by_kind = offline.median_seconds({str(kind): core for kind, core in cores.items()}, scenario, repeat)
        medians = list(by_kind.values())
        rows[f"speed, {scenario.name}"] = [f"{medians[0] / median:.2f}" for median in medians]
    return rows


def main(
    num_cases: Cases = 100,
    num_documents: Documents = 600,
    repeat: Annotated[int, typer.Option(help="runs of each speed; 0: none")] = 5,
    out: Out = None,
) -> None:
    logging.getLogger("ramiform").setLevel(logging.ERROR)
    cores: dict[KvDtypeName, LoadedCore] = {}
    for kind in KINDS:
        cores[kind] = load_core(CoreConfig(device="cpu", dtype="float32", speculative="off", kv_dtype=kind))
    rows = sizes(cores)
    if num_cases:
        rows |= quality(cores, num_cases, num_documents)
    if repeat:
        rows |= speeds(cores, repeat)
    report("A quantised KV cache", matrix(KINDS, rows.items()), out=out)


if __name__ == "__main__":
    typer.run(main)
