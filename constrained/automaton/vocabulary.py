"""Vocabulary of the constraint engine: the bytes of each token, the ends of sequence, and the plain string tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from .blocks import Block
from .duplicate_names import QuotedTokens
from .token_trie import FIRST_CHILD, FIRST_TOKEN, LAST_CHILD, OWN_END, TokenTrie, address_of, addresses

# States of a reader of plain characters, whose bytes are those of `_STEPS`; every other byte leads to _OTHER.
_OTHER, QUOTED, WHOLE, ONE_MORE, TWO_MORE, THREE_MORE, AFTER_E0, AFTER_ED, AFTER_F0, AFTER_F4 = range(10)
_STEPS = [
    (WHOLE, 0x20, 0x7F, WHOLE),
    (WHOLE, 0x22, 0x22, QUOTED),  # a quote or an escape
    (WHOLE, 0x5C, 0x5C, QUOTED),
    (WHOLE, 0xC2, 0xDF, ONE_MORE),
    (WHOLE, 0xE1, 0xEF, TWO_MORE),
    (WHOLE, 0xF1, 0xF3, THREE_MORE),
    (WHOLE, 0xE0, 0xE0, AFTER_E0),
    (WHOLE, 0xED, 0xED, AFTER_ED),
    (WHOLE, 0xF0, 0xF0, AFTER_F0),
    (WHOLE, 0xF4, 0xF4, AFTER_F4),
    (ONE_MORE, 0x80, 0xBF, WHOLE),
    (TWO_MORE, 0x80, 0xBF, ONE_MORE),
    (THREE_MORE, 0x80, 0xBF, TWO_MORE),
    (AFTER_E0, 0xA0, 0xBF, ONE_MORE),  # shorter forms are not valid
    (AFTER_ED, 0x80, 0x9F, ONE_MORE),  # nor are surrogates
    (AFTER_F0, 0x90, 0xBF, TWO_MORE),
    (AFTER_F4, 0x80, 0x8F, TWO_MORE),  # nor what is beyond U+10FFFF
]
_READER = np.zeros((10, 256), np.uint8)
for _state, _first, _last, _after in _STEPS:
    _READER[_state, _first : _last + 1] = _after


Bits = tuple[NDArray[np.int32], int]  # a bitmask and its address
_MAX_SPARE_BYTES = 8 << 20  # of masks that ended grammars leave to the next
_MAX_SHARED_BYTES = 32 << 20  # of masks of states inside strings that grammars share


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
    _by_length: dict[int, Bits] = field(default_factory=dict, init=False)

    @classmethod
    def build(
        cls, tokens: Sequence[bytes | None], text: NDArray[np.uint8], starts: NDArray[np.int64], trie: TokenTrie
    ) -> PlainTokens:
        """Classify the tokens of a vocabulary, whose packed bytes and whose trie are given."""
        lengths = np.diff(starts)
        active = np.flatnonzero(lengths)
        states, counts = np.zeros(len(tokens), np.uint8), np.zeros(len(tokens), np.int32)
        states[active] = WHOLE
        ends = np.zeros(len(tokens), np.int32)  # where the plain prefix of the other tokens ends
        depth = 0
        while len(active := active[(lengths[active] > depth) & (states[active] >= WHOLE)]):
            data = text[starts[active] + depth]
            states[active] = after = _READER[states[active], data]
            counts[active] += (data & 0xC0) != 0x80  # the first byte of a character
            ends[active[after == QUOTED]] = depth
            depth += 1
        plain = np.flatnonzero(states >= WHOLE).astype(np.int32)
        others = trie.tokens[states[trie.tokens] == QUOTED]
        words = [tokens[token] or b"" for token in others.tolist()]
        tails = {token: word[end:] for token, word, end in zip(others.tolist(), words, ends[others], strict=True)}
        by_tail = sorted(sorted(tails), key=tails.__getitem__)
        return cls(
            plain,
            counts[plain],
            len(tokens),
            TokenTrie.build(others, words),
            TokenTrie.build(np.array(by_tail, np.int32), [tails[token] for token in by_tail]),
        )

    @cached_property
    def longest(self) -> int:
        """Number of characters of the longest token."""
        return int(self.num_characters.max(initial=0))

    def mask(self, most: int) -> Bits:
        """Return the bitmask of the tokens with at most so many characters, which is kept. Read-only."""
        most = min(most, self.longest)
        found = self._by_length.get(most)
        if found is None:
            mask = bitmask(self.tokens[self.num_characters <= most], self.num_tokens)
            found = self._by_length[most] = mask, address_of(mask)
        return found


class SharedMasks:
    """Masks of the states of blocks that grammars have in common, as long as the blocks live. Thread-safe."""

    def __init__(self, most: int) -> None:
        """`most` is the number of masks with which all are forgotten."""
        self._most, self._num, self._lock = max(1, most), 0, Lock()
        self._known: WeakKeyDictionary[Block, dict[int, Bits]] = WeakKeyDictionary()

    def get(self, block: Block, state: int) -> Bits | None:
        """Return the mask of a state of a block if it is known. Read-only."""
        with self._lock:
            return self._known.get(block, {}).get(state)

    def keep(self, block: Block, state: int, mask: Bits) -> None:
        """Remember the mask of a state of a block."""
        with self._lock:
            if self._num >= self._most:
                self._known.clear()
                self._num = 0
            self._known.setdefault(block, {})[state] = mask
            self._num += 1


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of a model.

    `tokens[id]` is None for special and unused ids, for ends of sequence whatever their bytes, and for tokens without
    bytes, which would make no progress.
    """

    tokens: tuple[bytes | None, ...]
    eos_ids: frozenset[int]
    packed: tuple[NDArray[np.uint8], NDArray[np.int64]]  # [B] the bytes of all tokens; [V + 1] where each begins
    trie: TokenTrie
    plain: PlainTokens
    names: Mapping[str, int] = field(default_factory=dict)  # of special tokens
    _spare: list[Bits] = field(default_factory=list, init=False)

    @classmethod
    def from_tokens(
        cls, tokens: Sequence[bytes | None], eos_ids: Iterable[int], names: Mapping[str, int] | None = None
    ) -> Vocabulary:
        """Build from the bytes of each token, None for a special one. `names` are those of special tokens."""
        ends = frozenset(eos_ids)
        assert all(0 <= token < len(tokens) for token in ends), "an end-of-sequence id is outside the vocabulary"
        kept = tuple(None if token in ends else (data or None) for token, data in enumerate(tokens))
        text = np.frombuffer(b"".join(filter(None, kept)), np.uint8)
        starts = np.zeros(len(kept) + 1, np.int64)
        np.cumsum(np.fromiter((len(data) if data else 0 for data in kept), np.int64, len(kept)), out=starts[1:])
        by_bytes: Any = kept.__getitem__
        order = np.array(sorted(np.flatnonzero(np.diff(starts)).tolist(), key=by_bytes), np.int32)
        trie = TokenTrie.build(order, [kept[token] or b"" for token in order.tolist()])
        known = {name: token for name, token in (names or {}).items() if token < len(kept)}
        made = cls(kept, ends, (text, starts), trie, PlainTokens.build(kept, text, starts, trie), known)
        _ = made.packed_addresses, made.quoted_trie, made.in_strings  # computed now, so that the first step need not
        return made

    def __len__(self) -> int:
        return len(self.tokens)

    def number_of(self, token: int | str) -> int | None:
        """Return the number of a token that is given by its number, name or text; None if there is none."""
        if isinstance(token, int):
            return token if 0 <= token < len(self.tokens) else None
        return self.names[token] if token in self.names else self._number_of_text.get(token.encode())

    @cached_property
    def _number_of_text(self) -> dict[bytes, int]:
        return {data: number for number, data in reversed([*enumerate(self.tokens)]) if data}

    @cached_property
    def text_mask(self) -> NDArray[np.int32]:
        """Bitmask of the tokens that have bytes. Read-only."""
        return bitmask(self.trie.tokens, len(self.tokens))

    @cached_property
    def num_words(self) -> int:
        """Length of a bitmask in int32 words."""
        return -(-len(self.tokens) // 32)

    def new_bits(self) -> Bits:
        """Return memory for a bitmask: of an ended grammar if there is some, because new pages take long."""
        try:
            return self._spare.pop()
        except IndexError:
            bits: NDArray[np.int32] = np.empty(self.num_words, np.int32)
            return bits, address_of(bits)

    def give_back(self, unused: Iterable[Bits]) -> None:
        """Keep the memory of bitmasks that nothing uses any more for others, as far as it is not too much."""
        room = max(0, _MAX_SPARE_BYTES // (4 * self.num_words) - len(self._spare))
        self._spare.extend(islice(unused, room))

    @cached_property
    def packed_addresses(self) -> NDArray[np.int64]:
        """Addresses and lengths of `packed`: int64[4]."""
        return addresses(*self.packed)

    @cached_property
    def used_bytes(self) -> frozenset[int]:
        """The bytes that occur in any token."""
        return frozenset(np.unique(self.trie.data[1:]).tolist())

    @cached_property
    def single_bytes(self) -> frozenset[int]:
        """The bytes that are tokens by themselves."""
        nodes = self.trie.nodes
        first = np.arange(nodes[0, FIRST_CHILD], nodes[0, LAST_CHILD])
        return frozenset(self.trie.data[first[nodes[first, OWN_END] > nodes[first, FIRST_TOKEN]]].tolist())

    @cached_property
    def quoted(self) -> QuotedTokens:
        """The tokens that contain quotes."""
        return QuotedTokens(self.tokens, *self.packed, self.trie.tokens)

    @cached_property
    def in_strings(self) -> SharedMasks:
        """The tokens without a quote that go on from states inside JSON strings."""
        return SharedMasks(_MAX_SHARED_BYTES // (4 * max(1, self.num_words)))

    @cached_property
    def quoted_trie(self) -> TokenTrie:
        """The tokens that contain a quote."""
        ids = self.trie.tokens[np.isin(self.trie.tokens, self.quoted.ending)]
        return TokenTrie.build(ids, [self.tokens[token] or b"" for token in ids.tolist()])

    @cached_property
    def ends_mask(self) -> NDArray[np.int32]:
        """Bitmask of the ends of sequence. Read-only."""
        return bitmask(np.array(sorted(self.eos_ids), np.int64), len(self.tokens))
