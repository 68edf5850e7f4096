"""Layers of multi-token prediction as draft source: layer k guesses the token k places after the next one.

Layer 1 joins the token at position j with the model's hidden state at j - 1, and layer k joins it with layer k - 1's
output at j - 1. What layer k computes at position j is kept in slot j, which depends on no later token; it is position
j - k for the layer. The last layer goes on with its own outputs, as deep as a draft is wanted.

Attention wants pages that begin with position 0. So the keys and values of a sequence that is drafted for are copied to
scratch pages, moved by k places; what is computed there for kept tokens is copied back.

Legend: B rows that are drafted for, T tokens of a pass, K layers, S slots, E hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from ...engine.draft_source import DraftBytes, DraftRow, DraftStep
from ...engine.inputs import decoder_inputs
from ...engine.kv_pool import PAGE_SIZE, KvMemory, KvPool, bytes_per_page
from ...models.packed_linear import use_loops
from ...scheduler.drafts.tree import DraftTree
from ...scheduler.plan import PageCopy, Row
from ..draft_model import GrowingTree, add_children
from ..slot_features import SlotFeatures
from ..slot_ledger import SlotLedger
from .load import MtpLayer, MtpLayout

_CATCH_UP_TOKENS = 512  # tokens of a sequence computed at once while catching up
MAX_SCRATCH_TOKENS = 1 << 15  # in one batch, unless a single sequence is longer
_Slots = NDArray[np.int64]


@dataclass
class _Drafted:
    """A sequence that is drafted for."""

    slots: _Slots  # of its kept tokens
    tokens: list[int]  # from position `first` on, to be computed now
    first: int
    pages: list[int] = field(default_factory=list)  # scratch pages

    @property
    def end(self) -> int:
        """Position behind `tokens`."""
        return self.first + len(self.tokens)

    @property
    def num_kept(self) -> int:
        """Number of `tokens` that have a slot; the newest token has none."""
        return min(self.end, len(self.slots)) - self.first

    def place(self, position: int) -> int:
        """Return the scratch slot of the position."""
        return self.pages[0] * PAGE_SIZE + position


class MtpSource:
    """Draft source of a checkpoint's own layers. See `DraftSource`."""

    caught_up = 0.0  # of few layers: its time counts as that of drafts

    def __init__(self, layers: Sequence[MtpLayer], layout: MtpLayout, num_pages: int, num_host_pages: int = 0) -> None:
        decoder = layers[0].decoder
        self._layers, self._config = layers, layout.kv_config
        self._device, self._dtype = decoder.device, decoder.dtype
        self._memory = KvMemory(self._config, num_pages, device=self._device, dtype=self._dtype)
        host = KvMemory(self._config, num_host_pages, device=torch.device("cpu"), dtype=self._dtype)
        self._pool, self._num_pages = KvPool(self._memory, host), num_pages
        # Level 0 holds the model's hidden states, level k those of layer k, but for the last one.
        self._states_KSE, self._host_KSE = (
            torch.zeros(len(layers), pages * PAGE_SIZE, self._config.hidden_size, device=where, dtype=self._dtype)
            for pages, where in ((num_pages, self._device), (num_host_pages, torch.device("cpu")))
        )
        self._ledger = SlotLedger(num_pages + num_host_pages, PAGE_SIZE)
        self._features = SlotFeatures(self._ledger, self._states_KSE[0], _as_captured)
        self._scratch = KvMemory(self._config, 0, device=self._device, dtype=self._dtype)
        self.captures = (layout.first,)  # the final hidden state

    def use_loops(self) -> None:
        use_loops(layer.joint for layer in self._layers)
        for layer in self._layers:
            layer.decoder.use_loops()

    def copy(self, copies: Sequence[PageCopy]) -> None:
        if not copies:
            return
        self._features.store()
        self._features.store_skipped()
        self._ledger.copy(copies)
        self._pool.copy(copies)
        for copy in copies:
            self._states(copy.target)[:, : copy.num_tokens] = self._states(copy.source)[:, : copy.num_tokens]

    def _states(self, page: int) -> torch.Tensor:
        on_device = page < self._num_pages
        start = (page if on_device else page - self._num_pages) * PAGE_SIZE
        return (self._states_KSE if on_device else self._host_KSE)[:, start : start + PAGE_SIZE]

    def skip(self, rows: Sequence[Row]) -> None:
        self._features.skip(rows)

    def follow(self, step: DraftStep) -> list[DraftTree | None]:
        assert step.features_TE is not None
        self._features.record(step.rows, step.features_TE)
        trees: list[DraftTree | None] = [None] * len(step.rows)
        wanted = [index for index, row in enumerate(step.rows) if self._drafts_for(row)]
        if wanted or self._features.is_full:
            self._features.store()
        for group in _groups(wanted, step.rows):
            for index, tree in zip(group, self._draft([step.rows[index] for index in group]), strict=True):
                trees[index] = tree.finished
        return trees

    def _drafts_for(self, row: DraftRow) -> bool:
        if row.want is None or row.next_token is None or row.end < len(self._layers):
            return False
        return row.end + row.want.steps <= self._layers[0].decoder.config.context_length

    def _draft(self, rows: Sequence[DraftRow]) -> list[GrowingTree]:
        """Return the tree of each row."""
        sequences = [self._sequence(row) for row in rows]
        self._make_scratch(sequences, [row.want.steps for row in rows if row.want])
        for sequence in sequences:
            while len(sequence.slots) - sequence.first > _CATCH_UP_TOKENS:
                rest = sequence.tokens[_CATCH_UP_TOKENS:]
                sequence.tokens = sequence.tokens[:_CATCH_UP_TOKENS]
                self._compute([sequence])
                sequence.first, sequence.tokens = sequence.end, rest
        outputs_BE = self._compute(sequences)
        trees = []
        for row, sequence in zip(rows, sequences, strict=True):
            assert row.want is not None
            assert row.next_token is not None
            newest = Row(rid="", tokens=[row.next_token], first_position=row.end, pages=sequence.pages)
            trees.append(GrowingTree(row.want, newest))
        self._grow(trees, outputs_BE)
        return trees

    def _sequence(self, row: DraftRow) -> _Drafted:
        assert row.next_token is not None
        slots = self._ledger.slots(row.pages, 0, row.end)
        first = 1 + self._ledger.num_computed(slots[1:])
        return _Drafted(slots, [*self._ledger.tokens(slots[first:]).tolist(), row.next_token], first)

    def _make_scratch(self, sequences: Sequence[_Drafted], steps: Sequence[int]) -> None:
        """Give each sequence scratch pages in a row."""
        end = 0
        for sequence, depth in zip(sequences, steps, strict=True):
            start, end = end, end + -(-(len(sequence.slots) + 1 + depth) // PAGE_SIZE)
            sequence.pages = list(range(start, end))
        if end > self._scratch.num_pages:
            num_pages = max(end, min(2 * self._scratch.num_pages, MAX_SCRATCH_TOKENS // PAGE_SIZE))
            self._scratch = KvMemory(self._config, num_pages, device=self._device, dtype=self._dtype)

    def _compute(self, sequences: Sequence[_Drafted]) -> list[torch.Tensor]:
        """Compute the sequences' tokens, and keep what belongs to slots.

        Returns the output of each layer for the sequences' last tokens, [B, E].
        """
        outputs = []
        for k in range(1, len(self._layers) + 1):
            # Layer k begins with position k: it needs the outputs of k positions before.
            starts = [max(sequence.first, k) for sequence in sequences]
            pairs = list(zip(sequences, starts, strict=True))
            self._copy_kv(
                k,
                (self._memory, _joined(each.slots[k:start] for each, start in pairs)),
                (self._scratch, _joined(_range(each.place(0), start - k) for each, start in pairs)),
            )
            rows = [
                Row(rid="", tokens=each.tokens[start - each.first :], first_position=start - k, pages=each.pages)
                for each, start in pairs
            ]
            before = self._tensor(_joined(each.slots[start - 1 : each.end - 1] for each, start in pairs))
            last = np.cumsum([len(row.tokens) for row in rows]) - 1
            is_last = k == len(self._layers)
            wanted = last if is_last else np.arange(last[-1] + 1)
            output = self._run(k, rows, wanted, self._states_KSE[k - 1].index_select(0, before))
            kept = [(each, start, each.first + each.num_kept - start) for each, start in pairs]
            slots = _joined(each.slots[start : start + num] for each, start, num in kept)
            self._copy_kv(
                k,
                (self._scratch, _joined(_range(each.place(start - k), num) for each, start, num in kept)),
                (self._memory, slots),
            )
            if not is_last:
                firsts = [0, *(last[:-1] + 1).tolist()]
                indices = _joined(_range(first, num) for first, (_, _, num) in zip(firsts, kept, strict=True))
                self._states_KSE[k].index_copy_(0, self._tensor(slots), output[self._tensor(indices)])
                output = output[self._tensor(last)]
            outputs.append(output)
        for sequence in sequences:
            self._ledger.note_computed(sequence.slots[sequence.first : sequence.end])
        return outputs

    def _grow(self, growing: list[GrowingTree], outputs: list[torch.Tensor]) -> None:
        """Grow the trees from each layer's outputs [B, E] for the newest tokens."""
        num_layers, depth = len(self._layers), 0
        while True:
            level = min(depth + 1, num_layers)
            add_children(growing, self._layers[level - 1].decoder.logits(outputs[level - 1]))
            kept = [index for index, tree in enumerate(growing) if not tree.is_complete]
            if not kept:
                return
            if len(kept) < len(growing):
                growing = [growing[index] for index in kept]
                outputs = [output[kept] for output in outputs]
            depth += 1
            before, outputs = outputs, list(outputs)
            # Layers that guess later tokens need keys and values for this one too.
            for k in range(min(depth + 1, num_layers), num_layers + 1):
                rows = [
                    msgspec.structs.replace(tree.row, first_position=tree.row.first_position - k) for tree in growing
                ]
                state_BE = before[-1] if depth >= num_layers else before[k - 2]
                outputs[k - 1] = self._run(k, rows, np.arange(len(rows)), state_BE)

    def _run(self, k: int, rows: Sequence[Row], wanted: NDArray[np.int64], before_TE: torch.Tensor) -> torch.Tensor:
        """Run layer k on rows in scratch pages; returns its outputs for the wanted tokens."""
        layer, kv = self._layers[k - 1], self._scratch.layers()[k - 1]
        return layer.hidden(decoder_inputs(rows, layer.decoder, wanted, kv), before_TE, kv)

    def _copy_kv(self, k: int, source: tuple[KvMemory, _Slots], target: tuple[KvMemory, _Slots]) -> None:
        """Copy layer k's keys and values between slots of two memories."""
        (from_memory, from_slots), (to_memory, to_slots) = source, target
        if not len(from_slots):
            return
        from_S, to_S = self._tensor(from_slots), self._tensor(to_slots)
        for own, other in zip(from_memory.parts, to_memory.parts, strict=True):
            other[k - 1].index_copy_(0, to_S, own[k - 1].index_select(0, from_S))

    def _tensor(self, array: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)


def mtp_bytes(layout: MtpLayout, dtype: torch.dtype, context_length: int) -> DraftBytes:
    """Return the memory of a source for sequences of `context_length`."""
    page = bytes_per_page(layout.kv_config, dtype)
    features = layout.num_layers * layout.config.hidden_size * PAGE_SIZE * dtype.itemsize
    return DraftBytes(
        page + features, layout.num_bytes + page * -(-max(context_length, MAX_SCRATCH_TOKENS) // PAGE_SIZE)
    )


def _as_captured(captured_TE: torch.Tensor) -> torch.Tensor:
    """Return the final hidden states, which are the features."""
    return captured_TE


def _range(first: int, count: int) -> _Slots:
    return np.arange(first, first + count)


def _joined(parts: Iterator[_Slots]) -> _Slots:
    return np.concatenate([*parts])


def _groups(wanted: Sequence[int], rows: Sequence[DraftRow]) -> list[list[int]]:
    """Divide the rows into groups of at most MAX_SCRATCH_TOKENS tokens."""
    groups: list[list[int]] = []
    tokens = 0
    for index in wanted:
        want = rows[index].want
        assert want is not None
        own = rows[index].end + want.steps + PAGE_SIZE
        tokens += own
        if not groups or tokens > MAX_SCRATCH_TOKENS:
            groups.append([])
            tokens = own
        groups[-1].append(index)
    return groups
