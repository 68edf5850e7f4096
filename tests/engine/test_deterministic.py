"""`--deterministic`: a request has the same bits in any batch and for any cut of its prompt into chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ramiform.runtime.engine import build_engine
from ramiform.runtime.protocol.config import CoreConfig

from .same_bits import check_same_bits, results_of

SHAPE: dict[str, Any] = {
    "vocab_size": 150,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
EXPERTS: dict[str, Any] = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 20}


def deterministic(path: Path, **settings: object) -> CoreConfig:
    return CoreConfig(device="cpu", num_pages=40, deterministic=True, model=str(path), **settings)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "kv_dtype", "num_threads"), [("float32", "auto", 2), ("bfloat16", "int8", 1)])
def test_a_request_has_the_same_bits_in_any_batch(
    dtype: str, kv_dtype: str, num_threads: int, checkpoint: Path
) -> None:
    engine = build_engine(deterministic(checkpoint, dtype=dtype, kv_dtype=kv_dtype), checkpoint)
    torch.set_num_threads(num_threads)
    try:
        check_same_bits(engine)
    finally:
        torch.set_num_threads(1)


def test_plain_torch_fails_the_check(checkpoint: Path) -> None:
    plain = build_engine(CoreConfig(device="cpu", dtype="float32", num_pages=40, kernels="reference"), checkpoint)
    with pytest.raises(AssertionError):
        check_same_bits(plain)


def test_windows_have_the_same_bits_in_any_batch(tmp_path: Path) -> None:
    torch.manual_seed(2)
    config = transformers.MistralConfig(**SHAPE, sliding_window=24)
    transformers.MistralForCausalLM(config).save_pretrained(tmp_path)
    check_same_bits(build_engine(deterministic(tmp_path, dtype="float32"), tmp_path))


def test_deterministic_gives_the_results_of_the_plain_engine(checkpoint: Path) -> None:
    plain = build_engine(CoreConfig(device="cpu", dtype="float32", num_pages=40, kernels="reference"), checkpoint)
    ours = build_engine(deterministic(checkpoint, dtype="float32"), checkpoint)
    for mine, wanted in zip(results_of(ours, [30]), results_of(plain, [30]), strict=True):
        assert mine.tokens == wanted.tokens
        assert [p for p, _ in mine.logprobs[0].top] == pytest.approx([p for p, _ in wanted.logprobs[0].top], abs=1e-4)


MIXTURES: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "mixtral": lambda: transformers.MixtralConfig(**SHAPE, num_local_experts=3),
    "qwen2 moe": lambda: transformers.Qwen2MoeConfig(
        **SHAPE, **EXPERTS, shared_expert_intermediate_size=36, mlp_only_layers=[0], sliding_window=None
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_have_the_same_bits_in_any_batch(name: str, quantize: str | None, tmp_path: Path) -> None:
    torch.manual_seed(4)
    transformers.AutoModelForCausalLM.from_config(MIXTURES[name]()).save_pretrained(tmp_path)
    check_same_bits(build_engine(deterministic(tmp_path, dtype="float32", quantize=quantize), tmp_path))
