"""Rotary scaling by length across the original context, however prompts are cut and cached. Judge: transformers."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ramiform.runtime.engine import build_engine
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import LogprobParams, SamplingParams

from .alone import run
from .architectures import SIZES, checkpoint_maker

ORIGINAL, MOST = 40, 120
_FACTORS = {"short_factor": [1.0 + place / 8 for place in range(8)], "long_factor": [2.0 + place for place in range(8)]}
_LONGROPE = {
    "max_position_embeddings": MOST,
    "original_max_position_embeddings": ORIGINAL,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": ORIGINAL,
        **_FACTORS,
    },
}
_DYNAMIC = {
    "max_position_embeddings": ORIGINAL,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e3, "factor": 3.0},
}
MODELS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "phi 3": lambda: transformers.Phi3Config(**SIZES | _LONGROPE, pad_token_id=0),
    "llama, longrope": lambda: transformers.LlamaConfig(**SIZES | _LONGROPE),
    "llama, dynamic": lambda: transformers.LlamaConfig(**SIZES | _DYNAMIC),
    "qwen 3, dynamic": lambda: transformers.Qwen3Config(**SIZES | _DYNAMIC, head_dim=24),
}
SHAPES: dict[str, dict[str, Any]] = {
    "whole": {},
    "chunks, few pages": {"prefill_budget": 16, "num_pages": 20},
    "planned ahead": {"overlap": "on", "prefill_budget": 48},
    "drafts": {"speculative": "ngram", "speculative_adaptive": False},
    "no cache": {"prefix_cache": False, "prefill_budget": 32},
    "deterministic": {"deterministic": True, "prefill_budget": 32},
}
_BASE = random.Random(3).choices(range(203), k=100)


def _requests() -> list[Generate]:
    """Prompts that share prefixes, on both sides of the original context, and outputs that cross it."""
    scored = LogprobParams(prompt_from=1)
    sizes = [(100, 4), (30, 20), (ORIGINAL, 4), (ORIGINAL + 1, 4), (ORIGINAL - 1, 3), (60, 12), (100, 4), (48, 6)]
    return [
        Generate(
            rid=str(place),
            tokens=[*_BASE[:size], *([place] * (place % 2))],
            sampling=SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True),
            logprobs=scored if place in (0, 2, 5) else None,
        )
        for place, (size, count) in enumerate(sizes)
    ]


REQUESTS = _requests()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(MODELS, tmp_path_factory.mktemp)


@cache
def _judged(path: Path) -> dict[str, tuple[list[int], torch.Tensor]]:
    """Output and log-probabilities of the prompt of each request, as transformers computes them.

    A dynamic rope generates with transformers' cache. Phi 3 alone drops it when an output crosses the original context,
    so other families with LongRoPE are computed whole at every step.
    """
    found = {}
    for request in REQUESTS:
        model = transformers.AutoModelForCausalLM.from_pretrained(path).eval()  # a dynamic rope keeps the last length
        prompt = torch.tensor([request.tokens])
        with torch.inference_mode():
            logprobs = model(prompt).logits[0].log_softmax(-1)[:-1].gather(1, prompt[0, 1:, None])[:, 0]
            model = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
            output = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=request.sampling.max_new_tokens,
                min_new_tokens=request.sampling.max_new_tokens,
                do_sample=False,
                use_cache=model.config.model_type == "phi3" or "long_factor" not in model.config.rope_parameters,
                pad_token_id=0,
            )
        found[request.rid] = output[0, len(request.tokens) :].tolist(), logprobs
    return found


IN_CI = {("phi 3", "chunks, few pages"), ("llama, dynamic", "chunks, few pages"), ("phi 3", "drafts")}
CASES = [
    pytest.param(name, shape, marks=() if (name, shape) in IN_CI else pytest.mark.exhaustive)
    for name in MODELS
    for shape in SHAPES
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_tokens_equal_the_judges_on_both_sides_of_the_original_context(
    name: str, shape: str, checkpoint: Callable[[str], Path]
) -> None:
    path = checkpoint(name)
    settings = {"num_pages": 64, **SHAPES[shape]}
    engine = build_engine(CoreConfig(device="cpu", dtype="float32", **settings), path)
    switch = read_config(path).rope.switch
    assert switch is not None
    assert switch.original_context == ORIGINAL
    for stagger in (3, 0):  # one after the other, then all at once over the warm cache
        got, stats, _ = run(REQUESTS, engine=engine, stagger=stagger, rope=switch, **settings)
        for request in REQUESTS:
            ids, logprobs = _judged(path)[request.rid]
            assert got[request.rid].ids == ids, request.rid
            if request.logprobs is not None:
                mine = torch.tensor([own.logprob for own in got[request.rid].prompt_logprobs if own is not None])
                torch.testing.assert_close(mine, logprobs, atol=1e-3, rtol=1e-3)
    assert shape == "no cache" or stats.num_cached_tokens > 0
