"""Verifying trees of guesses: which nodes the samples confirm, and where their keys and values go.

Legend: O outputs of the step's rows with trees (of each row its root, then its nodes), N nodes, M moves, S slots.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


def walk_trees(
    sampled_O: torch.Tensor, guessed_O: torch.Tensor, parents_O: torch.Tensor, *, max_depth: int
) -> torch.Tensor:
    """Which outputs lie on the way that the samples take, bool [O].

    `sampled_O[o]` is the token sampled after output o, `guessed_O[o]` the token of the node itself, `parents_O[o]` the
    output of its parent; a root's is itself. A root is on the way; a node is if its parent is, and the sample after
    the parent is its token. Siblings carry different tokens, so at most one node of a depth is. No tree is deeper than
    `max_depth`.
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
    """Move what the nodes that are on the way have in `slots_N` to the slots `targets_M[moves_N]`, in place, in every
    one of `memories` [L, S, ...]. A target that no such node wants keeps what it has.

    All moves are made at once: a target may be another move's source.
    """
    M = len(targets_M)
    sources_M = torch.cat((targets_M, targets_M.new_zeros(1)))
    moves_N = torch.where(on_way_N, moves_N, M)  # the others' go to the last place, which nobody reads
    sources_M = sources_M.index_copy(0, moves_N, slots_N)[:M]
    for memory_LS in memories:
        memory_LS[:, targets_M] = memory_LS[:, sources_M]
