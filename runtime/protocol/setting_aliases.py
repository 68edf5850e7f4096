"""Names that vLLM, SGLang and llama-server use for our settings, to suggest ours to those who type theirs.

Their values, such as names of parsers, are taken as ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

_ALIASES = {
    "admin_api_key": "admin_key",
    "alias": "served_model_name",
    "allowed_origins": "cors_origins",
    "api_server_count": "frontends",
    "attention_backend": "kernels",
    "batch_size": "prefill_budget",
    "cache_type_k": "kv_dtype",
    "cache_type_v": "kv_dtype",
    "chunked_prefill_size": "prefill_budget",
    "collect_detailed_traces": "otlp_endpoint",
    "constrained_json_disable_any_whitespace": "json_whitespace",
    "constrained_json_whitespace_pattern": "json_whitespace",
    "ctx_size": "context_length",
    "disable_cuda_graph": "cuda_graphs",
    "disable_hybrid_kv_cache_manager": "window_ratio",
    "disable_hybrid_swa_memory": "window_ratio",
    "disable_overlap_schedule": "overlap",
    "disable_radix_cache": "prefix_cache",
    "disaggregation_mode": "role",
    "disaggregation_transfer_backend": "transfer",
    "dist_init_addr": "master",
    "draft_max": "speculative_num_draft_tokens",
    "enable_deterministic_inference": "deterministic",
    "enable_expert_parallel": "ep",
    "enable_prefix_caching": "prefix_cache",
    "enable_lora": "lora",
    "enforce_eager": "cuda_graphs",
    "ep_size": "ep",
    "gpu_memory_utilization": "mem_fraction",
    "guided_decoding_backend": "grammar_backend",
    "hicache_size": "host_kv_memory",
    "kv_cache_dtype": "kv_dtype",
    "kv_events_config": "kv_events",
    "kv_transfer_config": "role",
    "lora_modules": "lora",
    "lora_paths": "lora",
    "max_loaded_loras": "max_loras",
    "max_loras_per_batch": "max_loras",
    "max_model_len": "context_length",
    "max_num_batched_tokens": "prefill_budget",
    "max_num_seqs": "max_running",
    "max_queued_requests": "max_waiting",
    "max_running_requests": "max_running",
    "max_total_tokens": "num_pages",
    "mem_fraction_static": "mem_fraction",
    "model_draft": "speculative_draft_model",
    "model_path": "model",
    "n_gpu_layers": "device",
    "no_cache_prompt": "prefix_cache",
    "no_enable_prefix_caching": "prefix_cache",
    "num_gpu_blocks_override": "num_pages",
    "otlp_traces_endpoint": "otlp_endpoint",
    "parallel": "max_running",
    "pipeline_parallel_size": "pp",
    "pp_size": "pp",
    "quantization": "quantize",
    "quantization_param_path": "kv_scales",
    "radix_eviction_policy": "eviction",
    "reasoning_format": "reasoning_parser",
    "schedule_policy": "order",
    "scheduling_policy": "order",
    "speculative_algorithm": "speculative",
    "speculative_config": "speculative",
    "speculative_draft_model_path": "speculative_draft_model",
    "ssl_cert_file": "ssl_certfile",
    "ssl_key_file": "ssl_keyfile",
    "swap_space": "host_kv_memory",
    "swa_full_tokens_ratio": "window_ratio",
    "tensor_parallel_size": "tp",
    "threads": "cpu_threads",
    "tp_size": "tp",
}


_VALUES = {  # setting -> their value -> ours
    "kv_dtype": {
        "bfloat16": "bf16",
        "f16": "fp16",
        "f32": "fp32",
        "float16": "fp16",
        "float32": "fp32",
        "fp8_e4m3": "fp8",
    },
    "speculative": {
        "EAGLE": "eagle",
        "EAGLE3": "eagle",
        "NEXTN": "mtp",
        "NGRAM": "ngram",
        "STANDALONE": "draft",
        "deepseek_mtp": "mtp",
        "draft_model": "draft",
        "eagle3": "eagle",
        "glm4_moe_mtp": "mtp",
        "qwen3_5_mtp": "mtp",
        "qwen3_next_mtp": "mtp",
    },
    "tool_call_parser": {
        "apertus2509": "apertus",
        "deepseek_v3": "deepseek",
        "deepseekv3": "deepseek",
        "deepseekv31": "deepseek_v31",
        "deepseekv32": "deepseek_v32",
        "deepseekv4": "deepseek_v4",
        "ernie45": "hermes",
        "glm": "glm45",
        "glm47": "glm45",
        "gpt-oss": "harmony",
        "granite-20b-fc": "granite_20b_fc",
        "granite4": "hermes",
        "hunyuan": "hunyuan_a13b",
        "interns1": "internlm",
        "jamba": "hunyuan_a13b",
        "kimi": "kimi_k2",
        "llama3": "llama3_json",
        "llama4_json": "llama3_json",
        "llama4_pythonic": "pythonic",
        "mimo": "qwen3_coder",
        "minimax-m2": "minimax_m2",
        "openai": "harmony",
        "phi4_mini_json": "phi4_mini",
        "qwen": "hermes",
        "qwen25": "hermes",
        "qwen3_xml": "qwen3_coder",
        "step3p5": "qwen3_coder",
        "xlam": "json",
    },
    "reasoning_parser": {
        "deepseek_r1": "think",
        "deepseek-r1": "think",
        "deepseek-v3": "think",
        "deepseek_v3": "think",
        "deepseek_v4": "think",
        "deepseek-v4": "think",
        "ernie45": "think",
        "glm45": "think",
        "gpt-oss": "harmony",
        "holo2": "think",
        "interns1": "think",
        "kimi_k2": "think",
        "mimo": "think",
        "minimax": "think",
        "minimax_m2": "think",
        "mistral": "magistral",
        "nano_v3": "think",
        "olmo3": "think",
        "openai_gptoss": "harmony",
        "qwen3": "think",
        "qwen3-thinking": "think",
        "step3": "think",
        "step3p5": "think",
    },
}


def value_for_alias(setting: str, value: object) -> object:
    """Our value for a value of theirs, such as the name of a parser; other values as they are."""
    return _VALUES.get(setting, {}).get(value, value) if isinstance(value, str) else value


def setting_for_alias(name: str) -> str | None:
    """Our name for a setting of theirs, or None."""
    return _ALIASES.get(name)


def suggest_setting(name: str, known: Collection[str]) -> str | None:
    """Return the one of the `known` settings that `name` probably means, or None."""
    if (ours := setting_for_alias(name)) is not None:
        return ours if ours in known else None
    near = difflib.get_close_matches(name, known, 1, cutoff=0.75)
    return near[0] if near else None
