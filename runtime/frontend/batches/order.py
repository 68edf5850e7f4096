"""The order of a batch's rows: a walk of the trie of their prompts, so that each shared prefix is computed once.

Requests below a node follow one another, so what a node's prefix takes in the cache is needed until the last of them
and never again, however small the cache. Among the branches of a node the one with the longest output goes first: what
runs alone at the end is short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ....radix.packed_tokens import TOKEN_BYTES, common_prefix_length


@dataclass
class _Node:
    """A place in the trie where prompts part, `depth` tokens below the root. `weight` is the longest output below."""

    depth: int
    weight: int
    children: list[_Node | int] = field(default_factory=list)  # nodes, and numbers of rows that end here


def trie_order(prompts: Sequence[bytes], limits: Sequence[int]) -> list[int]:
    """Return the numbers of rows in the order in which they should start.

    `prompts`: of each row its packed tokens (`radix.packed_tokens`); `limits`: of each row the tokens that its output
    may have.
    """
    root = _Node(0, 0)
    path = [root]
    before = b""
    for number in sorted(range(len(prompts)), key=prompts.__getitem__):  # those with a common prefix are together
        shared = common_prefix_length(before, prompts[number])
        while path[-1].depth > shared:
            path.pop()
        if path[-1].depth < shared:  # the row before, or its branch, parts from this one inside an edge
            inner = _Node(shared, 0, [path[-1].children.pop()])
            path[-1].children.append(inner)
            path.append(inner)
        path[-1].children.append(number)
        before = prompts[number]
    return _walk(root, limits)


def num_abreast(prompts: Sequence[bytes], limits: Sequence[int], num_slots: int, most: int) -> int:
    """Return how many rows that follow one another fit into a pool together, wherever they begin: `most` at most.

    `prompts` and `limits` as of `trie_order`, in the order in which the rows start. What a row shares with the one
    before it takes no room.
    """
    costs = [len(prompt) // TOKEN_BYTES + limit for prompt, limit in zip(prompts, limits, strict=True)]
    shared = [0, *(common_prefix_length(*pair) for pair in pairwise(prompts))]
    first = taken = 0  # the rows that fit together are [first, number)
    for number, cost in enumerate(costs):
        taken += cost - shared[number] * (number > first)
        while taken > num_slots and first < number:
            taken -= costs[first] - shared[first + 1]
            first += 1
        if first or taken > num_slots:
            most = min(most, number - first + 1)
    return max(1, most)


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
