"""Unsupported request fields of other servers, and their neutral values.

Clients written for vLLM, SGLang, llama.cpp or OpenAI send such fields with default values. The server accepts these
values and refuses all others, because the answer would lack their effect. `null` means "not given" in every field. A
route's own field, such as `echo` of completions, is not looked up here.

Sources: the request models of vLLM and SGLang, llama.cpp's server, OpenAI's API reference.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PeerField:
    """Field of the server `whose`, with its neutral values."""

    whose: str
    neutral: tuple[Any, ...] = ()  # values without effect, besides null
    tunes: str | None = None  # the field that this one adjusts; that field is off, so any value is neutral

    def is_neutral(self, value: Any) -> bool:
        if value is None or self.tunes is not None:
            return True
        # True == 1 in Python, and not in JSON.
        return any(isinstance(value, bool) is isinstance(each, bool) and value == each for each in self.neutral)

    @property
    def accepted(self) -> str:
        """Describe the accepted values for the documentation."""
        if self.tunes is not None:
            return f"any value, since `{self.tunes}` is off"
        return " or ".join(f"`{json.dumps(value)}`" for value in (*self.neutral, None))


_NEUTRAL: dict[
    str, dict[str, tuple[Any, ...] | str]
] = {  # server -> field -> neutral values, or the name of the field that it tunes
    "OpenAI": {
        "audio": (),
        "best_of": (1,),
        "context_management": ([],),
        "conversation": (),
        "echo": (False,),
        "max_tool_calls": (),
        "modalities": (["text"],),
        "prediction": (),
        "suffix": ("",),
        "verbosity": ("medium",),
        "web_search_options": (),
    },
    "vLLM": {
        "add_generation_prompt": (True,),
        "chat_template": (),
        "continue_final_message": (False,),
        "documents": ([],),
        "early_stopping": (False,),
        "embed_dtype": ("float32",),
        "endianness": ("native",),
        "guided_decoding_backend": ("auto",),
        "guided_whitespace_pattern": (),
        "include_reasoning": (True,),
        "include_stop_str_in_output": (False,),
        "kv_transfer_params": (),
        "length_penalty": (1.0,),
        "logits_processors": ([],),
        "logprob_token_ids": (),
        "media_io_kwargs": ({},),
        "min_tokens": (0,),
        "mm_processor_kwargs": ({},),
        "prompt_embeds": (),
        "prompt_logprobs": (0,),
        "repetition_detection": (),
        "request_id": (),
        "return_prompt_text": (False,),
        "return_token_ids": (False,),
        "return_tokens_as_token_ids": (False,),
        "spaces_between_special_tokens": (True,),
        "thinking_token_budget": (),
        "truncate_prompt_tokens": (),
        "truncation_side": "truncate_prompt_tokens",
        "use_beam_search": (False,),
        "vllm_xargs": ({},),
        "watermarking": (False,),
    },
    "SGLang": {
        "audio_data": ([],),
        "bootstrap_host": (),
        "bootstrap_port": (),
        "bootstrap_room": (),
        "custom_labels": ({},),
        "custom_logit_processor": (),
        "custom_params": ({},),
        "data_parallel_rank": (),
        "disagg_prefill_dp_rank": (),
        "extra_key": (),
        "image_data": ([],),
        "images_config": (),
        "input_embeds": (),
        "log_metrics": (True,),
        "lora_id": (),
        "lora_path": (),
        "max_dynamic_patch": (),
        "max_thinking_tokens": (),
        "min_dynamic_patch": (),
        "no_logs": (False,),
        "require_reasoning": (False,),
        "return_bytes": (False,),
        "return_cached_tokens_details": (False,),
        "return_entropy": (False,),
        "return_hidden_states": (False,),
        "return_meta_info": (False,),
        "return_prompt_token_ids": (False,),
        "return_routed_experts": (False,),
        "rid": (),
        "routed_dp_rank": (),
        "routed_experts_start_len": (0,),
        "separate_reasoning": (True,),
        "session_id": (),
        "session_params": ({},),
        "stream_interval": (1,),
        "stream_reasoning": (True,),
        "use_audio_in_video": (False,),
        "video_data": ([],),
    },
    "llama.cpp": {
        "cache_prompt": (True,),
        "dry_allowed_length": "dry_multiplier",
        "dry_base": "dry_multiplier",
        "dry_multiplier": (0,),
        "dry_penalty_last_n": "dry_multiplier",
        "dry_sequence_breakers": "dry_multiplier",
        "dynatemp_exponent": "dynatemp_range",
        "dynatemp_range": (0,),
        "grammar_lazy": (False,),
        "grammar_triggers": ([],),
        "id_slot": (-1,),
        "lora": ([],),
        "min_keep": (0,),
        "mirostat": (0,),
        "mirostat_eta": "mirostat",
        "mirostat_tau": "mirostat",
        "n_cache_reuse": (0,),
        "n_discard": (0,),
        "n_indent": (0,),
        "n_keep": (0,),
        "n_predict": (),
        "n_probs": (0,),
        "parse_tool_calls": (True,),
        "penalize_nl": (False,),
        "post_sampling_probs": (False,),
        "reasoning_format": ("auto",),
        "repeat_last_n": (-1,),
        "repeat_penalty": (1,),
        "response_fields": ([],),
        "return_progress": (False,),
        "return_tokens": (False,),
        "samplers": ([],),
        "t_max_predict_ms": (0,),
        "tfs_z": (1,),
        "thinking_forced_open": (False,),
        "timings_per_token": (False,),
        "top_a": (0,),
        "top_n_sigma": (-1,),
        "typical_p": (1,),
        "xtc_probability": (0,),
        "xtc_threshold": "xtc_probability",
    },
}
PEER_FIELDS = {
    name: PeerField(whose, tunes=neutral) if isinstance(neutral, str) else PeerField(whose, neutral)
    for whose, fields in _NEUTRAL.items()
    for name, neutral in fields.items()
}


def unsupported_reason(name: str) -> str | None:
    """Return the error message for a field of another server; None for a field that no server has."""
    if (field := PEER_FIELDS.get(name)) is None:
        return None
    return f"{name}, a parameter of {field.whose}, is not supported here: only {field.accepted.replace('`', '')}"
