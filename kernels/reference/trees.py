"""Verification of draft trees: which nodes the samples confirm, and the compaction of their keys and values.

Legend: O outputs of the step's rows with trees (of each row its root, then its nodes), N nodes, M moves, S slots.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


def walk_trees(
    sampled_O: torch.Tensor, guessed_O: torch.Tensor, parents_O: torch.Tensor, *, max_depth: int
) -> torch.Tensor:
    """Return bool [O]: True for the outputs on the path that the samples confirm.

    `sampled_O[o]` is the token sampled after output o, `guessed_O[o]` the token of the node itself, `parents_O[o]` the
    output of its parent; a root's is itself. A root is on the path. A node is on it if its parent is, and the sample
    after the parent is the node's token. Siblings carry different tokens, so at most one node of a depth is on it. No
    tree is deeper than `max_depth`.
    """
    root_O = parents_O == torch.arange(len(parents_O), device=parents_O.device)
    follows_O = root_O | (sampled_O[parents_O] == guessed_O)
    on_way_O = root_O
    for _ in range(max_depth):
        on_way_O = follows_O & on_way_O[parents_O]
    return on_way_O


def compact_kv(
    memories: Iterable[torch.Tensor],
    on_way_N: torch.Tensor,
    slots_N: torch.Tensor,
    moves_N: torch.Tensor,
    targets_M: torch.Tensor,
) -> None:
    """Copy slot `slots_N[n]` of each node on the path to slot `targets_M[moves_N[n]]`, in place, in each of `memories`
    [L, S, ...]. Targets of no such node keep their contents.

    All copies happen at once: a target may be another copy's source.
    """
    M = len(targets_M)
    sources_M = torch.cat((targets_M, targets_M.new_zeros(1)))
    moves_N = torch.where(on_way_N, moves_N, M)  # those of other nodes go to the last entry, which is not read
    sources_M = sources_M.index_copy(0, moves_N, slots_N)[:M]
    for memory_LS in memories:
        memory_LS[:, targets_M] = memory_LS[:, sources_M]
