"""Runs random steps on a mocked device and prints their counts as JSON. Test of `bench/gpu/mocked_driver.py`.

python -P tests/bench/random_steps.py [STEPS]
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from contextlib import nullcontext
from typing import Any

from ramiform.bench.gpu.dummy_models import config_of
from ramiform.bench.gpu.mocked_driver import counted, counts, decode_step, install, launches_of, mocked_engine
from ramiform.runtime.scheduler.plan import (
    DraftNode,
    ForwardPlan,
    PageCopy,
    Penalties,
    Row,
    RowSampling,
    Sample,
    SamplingPlan,
    Score,
)

NUM_SEQUENCES, PAGES, PAGE_SIZE = 12, 20, 16
COUNTED_STEPS = 8  # one of so many random steps


def _sample(draw: random.Random, vocab_size: int) -> Sample:
    penalised = draw.random() < 0.2
    return Sample(
        temperature=draw.choice([0.0, 0.8]),
        top_k=draw.choice([None, 9]),
        top_p=draw.choice([1.0, 0.9]),
        draw=draw.getrandbits(62),
        penalties=Penalties(frequency=0.5, presence=0.1, repetition=1.2, prompt=[1, 2], output=[3])
        if penalised
        else None,
        logit_bias={3: 1.0} if draw.random() < 0.1 else {},
        num_top_logprobs=draw.choice([None, None, 2]),
    )


class RandomSteps:
    """Plans of mixed rows: chunks, decode rows that follow the last step's, drafts, choices scored, forks."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._draw, self._vocab_size = random.Random(seed), vocab_size
        self._lengths = [0] * NUM_SEQUENCES
        self._pages = [list(range(i * PAGES, (i + 1) * PAGES)) for i in range(NUM_SEQUENCES)]
        self._sampled: dict[int, int] = {}  # sequences whose last row sampled one token, by its index in the plan

    def next(self, step: int) -> tuple[ForwardPlan, list[RowSampling | None]]:
        draw, rows, following, copies = self._draw, [], [], []
        kinds = draw.choice([["decode"], ["decode"], ["tree", "chain"], ["decode", "chunk", "fork", "select", "tree"]])
        sampled: dict[int, int] = {}
        for index in draw.sample(range(NUM_SEQUENCES), k=draw.randint(1, NUM_SEQUENCES)):
            kind = draw.choice(kinds)
            if self._lengths[index] > 250:
                self._lengths[index] = 0
            first = self._lengths[index]
            if kind == "fork" and index:
                first = min(self._lengths[index - 1], 200) // PAGE_SIZE * PAGE_SIZE
                shared = self._pages[index - 1][: first // PAGE_SIZE]
                self._pages[index] = [*shared, *range(index * PAGES + len(shared), (index + 1) * PAGES)]
                copies.append(PageCopy(self._pages[index - 1][len(shared)], self._pages[index][len(shared)], 5))
            count = 1 if kind in ("decode", "tree", "chain") else draw.choice([2, 5, 9, 17, 40])
            self._lengths[index] = first + count
            tokens = draw.choices(range(self._vocab_size), k=count)
            sample, mask = _sample(draw, self._vocab_size), None
            if draw.random() < 0.3:
                mask = b"\xf0" * 4 * -(-self._vocab_size // 32)
            row = Row(rid=str(index), tokens=tokens, first_position=first, pages=self._pages[index])
            settings: dict[str, Any] = {"sample": sample, "mask": mask}
            if kind in ("tree", "chain"):
                settings["tokens"] = tokens + draw.sample(range(self._vocab_size), k=5)
                settings["parents"] = [-1, 0, 0, 1, -1] if kind == "tree" else [-1, 0, 1, 2, 3]
                settings["nodes"] = [DraftNode(draw=draw.getrandbits(62))] * 5
            elif kind == "select":
                settings = {"score": Score(first=0, targets=tokens[1:], num_top=2)}
            elif kind == "decode" and index in self._sampled:
                following.append(None if draw.random() < 0.1 else RowSampling(sample, mask))
                settings = {"follows": self._sampled[index]}
            follows_on = following[-1] is not None if "follows" in settings else settings.get("sample") is not None
            if follows_on and "parents" not in settings:
                sampled[index] = len(rows)
            rows.append(_with(row, settings))
        self._sampled = sampled
        return ForwardPlan(step=step, copies=copies, rows=rows), following


def _with(row: Row, settings: dict[str, Any]) -> Row:
    fields = {name: getattr(row, name) for name in ("rid", "tokens", "first_position", "pages")}
    return Row(**(fields | settings))


def random_steps(num_steps: int, seed: int = 0) -> dict[str, Any]:
    """Run random steps on a small engine and return the counts: at start, while serving, and in steps whose forward is
    a graph. Steps of more than 64 tokens are launched kernel by kernel."""
    config = config_of(
        "Llama-3-8B", vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    engine = mocked_engine(
        config, num_pages=NUM_SEQUENCES * 64, context_length=320, max_running=NUM_SEQUENCES, max_tokens=64
    )
    at_start = counts["compilations"]
    graphs = engine._runner.graphs
    assert graphs is not None
    in_replays: list[Counter[str]] = []
    plain = graphs.hidden_and_features

    def observed(*args: Any, **kwargs: Any) -> Any:
        before = counts.copy()
        found = plain(*args, **kwargs)
        if found is not None:
            in_replays.append(counts - before)
        return found

    graphs.hidden_and_features = observed  # type: ignore[method-assign]
    steps, served = RandomSteps(seed, config.vocab_size), Counter[str]()
    for number in range(num_steps):
        plan, following = steps.next(number)
        # Counting operators takes longer than a step; compilations, graphs and reads of values are noticed anyway.
        with counted() if number % COUNTED_STEPS == 0 else nullcontext(Counter[str]()) as inside:
            launched = engine.launch(plan)
            if plan.is_open:
                launched.sample(SamplingPlan(number, following))
            launched.wait()
        served.update(inside)
    return {
        "steps": num_steps,
        "compilations at start": at_start,
        "compilations while serving": counts["compilations"] - at_start,
        "steps by graph": len(in_replays),
        "allocations in steps by graph": sum(one["allocations"] for one in in_replays),
        "most launches in a forward by graph": max(map(launches_of, in_replays)),
        "launches in counted steps": served["launches"],
        "launches of a decode step, greedy": launches_of(decode_step(engine, NUM_SEQUENCES, temperature=0.0)),
        "launches of a decode step, drawn": launches_of(decode_step(engine, NUM_SEQUENCES, temperature=0.8)),
    }


if __name__ == "__main__":
    install()
    print(json.dumps(random_steps(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)))
