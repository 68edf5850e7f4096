"""Tokens packed into bytes, four per token, little-endian: compared by memcmp, hashed once."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

TOKEN_BYTES = 4
_SWAP = sys.byteorder == "big"


def pack(tokens: Sequence[int]) -> bytes:
    """Pack tokens into bytes. Raises OverflowError for a token outside [0, 2^32)."""
    packed = array("I", tokens)
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def unpack(run: bytes | bytearray) -> list[int]:
    """Return the tokens of packed bytes."""
    packed = array("I")
    packed.frombytes(run)
    if _SWAP:
        packed.byteswap()
    return packed.tolist()


def common_prefix_length(run: bytes, other: bytes | bytearray, at: int = 0) -> int:
    """Count the tokens at the start of `run` that equal those of `other[at:]`, by bisection. `at` counts bytes."""
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
