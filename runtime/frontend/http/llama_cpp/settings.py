"""Sampling parameters under llama-server's names."""

from __future__ import annotations

from typing import Any

from ....protocol.sampling import SamplingParams

_SAME = (
    "seed temperature dynatemp_range dynatemp_exponent top_p min_p top_n_sigma xtc_probability xtc_threshold typical_p "
    "presence_penalty frequency_penalty dry_multiplier dry_base dry_allowed_length ignore_eos"
).split()


def generation_settings(sampling: SamplingParams, *, stream: bool, n_probs: int) -> dict[str, Any]:
    """Return the settings that llama-server has too; what the sampler has not is at its neutral value."""
    last_n = sampling.dry_penalty_last_n
    constraint = sampling.constraint
    return {
        **{name: getattr(sampling, name) for name in _SAME},
        "top_k": 0 if sampling.top_k is None else sampling.top_k,
        "repeat_last_n": -1,
        "repeat_penalty": sampling.repetition_penalty,
        "dry_penalty_last_n": -1 if last_n is None else last_n,
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        "mirostat": 0,
        "stop": list(sampling.stop),
        "max_tokens": sampling.max_new_tokens,
        "n_predict": sampling.max_new_tokens,
        "n_keep": 0,
        "n_discard": 0,
        "stream": stream,
        "logit_bias": [{"token": token, "bias": bias} for token, bias in sampling.logit_bias.items()],
        "n_probs": n_probs,
        "min_keep": 0,
        "grammar": constraint.source if constraint is not None and constraint.kind == "grammar" else "",
        "grammar_lazy": False,
        "grammar_triggers": [],
        "post_sampling_probs": False,
        "lora": [],
    }
