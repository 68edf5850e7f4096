"""Layers of which a rank holds slices: linear layers, MLPs, mixtures of experts, embedding and head.

Any kind of linear layer may be cut: its `Destination`s name the axes that follow its outputs and inputs. An MLP's
slices are computed separately from first to last product, so that no operation between the two depends on the number of
slices: on a CPU, the end of a vector is computed by other instructions than its middle. Every expert of a mixture is
cut as a dense MLP is, so that all ranks have the same work for any choice of experts, or whole on one rank.

The vocabulary's slices are multiples of 16 rows, so that they begin at aligned addresses. All slices have the same
number of rows: rows behind the vocabulary's end are zero, and their logits are dropped.

Legend: T tokens, O outputs, E hidden size, V vocabulary, R vocabulary rows of this rank, N ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ....kernels import Ops
from ..experts.mixture import MixtureMlp
from ..linear import DenseLinear, Destination, Linear, bias_destination, total_bytes
from ..mlp import DenseMlp
from .group import Group, tree_sum
from .shard import Shard

_ROW_ALIGNMENT = 16  # rows


class OutputSection(NamedTuple):
    """Rows of a layer that are cut together, such as those of all queries, into `num_pieces` equal pieces.

    There are at most as many pieces as slices. With fewer, neighbouring slices hold the same piece.
    """

    rows: int
    num_pieces: int

    @property
    def size(self) -> int:
        """Rows of a piece."""
        return self.rows // self.num_pieces

    def piece(self, index: int, shard: Shard) -> int:
        """Return the index of the piece that the slice `index` holds."""
        return index * self.num_pieces // shard.num_slices


class ColumnParallelLinear:
    """A linear layer cut along its outputs. Its output is this rank's part, sections in order."""

    def __init__(self, shard: Shard, sections: Sequence[OutputSection], slices: Sequence[Linear]) -> None:
        """`slices` are this rank's, unfilled; each has a piece of every section."""
        self._shard = shard
        self._sections = tuple(sections)
        self._sizes = [section.size for section in sections]
        self.slices = tuple(slices)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.slices) == 1:
            return self.slices[0](x)
        columns = [linear(x).split(self._sizes, dim=1) for linear in self.slices]
        outputs: list[torch.Tensor] = []
        for number, section in enumerate(self._sections):
            # Slices with the same piece have computed the same columns.
            pieces = {section.piece(index, self._shard): column[number] for index, column in self._numbered(columns)}
            outputs += pieces.values()
        return torch.cat(outputs, dim=1)

    def _numbered(self, columns: Sequence[Sequence[torch.Tensor]]) -> list[tuple[int, Sequence[torch.Tensor]]]:
        return list(zip(self._shard.slices, columns, strict=True))

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        """Return the destinations of rows of the whole layer."""
        number, own_start = self._find(start, size)
        section = self._sections[number]
        slices = [linear.row_destinations(own_start, self._sizes[number]) for linear in self.slices]
        places = [section.piece(index, self._shard) for index in self._shard.slices]
        return {
            name: merged_destination(
                [pieces[name] for pieces in slices], slices[0][name].outputs, places, section.num_pieces
            )
            for name in slices[0]
        }

    def _find(self, start: int, size: int) -> tuple[int, int]:
        """Find the section that begins at row `start`: its number, and where a slice's part of it begins."""
        whole = own = 0
        for number, section in enumerate(self._sections):
            if whole == start:
                assert size == section.rows, "rows of several sections, or of a part of one"
                return number, own
            whole += section.rows
            own += self._sizes[number]
        raise AssertionError(f"no section begins at row {start}")

    def finish(self) -> None:
        for linear in self.slices:
            linear.finish()

    @property
    def nbytes(self) -> int:
        return sum(linear.nbytes for linear in self.slices)


class RowParallelLinear:
    """A linear layer cut along its inputs: the slices' products are partial sums, which the ranks add up.

    The input is this rank's part. The bias is added once, to the sum.
    """

    def __init__(self, group: Group, inputs: int, bias: torch.Tensor | None, slices: Sequence[Linear]) -> None:
        """`inputs` are the whole layer's; `slices` are this rank's, unfilled and without a bias."""
        self._group = group
        self._bias = bias
        self._size = inputs // group.shard.num_slices
        self.slices = tuple(slices)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.slices) == 1:
            return self.total([self.slices[0](x)])
        # Contiguous as on a rank of its own: other strides could select another product.
        parts = [part.contiguous() for part in x.split(self._size, dim=1)]
        return self.total([linear(part) for linear, part in zip(self.slices, parts, strict=True)])

    def total(self, products: Sequence[torch.Tensor]) -> torch.Tensor:
        """Add up the slices' `products` over all ranks, and add the bias."""
        y = self._group.all_reduce(tree_sum(products))
        return y if self._bias is None else y + self._bias

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        """Return the destinations of rows of the whole layer."""
        shard = self._group.shard
        slices = [linear.row_destinations(start, size) for linear in self.slices]
        pieces = {
            name: merged_destination(
                [own[name] for own in slices], slices[0][name].inputs, list(shard.slices), shard.num_slices
            )
            for name in slices[0]
        }
        if "bias" in pieces:
            pieces["bias"] = pieces["bias"]._replace(put=partial(self._put_once, [own["bias"] for own in slices]))
        return {**pieces, **bias_destination(self._bias, start, size)}

    def _put_once(self, biases: Sequence[Destination], bias: torch.Tensor) -> None:
        """Give a bias of the slices to the first one, so that their sum has it once."""
        for index, own in zip(self._group.shard.slices, biases, strict=True):
            own.put(bias if index == 0 else torch.zeros_like(bias))

    def finish(self) -> None:
        for linear in self.slices:
            linear.finish()

    @property
    def nbytes(self) -> int:
        return sum(linear.nbytes for linear in self.slices) + total_bytes(self._bias)


def merged_destination(
    destinations: Sequence[Destination], axis: int | None, places: Sequence[int], num_pieces: int
) -> Destination:
    """Merge destinations into one for a stored tensor that is cut along `axis` into `num_pieces`.

    Piece `places[i]` goes to `destinations[i]`; only the stretch from the first to the last is read. Without an axis
    each destination gets the whole tensor.
    """
    first = destinations[0]
    if axis is None:

        def put_whole(tensor: torch.Tensor) -> None:
            for destination in destinations:
                destination.put(tensor)

        return first._replace(put=put_whole)
    size, low = first.shape[axis], min(places)
    shape = (*first.shape[:axis], size * num_pieces, *first.shape[axis + 1 :])
    part = [slice(None)] * len(shape)
    part[axis] = slice(low * size, (max(places) + 1) * size)

    def put(tensor: torch.Tensor) -> None:
        for destination, place in zip(destinations, places, strict=True):
            destination.put(tensor.narrow(axis, (place - low) * size, size))

    return first._replace(shape=shape, put=put, part=tuple(part))


@dataclass(frozen=True, slots=True)
class TensorParallelMlp(DenseMlp):
    """A dense MLP in slices. The sizes are those of the whole."""

    gate_up: ColumnParallelLinear
    down: RowParallelLinear

    def parts(self, x_TE: torch.Tensor, ops: Ops) -> Sequence[torch.Tensor]:
        slices = zip(self.gate_up.slices, self.down.slices, strict=True)
        return [down(self.activate(gate_up(x_TE), ops)) for gate_up, down in slices]

    def total(self, parts_TE: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.down.total(parts_TE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallelMixture(MixtureMlp):
    """A mixture of experts in slices. The router is whole on every rank."""

    group: Group

    def expert(self, index: int) -> tuple[Linear, Linear]:
        size, shard = self.config.intermediate_size, self.group.shard
        sections = [OutputSection(size, shard.num_slices)] * 2
        return (
            ColumnParallelLinear(shard, sections, [experts.gate_up.expert(index) for experts in self.slices]),
            RowParallelLinear(self.group, size, None, [experts.down.expert(index) for experts in self.slices]),
        )

    def total(self, parts_TE: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.group.all_reduce(tree_sum(parts_TE))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertParallelMixture(MixtureMlp):
    """A mixture of which a rank holds some experts, whole. All ranks have all tokens, and add up their experts'
    outputs.

    Only for CPUs: where a rank's experts begin is read back from the device.
    """

    group: Group

    @property
    def held(self) -> range:
        return self.group.shard.experts(self.config.num_experts)

    def parts(self, x_TE: torch.Tensor, ops: Ops) -> Sequence[torch.Tensor]:
        routing, inputs, rows_P = self.routed(x_TE, ops)
        first, ends_N = self.held.start, routing.ends_N[self.held.start : self.held.stop]
        start, end = int(routing.ends_N[first - 1]) if first else 0, int(ends_N[-1])
        [experts] = self.slices
        inputs, rows_P = (inputs[start:end], None) if rows_P is None else (inputs, rows_P[start:end])
        gate_up_PJ = experts.gate_up(inputs, ends_N - start, rows_P, ops)
        y_PE = x_TE.new_zeros((len(routing.tokens_P), self.hidden_size))  # other ranks' experts add nothing
        y_PE[start:end] = experts.down(self.activate(gate_up_PJ, ops), ends_N - start, None, ops)
        part_TE = ops.combine_experts(y_PE, routing.place_P, routing.weights_TK)
        return self.add_shared([part_TE], x_TE, ops)

    def total(self, parts_TE: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.group.all_reduce(tree_sum(parts_TE))

    def expert(self, index: int) -> tuple[Linear, Linear]:
        [experts] = self.slices
        place = index - self.held.start
        return experts.gate_up.expert(place), experts.down.expert(place)


class VocabParallelEmbedding:
    """The vocabulary's rows of this rank, for the embedding and the head."""

    def __init__(self, group: Group, vocab_size: int) -> None:
        shard = group.shard
        self._group = group
        self._vocab_size = vocab_size
        self._per_slice = -(-vocab_size // (shard.num_slices * _ROW_ALIGNMENT)) * _ROW_ALIGNMENT
        self.num_rows = len(shard.slices) * self._per_slice
        self._first = shard.slices.start * self._per_slice

    def destination(self, table_RE: torch.Tensor) -> Destination:
        """Return the destination of a stored table [V, E]."""
        stop = min(self._first + self.num_rows, self._vocab_size)
        rows = slice(min(self._first, stop), stop)

        def put(stored: torch.Tensor) -> None:
            table_RE[: len(stored)].copy_(stored)
            table_RE[len(stored) :].zero_()

        return Destination((self._vocab_size, table_RE.shape[1]), put, part=(rows, slice(None)))

    def embed(self, ids_T: torch.Tensor, table_RE: torch.Tensor) -> torch.Tensor:
        """Look up [T, E]. Each token's row is on one rank; the others add zeros."""
        if self._group.shard.size == 1:
            return F.embedding(ids_T, table_RE)
        own_T = ids_T - self._first
        others_T = (own_T < 0) | (own_T >= self.num_rows)
        x_TE = F.embedding(own_T.masked_fill(others_T, 0), table_RE)
        return self._group.all_reduce(x_TE.masked_fill(others_T[:, None], 0))

    def parts(self, table_RE: torch.Tensor) -> list[DenseLinear]:
        """Split the head's weight by slice."""
        return [DenseLinear(slice_RE) for slice_RE in table_RE.split(self._per_slice)]

    def head(self, parts: Sequence[Linear]) -> Callable[[torch.Tensor], torch.Tensor]:
        """Make the product from hidden states [O, E] to logits [O, V], which are the same on every rank."""

        def logits(hidden_OE: torch.Tensor) -> torch.Tensor:
            own_OR = torch.cat([part(hidden_OE) for part in parts], dim=1)
            logits_NOR = self._group.all_gather(own_OR)
            return logits_NOR.transpose(0, 1).flatten(1)[:, : self._vocab_size]

        return logits
