"""Unsupported request fields of other servers, and their neutral values.

Clients written for vLLM, SGLang, llama.cpp or OpenAI send such fields with default values. The server accepts these
values and refuses all others with the reason, because the answer would lack their effect. `null` means "not given" in
every field. A route's own field, such as `echo` of completions, is not looked up here.

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
    why: str  # the reason why other values are refused
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
        "prompt": (),
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
        "guided_decoding_backend": ("auto", "guidance", "lm-format-enforcer", "outlines", "xgrammar"),
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
    },
}
_REASONS: dict[str, tuple[str, ...]] = {  # reason -> fields
    "the models read and write text": (
        "audio",
        "audio_data",
        "images_config",
        "max_dynamic_patch",
        "media_io_kwargs",
        "min_dynamic_patch",
        "mm_processor_kwargs",
        "modalities",
        "use_audio_in_video",
        "video_data",
    ),
    "images of chats stand in their messages": ("image_data",),
    "a prompt is text or token ids": ("input_embeds", "prompt_embeds"),
    "the server runs no tools and searches nothing": ("max_tool_calls", "web_search_options"),
    "the server runs no code of its clients": (
        "custom_labels",
        "custom_logit_processor",
        "custom_params",
        "logits_processors",
        "vllm_xargs",
    ),
    "an adapter is chosen by its name: as the model, or in lora_path": ("lora", "lora_id"),
    "the prefix cache reuses what a session or a slot would keep": (
        "cache_prompt",
        "conversation",
        "context_management",
        "id_slot",
        "n_cache_reuse",
        "n_discard",
        "n_keep",
        "session_id",
        "session_params",
    ),
    "one runtime computes the whole answer": (
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "data_parallel_rank",
        "disagg_prefill_dp_rank",
        "kv_transfer_params",
        "routed_dp_rank",
    ),
    "there is no beam search; n and best_of draw samples": (
        "best_of",
        "early_stopping",
        "length_penalty",
        "use_beam_search",
    ),
    "the sampler has no such rule": (
        "min_keep",
        "n_indent",
        "penalize_nl",
        "repeat_last_n",
        "repetition_detection",
        "samplers",
        "tfs_z",
        "top_a",
        "watermarking",
    ),
    "mirostat adjusts itself from token to token, and a token here depends on its seed and position alone": (
        "mirostat",
        "mirostat_eta",
        "mirostat_tau",
    ),
    "log-probabilities are of the model's own distribution": ("post_sampling_probs",),
    "the core keeps no hidden states for clients": ("return_entropy", "return_hidden_states"),
    "only some routes have it": (
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "echo",
        "extra_key",
        "include_reasoning",
        "include_stop_str_in_output",
        "logprob_token_ids",
        "lora_path",
        "max_thinking_tokens",
        "min_tokens",
        "prompt_logprobs",
        "request_id",
        "return_routed_experts",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "rid",
        "routed_experts_start_len",
        "separate_reasoning",
        "thinking_token_budget",
        "truncate_prompt_tokens",
        "truncation_side",
        "verbosity",
    ),
    "another field has its effect": (
        "n_predict",
        "n_probs",
        "repeat_penalty",
        "return_cached_tokens_details",
        "return_prompt_text",
        "return_prompt_token_ids",
        "return_tokens",
        "t_max_predict_ms",
    ),
    "templates get documents as a variable, in chat_template_kwargs": ("documents",),
    "the format of the answer is fixed": (
        "embed_dtype",
        "endianness",
        "log_metrics",
        "no_logs",
        "parse_tool_calls",
        "reasoning_format",
        "response_fields",
        "return_bytes",
        "return_meta_info",
        "return_progress",
        "spaces_between_special_tokens",
        "stream_interval",
        "stream_reasoning",
        "timings_per_token",
    ),
    "the grammar engine is chosen at start, and JSON's whitespace by json_whitespace": (
        "guided_decoding_backend",
        "guided_whitespace_pattern",
    ),
    "the chat template decides whether the model reasons": ("require_reasoning", "thinking_forced_open"),
    "/infill writes between two texts, with models that are trained to": ("suffix",),
    "an expected answer would not make this one faster": ("prediction",),
    "the server keeps no templates of prompts: send their text as instructions and input": ("prompt",),
}
_REASON_OF = {name: reason for reason, names in _REASONS.items() for name in names}
PEER_FIELDS = {
    name: PeerField(whose, _REASON_OF[name], tunes=neutral)
    if isinstance(neutral, str)
    else PeerField(whose, _REASON_OF[name], neutral)
    for whose, fields in _NEUTRAL.items()
    for name, neutral in fields.items()
}


def unsupported_reason(name: str) -> str | None:
    """Return the error message for a field of another server; None for a field that no server has."""
    if (field := PEER_FIELDS.get(name)) is None:
        return None
    accepted = field.accepted.replace("`", "")
    return f"{name}, a parameter of {field.whose}, is not supported here: only {accepted} ({field.why})"
