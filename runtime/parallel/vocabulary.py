"""Embedding and output head of which a rank holds some of the vocabulary's rows.

A slice's rows are a multiple of 16, so that it begins at an aligned address wherever it lies, and all slices have the
same number: those behind the vocabulary's end are zero, and their logits are dropped.

Legend: T tokens, O outputs, E hidden size, V vocabulary, R rows of this rank, N ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from ..models.linear import DenseLinear, Destination, Linear
from .group import Group

_ROW_ALIGNMENT = 16  # rows


class VocabParallelEmbedding:
    def __init__(self, group: Group, vocab_size: int) -> None:
        shard = group.shard
        self._group = group
        self._vocab_size = vocab_size
        self._per_slice = -(-vocab_size // (shard.num_slices * _ROW_ALIGNMENT)) * _ROW_ALIGNMENT
        self.num_rows = len(shard.slices) * self._per_slice
        self._first = shard.slices.start * self._per_slice

    def destination(self, table_RE: torch.Tensor) -> Destination:
        """For a stored [V, E]."""
        stop = min(self._first + self.num_rows, self._vocab_size)
        rows = slice(min(self._first, stop), stop)

        def put(stored: torch.Tensor) -> None:
            table_RE[: len(stored)].copy_(stored)
            table_RE[len(stored) :].zero_()

        return Destination((self._vocab_size, table_RE.shape[1]), put, part=(rows, slice(None)))

    def embed(self, ids_T: torch.Tensor, table_RE: torch.Tensor) -> torch.Tensor:
        """[T, E]. Each token's row is on one rank; the others add zeros."""
        if self._group.shard.size == 1:
            return F.embedding(ids_T, table_RE)
        own_T = ids_T - self._first
        others_T = (own_T < 0) | (own_T >= self.num_rows)
        x_TE = F.embedding(own_T.masked_fill(others_T, 0), table_RE)
        return self._group.sum(x_TE.masked_fill(others_T[:, None], 0))

    def parts(self, table_RE: torch.Tensor) -> list[DenseLinear]:
        """The head's products, a slice's each."""
        return [DenseLinear(slice_RE) for slice_RE in table_RE.split(self._per_slice)]

    def head(self, parts: Sequence[Linear]) -> Callable[[torch.Tensor], torch.Tensor]:
        """From hidden states [O, E] to logits [O, V], the same on every rank."""

        def logits(hidden_OE: torch.Tensor) -> torch.Tensor:
            own_OR = torch.cat([part(hidden_OE) for part in parts], dim=1)
            logits_NOR = self._group.gather(own_OR)
            return logits_NOR.transpose(0, 1).flatten(1)[:, : self._vocab_size]

        return logits
