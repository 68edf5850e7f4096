"""Vocabulary of the constraint engine: the bytes of each token, the ends of sequence, and the plain string tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .duplicate_names import QuotedTokens
from .token_trie import TokenTrie, addresses

_SPECIAL = b'"\\'
_FIRST_BYTES = bytes(byte for byte in range(256) if not 0x80 <= byte < 0xC0)  # of characters
# Plain characters; and at the end, as a group, the first bytes of one more.
_PLAIN_PREFIX = re.compile(
    rb"""(?:[\x20\x21\x23-\x5b\x5d-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]
    |[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]
    |\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*
    ((?:[\xc2-\xdf]|\xe0[\xa0-\xbf]?|[\xe1-\xec\xee\xef][\x80-\xbf]?|\xed[\x80-\x9f]?
    |\xf0(?:[\x90-\xbf][\x80-\xbf]?)?|[\xf1-\xf3][\x80-\xbf]{0,2}|\xf4(?:[\x80-\x8f][\x80-\xbf]?)?)\Z)?""",
    re.VERBOSE | re.DOTALL,
)


def bitmask(tokens: NDArray[np.integer], num_tokens: int) -> NDArray[np.int32]:
    """Set bit t % 32 of word t // 32 for each token t: int32[ceil(num_tokens / 32)]."""
    bits = np.zeros(-(-num_tokens // 32) * 32, np.bool_)
    bits[tokens] = True
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32, copy=False)


@dataclass(frozen=True, eq=False)
class PlainTokens:
    """Plain tokens, whose characters stand for themselves in a JSON string, as masks by their number of characters.

    The last character of a plain token may be incomplete. `others` are the tokens that begin with plain characters and
    continue with a quote or an escape. No other token is ever allowed inside a string.
    """

    tokens: NDArray[np.int32]
    num_characters: NDArray[np.int32]  # of each of `tokens`
    num_tokens: int  # in the vocabulary
    others: TokenTrie
    tails: TokenTrie  # `others` from the quote or escape on, for states that plain characters do not change
    _by_length: dict[int, NDArray[np.int32]] = field(default_factory=dict, init=False)

    @classmethod
    def build(cls, tokens: Sequence[bytes | None]) -> PlainTokens:
        """Classify the tokens of a vocabulary."""
        plain, counts, others = [], [], []
        tails: list[bytes | None] = [None] * len(tokens)
        for token, data in enumerate(tokens):
            if data:
                begin = _PLAIN_PREFIX.match(data)
                assert begin is not None
                if begin.end() == len(data):
                    plain.append(token)
                    counts.append(len(data) - len(data.translate(None, _FIRST_BYTES)))
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

    @cached_property
    def longest(self) -> int:
        """Number of characters of the longest token."""
        return int(self.num_characters.max(initial=0))

    def mask(self, most: int) -> NDArray[np.int32]:
        """Return the bitmask of the tokens with at most so many characters. Read-only."""
        most = min(most, self.longest)
        mask = self._by_length.get(most)
        if mask is None:
            mask = self._by_length[most] = bitmask(self.tokens[self.num_characters <= most], self.num_tokens)
        return mask


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of a model.

    `tokens[id]` is None for special and unused ids, for ends of sequence whatever their bytes, and for tokens without
    bytes, which would make no progress.
    """

    tokens: tuple[bytes | None, ...]
    eos_ids: frozenset[int]
    trie: TokenTrie
    plain: PlainTokens

    @classmethod
    def from_tokens(cls, tokens: Sequence[bytes | None], eos_ids: Iterable[int]) -> Vocabulary:
        """Build from the bytes of each token, None for a special one."""
        ends = frozenset(eos_ids)
        assert all(0 <= token < len(tokens) for token in ends), "an end-of-sequence id is outside the vocabulary"
        kept = tuple(None if token in ends else (data or None) for token, data in enumerate(tokens))
        made = cls(kept, ends, TokenTrie.build(kept), PlainTokens.build(kept))
        _ = made.packed_addresses, made.quoted  # computed now, so that the first step need not
        return made

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_words(self) -> int:
        """Length of a bitmask in int32 words."""
        return -(-len(self.tokens) // 32)

    @cached_property
    def packed(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The bytes of all tokens one after another, and their offsets: uint8[B], int64[V + 1]."""
        starts = np.zeros(len(self.tokens) + 1, np.int64)
        np.cumsum([len(data or b"") for data in self.tokens], out=starts[1:])
        return np.frombuffer(b"".join(data or b"" for data in self.tokens), np.uint8), starts

    @cached_property
    def packed_addresses(self) -> NDArray[np.int64]:
        """Addresses and lengths of `packed`: int64[4]."""
        return addresses(*self.packed)

    @cached_property
    def quoted(self) -> QuotedTokens:
        """The tokens that contain quotes."""
        return QuotedTokens(self.tokens)

    @cached_property
    def ends_mask(self) -> NDArray[np.int32]:
        """Bitmask of the ends of sequence. Read-only."""
        return bitmask(np.array(sorted(self.eos_ids), np.int64), len(self.tokens))
