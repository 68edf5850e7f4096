"""The vocabulary as the constraint engine sees it: which bytes each token adds, and which tokens end the output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .trie import TokenTrie


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """`tokens[id]` is None for special and unused ids. Ends of sequence are no text, whatever their bytes; neither
    are tokens without bytes, which would never lead on."""

    tokens: tuple[bytes | None, ...]
    eos_ids: frozenset[int]
    trie: TokenTrie

    @classmethod
    def from_tokens(cls, tokens: Sequence[bytes | None], eos_ids: Iterable[int]) -> Vocabulary:
        ends = frozenset(eos_ids)
        assert all(0 <= token < len(tokens) for token in ends), "an end of sequence is no token of the vocabulary"
        kept = tuple(None if token in ends else (data or None) for token, data in enumerate(tokens))
        return cls(kept, ends, TokenTrie.build(kept))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_words(self) -> int:
        """The length of a bitmask in int32 words."""
        return -(-len(self.tokens) // 32)

    def bitmask(self, allowed: NDArray[np.integer], ends: bool) -> NDArray[np.int32]:
        """Bit t % 32 of word t // 32 for each allowed token, and for the ends of sequence if `ends`."""
        bits = np.zeros(self.num_words * 32, np.bool_)
        bits[allowed] = True
        if ends:
            bits[list(self.eos_ids)] = True
        return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32, copy=False)
