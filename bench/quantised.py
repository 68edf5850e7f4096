"""What few bits cost and give on the model that ships: perplexity, right answers and speed, beside the dense model.

    python -P bench/quantised.py [--cases N] [--repeat N] [--out FILE]

Cases and documents are those of `examples/demo_model/evaluate.py`, held out from training. Speeds are medians of
interleaved runs, given as the dense model's time over the other's: above 1 is faster.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "examples" / "demo_model")]

import evaluate  # noqa: E402
import offline  # noqa: E402
from corpus.mix import SKILLS, cases, cases_of  # noqa: E402

from ramify.runtime.checkpoint import SHIPPED_MODEL  # noqa: E402
from ramify.runtime.core import Core, load  # noqa: E402
from ramify.runtime.models.load import load_model  # noqa: E402
from ramify.runtime.protocol.config import CoreConfig  # noqa: E402
from ramify.runtime.protocol.core import Generate, Tokens  # noqa: E402
from ramify.runtime.protocol.sampling import SamplingParams  # noqa: E402
from ramify.runtime.quantize.perplexity import perplexity  # noqa: E402

KINDS = (None, "int8", "int4", "fp8")
SEED = 31
SCENARIOS = (
    offline.Scenario("single stream", 1, 32, 64),
    offline.Scenario("batch 8", 8, 32, 32),
    offline.Scenario("prefill 1k", 1, 1024, 1, counts="prompt"),
)


class Greedy(evaluate.Greedy):
    """The evaluation's generator, with our engine and scheduler in the place of transformers."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.tokenizer = evaluate.AutoTokenizer.from_pretrained(SHIPPED_MODEL)
        self.ends = self.tokenizer.convert_tokens_to_ids([evaluate.EOS, evaluate.END])
        self.newline = self.tokenizer.encode("\n", add_special_tokens=False)[0]

    def __call__(self, prompts: list[str], one_line: bool, max_tokens: int = 160) -> list[str]:
        ends = (*self.ends, self.newline) if one_line else tuple(self.ends)
        sampling = SamplingParams(
            max_new_tokens=max_tokens, temperature=0.0, ignore_eos=True, seed=0, stop_token_ids=ends
        )
        engine, scheduler = self.core.engine, self.core.scheduler
        for index, prompt in enumerate(prompts):
            ids = self.tokenizer.encode(prompt, add_special_tokens=True)
            scheduler.handle(Generate(rid=str(index), tokens=ids, sampling=sampling), time.monotonic(), b"")
        found: list[list[int]] = [[] for _ in prompts]
        while (plan := scheduler.plan(time.monotonic())) is not None:
            for message in scheduler.commit(plan, engine.run(plan), time.monotonic()):
                assert isinstance(message, Tokens)
                found[int(message.rid)] += message.ids
        return [
            self.tokenizer.decode(list(itertools.takewhile(lambda i: i not in ends, ids)), skip_special_tokens=True)
            for ids in found
        ]


def right(core: Core, num_cases: int) -> dict[str, float]:
    generate = Greedy(core)
    shares = {}
    for skill in SKILLS:
        judge = evaluate.right_traces if skill == "react" else evaluate.right_answers
        answers = judge(generate, cases_of(skill, SEED, num_cases))
        shares[skill] = 100 * sum(answers) / len(answers)
    return shares


def megabytes(kind: str | None) -> float:
    """Of the layers that are quantised."""
    model = load_model(SHIPPED_MODEL, device=torch.device("cpu"), dtype=torch.float32, quantize=kind)
    return sum(linear.nbytes for linear in model.parameters.linears()) / 1e6


def main(
    num_cases: Annotated[int, typer.Option("--cases", help="per skill")] = 100,
    num_documents: Annotated[int, typer.Option("--documents", help="of the perplexity")] = 300,
    repeat: Annotated[int, typer.Option(help="runs of each speed")] = 5,
    out: Annotated[Path | None, typer.Option(help="write the table there too")] = None,
) -> None:
    documents = [case.document for case in itertools.islice(cases(SEED, held_out=True, wide=True), num_documents)]
    cores = {kind: load(CoreConfig(device="cpu", dtype="float32", quantize=kind)) for kind in KINDS}
    encode = evaluate.AutoTokenizer.from_pretrained(SHIPPED_MODEL).encode
    tokens = [token for text in documents for token in encode(text, add_special_tokens=False)]
    columns: dict[str | None, dict[str, str]] = {}
    exact: dict[str | None, dict[str, float]] = {}
    for kind, core in cores.items():
        exact[kind] = right(core, num_cases)
        columns[kind] = {
            "linear layers, MB": f"{megabytes(kind):.2f}",
            "perplexity": f"{perplexity(core.engine, tokens, 512):.4f}",
            "right, all skills": f"{statistics.mean(exact[kind].values()):.1f} %",
        } | {f"- {skill}": f"{share:.0f} %" for skill, share in exact[kind].items()}
    for scenario in SCENARIOS:
        batch = offline.prompts(scenario, cores[None].info.vocab_size, 0)
        seconds: dict[str | None, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(repeat):
            for kind, core in cores.items():
                seconds[kind].append(offline.run_ramify(core.engine, core.scheduler, scenario, batch))
        dense = statistics.median(seconds[None])
        for kind in KINDS:
            columns[kind][f"speed, {scenario.name}"] = f"{dense / statistics.median(seconds[kind]):.2f}"
    lines = ["| | float32 | int8 | int4 | fp8 |", "|---|---:|---:|---:|---:|"]
    lines += [f"| {row} | " + " | ".join(columns[kind][row] for kind in KINDS) + " |" for row in columns[None]]
    table = "\n".join(lines) + "\n"
    print(table)
    if out is not None:
        out.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
