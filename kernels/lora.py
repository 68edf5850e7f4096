"""Arguments of the low-rank products of adapters (LoRA, Hu et al. 2021): y += B (A x) for the tokens of each adapter.

Legend: T tokens of the step, N of them with an adapter, A adapters of the step, C inputs, O outputs, S sections of the
outputs, R rank, padded to a multiple of RANK_ALIGNMENT.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

RANK_ALIGNMENT = 4
BLOCK_TOKENS = 16  # of one adapter that a program of Triton's kernels computes


class LowRank(NamedTuple):
    """The two matrices of an adapter for one product. The scale is in B; a section without an adapter has zeros."""

    a_SRC: torch.Tensor  # [S * R, C]
    b_RO: torch.Tensor  # [R, O]; the columns of section s multiply rows [s * R, (s + 1) * R) of A x


class LowRankProduct(NamedTuple):
    """The parts of all loaded adapters of one product, whose outputs have sections such as queries, keys and values."""

    sizes: tuple[int, ...]  # outputs of each section
    by_place: list[LowRank | None]  # None: the adapter leaves the product as it is
    table: torch.Tensor | None = None  # int64 [places, 3] on the device: addresses of A and B, and the rank


class AdapterSegments(NamedTuple):
    """Tokens that have adapters, sorted by adapter."""

    places: list[int]  # of the A adapters, in `LowRankProduct.by_place`
    ends: list[int]  # where each adapter's tokens end in `tokens_N`
    tokens_N: torch.Tensor  # int64 on the device: indices of the tokens
    blocks: torch.Tensor | None = (
        None  # int32 [blocks, 3] on the device: place, first token, end of BLOCK_TOKENS or less
    )
