"""The vocabulary as the constraint engine sees it: which bytes each token adds, and which tokens end the output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..slices import PlainTokens, bitmask
from ..warm import warm_up
from .duplicate_names import QuotedTokens
from .token_trie import TokenTrie, addresses


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """`tokens[id]` is None for special and unused ids. Ends of sequence are no text, whatever their bytes; neither
    are tokens without bytes, which would never lead on."""

    tokens: tuple[bytes | None, ...]
    eos_ids: frozenset[int]
    trie: TokenTrie
    plain: PlainTokens

    @classmethod
    def from_tokens(cls, tokens: Sequence[bytes | None], eos_ids: Iterable[int]) -> Vocabulary:
        """`tokens[id]` is the bytes of a token, None for a special one."""
        warm_up()
        ends = frozenset(eos_ids)
        assert all(0 <= token < len(tokens) for token in ends), "an end of sequence is no token of the vocabulary"
        kept = tuple(None if token in ends else (data or None) for token, data in enumerate(tokens))
        made = cls(kept, ends, TokenTrie.build(kept), PlainTokens.of(kept))
        _ = made.packed_addresses, made.quoted  # now, rather than in the first step
        return made

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_words(self) -> int:
        """The length of a bitmask in int32 words."""
        return -(-len(self.tokens) // 32)

    @cached_property
    def packed(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The bytes of all tokens one after another, and where each begins: uint8[B], int64[V + 1]."""
        starts = np.zeros(len(self.tokens) + 1, np.int64)
        np.cumsum([len(data or b"") for data in self.tokens], out=starts[1:])
        return np.frombuffer(b"".join(data or b"" for data in self.tokens), np.uint8), starts

    @cached_property
    def packed_addresses(self) -> NDArray[np.int64]:
        """Where those lie, and how long they are: [4]."""
        return addresses(*self.packed)

    @cached_property
    def quoted(self) -> QuotedTokens:
        return QuotedTokens(self.tokens)

    @cached_property
    def ends_mask(self) -> NDArray[np.int32]:
        """The bits of the ends of sequence; never written to."""
        return bitmask(np.array(sorted(self.eos_ids), np.int64), len(self.tokens))
