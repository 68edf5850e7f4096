"""Memory of recurrent states: slots, each with the states of all recurrent layers after some tokens of one sequence.

Legend: L recurrent layers, S slots, H heads, K key size, V value size, W convolution width, C its channels, R rows,
T tokens of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from ....kernels import to_device
from ....kernels.huge_pages import give_back
from ...scheduler.plan import Row
from .config import RecurrentConfig


class LayerStates(NamedTuple):
    """States of one layer in all slots."""

    conv_SWC: torch.Tensor  # the convolution's last W - 1 inputs
    state_SHKV: torch.Tensor  # float32


class StateSpan(NamedTuple):
    """A row whose tokens are computed one after the other: those at [start, stop) of the step."""

    start: int
    stop: int
    source: int | None  # slot with the state before the first token; None: zeros
    saves: list[tuple[int, int]]  # the state after so many tokens goes to this slot, ascending
    num_drafts: int  # tokens at the end whose effect is kept apart


class DecodeStates(NamedTuple):
    """Rows of one token that read and write one slot each."""

    places_R: torch.Tensor  # int64: indices of their tokens in the step
    slots_R: torch.Tensor  # int64


@dataclass(frozen=True)
class RecurrentStep:
    """Recurrent states of a step: those that decode, and those of its other rows."""

    decoding: DecodeStates | None
    spans: list[StateSpan]

    @cached_property
    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """All rows as `kernels.cpu.recurrence` takes them: int64 [R, 5], and the states that are kept, int64 [M, 2]."""
        spans = self.spans
        if self.decoding is not None:
            pairs = zip(self.decoding.places_R.tolist(), self.decoding.slots_R.tolist(), strict=True)
            spans = [*(StateSpan(place, place + 1, slot, [(1, slot)], 0) for place, slot in pairs), *spans]
        ends = np.cumsum([len(span.saves) for span in spans])
        sources = [(span.start, span.stop, -1 if span.source is None else span.source) for span in spans]
        rows_R5 = [(*row, end - len(span.saves), end) for row, end, span in zip(sources, ends, spans, strict=True)]
        saves = [save for span in spans for save in span.saves]
        return np.array(rows_R5, np.int64).reshape(-1, 5), np.array(saves, np.int64).reshape(-1, 2)

    @classmethod
    def of(cls, rows: Sequence[Row], device: torch.device) -> RecurrentStep:
        """Make the step of the rows. A row without a slot starts from zeros, and its state is not kept."""
        places: list[int] = []
        slots: list[int] = []
        spans: list[StateSpan] = []
        start = 0
        for row in rows:
            state, stop = row.state, start + len(row.tokens)
            assert state is not None or row.first_position == 0, "a row that goes on from others needs their state"
            if state is not None and row.first_position and len(row.tokens) == 1 and not state.saves:
                places.append(start)
                slots.append(state.slot)
            else:
                saves = [] if state is None else [*state.saves, (row.num_committed, state.slot)]
                source = None if state is None or not row.first_position else state.slot
                spans.append(StateSpan(start, stop, source, saves, len(row.parents or ())))
            start = stop
        if not places:
            return cls(None, spans)
        places_R, slots_R = to_device([np.array(places), np.array(slots)], device)
        return cls(DecodeStates(places_R, slots_R), spans)


class StateMemory:
    """Slots of all recurrent layers. Contents are undefined until written."""

    def __init__(self, config: RecurrentConfig, num_slots: int, *, device: torch.device, dtype: torch.dtype) -> None:
        L = config.num_layers
        self.num_slots = num_slots
        self.conv_LSWC = torch.empty(
            (L, num_slots, config.conv_width - 1, config.conv_channels), device=device, dtype=dtype
        )
        self.state_LSHKV = torch.empty(
            (L, num_slots, config.num_heads, config.key_size, config.value_size), device=device, dtype=torch.float32
        )
        self.layers = tuple(map(LayerStates, self.conv_LSWC.unbind(), self.state_LSHKV.unbind()))
        # Inputs of the recurrence at draft tokens of the last step, by working slot: one tensor for each layer.
        self.drafts: dict[int, list[torch.Tensor]] = {}

    @property
    def nbytes(self) -> int:
        return self.conv_LSWC.nbytes + self.state_LSHKV.nbytes

    def release(self) -> None:
        """Return the memory of all slots on the CPU to the system. No slot holds anything that is still read."""
        for memory in (self.conv_LSWC, self.state_LSHKV):
            give_back(memory)

    def copy(self, source: int, target: int) -> None:
        """Copy a slot."""
        for memory in (self.conv_LSWC, self.state_LSHKV):
            memory[:, target].copy_(memory[:, source])

    def keep_drafts(self, projected_TJ: torch.Tensor, step: RecurrentStep) -> None:
        """Keep what the next layer's recurrence gets at the step's draft tokens, until the next step."""
        for span in step.spans:
            if span.num_drafts and span.saves:
                _, slot = span.saves[-1]
                self.drafts.setdefault(slot, []).append(projected_TJ[span.stop - span.num_drafts : span.stop].clone())
