"""Launch configurations by device, found offline: tile shapes, warps and pipeline stages.

Triton's autotuner would measure at the first request. A table can be reviewed, and compiled without a device.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

# For kernels that run in the interpreter or are compiled without a device:
ASSUMED_CAPABILITY = (9, 0)
ASSUMED_MULTIPROCESSORS = 132


class AttentionTile(NamedTuple):
    """Launch configuration of an attention kernel."""

    queries: int  # times the heads that share a key head, at most
    keys: int
    num_warps: int
    num_stages: int


SPLIT_KEYS = 64  # splits are cut to a multiple of this


def most_split_queries(device: torch.device, head_dim: int) -> int:
    """Return the largest tile of queries in the kernel for rows of few tokens."""
    if head_dim > 128:
        return 32 if capability(device) >= (9, 0) else 16
    return 64 if capability(device) >= (9, 0) else 32


def split_tile(
    device: torch.device, head_dim: int, stored: torch.dtype, queries: int, *, scaled: bool = False
) -> AttentionTile:
    """Return the tile for rows of few tokens, which are bound by memory. `queries` is a power of two from 16 on, how
    many a row has, `stored` the cache's dtype.

    A load of keys waits for one of page ids, so a loop of n stages has (n - 1) // 2 tiles under way: five stages are
    the first whose loop does not wait for what it has just asked for. Hopper multiplies eight-bit keys in tiles of 64
    queries, also fewer ones: with 16, keys become float16 in every warp, by a third more instructions.
    """
    queries = min(queries, most_split_queries(device, head_dim))
    if scaled:  # codes are unpacked in registers, beside the products of offsets
        if head_dim > 128:
            return AttentionTile(16, 32, 8, 3)
        if head_dim <= 64 and queries == 16:
            return AttentionTile(16, 64, 2, 3)  # each warp repeats the queries' part
        return AttentionTile(min(queries, 32), 32, 8 if queries > 16 else 4, 3)
    deep = stored.itemsize <= 2 and (capability(device) == (8, 0) or capability(device) >= (9, 0))
    if head_dim > 128:
        return AttentionTile(queries, 32 if capability(device) >= (9, 0) else 16, 4, 5 if deep else 3)
    if stored.itemsize == 1 and capability(device) >= (9, 0):
        return AttentionTile(64, 64, 4, 7)
    return AttentionTile(queries, 32 if queries == 64 and deep else 64, 4, 5 if deep else 3)


def chunk_tile(device: torch.device, head_dim: int, stored: torch.dtype, *, scaled: bool = False) -> AttentionTile:
    """Return the tile for rows of many tokens, which are bound by compute. `stored` is the cache's dtype."""
    hopper = capability(device) >= (9, 0)
    if scaled and head_dim > 128:
        return AttentionTile(16, 32, 8, 3)
    if scaled:
        return AttentionTile(64, 32, 8, 3)
    if stored == torch.float32:
        return AttentionTile(64, 32, 8, 2)
    if head_dim > 128:
        if hopper:
            return AttentionTile(128 if stored.itemsize == 2 else 64, 32, 8, 5)
        return AttentionTile(64 if stored.itemsize == 2 else 32, 32, 8, 2)
    if hopper:
        return AttentionTile(128, 64, 8, 5)
    # Small heads need the wide tile on Ampere too: with 32 keys, Triton 3.7 spills registers.
    if head_dim <= 64 and stored.itemsize == 2:
        return AttentionTile(128, 64, 8, 3)
    return AttentionTile(128 if stored.itemsize == 2 else 64, 32, 8, 3)


def latent_tile(device: torch.device, stored: torch.dtype, pairs: int) -> AttentionTile:
    """Return the tile for latents. `pairs` is a power of two from 16 on, how many pairs of a token and a head a row
    has. A pair's sum of 512 float32s takes most registers, so a tile of many keys would spill."""
    hopper = capability(device) >= (9, 0)
    if stored == torch.float32:
        return AttentionTile(16, 16, 8, 1)
    if hopper and stored.itemsize == 2 and pairs == 16:
        return AttentionTile(16, 32, 4, 5)
    return AttentionTile(min(pairs, 64 if hopper and stored.itemsize == 2 else 32), 32, 8, 3 if hopper else 2)


class MatmulTile(NamedTuple):
    """Launch configuration of a matrix product."""

    rows: int
    outputs: int
    inputs: int
    num_warps: int
    num_stages: int


DETERMINISTIC_MEAN_ROWS = 32  # assumed rows of an expert where its tile must not depend on their number


def expert_tile(device: torch.device, mean_rows: int, dtype: torch.dtype) -> MatmulTile:
    """Return the tile for experts of `mean_rows` rows on average. With few rows the weights' bytes are the bound."""
    if dtype == torch.float32:
        return MatmulTile(16 if mean_rows <= 16 else 32, 64, 32, 4, 2)
    stages = 4 if capability(device) >= (9, 0) else 3
    if mean_rows <= 16:
        return MatmulTile(16, 64, 128, 4, stages)
    return MatmulTile(64, 128, 64, 4, stages) if mean_rows <= 128 else MatmulTile(128, 128, 64, 8, 3)


def num_splits_wanted(device: torch.device, num_kv_heads: int) -> int:
    """Return a number of splits that gives each multiprocessor four programs, over all key heads."""
    return max(1, 4 * _num_multiprocessors(device) // num_kv_heads)


def num_parts(device: torch.device, num_programs: int, most: int) -> int:
    """Return in how many parts a sum of each program is cut, at most, so that each multiprocessor has one or two
    programs."""
    return max(1, min(2 * _num_multiprocessors(device) // num_programs, most))


DETERMINISTIC_SPLIT_KEYS = 1024  # keys of a split where a row's sums must not depend on the batch


def reads_fp8(device: torch.device) -> bool:
    """Return True if the device converts e4m3: Ada, Hopper and later."""
    return capability(device) >= (8, 9)


@cache
def capability(device: torch.device) -> tuple[int, int]:
    if device.type == "cuda" or (device.type == "meta" and torch.cuda.is_available()):
        return torch.cuda.get_device_capability(device if device.type == "cuda" else None)
    return ASSUMED_CAPABILITY


@cache
def _num_multiprocessors(device: torch.device) -> int:
    if device.type != "cuda" and not (device.type == "meta" and torch.cuda.is_available()):
        return ASSUMED_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device if device.type == "cuda" else None).multi_processor_count
