"""Compiled loops over the suffix index: link new tokens, unlink old ones, find matches, grow a tree from them.

All texts lie in one pool of token slots, in blocks of BLOCK_SLOTS. Positions of equal n-grams are linked in chains, one
set of chains for each of the lengths ORDERS, newest first, so a match is found without a look at the rest of the pool
and a text can be removed without a trace. References are stored plus one: 0 stands for none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .....loops import compiled

Ints = NDArray[np.int32]

BLOCK_SLOTS = 64  # slots
ORDERS = np.array([2, 4, 8], np.int64)  # lengths of the n-grams that are linked
MAX_COMPARED = 32  # tokens compared
MAX_FOUND = 16  # newest occurrences that are considered, of the text itself and of others each
MAX_NODES = 96
MIN_PROBABILITY = 0.05  # of a node that is kept
# Measured on outputs of the model that ships (docs/inside/decisions/0016): how often the next token is the one that
# followed a match of 0, 1, 2, ... tokens, where all matches agree; the last entry is for all longer ones.
CONFIDENCE = np.array([0.0, 0.3, 0.55, 0.6, 0.75, 0.8, 0.82, 0.86, 0.92, 0.95, 0.96, 0.97], np.float64)

# Columns of a slot. Order n has its links at OLDER + 2 n and NEWER + 2 n.
TOKEN, OLDER, NEWER = 0, 1, 2  # NEWER of the newest: minus its bucket, less one; 0: not linked
SLOT_COLUMNS = 8
# Columns of a block.
PREVIOUS_BLOCK, NEXT_BLOCK, BLOCK_TEXT, SCOPE, USED = 0, 1, 2, 3, 4
BLOCK_COLUMNS = 8

_POOL = "int32[:,::1], int32[:,::1], int32[:,::1]"  # slots, blocks, heads of chains


@compiled("int64(int32[:,::1], int64)")
def position_before(blocks: Ints, position: int) -> int:
    """Return the text's position before this one, or -1."""
    if position % BLOCK_SLOTS:
        return position - 1
    previous = blocks[position // BLOCK_SLOTS, PREVIOUS_BLOCK]
    return previous * BLOCK_SLOTS - 1 if previous else -1


@compiled("int64(int32[:,::1], int64)")
def position_after(blocks: Ints, position: int) -> int:
    """Return the text's position after this one, or -1."""
    block = position // BLOCK_SLOTS
    if position % BLOCK_SLOTS + 1 < blocks[block, USED]:
        return position + 1
    following = blocks[block, NEXT_BLOCK]
    return (following - 1) * BLOCK_SLOTS if following else -1


@compiled(f"int64({_POOL}, int64, int64, int64)")
def bucket_of(slots: Ints, blocks: Ints, heads: Ints, scope: int, position: int, length: int) -> int:
    """Return the bucket of the n-gram of `length` tokens that ends at the position; -1 if the text has fewer."""
    key = np.uint64(scope) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(length)
    for _ in range(length):
        if position < 0:
            return -1
        key = (key ^ np.uint64(slots[position, TOKEN])) * np.uint64(0xD6E8FEB86659FD93)
        key ^= key >> np.uint64(32)
        position = position_before(blocks, position)
    return int(key & np.uint64(heads.shape[1] - 1))


@compiled(f"({_POOL}, int64, int32[::1])")
def link_tokens(slots: Ints, blocks: Ints, heads: Ints, block: int, tokens: Ints) -> None:
    """Append tokens to a block that has room for them, and link their n-grams."""
    scope = blocks[block, SCOPE]
    for token in tokens:
        position = block * BLOCK_SLOTS + blocks[block, USED]
        blocks[block, USED] += 1
        slots[position, TOKEN] = token
        for order in range(len(ORDERS)):
            older, newer = OLDER + 2 * order, NEWER + 2 * order
            slots[position, older] = slots[position, newer] = 0
            bucket = bucket_of(slots, blocks, heads, scope, position, ORDERS[order])
            if bucket < 0:
                continue
            head = heads[order, bucket]
            if head:
                slots[head - 1, newer] = position + 1
            slots[position, older], slots[position, newer] = head, -bucket - 1
            heads[order, bucket] = position + 1


@compiled(f"({_POOL}, int64)")
def unlink_block(slots: Ints, blocks: Ints, heads: Ints, block: int) -> None:
    """Remove a block's tokens from the chains."""
    for position in range(block * BLOCK_SLOTS, block * BLOCK_SLOTS + blocks[block, USED]):
        for order in range(len(ORDERS)):
            older, newer = slots[position, OLDER + 2 * order], slots[position, NEWER + 2 * order]
            if newer > 0:
                slots[newer - 1, OLDER + 2 * order] = older
            elif newer < 0:
                heads[order, -newer - 1] = older
            else:
                continue
            if older:
                slots[older - 1, NEWER + 2 * order] = newer
    blocks[block, USED] = 0


@compiled(f"int64({_POOL}, int64, int64, int64, int64, int64[::1], int64[::1])")
def find_matches(
    slots: Ints,
    blocks: Ints,
    heads: Ints,
    end: int,
    scope: int,
    excluded: int,
    first: int,
    positions: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> int:
    """Find earlier occurrences in `scope`, outside of text `excluded`, of the longest linked n-gram that ends at `end`.

    Writes the last position of each that a token follows and the number of tokens that agree, at most MAX_COMPARED,
    from entry `first` on, the newest first; returns the number of entries.
    """
    count = first
    for order in range(len(ORDERS) - 1, -1, -1):
        bucket = bucket_of(slots, blocks, heads, scope, end, ORDERS[order])
        link = heads[order, bucket] if bucket >= 0 else 0
        visits = 0
        while link and count < first + MAX_FOUND and visits < 8 * MAX_FOUND:
            visits += 1
            candidate = int(link) - 1
            link = slots[candidate, OLDER + 2 * order]
            block = candidate // BLOCK_SLOTS
            if candidate == end or blocks[block, SCOPE] != scope or blocks[block, BLOCK_TEXT] == excluded:
                continue
            length, ours, theirs = 0, end, candidate
            while length < MAX_COMPARED and ours >= 0 and theirs >= 0 and slots[ours, TOKEN] == slots[theirs, TOKEN]:
                length += 1
                ours, theirs = position_before(blocks, ours), position_before(blocks, theirs)
            if length >= ORDERS[order] and position_after(blocks, candidate) >= 0:
                positions[count], lengths[count] = candidate, length
                count += 1
        if count > first:
            break
    return count


@compiled(
    f"int64({_POOL}, int64, int64, int64, int64, int64, int64, int64, int64[::1], int64[::1], float64[::1], int64[::1])"
)
def grow_tree(
    slots: Ints,
    blocks: Ints,
    heads: Ints,
    end: int,
    own_scope: int,
    shared_scope: int,
    excluded: int,
    steps: int,
    top_k: int,
    num_tokens: int,
    tokens: NDArray[np.int64],
    parents: NDArray[np.int64],
    scores: NDArray[np.float64],
    found: NDArray[np.int64],
) -> int:
    """Grow the tree of what followed the longest matches of the text up to `end`; return its number of nodes.

    `tokens`, `parents` and `scores` get the nodes, parents first; `found` gets the length of the longest match and the
    text that has it. An occurrence weighs half as much for each token that it matches less than the longest. A node's
    probability is its parent's, times the share of the parent's weight that goes on with its token, times CONFIDENCE of
    the length matched up to there.
    """
    positions, lengths = np.empty(2 * MAX_FOUND, np.int64), np.empty(2 * MAX_FOUND, np.int64)
    count = find_matches(slots, blocks, heads, end, own_scope, -1, 0, positions, lengths)
    if shared_scope:
        count = find_matches(slots, blocks, heads, end, shared_scope, excluded, count, positions, lengths)
    if count == 0:
        return 0
    longest = 0
    for index in range(count):
        if lengths[index] > lengths[longest]:
            longest = index
    matched = lengths[longest]
    found[0], found[1] = matched, blocks[positions[longest] // BLOCK_SLOTS, BLOCK_TEXT]
    shares = np.empty(count, np.float64)
    at = np.full(count, -1, np.int64)  # node that each occurrence has reached; -2: it has left the tree
    node_token, node_parent = np.empty(MAX_NODES, np.int64), np.empty(MAX_NODES, np.int64)
    weight, probability = np.zeros(MAX_NODES, np.float64), np.zeros(MAX_NODES, np.float64)
    total = 0.0
    for index in range(count):
        shares[index] = 0.5 ** (matched - lengths[index])
        total += shares[index]
    num_nodes, level = 0, 0  # nodes from `level` on are of the current depth
    for depth in range(steps):
        level = num_nodes
        for index in range(count):
            if at[index] == -2:
                continue
            positions[index] = position_after(blocks, positions[index])
            if positions[index] < 0:
                at[index] = -2
                continue
            token, node = slots[positions[index], TOKEN], level
            while node < num_nodes and (node_parent[node] != at[index] or node_token[node] != token):
                node += 1
            if node == num_nodes:
                if num_nodes == MAX_NODES:
                    at[index] = -2
                    continue
                node_token[node], node_parent[node] = token, at[index]
                num_nodes += 1
            weight[node] += shares[index]
            at[index] = node
        confidence = CONFIDENCE[min(matched + depth, len(CONFIDENCE) - 1)]
        alive = False
        for node in range(level, num_nodes):
            parent, rank = node_parent[node], 0
            for other in range(level, num_nodes):
                heavier = weight[other] > weight[node] or (weight[other] == weight[node] and other < node)
                rank += heavier and node_parent[other] == parent
            above, whole = (probability[parent], weight[parent]) if parent >= 0 else (1.0, total)
            likely = above * confidence * weight[node] / whole
            if rank < top_k and likely >= MIN_PROBABILITY:
                probability[node] = likely
                alive = True
        if not alive:
            break
        for index in range(count):
            if at[index] >= 0 and probability[at[index]] == 0.0:
                at[index] = -2
    # A child is less likely than its parent, so the likeliest nodes are a tree.
    kept = np.zeros(MAX_NODES, np.int64)
    for _ in range(num_tokens):
        best = -1
        for node in range(num_nodes):
            if not kept[node] and probability[node] > (probability[best] if best >= 0 else 0.0):
                best = node
        if best < 0:
            break
        kept[best] = 1
    num_kept = 0
    for node in range(num_nodes):
        if kept[node]:
            parent = node_parent[node]
            tokens[num_kept], scores[num_kept] = node_token[node], np.log(probability[node])
            parents[num_kept] = kept[parent] - 1 if parent >= 0 else -1
            num_kept += 1
            kept[node] = num_kept
    return num_kept
