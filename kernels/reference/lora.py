"""Low-rank products of adapters in plain torch, adapter by adapter."""

from __future__ import annotations

import torch

from ..lora import AdapterSegments, LowRankProduct


def add_low_rank(y_TO: torch.Tensor, x_TC: torch.Tensor, product: LowRankProduct, segments: AdapterSegments) -> None:
    """Add each adapter's product of its tokens' `x_TC` to `y_TO`, in place. Sums are float32."""
    start = 0
    for place, end in zip(segments.places, segments.ends, strict=True):
        tokens_N, start = segments.tokens_N[start:end], end
        own = product.by_place[place]
        if own is None or not len(tokens_N):
            continue
        rank = len(own.b_RO)
        inner_NSR = x_TC[tokens_N].float() @ own.a_SRC.float().t()
        sections = zip(inner_NSR.split(rank, dim=1), own.b_RO.float().split(product.sizes, dim=1), strict=True)
        delta_NO = torch.cat([inner_NR @ b_RO for inner_NR, b_RO in sections], dim=1)
        y_TO.index_add_(0, tokens_N, delta_NO.to(y_TO.dtype))
