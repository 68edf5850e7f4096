"""The vocabulary as the constraint engine sees it: which bytes each token adds, and which tokens end the output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..warm import warm_up
from .duplicate_names import QuotedTokens
from .token_trie import TokenTrie, addresses


def bitmask(tokens: NDArray[np.integer], num_tokens: int) -> NDArray[np.int32]:
    """Bit t % 32 of word t // 32 for each of the tokens: int32[ceil(num_tokens / 32)]."""
    bits = np.zeros(-(-num_tokens // 32) * 32, np.bool_)
    bits[tokens] = True
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32, copy=False)


@dataclass(frozen=True, eq=False)
class TokenSlice:
    """Some tokens, by how many characters they have."""

    tokens: NDArray[np.int32]
    num_characters: NDArray[np.int32]  # of each of them
    num_tokens: int  # of the vocabulary
    _by_length: dict[int, NDArray[np.int32]] = field(default_factory=dict, init=False)

    @cached_property
    def longest(self) -> int:
        """Characters of the longest."""
        return int(self.num_characters.max(initial=0))

    def mask(self, most: int) -> NDArray[np.int32]:
        """Of those with at most so many characters; never written to."""
        most = min(most, self.longest)
        mask = self._by_length.get(most)
        if mask is None:
            mask = self._by_length[most] = bitmask(self.tokens[self.num_characters <= most], self.num_tokens)
        return mask


@dataclass(frozen=True, eq=False)
class PlainTokens(TokenSlice):
    """Tokens of characters that stand for themselves in a JSON string, the last of which may be incomplete; and the
    trie of the tokens that begin like those, and then go on with a quote or an escape. All others cannot come where
    strings are read."""

    others: TokenTrie
    tails: TokenTrie  # the same tokens from the quote or the escape on, for where what comes before changes nothing

    @classmethod
    def of(cls, tokens: Sequence[bytes | None]) -> PlainTokens:
        plain, counts, others = [], [], []
        tails: list[bytes | None] = [None] * len(tokens)
        for token, data in enumerate(tokens):
            if data:
                begin = _BEGIN.match(data)
                assert begin is not None
                if begin.end() == len(data):
                    plain.append(token)
                    counts.append(len(data) - len(data.translate(None, _FIRSTS)))
                elif data[begin.end()] in _SPECIAL and begin[1] is None:
                    others.append(token)
                    tails[token] = data[begin.end() :]
        return cls(
            np.array(plain, np.int32),
            np.array(counts, np.int32),
            len(tokens),
            TokenTrie.build(tokens, others),
            TokenTrie.build(tails, others),
        )


_SPECIAL = b'"\\'
_FIRSTS = bytes(byte for byte in range(256) if not 0x80 <= byte < 0xC0)  # of characters
# Plain characters, and what is the beginning of another one at the end.
_BEGIN = re.compile(
    rb"""(?:[\x20\x21\x23-\x5b\x5d-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]
    |[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]
    |\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*
    ((?:[\xc2-\xdf]|\xe0[\xa0-\xbf]?|[\xe1-\xec\xee\xef][\x80-\xbf]?|\xed[\x80-\x9f]?
    |\xf0(?:[\x90-\xbf][\x80-\xbf]?)?|[\xf1-\xf3][\x80-\xbf]{0,2}|\xf4(?:[\x80-\x8f][\x80-\xbf]?)?)\Z)?""",
    re.VERBOSE | re.DOTALL,
)


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
