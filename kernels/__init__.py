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
    from .reference.sampling import SAMPLING_DTYPES, SamplingTensors, draw_tokens, sampling_weights, token_logprobs
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
    "token_logprobs",
    "walk_trees",
]

_MODULES = (
    ".arguments",
    ".dispatch",
    ".kv_cache",
    ".ops",
    ".reference.attention",
    ".reference.attention_layout",
    ".reference.experts",
    ".reference.layers",
    ".reference.logits",
    ".reference.quantise",
    ".reference.rare_filters",
    ".reference.sampling",
    ".reference.scaled_codes",
    ".reference.streaming",
    ".reference.trees",
    ".transfer",
    ".reference",
)


def __getattr__(name: str) -> Any:
    """Import a name at its first use: a process that compiles loops needs no torch."""
    for module in _MODULES if name in __all__ else ():
        found = import_module(module, __name__)
        if hasattr(found, name):
            value = globals()[name] = getattr(found, name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
