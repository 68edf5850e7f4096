"""Models of real shapes with random weights, made on the device in seconds, and plans of decode steps for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ramiform.runtime.models.config import ModelConfig, parse_config
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.parameters import allocate_parameters, checkpoint_destinations
from ramiform.runtime.models.quantised.rounding import int4_group_size
from ramiform.runtime.models.quantised.scheme import quantise_while_loading
from ramiform.runtime.scheduler.plan import ForwardPlan, Row, RowSampling, Sample, SamplingPlan

MAX_STEPS = 512  # of `decode_plans`
PAGE_SIZE = 16

_LLAMA = {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "rope_theta": 500000.0}
_QWEN3 = {"rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "head_dim": 128}
_TINY = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
_TINY |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512}

CONFIGS: dict[str, dict[str, Any]] = {
    "Llama-3-8B": _LLAMA
    | {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192},
    "Qwen3-0.6B": _QWEN3
    | {"architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072}
    | {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True}
    | {"max_position_embeddings": 40960},
    "Qwen2.5-7B": {"architectures": ["Qwen2ForCausalLM"], "rms_norm_eps": 1e-6, "rope_theta": 1000000.0}
    | {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
    | {"num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 32768},
    "heads of 256": _LLAMA
    | {"vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 256}
    | {"num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 8192},
    "Qwen3-30B-A3B": _QWEN3
    | {"architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144}
    | {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True}
    | {"decoder_sparse_step": 1, "mlp_only_layers": [], "num_hidden_layers": 48, "num_attention_heads": 32}
    | {"num_key_value_heads": 4, "max_position_embeddings": 40960},
}


def config_of(name: str, *, tiny: bool = False, **changes: Any) -> ModelConfig:
    """Return the configuration of a model by its name; `tiny` keeps its architecture and none of its sizes."""
    raw = CONFIGS[name] | changes
    if tiny:
        raw |= _TINY | {"head_dim": 16} | ({"num_experts": 4, "num_experts_per_tok": 2} if "num_experts" in raw else {})
        raw |= {"moe_intermediate_size": 16} if "num_experts" in raw else {}
    return parse_config(raw, Path("config.json"))


def dummy_model(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    ops: Any,
    *,
    quantize: Any = None,
    deviation: float = 0.02,
    context_length: int | None = None,
) -> Decoder:
    """Make a model with normal weights of this deviation, `quantize`d as a checkpoint would be while it is loaded."""
    config = replace(config, rope=config.rope.within(context_length or config.context_length))
    if quantize is not None:
        group = int4_group_size(*config.linear_inputs)
        config = replace(config, quantisation=quantise_while_loading(quantize, group))
    with torch.inference_mode():
        parameters = allocate_parameters(
            config, device=device, dtype=dtype, groups_experts=quantize is None and ops.groups_experts
        )
        torch.manual_seed(0)
        for name, part in checkpoint_destinations(parameters, config).items():
            if name.endswith("norm.weight"):
                part.put(torch.ones(part.shape, dtype=dtype, device=device))
            else:
                part.put(torch.randn(part.shape, dtype=dtype, device=device) * deviation)
        for linear in (*parameters.linears(), *parameters.packed_vocabulary()):
            linear.finish()
        return Decoder(config, parameters, ops)


def decode_plans(num_rows: int, keys: int, *, temperature: float = 0.0) -> Iterator[tuple[ForwardPlan, SamplingPlan]]:
    """Yield MAX_STEPS decode steps of rows of `keys` keys; from the second on each row follows the same row of the step
    before. Row i has the pages from `i * pages_of_row(keys)` on."""
    sample, own = Sample(temperature=temperature, top_p=0.9 if temperature else 1.0, draw=7), pages_of_row(keys)
    for step in range(MAX_STEPS):
        first = keys + step
        rows = [
            Row(
                rid=str(index),
                tokens=[-1 if step else 1],
                first_position=first,
                pages=list(range(index * own, index * own + first // PAGE_SIZE + 1)),
                follows=index if step else None,
                sample=None if step else sample,
            )
            for index in range(num_rows)
        ]
        yield ForwardPlan(step=step, copies=[], rows=rows), SamplingPlan(step, [RowSampling(sample)] * num_rows)


def pages_of_row(keys: int) -> int:
    """Return the pages that a row of `decode_plans` has room for."""
    return -(-(keys + MAX_STEPS) // PAGE_SIZE)
