"""Device ops: attention over paged KV, norms, rotary embedding, mixtures of experts, sampling, draft trees.

Plain torch (`reference/`) defines each op and runs on every device that torch knows; a kernel for one kind of device
must agree with it. `for_device` returns the set of ops that an engine uses. The functions here are plain torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arguments import (
        NOT_FINITE,
        AttentionArgs,
        Chunk,
        DecodeAttentionArgs,
        GroupRouting,
        PenaltyTensors,
        QueryTensors,
        RecurrenceInputs,
        RopeAndStoreArgs,
        RowSpan,
        SharedKeys,
    )
    from .dispatch import KernelsName, for_device, quantised_products
    from .kv_cache import KvCache
    from .ops import Attention, LatentArgs, Ops
    from .reference import rare_filters
    from .reference.attention import paged_attention, store_kv
    from .reference.attention_layout import AttentionLayout, attention_layout
    from .reference.experts import choose_experts, combine_experts, expert_ranges, group_by_expert, grouped_matmul
    from .reference.layers import add_rms_norm, apply_rope, rms_norm, silu_and_mul
    from .reference.logits import apply_penalties, apply_token_bitmask
    from .reference.quantise import PACKED_INT4, QUANTISED_MAX
    from .reference.rare_filters import FILTER_DTYPES, FilterTensors
    from .reference.sampling import SAMPLING_DTYPES, SamplingTensors, draw_tokens, logprobs_of_weights, sampling_weights
    from .reference.scaled_codes import KeyBasis, stored_size
    from .reference.streaming import StreamingAttention, StreamingSizes
    from .reference.trees import compact_kv, walk_trees
    from .transfer import Deferred, to_buffer, to_device, to_host

__all__ = [
    "FILTER_DTYPES",
    "NOT_FINITE",
    "PACKED_INT4",
    "QUANTISED_MAX",
    "SAMPLING_DTYPES",
    "Attention",
    "AttentionArgs",
    "AttentionLayout",
    "Chunk",
    "DecodeAttentionArgs",
    "Deferred",
    "FilterTensors",
    "GroupRouting",
    "KernelsName",
    "KeyBasis",
    "KvCache",
    "LatentArgs",
    "Ops",
    "PenaltyTensors",
    "QueryTensors",
    "RecurrenceInputs",
    "RopeAndStoreArgs",
    "RowSpan",
    "SamplingTensors",
    "SharedKeys",
    "StreamingAttention",
    "StreamingSizes",
    "add_rms_norm",
    "apply_penalties",
    "apply_rope",
    "apply_token_bitmask",
    "attention_layout",
    "choose_experts",
    "combine_experts",
    "compact_kv",
    "draw_tokens",
    "expert_ranges",
    "for_device",
    "group_by_expert",
    "grouped_matmul",
    "logprobs_of_weights",
    "paged_attention",
    "quantised_products",
    "rare_filters",
    "rms_norm",
    "sampling_weights",
    "silu_and_mul",
    "store_kv",
    "stored_size",
    "to_buffer",
    "to_device",
    "to_host",
    "walk_trees",
]

_MODULES = {
    "Attention": ".ops",
    "AttentionArgs": ".arguments",
    "AttentionLayout": ".reference.attention_layout",
    "Chunk": ".arguments",
    "DecodeAttentionArgs": ".arguments",
    "Deferred": ".transfer",
    "FILTER_DTYPES": ".reference.rare_filters",
    "FilterTensors": ".reference.rare_filters",
    "GroupRouting": ".arguments",
    "KernelsName": ".dispatch",
    "KeyBasis": ".reference.scaled_codes",
    "KvCache": ".kv_cache",
    "LatentArgs": ".ops",
    "NOT_FINITE": ".arguments",
    "Ops": ".ops",
    "PACKED_INT4": ".reference.quantise",
    "PenaltyTensors": ".arguments",
    "QUANTISED_MAX": ".reference.quantise",
    "QueryTensors": ".arguments",
    "RecurrenceInputs": ".arguments",
    "RopeAndStoreArgs": ".arguments",
    "RowSpan": ".arguments",
    "SAMPLING_DTYPES": ".reference.sampling",
    "SamplingTensors": ".reference.sampling",
    "SharedKeys": ".arguments",
    "StreamingAttention": ".reference.streaming",
    "StreamingSizes": ".reference.streaming",
    "add_rms_norm": ".reference.layers",
    "apply_penalties": ".reference.logits",
    "apply_rope": ".reference.layers",
    "apply_token_bitmask": ".reference.logits",
    "attention_layout": ".reference.attention_layout",
    "choose_experts": ".reference.experts",
    "combine_experts": ".reference.experts",
    "compact_kv": ".reference.trees",
    "draw_tokens": ".reference.sampling",
    "logprobs_of_weights": ".reference.sampling",
    "expert_ranges": ".reference.experts",
    "for_device": ".dispatch",
    "group_by_expert": ".reference.experts",
    "grouped_matmul": ".reference.experts",
    "paged_attention": ".reference.attention",
    "quantised_products": ".dispatch",
    "rare_filters": ".reference",
    "rms_norm": ".reference.layers",
    "sampling_weights": ".reference.sampling",
    "silu_and_mul": ".reference.layers",
    "store_kv": ".reference.attention",
    "stored_size": ".reference.scaled_codes",
    "to_buffer": ".transfer",
    "to_device": ".transfer",
    "to_host": ".transfer",
    "walk_trees": ".reference.trees",
}


def __getattr__(name: str) -> Any:
    """Import a name at its first use: a process that compiles loops needs no torch."""
    if (module := _MODULES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module, __name__), name)
    return value
