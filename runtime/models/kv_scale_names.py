"""Tensor names of attention scales in quantised checkpoints.

llm-compressor writes `self_attn.k_scale` (vLLM: `self_attn.attn.k_scale`), ModelOpt `self_attn.k_proj.k_scale`, Quark
`self_attn.k_proj.output_scale`, AutoFP8 one `self_attn.kv_scale` for both.
"""

from __future__ import annotations

import re

_KV = re.compile(
    r"model\.layers\.(?P<layer>\d+)\.self_attn\."
    r"(?:(?:attn\.|qkv_proj\.|[kv]_proj\.)?(?P<whose>k|v|kv)_scale|(?P<output>[kv])_proj\.output_scale)"
)
# Scales of queries and of the softmax, for FP8 attention products, which are not computed here.
_UNUSED = re.compile(
    r"model\.layers\.\d+\.self_attn\.(?:(?:attn\.)?(?:q|prob)_scale|q_proj\.(?:q|output)_scale|prob_output_scale)"
)


def parse_kv_scale_name(name: str) -> tuple[str, int] | None:
    """Return what the tensor scales, "k", "v" or "kv", and its layer; None when it is no KV scale."""
    match = _KV.fullmatch(name)
    return None if match is None else (match["whose"] or match["output"], int(match["layer"]))


def is_attention_scale(name: str) -> bool:
    return parse_kv_scale_name(name) is not None or _UNUSED.fullmatch(name) is not None
