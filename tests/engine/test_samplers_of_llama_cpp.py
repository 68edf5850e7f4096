"""The filters that llama.cpp has too leave its probabilities.

Judge: llama.cpp's own samplers, written by `tests/models/llama_cpp/write_samplers.py`. Their meaning is the same where
temperature 1, or one that moves with the entropy, is asked for: llama.cpp applies another one behind the filters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ramiform.kernels import FILTER_DTYPES, SAMPLING_DTYPES, FilterTensors, SamplingTensors, for_device, rare_filters
from ramiform.runtime.engine.sampler import sample
from ramiform.runtime.scheduler.plan import Sample
from ramiform.runtime.scheduler.rows.sampling_inputs import random_bits

DATA = Path(__file__).parents[1] / "models/llama_cpp/data/samplers.json"
JUDGED: list[dict[str, Any]] = json.loads(DATA.read_text("utf-8"))
NUM_DRAWS = 2_000


def left_by(asked: dict[str, Any], logits: list[float]) -> dict[int, float]:
    """Return the probabilities of the tokens that all filters leave."""
    own = Sample(draw=0, **asked)
    values = {name: getattr(own, name) for name in (*SAMPLING_DTYPES, *FILTER_DTYPES)} | {
        "top_k": own.top_k or len(logits)
    }
    sampling = SamplingTensors(*(torch.tensor([values[name]]) for name in SAMPLING_DTYPES), max_top_k=0)
    filters = FilterTensors(*(torch.tensor([float(values[name])], dtype=torch.float64) for name in FILTER_DTYPES))
    weights = rare_filters.filtered_weights(torch.tensor([logits]), sampling, filters)[0].double()
    return {token: value for token, value in enumerate((weights / weights.sum()).tolist()) if value}


def as_tokens(found: dict[str, float]) -> dict[int, float]:
    return {int(token): value for token, value in found.items() if value}


@pytest.mark.parametrize("row", JUDGED)
def test_llama_cpp_leaves_the_same_probabilities(row: dict[str, Any]) -> None:
    asked, logits = row["asked"], row["logits"]
    assert left_by(asked | {"xtc_probability": 0.0}, logits) == pytest.approx(as_tokens(row["expected"]), rel=2e-4)
    if "share" in row:
        always = left_by(asked | {"xtc_probability": 1.0}, logits)
        assert always == pytest.approx(as_tokens(row["expected_with_xtc"]), rel=2e-4)


def test_xtc_acts_as_often_as_in_llama_cpp() -> None:
    rows = [row for row in JUDGED if row.get("share", 1.0) < 1 and len(row["expected"]) > len(row["expected_with_xtc"])]
    assert len(rows) > 10
    ops = for_device(torch.device("cpu"))
    for row in rows[:12]:
        dropped = max(row["expected"].items(), key=lambda each: each[1])[0]  # XTC drops it whenever it acts
        samples = [Sample(draw=random_bits(seed, 3), **row["asked"]) for seed in range(NUM_DRAWS)]
        logits = torch.tensor([row["logits"]] * NUM_DRAWS)
        found = sample(ops, logits, samples, [None] * NUM_DRAWS).tolist()
        share = found.count(int(dropped)) / NUM_DRAWS
        expected = row["expected"][dropped] * (1 - row["share"])
        # Four deviations of our draws, and of llama.cpp's 1,000.
        assert abs(share - expected) < 4 * (0.25 / NUM_DRAWS) ** 0.5 + 4 * (0.25 / 1_000) ** 0.5, row
