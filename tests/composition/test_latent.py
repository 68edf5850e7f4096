"""Latent attention with everything else: pages, schedules, drafts, ranks and KV dtypes.

A random model of DeepSeek V3's kind. Its tokens are transformers' own (`test_any_model`); here they are compared with
those of each request alone, without a cache and without drafts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from ramiform.runtime.engine import PAGE_SIZE, ForwardEngine
from ramiform.runtime.engine.inputs import decoder_inputs
from ramiform.runtime.scheduler.plan import ForwardPlan, Row, Sample

from .one_model import (
    SCHEDULES,
    TO_RUN,
    check_deterministic,
    check_draft_trees,
    check_retraction,
    check_schedule,
    engine_of,
)

RANK, ROPE, LAYERS = 32, 8, 2
FIELDS: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "kv_lora_rank": RANK,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": ROPE,
    "v_head_dim": 12,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
}
LONGEST = max((request.tokens for request in TO_RUN), key=len)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**FIELDS))
    found: Path = tmp_path_factory.mktemp("latent")
    model.save_pretrained(found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_requests_get_the_same_in_any_schedule(name: str, path: Path) -> None:
    check_schedule(path, name)


@pytest.mark.slow
def test_draft_trees_change_nothing(path: Path) -> None:
    check_draft_trees(path)


@pytest.mark.exhaustive
def test_retracted_requests_get_the_same_tokens(path: Path) -> None:
    check_retraction(path)


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2])
def test_deterministic_bits_do_not_depend_on_batch_cache_drafts_or_ranks(tp: int, path: Path) -> None:
    check_deterministic(path, tp)


@pytest.mark.parametrize(("kv_dtype", "size"), [("auto", 4), ("bf16", 2), ("fp8", 1), ("int8", 1)])
def test_a_token_takes_the_bytes_of_one_latent_in_each_layer(kv_dtype: str, size: int, path: Path) -> None:
    engine = engine_of(path, kv_dtype=kv_dtype, num_pages=32)
    assert engine.info.kv_bytes == 32 * PAGE_SIZE * LAYERS * (RANK + ROPE) * size
    exact, found = last_logits(engine_of(path, num_pages=32)), last_logits(engine)
    error = float((found - exact).norm() / exact.norm())
    assert error == 0 if kv_dtype == "auto" else 1e-4 < error < {"bf16": 0.05, "int8": 0.1, "fp8": 0.25}[kv_dtype]


@torch.inference_mode()
def last_logits(engine: ForwardEngine) -> torch.Tensor:
    """Logits of a prompt's second half, whose first half is read from the cache."""
    model, kv, half = engine._runner.model, engine._runner.pool.layers, len(LONGEST) // 2
    for start, tokens in ((0, LONGEST[:half]), (half, LONGEST[half:])):
        row = Row(rid="", tokens=tokens, first_position=start, pages=list(range(1, 1 + -(-len(LONGEST) // PAGE_SIZE))))
        inputs = decoder_inputs([row], model, np.arange(len(tokens)), kv[0])
        logits = model.logits(model.hidden(inputs, kv))
    return logits


def test_pages_move_between_engines(path: Path) -> None:
    tokens = TO_RUN[1].tokens[:PAGE_SIZE]
    row = Row(rid="x", tokens=tokens, first_position=0, pages=[3], sample=Sample(draw=0))
    after = Row(rid="y", tokens=[5, 6], first_position=PAGE_SIZE, pages=[3, 4], sample=Sample(draw=0))
    first, second = engine_of(path, num_pages=8), engine_of(path, num_pages=8)
    first.launch(ForwardPlan(step=0, copies=[], rows=[row])).wait()
    pages = first.read_pages([3])
    assert pages.shape == (1, 1, LAYERS, PAGE_SIZE, 1, 4 * (RANK + ROPE))
    second.write_pages(row, 0, pages)
    steps = [engine.launch(ForwardPlan(step=1, copies=[], rows=[after])).wait() for engine in (first, second)]
    assert steps[0].rows == steps[1].rows
    assert torch.equal(second.read_pages([3]), pages)
