"""Validity of the outputs of random weights under schemas: temperature 1, one schema per request, judged by jsonschema.

    python -P bench/grammar/runtime.py FOLDER [--sample N] [--max-tokens 256] [--only NAME]

FOLDER holds MaskBench's files. The scheduler and the engine run in one process, jump-forward and many requests at once,
as they serve. Every schema is asked twice: as the weights have it, which is nearly uniformly at random, and with tokens
that only close (a string, an array, an object) favoured, so that more outputs end before `--max-tokens`. Prints
Markdown.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ramiform.bench.grammar.cases import Case, load_cases
from ramiform.bench.grammar.judge import verdict
from ramiform.bench.harness import CasesFolder, Only, Sample, report, table
from ramiform.bench.in_process import Output, play
from ramiform.bench.random_models import tiny_llama
from ramiform.runtime.core.main import load_core
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import Constraint, SamplingParams
from ramiform.runtime.scheduler.scheduler import Scheduler
from ramiform.runtime.tokenizer import load_tokenizer

CLOSING = frozenset(b'"]}')


@dataclass(frozen=True)
class Judged:
    """Output of a schema, and its outcome: a verdict, "length", "refused" before the start, or "stopped" during it."""

    name: str
    outcome: str
    text: str
    error: str | None = None


def requests(cases: Sequence[Case], bias: dict[int, float], prompt: list[int], max_tokens: int) -> Iterator[Generate]:
    for index, case in enumerate(cases):
        sampling = SamplingParams(
            max_new_tokens=max_tokens,
            temperature=1.0,
            seed=index,
            logit_bias=bias,
            constraint=Constraint("json_schema", json.dumps(case.schema, ensure_ascii=False)),
        )
        yield Generate(rid=str(index), tokens=prompt, sampling=sampling)


def outcome_of(case: Case, output: Output, text: str) -> str:
    if output.error is not None:
        return "stopped" if output.ids else "refused"
    return verdict(case.schema, text) if output.finish == "stop" else str(output.finish)


def run(
    cases: Sequence[Case], checkpoint: Path, favour: float, max_tokens: int, at_once: int
) -> tuple[list[Judged], dict[str, Any]]:
    """Run all cases; return the judged outputs and the figures. `favour` is added to the logits of closing tokens."""
    tokenizer = load_tokenizer(checkpoint)
    data = tokenizer.token_bytes
    closing = [token for token, text in enumerate(data) if text and CLOSING.issuperset(text)]
    bias = dict.fromkeys(closing, favour) if favour else {}
    core = load_core(
        CoreConfig(model=str(checkpoint), device="cpu", dtype="float32", num_pages=8192, max_running=at_once)
    )
    torch.set_num_threads(1)
    assert isinstance(core.scheduler, Scheduler), "no plan log is asked for"
    prompt = tokenizer.encode("A value:", parse_special=False, continues=False)
    outputs, cost = play(core.engine, core.scheduler, requests(cases, bias, prompt, max_tokens), at_once)
    eos = frozenset(tokenizer.eos_ids)
    judged = []
    for index, case in enumerate(cases):
        output = outputs[str(index)]
        text = b"".join(data[token] or b"" for token in output.ids if token not in eos).decode("utf-8", "replace")
        judged.append(Judged(case.name, outcome_of(case, output, text), text, output.error))
    stats = core.scheduler.stats()
    figures = {
        "output tokens": stats.num_output_tokens,
        "forced %": 100 * stats.num_forced_tokens / max(1, stats.num_output_tokens),
        "forwards": cost.num_forwards,
        "retractions": stats.num_retractions,
        "seconds": cost.seconds,
    }
    return judged, figures


def main(
    folder: CasesFolder,
    sample: Sample = None,
    only: Only = "",
    max_tokens: Annotated[int, typer.Option(help="of an output")] = 256,
    at_once: Annotated[int, typer.Option(help="requests that run at once")] = 64,
    favour: Annotated[float, typer.Option(help="added to closing tokens' logits in the second run")] = 6.0,
) -> None:
    cases = load_cases(folder, only, sample)
    rows: list[dict[str, Any]] = []
    bad: list[Judged] = []
    with tempfile.TemporaryDirectory() as temporary:
        checkpoint = tiny_llama(Path(temporary))
        for name, added in (("as the weights have it", 0.0), ("closing tokens favoured", favour)):
            judged, figures = run(cases, checkpoint, added, max_tokens, at_once)
            counts = Counter(one.outcome for one in judged)
            kinds = ("valid", "not valid", "not JSON", "not judged", "length", "stopped", "refused")
            assert set(counts) <= set(kinds), counts
            rows.append({"sampling": name, **{kind: counts[kind] for kind in kinds}, **figures})
            bad += [one for one in judged if one.outcome not in ("valid", "length")]
    said = f"{len(cases)} schemas; at most {max_tokens} tokens each, {at_once} requests at once, one thread."
    listed = [f"- {one.outcome}: {one.name}{f' ({one.error})' if one.error else ''}: `{one.text[:200]}`" for one in bad]
    report("Outputs of random weights under schemas", said, table(rows), "\n".join(listed))


if __name__ == "__main__":
    typer.run(main)
