"""Runs of tokens as bytes, four to a token, little-endian: compared by memcmp, hashed once. Knows no pages, no tree."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

TOKEN_BYTES = 4
_SWAP = sys.byteorder == "big"


def pack(tokens: Sequence[int]) -> bytes:
    """Raises OverflowError for a token outside [0, 2^32)."""
    packed = array("I", tokens)
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def unpack(run: bytes | bytearray) -> list[int]:
    packed = array("I")
    packed.frombytes(run)
    if _SWAP:
        packed.byteswap()
    return packed.tolist()


def common_prefix_length(run: bytes, other: bytes | bytearray, at: int = 0) -> int:
    """How many tokens at the start of `run` are those of `other[at:]`; `at` counts bytes. Found by halving."""
    high = min(len(run), len(other) - at) // TOKEN_BYTES
    if other.startswith(run[: high * TOKEN_BYTES], at):
        return high
    low = 0  # the first `low` tokens agree, the first `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        if other.startswith(run[low * TOKEN_BYTES : middle * TOKEN_BYTES], at + low * TOKEN_BYTES):
            low = middle
        else:
            high = middle
    return low
