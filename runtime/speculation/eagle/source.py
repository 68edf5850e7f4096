"""A draft head as the engine's draft source: follows the target, and grows a tree where one is wanted.

Features of every step are stored by slot; keys and values are computed when a tree is wanted, for whatever the sequence
lacks. Position j of a sequence (from 1 on: the first token has no feature before it) is computed from the feature at j
- 1 and the token at j, and is position j - 1 for the head's rotary embedding.

Legend: B rows, P tokens before the newest, N tokens or nodes at hand, K frontier nodes, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from ....kernels import RopeAndStoreArgs
from ...engine.draft_source import DraftRow, DraftStep
from ...engine.kv_pool import PAGE_SIZE
from ...scheduler.drafts.tree import DraftTree
from ...scheduler.plan import DraftSpec, PageCopy, Row
from ..slot_features import SlotFeatures
from ..slot_ledger import SlotLedger
from .draft_memory import DraftMemory
from .head import EagleHead
from .tree_attention import TreeAttention
from .tree_growth import Frontier, GrownTrees, TreeShape, draft_temperature, grow_trees

if TYPE_CHECKING:
    from .compiled_chain import CompiledHead

_MAX_CHAIN_CATCH_UP = 16  # missing tokens that a compiled chain computes itself; more are computed before it
_CATCH_UP_TOKENS = 512  # tokens computed at once while catching up
_MAX_KEYS = 1 << 15  # in one batch, padding included
_Slots = NDArray[np.int64]  # of positions from 0 up to the newest token, which has no slot yet


class EagleSource:
    """Draft source with an EAGLE head. See `DraftSource`. Trees of different shapes grow in one batch."""

    caught_up = 0.0  # it takes no attention and no MLP

    def __init__(self, head: EagleHead, num_pages: int, num_host_pages: int = 0) -> None:
        head.pack()
        self._head = head
        self._memory = DraftMemory(head.config, num_pages, num_host_pages, device=head.device, dtype=head.dtype)
        self._ledger = SlotLedger(num_pages + num_host_pages, PAGE_SIZE)
        self._compiled = self._compile()
        self._features = SlotFeatures(self._ledger, self._memory.feature_SE, head.features)

    @property
    def captures(self) -> tuple[int, ...]:
        return self._head.config.captures

    def use_loops(self) -> None:
        self._head.use_loops()
        self._compiled = self._compile()

    def _compile(self) -> CompiledHead | None:
        from .compiled_chain import CompiledHead  # here, because it imports numba

        return CompiledHead.of(self._head, self._memory)

    def copy(self, copies: Sequence[PageCopy]) -> None:
        if not copies:
            return
        self._features.store()
        self._features.store_skipped()
        self._memory.copy(copies)
        self._ledger.copy(copies)

    def follow(self, step: DraftStep) -> list[DraftTree | None]:
        assert step.features_TE is not None
        self._features.record(step.rows, step.features_TE)
        trees: list[DraftTree | None] = [None] * len(step.rows)
        wanted = [index for index, row in enumerate(step.rows) if row.want is not None and row.next_token is not None]
        if wanted or self._features.is_full:
            self._features.store()
        for group in _groups(wanted, step.rows):
            rows = [step.rows[index] for index in group]
            wants = [row.want for row in rows if row.want]
            for index, tree in zip(group, self._draft(rows, wants), strict=True):
                trees[index] = tree
        return trees

    def skip(self, rows: Sequence[Row]) -> None:
        self._features.skip(rows)

    def _draft(self, rows: Sequence[DraftRow], wants: Sequence[DraftSpec]) -> Sequence[DraftTree | None]:
        slots = [self._ledger.slots(row.pages, 0, row.end) for row in rows]
        tokens = [row.next_token for row in rows if row.next_token is not None]
        chains = all(want.top_k == 1 for want in wants)
        if chains and self._compiled is not None:
            return [self._compiled_chain(*each) for each in zip(slots, tokens, wants, strict=True)]
        self._catch_up([(own, self._first_missing(own)) for own in slots])
        return (self._chains if chains else self._grow)(slots, tokens, wants)

    def _first_missing(self, slots: _Slots) -> int:
        """Return the first position whose key and value are missing; at most that of the newest token."""
        return 1 + self._ledger.num_computed(slots[1:])

    def _catch_up(self, missing: Sequence[tuple[_Slots, int]]) -> None:
        """Compute keys and values of each sequence from the given position on, except for its newest token."""
        head, memory = self._head, self._memory
        before, own = (
            np.concatenate([slots[first - 1 : -1] for slots, first in missing]),
            np.concatenate([slots[first:] for slots, first in missing]),
        )
        places = np.concatenate([np.arange(first - 1, len(slots) - 1) for slots, first in missing])
        ids = self._ledger.tokens(own)
        for start in range(0, len(own), _CATCH_UP_TOKENS):
            ids_N, before_N, places_N, slots_N = (
                self._tensor(column[start : start + _CATCH_UP_TOKENS]) for column in (ids, before, places, own)
            )
            qkv_NND, _ = head.heads(ids_N, memory.feature_SE.index_select(0, before_N))
            angles = head.rope.angles(places_N, places_N)
            args = RopeAndStoreArgs(*angles, slots_N, num_heads=head.config.num_heads, eps=0.0)
            head.serving_ops.rope_and_store(qkv_NND, memory.kv, None, args)
        self._ledger.note_computed(own)

    def _compiled_chain(self, slots: _Slots, token: int, want: DraftSpec) -> DraftTree:
        assert self._compiled is not None
        first = self._first_missing(slots)
        if len(slots) - first > _MAX_CHAIN_CATCH_UP:
            self._catch_up([(slots, first)])
            first = len(slots)
        ids = np.append(self._ledger.tokens(slots[first:]), token)
        depth = min(want.steps, want.num_tokens)
        tokens, logprobs = self._compiled.chain(ids, slots, depth, draft_temperature(want.temperature))
        self._ledger.note_computed(slots[first:])
        return DraftTree.chain(tokens, list(accumulate(logprobs)))

    def _begin(
        self, sequences: Sequence[_Slots], tokens: Sequence[int], room: int
    ) -> tuple[TreeAttention, torch.Tensor, torch.Tensor]:
        """Attend with the newest tokens, whose positions are the sequences' lengths.

        Returns the attention, to be continued, the tokens' features [B, E], and the input of their logits [B, E].
        `room` as in TreeAttention, for tokens and nodes.
        """
        head, memory, B = self._head, self._memory, len(sequences)
        ends = np.array([len(slots) for slots in sequences])
        P = int(ends.max()) - 1
        prefix_BP = np.zeros((B, P), dtype=np.int64)
        for own_P, slots in zip(prefix_BP, sequences, strict=True):
            own_P[:] = slots[0]
            own_P[: len(slots) - 1] = slots[1:]
        hidden = np.arange(P) >= ends[:, None] - 1
        prefix = self._tensor(prefix_BP)
        attention = TreeAttention(
            memory.k_SC[prefix],
            memory.v_SC[prefix],
            self._tensor(hidden) if hidden.any() else None,
            room=room,
            num_kv_heads=head.config.num_kv_heads,
            scale=head.scale,
            ops=head.serving_ops,
        )
        before_B = self._tensor(np.array([slots[-1] for slots in sequences]))
        ids_B, places_B = self._tensor(np.array(tokens)), self._tensor(ends - 1)
        output = head.forward(ids_B, memory.feature_SE.index_select(0, before_B), places_B, attention)
        return attention, output.feature_NE, output.read_NE

    def _grow(
        self, sequences: Sequence[_Slots], newest: Sequence[int], wants: Sequence[DraftSpec]
    ) -> list[DraftTree | None]:
        head, B = self._head, len(sequences)
        shapes = [TreeShape(want.steps, want.top_k, want.num_tokens + 1) for want in wants]
        num_rounds = max(shape.num_steps for shape in shapes) - 1
        K = min(head.config.draft_vocab_size, max(shape.top_k for shape in shapes))
        attention, feature_BE, read_BE = self._begin(sequences, newest, 1 + num_rounds * K)
        temperature_B11 = torch.tensor([draft_temperature(want.temperature) for want in wants], device=head.device)[
            :, None, None
        ]
        ends_B = torch.tensor([len(slots) for slots in sequences], device=head.device)  # positions of the roots
        positions_BR = ends_B[:, None] + torch.arange(num_rounds, device=head.device)
        angles = head.rope.angles(positions_BR, positions_BR)
        place = 0
        features_BKE = feature_BE[:, None]

        def logprobs(read_NE: torch.Tensor) -> torch.Tensor:
            return (head.logits(read_NE).view(B, -1, head.config.draft_vocab_size) / temperature_B11).log_softmax(
                dim=-1
            )

        def expand(front: Frontier) -> torch.Tensor:
            nonlocal place, features_BKE
            place += 1
            if place == 1:
                attention.branch(K)
            else:
                attention.descend(front.parents_BK)
            E = features_BKE.shape[-1]
            before_BKE = features_BKE.gather(1, front.parents_BK[:, :, None].expand(-1, -1, E))
            tokens_N = head.token_ids(front.tokens_BK.flatten())
            cos_N1D, sin_N1D = (part[:, place - 1].repeat_interleave(K, dim=0) for part in angles)
            output = head.forward_rotated(tokens_N, before_BKE.flatten(0, 1), cos_N1D, sin_N1D, attention)
            features_BKE = output.feature_NE.view(B, K, E)
            return logprobs(output.read_NE)

        roots_B = torch.zeros(B, dtype=torch.int64, device=head.device)  # unused: the roots are known
        grown = grow_trees(roots_B, logprobs(read_BE)[:, 0], expand, shapes)
        return _draft_trees(grown, head)

    def _chains(
        self, sequences: Sequence[_Slots], newest: Sequence[int], wants: Sequence[DraftSpec]
    ) -> list[DraftTree | None]:
        """Special case of `_grow` for nodes with one child, in fewer operations: no sorting, gathering or masks."""
        head = self._head
        depths = [min(want.steps, want.num_tokens) for want in wants]
        num_rounds = max(depths) - 1
        attention, feature_BE, read_BE = self._begin(sequences, newest, 1 + num_rounds)
        temperature_B1 = torch.tensor([[draft_temperature(want.temperature)] for want in wants], device=head.device)
        ends_B = torch.tensor([len(slots) for slots in sequences], device=head.device)
        positions_RB = torch.arange(num_rounds, device=head.device)[:, None] + ends_B
        cos_RB1D, sin_RB1D = head.rope.angles(positions_RB, positions_RB)
        scores, tokens = [], []
        for place in range(num_rounds + 1):
            if place:
                attention.follow()
                angles = cos_RB1D[place - 1], sin_RB1D[place - 1]
                feature_BE, read_BE = head.forward_rotated(tokens[-1], feature_BE, *angles, attention)
            logits_BV = head.logits(read_BE) / temperature_B1
            best_B, index_B = logits_BV.max(dim=-1)
            scores.append(best_B - logits_BV.logsumexp(dim=-1))
            tokens.append(head.token_ids(index_B))
        total_BR = torch.stack(scores, dim=1).clamp(max=0.0).cumsum(dim=1)
        rows = zip(torch.stack(tokens, dim=1).tolist(), total_BR.tolist(), depths, strict=True)
        return [DraftTree.chain(ids[:depth], own[:depth]) for ids, own, depth in rows]

    def _tensor(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._head.device, non_blocking=True)


def _draft_trees(grown: GrownTrees, head: EagleHead) -> list[DraftTree | None]:
    """Convert to draft trees, without the roots."""
    tokens = head.token_ids(grown.tokens_BM).tolist()
    columns = zip(tokens, grown.parents_BM.tolist(), grown.scores_BM.tolist(), grown.sizes, strict=True)
    return [
        DraftTree(ids[1:size], [parent - 1 for parent in parents[1:size]], scores[1:size]) if size > 1 else None
        for ids, parents, scores, size in columns
    ]


def _groups(wanted: Sequence[int], rows: Sequence[DraftRow]) -> list[list[int]]:
    """Group rows of similar length, so that a group padded to its longest has at most _MAX_KEYS tokens."""
    groups: list[list[int]] = []
    for index in sorted(wanted, key=lambda index: (rows[index].end, index)):
        if not groups or (len(groups[-1]) + 1) * rows[index].end > _MAX_KEYS:
            groups.append([])
        groups[-1].append(index)
    return groups
