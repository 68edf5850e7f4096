"""Attention with sinks (gpt-oss) and in chunks (Llama 4) with everything else: pages, schedules, drafts and ranks.

Random models. Their tokens are transformers' own (`test_any_model`); here they are compared with those of each request
alone, without a cache and without drafts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ramiform.runtime.engine import build_engine
from ramiform.runtime.engine.draft_source import DraftSource
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.protocol.config import CoreConfig

from .alone import run
from .test_latent import SCHEDULES, TO_RUN, alone, engine_of, sharing_requests
from .test_speculation import Siblings, check, crowding_requests
from .threads import RanksEngine

SIZES: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "num_local_experts": 4,
}
MODELS = {
    "gpt-oss": lambda: transformers.GptOssConfig(**SIZES, sliding_window=40, num_experts_per_tok=2),
    "llama 4": lambda: transformers.Llama4TextConfig(
        **SIZES, intermediate_size_mlp=64, no_rope_layers=[1, 0], attention_chunk_size=37, floor_scale=30
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(MODELS[request.param](), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "sinks")):
                parameter.normal_(0, 0.5)
    found: Path = tmp_path_factory.mktemp("model")
    model.save_pretrained(found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ngram, few pages, chunks", "two ranks"])
def test_requests_get_the_same_in_any_schedule(name: str, path: Path) -> None:
    shape = {"speculative_adaptive": False, **SCHEDULES[name]}
    config = CoreConfig(**{"device": "cpu", "dtype": "float32", "num_pages": 512} | shape)
    engine = RanksEngine(config, path, 2) if "tp" in shape else build_engine(config, path)
    got, stats, plans = run(TO_RUN, engine=engine, aborts={9: TO_RUN[3].rid}, **shape)
    cut = got.pop(TO_RUN[3].rid)
    assert cut.ids == alone(path)[TO_RUN[3].rid].ids[: len(cut.ids)]
    check(got, {rid: alone(path)[rid] for rid in got}, tolerance=1e-3)
    assert max(len(plan.rows) for plan in plans) > 1
    assert stats.num_cached_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_draft_trees_change_nothing(kv_dtype: str, path: Path) -> None:
    plain = {"speculative": "off", "prefix_cache": False}
    expected = alone(path)
    if kv_dtype != "auto":
        expected, *_ = run(TO_RUN, engine=engine_of(path, kv_dtype=kv_dtype, **plain), **plain)
    outputs = [(request.tokens, expected[request.rid].ids) for request in TO_RUN]
    settings: dict[str, Any] = {
        "speculative": "eagle",
        "speculative_adaptive": False,
        "speculative_num_steps": 4,
        "speculative_eagle_topk": 3,
        "speculative_num_draft_tokens": 12,
    }

    def make_source(target: Decoder, *, num_pages: int, num_host_pages: int) -> DraftSource:
        return Siblings(3, outputs)

    config = CoreConfig(device="cpu", dtype="float32", num_pages=512, kv_dtype=kv_dtype, **settings)
    engine = build_engine(config, path, make_source=make_source)
    got, stats, _ = run(TO_RUN, engine=engine, **settings)
    check(got, expected, tolerance=1e-3)
    assert sum(stats.accepted_lengths[2:]) > 0


@pytest.mark.slow
def test_retracted_requests_get_the_same_tokens(path: Path) -> None:
    requests = crowding_requests()
    got, stats, _ = run(requests, engine=engine_of(path, num_pages=40), num_pages=40, speculative="off")
    assert stats.num_retractions > 0
    check(got, run(requests, engine=engine_of(path), speculative="off")[0], tolerance=1e-3)


@pytest.mark.slow
def test_deterministic_bits_do_not_depend_on_batch_cache_drafts_or_ranks(path: Path) -> None:
    settings = {"deterministic": True, "speculative": "ngram", "prefill_budget": 48}
    config = CoreConfig(device="cpu", dtype="float32", num_pages=512, tp=2, **settings)
    got, _, plans = run(sharing_requests(), engine=RanksEngine(config, path, 2), stagger=2, **settings)
    check(got, alone(path, deterministic=True), tolerance=0.0)
    assert max(len(plan.rows) for plan in plans) > 1
