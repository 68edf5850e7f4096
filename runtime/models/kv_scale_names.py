"""What writers of checkpoints call the scales of quantised attention. Opens no files.

llm-compressor writes `self_attn.k_scale` (vLLM's own name is `self_attn.attn.k_scale`), ModelOpt
`self_attn.k_proj.k_scale`, Quark `self_attn.k_proj.output_scale`, AutoFP8 one `self_attn.kv_scale` for both.
"""

from __future__ import annotations

import re

_KV = re.compile(
    r"model\.layers\.(?P<layer>\d+)\.self_attn\."
    r"(?:(?:attn\.|qkv_proj\.|[kv]_proj\.)?(?P<whose>k|v|kv)_scale|(?P<output>[kv])_proj\.output_scale)"
)
# Of queries and of the softmax: for products in FP8, which are not made here.
_UNUSED = re.compile(
    r"model\.layers\.\d+\.self_attn\.(?:(?:attn\.)?(?:q|prob)_scale|q_proj\.(?:q|output)_scale|prob_output_scale)"
)


def parse_kv_scale_name(name: str) -> tuple[str, int] | None:
    """Whose scale the tensor is, "k", "v" or "kv", and of which layer; None: it is something else."""
    match = _KV.fullmatch(name)
    return None if match is None else (match["whose"] or match["output"], int(match["layer"]))


def is_attention_scale(name: str) -> bool:
    return parse_kv_scale_name(name) is not None or _UNUSED.fullmatch(name) is not None
