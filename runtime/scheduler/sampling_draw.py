"""The randomness of sampling: 64 bits for each (seed, position), whatever else runs and however often it is asked.

The n-th output of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014) is a
mix of `seed + n * gamma`, so that it can be had without those before it. Seeds are mixed once more first: neighbouring
seeds are then unrelated streams instead of shifted ones.
"""

from __future__ import annotations

_MASK_64 = (1 << 64) - 1
_SPLITMIX_GAMMA = 0x9E3779B97F4A7C15


def splitmix64(seed: int, n: int) -> int:
    """The n-th output, counted from 0, of the generator that starts at `seed`; 64 bits."""
    z = (seed + (n + 1) * _SPLITMIX_GAMMA) & _MASK_64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return z ^ (z >> 31)


def random_bits(seed: int, position: int) -> int:
    """The randomness of the token at `position` of the sequence: 64 bits, as a signed number."""
    word = splitmix64(splitmix64(seed, 0), position)
    return word - (1 << 64) if word >> 63 else word
