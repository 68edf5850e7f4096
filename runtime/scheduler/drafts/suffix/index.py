"""Index of texts by their suffixes: finds what followed the end of a text where it, or another text, had it before.

A pool of fixed size holds all texts. Texts are separated by scope: matches lie in the scope that was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..tree import DraftTree
from .loops import (
    BLOCK_COLUMNS,
    BLOCK_SLOTS,
    BLOCK_TEXT,
    MAX_NODES,
    NEXT_BLOCK,
    ORDERS,
    PREVIOUS_BLOCK,
    SCOPE,
    SLOT_COLUMNS,
    USED,
    grow_tree,
    link_tokens,
    unlink_block,
)

POOL_TOKENS = 1 << 19  # 44 bytes each, touched as they are used


@dataclass(eq=False)
class IndexedText:
    """A text in the index. `blocks` are its blocks in order."""

    number: int
    scope: int
    blocks: list[int] = field(default_factory=list)
    num_tokens: int = 0

    @property
    def end(self) -> int:
        """Position of the last token."""
        return self.blocks[-1] * BLOCK_SLOTS + (self.num_tokens - 1) % BLOCK_SLOTS


@dataclass(frozen=True)
class SuffixMatch:
    """A draft tree, the number of tokens matched for it, and the number of the text that has the longest match."""

    tree: DraftTree
    length: int
    text: int


class SuffixIndex:
    """Texts that grow at their ends, in a pool of `num_tokens` slots (a power of two).

    Appending takes constant time per token; a query takes a bounded number of occurrences, the newest ones.
    """

    def __init__(self, num_tokens: int = POOL_TOKENS) -> None:
        assert num_tokens & (num_tokens - 1) == 0, "buckets are chosen by the low bits of a hash"
        # Zeros are committed page by page, as they are written.
        self._slots = np.zeros((num_tokens, SLOT_COLUMNS), np.int32)
        self._blocks = np.zeros((num_tokens // BLOCK_SLOTS, BLOCK_COLUMNS), np.int32)
        self._heads = np.zeros((len(ORDERS), num_tokens), np.int32)
        self._free = list(range(num_tokens // BLOCK_SLOTS - 1, -1, -1))
        self._num_texts = 0
        self._tokens, self._parents = np.empty(MAX_NODES, np.int64), np.empty(MAX_NODES, np.int64)
        self._scores, self._found = np.empty(MAX_NODES, np.float64), np.empty(2, np.int64)

    @property
    def num_free(self) -> int:
        """Number of tokens for which there are unused blocks."""
        return len(self._free) * BLOCK_SLOTS

    def add(self, scope: int) -> IndexedText:
        """Add an empty text to a scope (at least 1)."""
        self._num_texts += 1
        return IndexedText(self._num_texts, scope)

    def append(self, text: IndexedText, tokens: Sequence[int]) -> None:
        """Append tokens. Call only if `num_free` says that there is room for them."""
        new, start = np.array(tokens, np.int32), 0
        while start < len(new):
            offset = text.num_tokens % BLOCK_SLOTS
            if not offset:
                self._add_block(text)
            stop = min(len(new), start + BLOCK_SLOTS - offset)
            link_tokens(self._slots, self._blocks, self._heads, text.blocks[-1], new[start:stop])
            text.num_tokens += stop - start
            start = stop

    def remove(self, text: IndexedText) -> None:
        """Remove the text and its matches."""
        for block in text.blocks:
            unlink_block(self._slots, self._blocks, self._heads, block)
        self._free += text.blocks
        text.blocks, text.num_tokens = [], 0

    def propose(
        self, text: IndexedText, *, steps: int, top_k: int, num_tokens: int, shared: int = 0, excluded: int = 0
    ) -> SuffixMatch | None:
        """Return the tree of what followed the longest matches of the text's end; None if there are none.

        Matches are searched in the text's own scope and in scope `shared` (0: none), there not in text `excluded`. The
        tree has at most `num_tokens` nodes of depth `steps`, at most `top_k` children each.
        """
        if not text.num_tokens:
            return None
        count = grow_tree(
            self._slots,
            self._blocks,
            self._heads,
            text.end,
            text.scope,
            shared,
            excluded,
            steps,
            top_k,
            num_tokens,
            self._tokens,
            self._parents,
            self._scores,
            self._found,
        )
        if not count:
            return None
        tree = DraftTree(self._tokens[:count].tolist(), self._parents[:count].tolist(), self._scores[:count].tolist())
        return SuffixMatch(tree, int(self._found[0]), int(self._found[1]))

    def _add_block(self, text: IndexedText) -> None:
        block, blocks = self._free.pop(), self._blocks
        blocks[block, PREVIOUS_BLOCK] = blocks[block, NEXT_BLOCK] = blocks[block, USED] = 0
        blocks[block, BLOCK_TEXT], blocks[block, SCOPE] = text.number, text.scope
        if text.blocks:
            blocks[block, PREVIOUS_BLOCK], blocks[text.blocks[-1], NEXT_BLOCK] = text.blocks[-1] + 1, block + 1
        text.blocks.append(block)
