"""Tiny random models of the families that have an architecture of GGUF: the class of the config, and its fields."""

from __future__ import annotations

from typing import Any

_SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.25,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_WINDOW = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
_FULL_WINDOW = {"sliding_window": 16}
_NO_GROUPS = {name: value for name, value in _SIZES.items() if name != "num_key_value_heads"}
_FALCON = {name: value for name, value in _NO_GROUPS.items() if name != "intermediate_size"}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1}
_LATENT = {**_SIZES, **_ROUTED, "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 16,
           "qk_rope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 1, "routed_scaling_factor": 0.7,
           "n_group": 1, "topk_group": 1}  # fmt: skip
_YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 32,
         "beta_fast": 32.0, "beta_slow": 1.0}  # fmt: skip
_PATTERN = ["sliding_attention"] * 5 + ["full_attention"]
_FOUR = {"num_hidden_layers": 4}
_FOURTH = {**_FOUR, "layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 16}
_DELTA = {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
          "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "head_dim": 16,
          "partial_rotary_factor": 0.5}  # fmt: skip
_SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1],
                                 "partial_rotary_factor": 0.5}}  # fmt: skip
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_expand": 2, "mamba_n_groups": 2,
          "mamba_d_conv": 4}  # fmt: skip
_GRANITE = {"embedding_multiplier": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.4, "logits_scaling": 2.0}
_VISION = {"depth": 1, "hidden_size": 32, "embed_dim": 32, "num_heads": 2, "out_hidden_size": 32,
           "intermediate_size": 32, "fullatt_block_indexes": [0], "deepstack_visual_indexes": [0]}  # fmt: skip
_SEEING = {"vision_config": _VISION, "image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92,
           "vision_end_token_id": 93}  # fmt: skip
_TEXT = {**_SIZES, "head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                                       "mrope_section": [3, 3, 2]}}  # fmt: skip

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**_SIZES, "rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 1e4,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}}),
    "mistral": ("Mistral", {**_SIZES, "head_dim": 16, "sliding_window": None}),
    "mixtral": ("Mixtral", {**_SIZES, "num_local_experts": 4, "sliding_window": None}),
    "qwen2": ("Qwen2", _SIZES),
    "qwen3": ("Qwen3", {**_SIZES, "head_dim": 16}),
    "qwen2moe": ("Qwen2Moe", {**_SIZES, **_MOE, "shared_expert_intermediate_size": 32}),
    "qwen3moe": ("Qwen3Moe", {**_SIZES, **_MOE, "head_dim": 16, "norm_topk_prob": True}),
    "qwen2vl": ("Qwen2VL", {**_SEEING, "text_config": {**_SIZES, "rope_parameters":
        {**_TEXT["rope_parameters"], "mrope_section": [1, 2, 1]}}}),
    "qwen3vl": ("Qwen3VL", {**_SEEING, "text_config": _TEXT}),
    "qwen3vlmoe": ("Qwen3VLMoe", {**_SEEING, "text_config": {**_TEXT, **_MOE, "norm_topk_prob": True}}),
    "gemma": ("Gemma", {**_SIZES, "head_dim": 16}),
    "gemma2": ("Gemma2", {**_SIZES, **_WINDOW, "head_dim": 16, "query_pre_attn_scalar": 16,
                          "attn_logit_softcapping": 3.0, "final_logit_softcapping": 8.0}),
    "gemma3": ("Gemma3Text", {**_SIZES, "num_hidden_layers": 6, "layer_types": _PATTERN, "sliding_window": 16,
                              "head_dim": 16, "query_pre_attn_scalar": 16, "num_key_value_heads": 1,
                              "num_attention_heads": 2}),
    "gemma3-linear": ("Gemma3Text", {**_SIZES, "num_hidden_layers": 6, "layer_types": _PATTERN, "sliding_window": 16,
                                     "head_dim": 16, "query_pre_attn_scalar": 16, "num_key_value_heads": 1,
                                     "num_attention_heads": 2, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}),
    "phi3": ("Phi3", {**_SIZES, "sliding_window": None}),
    "phi3-window": ("Phi3", {**_SIZES, "sliding_window": 16}),
    "phi3-longrope": ("Phi3", {**_SIZES, "original_max_position_embeddings": 256, "max_position_embeddings": 512,
        "sliding_window": None, "rope_parameters": {
        "rope_type": "longrope", "short_factor": [1.0, 1.2, 1.5], "long_factor": [2.0, 3.0, 5.0],
        "original_max_position_embeddings": 256, "rope_theta": 1e4, "partial_rotary_factor": 0.75}}),
    "phi2": ("Phi", {**_SIZES, "num_key_value_heads": 4, "intermediate_size": 128}),
    "olmo": ("Olmo", _SIZES),
    "olmo2": ("Olmo2", _SIZES),
    "olmo3": ("Olmo3", {**_SIZES, **_FOURTH, "rope_parameters": {
        "full_attention": {**_YARN, "rope_theta": 5e4}, "sliding_attention": {
            "rope_type": "default", "rope_theta": 5e4}}}),
    "olmoe": ("Olmoe", {**_SIZES, "intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2,
                        "num_key_value_heads": 4}),
    "granite": ("Granite", {**_SIZES, **_GRANITE}),
    "granitemoe": ("GraniteMoe", {**_SIZES, **_GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2,
                                  "intermediate_size": 32}),
    "granitemoe-shared": ("GraniteMoeShared", {**_SIZES, **_GRANITE, "num_local_experts": 4,
                                               "num_experts_per_tok": 2, "intermediate_size": 32,
                                               "shared_intermediate_size": 64}),
    "granitehybrid": ("GraniteMoeHybrid", {**_SIZES, **_MAMBA, **_GRANITE, "shared_intermediate_size": 64,
        "layer_types": ["mamba", "attention"], "num_local_experts": 0, "num_experts_per_tok": 0,
        "position_embedding_type": "nope"}),
    "granitehybrid-moe": ("GraniteMoeHybrid", {**_SIZES, **_MAMBA, **_GRANITE, "shared_intermediate_size": 64,
        "layer_types": ["mamba", "attention"], "num_local_experts": 4, "num_experts_per_tok": 2,
        "intermediate_size": 32, "position_embedding_type": "nope"}),
    "smollm3": ("SmolLM3", {**_SIZES, **_FOUR, "no_rope_layers": [1, 1, 1, 0]}),
    "chatglm": ("Glm", {**_SIZES, "head_dim": 8, "attention_bias": True}),
    "glm4": ("Glm4", {**_SIZES, "head_dim": 16, "attention_bias": True}),
    "glm4moe": ("Glm4Moe", {**_SIZES, **_ROUTED, "use_qk_norm": True, "head_dim": 16, "attention_bias": True,
                            "routed_scaling_factor": 1.4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}),
    "command-r": ("Cohere", {**_SIZES, "logit_scale": 0.5}),
    "command-r-norm": ("Cohere", {**_SIZES, "logit_scale": 0.5, "use_qk_norm": True}),
    "cohere2": ("Cohere2", {**_SIZES, **_FOURTH, "logit_scale": 0.5}),
    "starcoder2": ("Starcoder2", {**_SIZES, "sliding_window": None}),
    "stablelm": ("StableLm", {**_SIZES, "use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "falcon": ("Falcon", {**_FALCON, "num_kv_heads": 1}),
    "falcon-groups": ("Falcon", {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "gptneox": ("GPTNeoX", {**_NO_GROUPS, "rotary_pct": 0.5}),
    "gptneox-sequential": ("GPTNeoX", {**_NO_GROUPS, "rotary_pct": 0.5, "use_parallel_residual": False}),
    "gpt2": ("GPT2", {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128,
                      "initializer_range": 0.25, "bos_token_id": None, "eos_token_id": None}),
    "nemotron": ("Nemotron", {**_SIZES, "partial_rotary_factor": 0.5}),
    "arcee": ("Arcee", _SIZES),
    "seed_oss": ("SeedOss", {**_SIZES, "head_dim": 16}),
    "ernie4_5": ("Ernie4_5", {**_SIZES, "head_dim": 16}),
    "ernie4_5-moe": ("Ernie4_5_Moe", {**_SIZES, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32,
                                      "moe_num_shared_experts": 1, "moe_layer_interval": 1,
                                      "moe_layer_start_index": 1}),
    "hunyuan-dense": ("HunYuanDenseV1", {**_SIZES, "head_dim": 16}),
    "hunyuan-moe": ("HunYuanMoEV1", {**_SIZES, "head_dim": 16, "num_experts": 4, "moe_topk": [2, 2],
                                     "intermediate_size": 32, "num_shared_expert": [1, 1],
                                     "moe_intermediate_size": [32, 32]}),
    "exaone4": ("Exaone4", {**_SIZES, **_FOURTH}),
    "exaone4-full": ("Exaone4", {**_SIZES, "sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "deepseek2-v2": ("DeepseekV2", {**_LATENT, "rope_parameters":
        {**_YARN, "mscale": 0.7, "mscale_all_dim": 0.7}}),
    "deepseek2-v2-groups": ("DeepseekV2", {**_LATENT, "n_group": 2, "topk_group": 1, "topk_method":
        "group_limited_greedy"}),
    "deepseek2-v3": ("DeepseekV3", {**_LATENT, "n_group": 2, "topk_group": 1, "norm_topk_prob": True, "scoring_func":
        "sigmoid", "rope_parameters":
        {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}),
    "deepseek2-flash": ("Glm4MoeLite", {**_LATENT, "rope_interleave": True, "scoring_func": "sigmoid"}),
    "gpt-oss": ("GptOss", {**_SIZES, **_WINDOW, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2,
        "intermediate_size": 32, "rope_parameters":
        {**_YARN, "original_max_position_embeddings": 62, "truncate": False}}),
    "llama4": ("Llama4Text", {**_SIZES, **_FOUR, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 1,
        "intermediate_size": 32, "intermediate_size_mlp": 64, "attention_chunk_size": 128, "interleave_moe_layer_step":
        2, "no_rope_layers": [1, 1, 1, 0], "floor_scale": 8192, "attn_scale": 0.1}),
    "lfm2": ("Lfm2", {**_SIZES, "layer_types": ["conv", "full_attention"], "block_multiple_of": 8,
                      "block_auto_adjust_ff_dim": False}),
    "lfm2moe": ("Lfm2Moe", {**_SIZES, **_MOE, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1}),
    "qwen3next": ("Qwen3Next", {**_SIZES, **_DELTA, **_MOE, "shared_expert_intermediate_size": 32}),
    "qwen35": ("Qwen3_5Text", {**_SIZES, **_DELTA, **_SECTIONS}),
    "qwen35moe": ("Qwen3_5MoeText", {**_SIZES, **_DELTA, **_MOE, **_SECTIONS, "shared_expert_intermediate_size": 32}),
    "falcon-h1": ("FalconH1", {**_SIZES, **_MAMBA, "head_dim": 16, "mamba_d_ssm": 64, "embedding_multiplier": 3.0,
        "lm_head_multiplier": 0.5, "key_multiplier": 1.5, "attention_in_multiplier": 0.7,
        "attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.6,
        "ssm_multipliers": [0.5, 0.8, 1.3, 1.1, 0.9], "mlp_multipliers": [0.8, 0.3]}),
    "jamba": ("Jamba", {**_SIZES, "num_experts": 4, "expert_layer_offset": 0, "attn_layer_period": 2,
                        "attn_layer_offset": 1, "mamba_d_conv": 4, "mamba_d_state": 16}),
    "nemotron-h": ("NemotronH", {**_SIZES, "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
                                 "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2,
                                 "time_step_min": 1e-30,
                                 "head_dim": 16}),
    "nemotron-h-moe": ("NemotronH", {**_SIZES, "layers_block_type": ["linear_attention", "moe", "full_attention",
        "moe"], "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2,
        "time_step_min": 1e-30, "head_dim": 16,
        **_ROUTED, "moe_shared_expert_intermediate_size": 32, "routed_scaling_factor": 2.5}),
}  # fmt: skip
# llama.cpp computes these otherwise than transformers: without windows of Phi 3 and small EXAONE 4, without norms of
# queries and keys of a small Command R, and groups of DeepSeek V2 as V3 chooses them.
TRANSFORMERS_ALONE = ("phi3-window", "exaone4", "command-r-norm", "deepseek2-v2-groups")
