"""The order of a batch's rows: a walk of the trie of their prompts, so that each shared prefix is computed once.

Requests below a node follow one another, so what a node's prefix takes in the cache is needed until the last of them
and never again, however small the cache. Among the branches of a node the one with the longest output goes first: what
runs alone at the end is short.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

TOKEN_BYTES = 4


def trie_key(tokens: Sequence[int]) -> bytes:
    """Return token ids as bytes that sort as the ids do."""
    ids = array("I", tokens)
    assert ids.itemsize == TOKEN_BYTES
    if sys.byteorder == "little":
        ids.byteswap()
    return ids.tobytes()


@dataclass
class _Node:
    """A place in the trie where prompts part. `weight` is the longest output below."""

    depth: int
    weight: int
    children: list[_Node | int] = field(default_factory=list)  # nodes, and numbers of rows that end here


def trie_order(keys: Sequence[bytes], limits: Sequence[int]) -> list[int]:
    """Return the numbers of rows in the order in which they should start.

    `keys`: of each row its prompt, by `trie_key`; `limits`: of each row the tokens that its output may have.
    """
    root = _Node(0, 0)
    path = [root]
    before = b""
    for number in sorted(range(len(keys)), key=keys.__getitem__):
        shared = _shared_length(before, keys[number])
        while path[-1].depth > shared:
            path.pop()
        if path[-1].depth < shared:  # the row before, or its branch, parts from this one inside an edge
            inner = _Node(shared, 0, [path[-1].children.pop()])
            path[-1].children.append(inner)
            path.append(inner)
        path[-1].children.append(number)
        before = keys[number]
    return _walk(root, limits)


def _walk(root: _Node, limits: Sequence[int]) -> list[int]:
    """Return the rows of a trie, depth first, the branches with the longest outputs first."""
    nodes, stack = [], [root]
    while stack:  # parents before their children, without recursion: prompts may share prefixes of any depth
        node = stack.pop()
        nodes.append(node)
        stack += [child for child in node.children if isinstance(child, _Node)]
    for node in reversed(nodes):
        node.weight = max((_weight(child, limits) for child in node.children), default=0)
    order: list[int] = []
    pending: list[_Node | int] = [root]
    while pending:
        child = pending.pop()
        if isinstance(child, int):
            order.append(child)
        else:
            pending += sorted(child.children, key=lambda each: _weight(each, limits))  # popped from the end
    return order


def _weight(child: _Node | int, limits: Sequence[int]) -> int:
    return limits[child] if isinstance(child, int) else child.weight


def _shared_length(a: bytes, b: bytes) -> int:
    """Return the length of the common prefix of two keys, in bytes of whole tokens, by bisection."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low - low % TOKEN_BYTES
