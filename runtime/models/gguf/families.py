"""Architectures of GGUF: the class of config.json that each stands for, and the keys that its fields come from.

What tensors show themselves (stacked projections, biases, kinds of layers, a head of its own) is read off the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Architecture(NamedTuple):
    """One architecture: how llama.cpp's converter writes a family's config and tensors."""

    kind: str  # the class in config.json
    fields: Mapping[str, str] = {}  # config.json's field: the key, without the architecture's name
    constants: Mapping[str, Any] = {}  # fields that no key says
    neighbours_rotate: bool = False  # rows of queries and keys are in another order than in the checkpoint
    full_every: int | None = None  # every n-th layer has no window, where the file does not say which
    tiled_heads: bool = False  # value heads of recurrent layers take turns, instead of standing by key head
    large_layers: int | None = None  # layers of the size whose attention scale is hidden_size / num_heads
    # (key or tensor, its value or None for any): what it changes
    variants: tuple[tuple[str, Any, Mapping[str, Any]], ...] = ()


_MOE = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "norm_topk_prob": "expert_weights_norm",
}
_ROUTED = {
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
}
_LATENT = {
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "v_head_dim": "attention.value_length_mla",
}
_GRANITE = {
    "embedding_multiplier": "embedding_scale",
    "attention_multiplier": "attention.scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
_GRANITE_MOE = {
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
}
_DELTA = {
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "linear_key_head_dim": "ssm.state_size",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
}
_MAMBA1 = {"mamba_dt_rank": "ssm.time_step_rank", "mamba_d_state": "ssm.state_size", "mamba_d_conv": "ssm.conv_kernel"}
_MAMBA2 = {
    "mamba_n_heads": "ssm.time_step_rank",
    "mamba_d_state": "ssm.state_size",
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_n_groups": "ssm.group_count",
    "mamba_d_ssm": "ssm.inner_size",
}
_CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
_PARALLEL = {"use_parallel_residual": "use_parallel_residual"}

ARCHITECTURES = {
    "llama": Architecture(
        "LlamaForCausalLM",
        neighbours_rotate=True,
        variants=(
            (
                "expert_count",
                None,
                {"kind": "MixtralForCausalLM", "fields": {**_MOE, "num_local_experts": "expert_count"}},
            ),
        ),
    ),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen3": Architecture("Qwen3ForCausalLM"),
    "qwen2vl": Architecture("Qwen2ForCausalLM"),  # the text part, like the two below
    "qwen3vl": Architecture("Qwen3ForCausalLM"),
    "qwen3vlmoe": Architecture("Qwen3MoeForCausalLM", _MOE, {"norm_topk_prob": True}),
    "qwen2moe": Architecture("Qwen2MoeForCausalLM", _MOE),
    # Qwen3's reference implementation normalises, Qwen2's does not.
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", _MOE, {"norm_topk_prob": True}),
    "gemma": Architecture("GemmaForCausalLM"),
    "gemma2": Architecture("Gemma2ForCausalLM", _CAPS, full_every=2, large_layers=46),
    "gemma3": Architecture("Gemma3ForCausalLM", full_every=6, large_layers=62),
    "phi2": Architecture("PhiForCausalLM"),
    "phi3": Architecture("Phi3ForCausalLM"),
    "olmo": Architecture("OlmoForCausalLM", {"clip_qkv": "attention.clamp_kqv"}, neighbours_rotate=True),
    "olmo2": Architecture(
        "Olmo2ForCausalLM",
        full_every=4,
        variants=(("attention.sliding_window", None, {"kind": "Olmo3ForCausalLM"}),),
    ),
    "olmoe": Architecture("OlmoeForCausalLM", _MOE),
    "granite": Architecture("GraniteForCausalLM", _GRANITE, neighbours_rotate=True),
    "granitemoe": Architecture(
        "GraniteMoeHybridForCausalLM",
        {**_GRANITE, **_GRANITE_MOE},
        {"position_embedding_type": "rope"},
        neighbours_rotate=True,
    ),
    "smollm3": Architecture("SmolLM3ForCausalLM", neighbours_rotate=True),
    "chatglm": Architecture("GlmForCausalLM"),
    "glm4": Architecture("Glm4ForCausalLM"),
    "glm4moe": Architecture(
        "Glm4MoeForCausalLM",
        _ROUTED,
        variants=(("blk.0.attn_q_norm.weight", None, {"constants": {"use_qk_norm": True}}),),
    ),
    "command-r": Architecture(
        "CohereForCausalLM",
        {"logit_scale": "logit_scale"},
        variants=(("blk.0.attn_q_norm.weight", None, {"constants": {"use_qk_norm": True}}),),
    ),
    "cohere2": Architecture("Cohere2ForCausalLM", {"logit_scale": "logit_scale"}, full_every=4),
    "starcoder2": Architecture("Starcoder2ForCausalLM"),
    "stablelm": Architecture("StableLmForCausalLM", _PARALLEL),
    "falcon": Architecture("FalconForCausalLM"),
    "gptneox": Architecture("GPTNeoXForCausalLM", _PARALLEL),
    "gpt2": Architecture("GPT2LMHeadModel"),
    "nemotron": Architecture("NemotronForCausalLM"),
    "arcee": Architecture("ArceeForCausalLM", neighbours_rotate=True),
    "seed_oss": Architecture("SeedOssForCausalLM"),
    "ernie4_5": Architecture("Ernie4_5ForCausalLM"),
    "ernie4_5-moe": Architecture(
        "Ernie4_5_MoeForCausalLM",
        {
            "moe_num_experts": "expert_count",
            "moe_k": "expert_used_count",
            "moe_num_shared_experts": "expert_shared_count",
            "moe_intermediate_size": "expert_feed_forward_length",
            "moe_layer_interval": "interleave_moe_layer_step",
            "moe_layer_start_index": "leading_dense_block_count",
        },
    ),
    "hunyuan-dense": Architecture("HunYuanDenseV1ForCausalLM"),
    "hunyuan-moe": Architecture(
        "HunYuanMoEV1ForCausalLM",
        {
            "num_experts": "expert_count",
            "moe_topk": "expert_used_count",
            "intermediate_size": "expert_feed_forward_length",
        },
    ),
    "exaone4": Architecture("Exaone4ForCausalLM", full_every=4),
    "deepseek2": Architecture(
        "DeepseekV2ForCausalLM",
        {**_ROUTED, **_LATENT},
        variants=(("expert_gating_func", 2, {"kind": "DeepseekV3ForCausalLM"}),),
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        {
            "num_local_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count",
            "intermediate_size": "expert_feed_forward_length",
        },
        full_every=2,
    ),
    "llama4": Architecture(
        "Llama4ForCausalLM",
        {
            "num_local_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count",
            "intermediate_size": "expert_feed_forward_length",
            "intermediate_size_mlp": "feed_forward_length",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
    ),
    "lfm2": Architecture("Lfm2ForCausalLM", {"conv_L_cache": "shortconv.l_cache"}, {"block_auto_adjust_ff_dim": False}),
    "lfm2moe": Architecture(
        "Lfm2MoeForCausalLM",
        {**_ROUTED, **_MOE, "conv_L_cache": "shortconv.l_cache"},
    ),
    "qwen3next": Architecture("Qwen3NextForCausalLM", {**_MOE, **_DELTA}),
    "qwen35": Architecture("Qwen3_5ForCausalLM", _DELTA, tiled_heads=True),
    "qwen35moe": Architecture("Qwen3_5MoeForCausalLM", {**_MOE, **_DELTA}, tiled_heads=True),
    "granitehybrid": Architecture(
        "GraniteMoeHybridForCausalLM",
        {
            **_GRANITE,
            **_GRANITE_MOE,
            **_MAMBA2,
        },
        {"position_embedding_type": "rope"},
        neighbours_rotate=True,
        variants=(("rope.scaling.finetuned", False, {"constants": {}}),),
    ),
    "falcon-h1": Architecture("FalconH1ForCausalLM", _MAMBA2, {"mamba_norm_before_gate": False}),
    "jamba": Architecture(
        "JambaForCausalLM", {**_MAMBA1, **_MOE}, {"expert_layer_period": 1, "expert_layer_offset": 0}
    ),
    "nemotron_h": Architecture("NemotronHForCausalLM", _MAMBA2),
    "nemotron_h_moe": Architecture(
        "NemotronHForCausalLM",
        {**_MAMBA2, **_ROUTED, "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
    ),
}


def architecture_of(name: str, value: Any) -> Architecture:
    """Return the row of the architecture `name`; `value(key, wanted)` says whether the file has a key or tensor.

    Raises KeyError.
    """
    row = ARCHITECTURES[name]
    for key, wanted, changes in row.variants:
        if value(key, wanted):
            row = row._replace(**changes)
    return row
