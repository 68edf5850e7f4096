"""Tables of a step's rows on the device, as the attention kernels read them.

Legend: T tokens of the step, R rows, P pages of the longest row, N tokens of a launch, L levels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from ...attention_groups import PIECE_TOKENS

MAX_TREE = 64  # tokens of a row with a tree: a bit each
# Kernels are compiled for these numbers of tokens of a row; the second last is that of pieces of shared keys.
QUERY_CLASSES = (1, 8, PIECE_TOKENS, MAX_TREE)


def query_class(num_queries: int) -> int:
    """Return the least number of QUERY_CLASSES that holds so many tokens of a row."""
    return next(size for size in QUERY_CLASSES if num_queries <= size)


@dataclass(frozen=True)
class PagedRows:
    """Some rows of a step. A row's keys are its prefix, then its own tokens.

    Keys that rows share may be computed apart: the page table of such a row begins with its key `first_key_R`. The
    shared keys are rows too, pieces: their tokens are other rows', which see all of the piece's keys.
    """

    page_table_RP: torch.Tensor  # int32
    num_keys_R: torch.Tensor  # int32, its own tokens included
    first_query_R: torch.Tensor  # int32, where the row's tokens begin among the step's
    num_queries_R: torch.Tensor  # int32
    positions_T: torch.Tensor  # int32
    # int64: bit j is set if the token sees its row's own token j; None: it sees those up to itself
    visible_T: torch.Tensor | None
    max_queries: int  # of a row
    page_size: int
    window: int | None  # a position sees this many positions, itself included
    first_key_R: torch.Tensor | None = None  # int32; None: 0
    # int32, indices into the step's tokens that `first_query_R` points into; None: it points to the tokens themselves
    tokens_N: torch.Tensor | None = None
    are_pieces: bool = False

    @property
    def num_listed(self) -> torch.Tensor:
        """Keys that each row's page table lists, int32 [R]."""
        return self.num_keys_R if self.first_key_R is None else self.num_keys_R - self.first_key_R


def product_dtype(kv_dtype: torch.dtype) -> tl.dtype:
    """Return the dtype of the matrix products with a cache of `kv_dtype`. One instruction converts two eight-bit values
    to float16; bfloat16 takes several."""
    return _PRODUCTS.get(kv_dtype, tl.float16)


_PRODUCTS = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
