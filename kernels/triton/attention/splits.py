"""Cutting of rows' keys into splits that are attended to in parallel (flash-decoding).

Without splits one program reads a row's keys one after another, and at batch 1 most of the device idles. A step's
splits have one size, which is computed on the device from the rows' lengths, so that one captured graph serves any
lengths.

Legend: R rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..launching import launch
from .paged_rows import PagedRows

ROWS_AT_ONCE = 128  # rows whose tables a program reads at once


class Splits(NamedTuple):
    """Splits of a step. Split i belongs to the row r with `first[r] <= i < first[r + 1]`; it holds `size` keys, the
    row's last one fewer.

    `num_max` bounds their number: so many programs are launched for each key head; those beyond the last do nothing.
    """

    first: torch.Tensor  # int32 [R + 1]
    size: torch.Tensor  # int32 [1]
    num_max: int


def num_seen(rows: PagedRows) -> torch.Tensor:
    """Return how many keys of its page table a row's tokens see together: the last ones."""
    if rows.window is None:
        return rows.num_listed
    if rows.are_pieces:
        return rows.num_listed.clamp(max=rows.window - 1)
    return torch.minimum(rows.num_listed, rows.num_queries_R + (rows.window - 1))


def make_splits(num_keys_R: torch.Tensor, *, num_wanted: int, tile: int) -> Splits:
    """Make about `num_wanted` splits of at least `tile` keys. `num_keys_R` is int32 on the device; a row without keys,
    as padding has, gets none."""
    num_rows = num_keys_R.shape[0]
    first = torch.empty(num_rows + 1, dtype=torch.int32, device=num_keys_R.device)
    size = torch.empty(1, dtype=torch.int32, device=num_keys_R.device)
    launch(
        _split_kernel, (1,), num_keys_R, first, size, num_rows, num_wanted, TILE=tile, BLOCK_R=ROWS_AT_ONCE, num_warps=4
    )
    return Splits(first, size, num_rows + num_wanted)


def fixed_splits(num_keys_R: torch.Tensor, *, size: int, max_keys: int) -> Splits:
    """Make splits of `size` keys, so that a row's sums are added in the same order in any batch."""
    num_rows = num_keys_R.shape[0]
    counts_R = (num_keys_R + (size - 1)) // size
    first = torch.zeros(num_rows + 1, dtype=torch.int32, device=num_keys_R.device)
    first[1:] = counts_R.cumsum(0)
    return Splits(first, torch.full_like(first[:1], size), num_rows * triton.cdiv(max_keys, size))


@triton.jit(do_not_specialize=["num_rows", "num_wanted"])
def _split_kernel(num_keys_R, first, size, num_rows, num_wanted, TILE: tl.constexpr, BLOCK_R: tl.constexpr):
    """Cut the rows' keys into splits, block by block, so that the kernel is the same for any number of rows."""
    total = 0
    for begin in range(0, num_rows, BLOCK_R):
        r = begin + tl.arange(0, BLOCK_R)
        total += tl.sum(tl.load(num_keys_R + r, mask=r < num_rows, other=0))
    per_split = tl.maximum(tl.cdiv(tl.cdiv(total, num_wanted), TILE) * TILE, TILE)
    before = 0
    for begin in range(0, num_rows, BLOCK_R):
        r = begin + tl.arange(0, BLOCK_R)
        counts = tl.cdiv(tl.load(num_keys_R + r, mask=r < num_rows, other=0), per_split)
        tl.store(first + r, before + tl.cumsum(counts, 0) - counts, mask=r < num_rows)
        before += tl.sum(counts)
    tl.store(first + num_rows, before)
    tl.store(size, per_split)


@triton.jit
def row_of_split(first_split, num_rows, split, BLOCK_R: tl.constexpr):
    """Return the row that a split belongs to."""
    row = -1
    for begin in range(0, num_rows, BLOCK_R):
        r = begin + tl.arange(0, BLOCK_R)
        row += tl.sum((tl.load(first_split + r, mask=r < num_rows, other=2**31 - 1) <= split).to(tl.int32))
    return row
