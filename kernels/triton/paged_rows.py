"""What the attention kernels know of a step's rows, as tensors on the device. Knows no page's contents.

Legend: T tokens of the step, R rows, P pages of the longest row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

MAX_TREE = 64  # tokens of a row with a tree: a bit each


@dataclass(frozen=True)
class PagedRows:
    """Some rows of a step. Keys of a row: what came before it, then its own tokens."""

    page_table_RP: torch.Tensor  # int32
    num_keys_R: torch.Tensor  # int32, its own tokens included
    first_query_R: torch.Tensor  # int32, where the row's tokens begin among the step's
    num_queries_R: torch.Tensor  # int32
    positions_T: torch.Tensor  # int32
    visible_T: (
        torch.Tensor | None
    )  # int64: bit j set iff the token sees its row's own token j; None: those up to itself
    max_queries: int  # of a row
    page_size: int
    window: int | None  # a position sees this many positions, itself included


def product_dtype(kv_dtype: torch.dtype) -> tl.dtype:
    """Of the matrix products with a cache of `kv_dtype`. Eight-bit values become float16 by one instruction for two,
    bfloat16 by several."""
    return _PRODUCTS.get(kv_dtype, tl.float16)


_PRODUCTS = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
