"""A draft head as the engine's draft source: keeps up with what the target computes, and grows a tree where one is
wanted.

Every step's features are stored at once, by slot; keys and values are made when a tree is wanted, for whatever of the
sequence lacks them. Position j of a sequence (from 1 on: the first token has no feature before it) is made of the
feature at j - 1 and the token at j, and is position j - 1 to the head's rotary embedding.

Legend: B rows, W new tokens of a row, P tokens before them, N = B * W, K front nodes, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...engine.kv_pool import PAGE_SIZE
from ...scheduler.plan import DraftWant, PageCopy
from ..ledger import SlotLedger
from ..source import DraftRow, DraftStep
from ..tree import DraftTree
from .growth import Front, GrownTrees, TreeShape, draft_temperature, grow
from .head import EagleHead
from .memory import DraftMemory
from .tree_attention import TreeAttention

_MAX_NEW = 16  # new tokens of a row beside others'; what is more is computed before, by itself
_CHUNK = 512  # tokens of that at a time
_MAX_STEPS = 64  # that wait to be stored: when nothing is drafted, following what is said should cost next to nothing
_MAX_KEYS = 1 << 15  # of the rows computed at once, padding included


@dataclass(frozen=True)
class _Part:
    """Positions [first, first + len(ids)) of one sequence, to be computed now. `slots` are those of the positions
    [0, first + num_stored), and the last `len(ids) - num_stored` ids have none: a sampled token that follows."""

    ids: NDArray[np.int64]
    first: int
    slots: NDArray[np.int64]

    @property
    def num_stored(self) -> int:
        return len(self.slots) - self.first


class EagleSource:
    """See `DraftSource`. Trees of rows with different wants grow together."""

    def __init__(self, head: EagleHead, num_pages: int, num_host_pages: int = 0) -> None:
        self._head = head
        self._memory = DraftMemory(head.config, num_pages, num_host_pages, device=head.device, dtype=head.dtype)
        self._ledger = SlotLedger(num_pages + num_host_pages, PAGE_SIZE)
        self._slots: list[int] = []  # of the steps that are not stored yet, as the next two
        self._tokens: list[int] = []
        self._captured: list[torch.Tensor] = []

    @property
    def captures(self) -> tuple[int, ...]:
        return self._head.config.captures

    def copy(self, copies: Sequence[PageCopy]) -> None:
        if not copies:
            return
        self._store()
        self._memory.copy(copies)
        self._ledger.copy(copies)

    def follow(self, step: DraftStep) -> list[DraftTree | None]:
        assert step.features_TE is not None
        self._note(step.rows, step.features_TE)
        trees: list[DraftTree | None] = [None] * len(step.rows)
        wanted = [index for index, row in enumerate(step.rows) if row.want is not None and row.next_token is not None]
        if wanted or len(self._captured) >= _MAX_STEPS or len(self._slots) >= _CHUNK:
            self._store()
        for group in _groups(wanted, step.rows):
            rows = [step.rows[index] for index in group]
            wants = [row.want for row in rows if row.want]
            grow_all = self._chains if all(want.top_k == 1 for want in wants) else self._grow
            trees_of_group = grow_all([self._new(row) for row in rows], wants)
            for index, tree in zip(group, trees_of_group, strict=True):
                trees[index] = tree
        return trees

    def _note(self, rows: Sequence[DraftRow], captured_TC: torch.Tensor) -> None:
        """What the step computed, to be stored before anybody asks for it."""
        for row in rows:
            for position in range(row.first_position, row.end):
                self._slots.append(row.pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE)
            self._tokens += row.kept
        self._captured.append(captured_TC)

    def _store(self) -> None:
        if not self._slots:
            return
        # A slot that was written twice holds what came last; no device promises an order of its own.
        last = {slot: index for index, slot in enumerate(self._slots)}
        slots = np.fromiter(last, dtype=np.int64, count=len(last))
        chosen = np.fromiter(last.values(), dtype=np.int64, count=len(last))
        self._ledger.write(slots, np.array(self._tokens)[chosen])
        captured_TC = torch.cat(self._captured) if len(self._captured) > 1 else self._captured[0]
        if len(chosen) < len(self._slots):
            captured_TC = captured_TC.index_select(0, self._tensor(chosen))
        self._memory.feature_SE.index_copy_(0, self._tensor(slots), self._head.features(captured_TC))
        self._slots, self._tokens, self._captured = [], [], []

    def _new(self, row: DraftRow) -> _Part:
        """What the row lacks up to and with its sampled token; long stretches are computed at once."""
        assert row.next_token is not None
        slots = self._ledger.slots(row.pages, 0, row.end)
        first = 1 + self._ledger.num_computed(slots[1:])
        while row.end - first > _MAX_NEW:
            end = min(row.end, first + _CHUNK)
            part = _Part(self._ledger.tokens(slots[first:end]), first, slots[:end])
            self._compute([part], room=len(part.ids))
            first = end
        return _Part(np.append(self._ledger.tokens(slots[first:]), row.next_token), first, slots)

    def _compute(self, parts: Sequence[_Part], room: int) -> tuple[TreeAttention, torch.Tensor, torch.Tensor]:
        """Keys and values of the parts, stored where they have slots; the attention that goes on from there, and the
        features [B, E] and what logits are made of [B, E] of each part's last token. `room` as in TreeAttention, for
        new tokens and nodes."""
        head, memory, B = self._head, self._memory, len(parts)
        widths = np.array([len(part.ids) for part in parts])
        firsts = np.array([part.first for part in parts])
        W, P = int(widths.max()), int(firsts.max()) - 1
        ids_BW, before_BW = np.zeros((B, W), dtype=np.int64), np.zeros((B, W), dtype=np.int64)
        prefix_BP = np.zeros((B, P), dtype=np.int64)
        for b, part in enumerate(parts):
            width, first = len(part.ids), part.first
            ids_BW[b, W - width :] = part.ids
            ids_BW[b, : W - width] = part.ids[0]
            before_BW[b, W - width :] = part.slots[first - 1 : first - 1 + width]
            before_BW[b, : W - width] = part.slots[first - 1]
            prefix_BP[b] = part.slots[0]
            prefix_BP[b, : first - 1] = part.slots[1:first]
        positions_BW = firsts[:, None] - 1 + np.maximum(np.arange(W) - (W - widths[:, None]), 0)
        hidden = np.arange(P) >= firsts[:, None] - 1
        padding = np.arange(W) < W - widths[:, None]

        prefix = self._tensor(prefix_BP)
        attention = TreeAttention(
            memory.k_SC[prefix],
            memory.v_SC[prefix],
            self._tensor(hidden) if hidden.any() else None,
            room=room,
            num_kv_heads=head.config.num_kv_heads,
            scale=head.scale,
        )
        attention.begin(W, self._tensor(padding) if padding.any() else None)
        before_NE = memory.feature_SE.index_select(0, self._tensor(before_BW.ravel()))
        output = head.forward(self._tensor(ids_BW.ravel()), before_NE, self._tensor(positions_BW.ravel()), attention)
        self._keep(parts, W, attention)
        return attention, output.feature_NE.view(B, W, -1)[:, -1], output.read_NE.view(B, W, -1)[:, -1]

    def _keep(self, parts: Sequence[_Part], W: int, attention: TreeAttention) -> None:
        """Keys and values of the parts' tokens that have slots go into them."""
        places = np.concatenate(
            [b * W + W - len(part.ids) + np.arange(part.num_stored) for b, part in enumerate(parts)]
        )
        if len(places) == 0:
            return
        slots = np.concatenate([part.slots[part.first :] for part in parts])
        where, which = self._tensor(slots), self._tensor(places)
        for cache, new in zip((self._memory.k_SC, self._memory.v_SC), attention.newest(), strict=True):
            cache.index_copy_(0, where, new.flatten(0, 1).index_select(0, which))
        self._ledger.note_computed(slots)

    def _grow(self, parts: Sequence[_Part], wants: Sequence[DraftWant]) -> list[DraftTree | None]:
        head, B = self._head, len(parts)
        shapes = [TreeShape(want.steps, want.top_k, want.num_tokens + 1) for want in wants]
        num_rounds = max(shape.num_steps for shape in shapes) - 1
        K = min(head.config.draft_vocab_size, max(shape.top_k for shape in shapes))
        room = max(len(part.ids) for part in parts) + num_rounds * K
        attention, feature_BE, read_BE = self._compute(parts, room)
        heat_B11 = torch.tensor([draft_temperature(want.temperature) for want in wants], device=head.device)[
            :, None, None
        ]
        ends_B = torch.tensor([len(part.slots) for part in parts], device=head.device)  # positions of the roots
        positions_BR = ends_B[:, None] + torch.arange(num_rounds, device=head.device)
        angles = head.rope.angles(positions_BR, positions_BR)
        place = 0
        features_BKE = feature_BE[:, None]

        def logprobs(read_NE: torch.Tensor) -> torch.Tensor:
            return (head.logits(read_NE).view(B, -1, head.config.draft_vocab_size) / heat_B11).log_softmax(dim=-1)

        def expand(front: Front) -> torch.Tensor:
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

        roots_B = torch.zeros(B, dtype=torch.int64, device=head.device)  # known already
        grown = grow(roots_B, logprobs(read_BE)[:, 0], expand, shapes)
        return _draft_trees(grown, head)

    def _chains(self, parts: Sequence[_Part], wants: Sequence[DraftWant]) -> list[DraftTree | None]:
        """What `_grow` gives where a node has one child, in fewer operations: nothing is sorted, gathered or masked."""
        head = self._head
        depths = [min(want.steps, want.num_tokens) for want in wants]
        num_rounds = max(depths) - 1
        attention, feature_BE, read_BE = self._compute(parts, max(len(part.ids) for part in parts) + num_rounds)
        heat_B1 = torch.tensor([[draft_temperature(want.temperature)] for want in wants], device=head.device)
        ends_B = torch.tensor([len(part.slots) for part in parts], device=head.device)
        positions_BR = ends_B[:, None] + torch.arange(num_rounds, device=head.device)
        cos_BR1D, sin_BR1D = head.rope.angles(positions_BR, positions_BR)
        scores, tokens = [], []
        for place in range(num_rounds + 1):
            if place:
                attention.follow()
                cos_B1D, sin_B1D = cos_BR1D[:, place - 1], sin_BR1D[:, place - 1]
                feature_BE, read_BE = head.forward_rotated(tokens[-1], feature_BE, cos_B1D, sin_B1D, attention)
            logits_BV = head.logits(read_BE) / heat_B1
            best_B, index_B = logits_BV.max(dim=-1)
            scores.append(best_B - logits_BV.logsumexp(dim=-1))
            tokens.append(head.token_ids(index_B))
        total_BR = torch.stack(scores, dim=1).clamp(max=0.0).cumsum(dim=1)
        rows = zip(torch.stack(tokens, dim=1).tolist(), total_BR.tolist(), depths, strict=True)
        return [DraftTree.chain(ids[:depth], own[:depth]) for ids, own, depth in rows]

    def _tensor(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._head.device, non_blocking=True)


def _draft_trees(grown: GrownTrees, head: EagleHead) -> list[DraftTree | None]:
    """Without their roots."""
    tokens = head.token_ids(grown.tokens_BM).tolist()
    columns = zip(tokens, grown.parents_BM.tolist(), grown.scores_BM.tolist(), grown.sizes, strict=True)
    return [
        DraftTree(ids[1:size], [parent - 1 for parent in parents[1:size]], scores[1:size]) if size > 1 else None
        for ids, parents, scores, size in columns
    ]


def _groups(wanted: Sequence[int], rows: Sequence[DraftRow]) -> list[list[int]]:
    """Rows of like length together, so many that padded to the longest they are at most _MAX_KEYS tokens."""
    groups: list[list[int]] = []
    for index in sorted(wanted, key=lambda index: (rows[index].end, index)):
        if not groups or (len(groups[-1]) + 1) * rows[index].end > _MAX_KEYS:
            groups.append([])
        groups[-1].append(index)
    return groups
