"""Mixtures of experts: the experts' linear layers, stacked or separate, the router and the MLP.

Legend: T tokens, E hidden size, I intermediate size, N experts, K experts of a token, P = T * K pairs of the two, O
outputs, C inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from .... import kernels
from ....kernels import Ops
from ....kernels.reference.experts import Routing
from ....kernels.reference.fixed_rows import FIXED_ROWS, in_fixed_rows
from ....kernels.widening import widened_products
from ..linear import DenseLinear, Destination, Linear, Loadable, stacked_destinations, total_bytes
from ..mlp import DenseMlp, Mlp
from ..packed_linear import can_pack
from ..quantised.factory import make_linear
from ..quantised.mxfp4 import MXFP4_GROUP
from ..quantised.scheme import Quantisation
from .config import ExpertsConfig, StackedNames


class ExpertLinear(Loadable, Protocol):
    """A linear layer of all experts, multiplied together."""

    def __call__(self, x: torch.Tensor, ends_N: torch.Tensor, rows_P: torch.Tensor | None, ops: Ops) -> torch.Tensor:
        """Multiply by expert and return [P, O]. Row p is the product of `x[rows_P[p]]`, or of `x[p]` when `rows_P` is
        None.

        Its expert is the first n with `ends_N[n]` > p.
        """
        ...

    def expert(self, index: int) -> Linear:
        """Return one expert's layer, to be filled."""
        ...

    def each(self, change: Callable[[Linear], Linear]) -> ExpertLinear:
        """Replace every product that is not the ops' by `change` of it."""
        ...


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """Dense experts in one tensor; one grouped product computes all."""

    weight_NOC: torch.Tensor
    bias_NO: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, ends_N: torch.Tensor, rows_P: torch.Tensor | None, ops: Ops) -> torch.Tensor:
        return _add_bias(ops.grouped_matmul(x, self.weight_NOC, ends_N, rows_P), self.bias_NO, ends_N)

    def expert(self, index: int) -> Linear:
        return DenseLinear(self.weight_NOC[index], None if self.bias_NO is None else self.bias_NO[index])

    def each(self, change: Callable[[Linear], Linear]) -> ExpertLinear:
        return self

    def finish(self) -> None:
        """Do nothing: dense weights are ready."""

    @property
    def nbytes(self) -> int:
        return total_bytes(self.weight_NOC, self.bias_NO)


def _add_bias(y_PO: torch.Tensor, bias_NO: torch.Tensor | None, ends_N: torch.Tensor) -> torch.Tensor:
    """Add each row's expert's bias, in place."""
    if bias_NO is None:
        return y_PO
    places_P = torch.arange(len(y_PO), device=y_PO.device)
    return y_PO.add_(bias_NO[torch.searchsorted(ends_N, places_P, right=True)])


@dataclass(slots=True)
class SeparateExperts:
    """One linear layer for each expert: quantised, or packed for a CPU.

    On GPUs `finish` stacks quantised weights, and one kernel multiplies by all. Elsewhere the ends are read back from
    the device.
    """

    linears: tuple[Linear, ...]
    stacked: Any = None  # `Codes` of all experts
    orders_NC: torch.Tensor | None = None  # input of each column of the codes, where groups have inputs of any place
    bias_NO: torch.Tensor | None = None  # of stacked experts

    def __call__(self, x: torch.Tensor, ends_N: torch.Tensor, rows_P: torch.Tensor | None, ops: Ops) -> torch.Tensor:
        if self.stacked is not None:
            first: Any = self.linears[0]
            if self.orders_NC is not None:
                pairs_P = torch.arange(len(x) if rows_P is None else len(rows_P), device=x.device)
                orders_PC = self.orders_NC[torch.searchsorted(ends_N, pairs_P, right=True)]
                x, rows_P = x[(pairs_P if rows_P is None else rows_P)[:, None], orders_PC], None
            y: torch.Tensor = first.product(x, self.stacked, (ends_N, rows_P), fixed=ops.deterministic)
            return _add_bias(y, self.bias_NO, ends_N)
        x_PC = x if rows_P is None else x[rows_P]
        some = list(kernels.expert_ranges(ends_N)) or [(0, 0, 0)]
        with widened_products(False):  # an expert may have few rows of a long prompt
            return torch.cat([self.linears[n](x_PC[start:end]) for n, start, end in some])

    def expert(self, index: int) -> Linear:
        return self.linears[index]

    def each(self, change: Callable[[Linear], Linear]) -> ExpertLinear:
        return self if self.stacked is not None else SeparateExperts(tuple(map(change, self.linears)))

    def finish(self) -> None:
        for linear in self.linears:
            linear.finish()
        layers: tuple[Any, ...] = self.linears
        if any(getattr(layer, "codes", None) is None for layer in layers):
            return
        first = layers[0].codes
        self.stacked = first._replace(
            codes=torch.stack([layer.codes.codes for layer in layers]),
            scale=torch.stack([layer.codes.scale for layer in layers]),
            base=None if first.base is None else torch.stack([layer.codes.base for layer in layers]),
        )
        orders = [getattr(layer, "order_C", None) for layer in layers]
        if any(order_C is not None for order_C in orders):
            in_place_C = torch.arange(first.num_inputs, device=first.codes.device)
            self.orders_NC = torch.stack([in_place_C if order_C is None else order_C for order_C in orders])
        inputs = [getattr(layer, "input_scale_1", None) for layer in layers]
        if inputs[0] is not None:  # rows are rounded before they are given to experts
            layers[0].input_scale_1 = torch.cat(inputs).amax(0, keepdim=True)
        if layers[0].bias_N is not None:  # the kernel would add the first expert's to all
            self.bias_NO = torch.stack([layer.bias_N for layer in layers])
        for layer in layers:
            layer.bias_N = None
            layer.release()

    @property
    def nbytes(self) -> int:
        if self.stacked is not None:
            return total_bytes(self.stacked.codes, self.stacked.scale, self.stacked.base, self.bias_NO)
        return sum(linear.nbytes for linear in self.linears)


def make_experts(
    quantisation: Quantisation | None,
    modules: Sequence[Sequence[str]],
    outputs: int,
    inputs: int,
    *,
    bias: bool = False,
    device: torch.device | str,
    dtype: torch.dtype,
    grouped: bool,
) -> ExpertLinear:
    """Make the unfilled layer of all experts' `modules`; `grouped` stacks dense experts even where they could be
    packed.

    Raises ValueError, naming the modules, when a quantisation scheme does not fit.
    """
    dense = quantisation is None or all(quantisation.scheme_of(name) is None for names in modules for name in names)
    if dense and (grouped or not can_pack(device, dtype)):
        weight_NOC = torch.empty((len(modules), outputs, inputs), device=device, dtype=dtype)
        bias_NO = torch.empty((len(modules), outputs), device=device, dtype=dtype) if bias else None
        return StackedExperts(weight_NOC, bias_NO)
    return SeparateExperts(
        tuple(
            make_linear(quantisation, names, outputs, inputs, bias=bias, device=device, dtype=dtype)
            for names in modules
        )
    )


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """The expert that every token passes, times the sigmoid of its gate (Qwen2-MoE)."""

    mlp: DenseMlp
    gate: Linear  # E -> 1, never quantised
    block: str

    def __call__(self, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        return self.total(self.parts(x_TE, ops))

    def parts(self, x_TE: torch.Tensor, ops: Ops) -> Sequence[torch.Tensor]:
        share_T1 = torch.sigmoid(self.gate(x_TE))
        return [share_T1 * part_TE for part_TE in self.mlp.parts(x_TE, ops)]

    def total(self, parts_TE: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.mlp.total(parts_TE)

    def linears(self) -> Iterator[Loadable]:
        yield from self.mlp.linears()

    def destinations(self, prefix: str) -> dict[str, Destination]:
        gate = stacked_destinations(f"{prefix}.{self.block}", [("shared_expert_gate", 1)], self.gate)
        return {**gate, **self.mlp.destinations(prefix)}


class ExpertSlice(NamedTuple):
    """Both linear layers of all experts, whole or one slice of them."""

    gate_up: ExpertLinear  # E -> 2I, N times
    down: ExpertLinear  # I -> E, N times

    def each(self, change: Callable[[Linear], Linear]) -> ExpertSlice:
        return ExpertSlice(self.gate_up.each(change), self.down.each(change))


@dataclass(frozen=True, slots=True)
class MixtureMlp:
    """A router and its experts: the weighted sum of the K experts that the router scores highest for a token.

    Shazeer 2017, Outrageously large neural networks, section 2; Mixtral, arXiv 2401.04088, section 2.1.
    """

    config: ExpertsConfig
    hidden_size: int
    router: Linear  # E -> N, never quantised
    slices: tuple[ExpertSlice, ...]  # of this rank
    shared: Mlp | None = None
    bias_N: torch.Tensor | None = None  # float32, of the choice of experts in groups

    def __call__(self, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        return self.total(self.parts(x_TE, ops))

    def parts(self, x_TE: torch.Tensor, ops: Ops) -> Sequence[torch.Tensor]:
        routing, inputs, rows_P = self.routed(x_TE, ops)
        parts_TE = []
        for experts in self.slices:
            gate_up_PJ = experts.gate_up(inputs, routing.ends_N, rows_P, ops)
            y_PE = experts.down(self.activate(gate_up_PJ, ops), routing.ends_N, None, ops)
            parts_TE.append(ops.combine_experts(y_PE, routing.place_P, routing.weights_TK))
        return self.add_shared(parts_TE, x_TE, ops)

    def activate(self, gate_up_PJ: torch.Tensor, ops: Ops) -> torch.Tensor:
        """Apply the experts' activation: [P, 2I] to [P, I]."""
        swiglu = self.config.swiglu
        return ops.silu_and_mul(gate_up_PJ) if swiglu is None else ops.clamped_swiglu(gate_up_PJ, *swiglu)

    def routed(self, x_TE: torch.Tensor, ops: Ops) -> tuple[Routing, torch.Tensor, torch.Tensor | None]:
        """Choose the tokens' experts; return these, and the experts' inputs: the rows of a tensor, all if None."""
        groups = self.config.groups
        if groups is not None:  # the router is float32
            routing = ops.route_by_groups(self.router(x_TE.float()), self.bias_N, groups)
            return routing, x_TE, routing.tokens_P
        scores_TN = self.router(x_TE)
        routing = ops.route(scores_TN, self.config.num_per_token, self.config.normalised)
        if not self.config.scales_inputs:
            return routing, x_TE, routing.tokens_P
        places_P = torch.arange(len(routing.tokens_P), device=x_TE.device)
        experts_P = torch.searchsorted(routing.ends_N, places_P, right=True)
        scores_P1 = scores_TN[routing.tokens_P, experts_P].float()[:, None]
        # A vector's end is computed by other instructions than its middle.
        scales_P1 = in_fixed_rows(torch.sigmoid, scores_P1, FIXED_ROWS) if ops.deterministic else scores_P1.sigmoid()
        inputs_PE = x_TE[routing.tokens_P] * scales_P1.to(x_TE.dtype)
        return routing._replace(weights_TK=torch.ones_like(routing.weights_TK)), inputs_PE, None

    def add_shared(self, parts_TE: Sequence[torch.Tensor], x_TE: torch.Tensor, ops: Ops) -> Sequence[torch.Tensor]:
        """Add the shared expert's outputs, if there is one."""
        if self.shared is None:
            return parts_TE
        # Added slice by slice, so that one all-reduce sums both.
        return [part + shared for part, shared in zip(parts_TE, self.shared.parts(x_TE, ops), strict=True)]

    def total(self, parts_TE: Sequence[torch.Tensor]) -> torch.Tensor:
        [y_TE] = parts_TE
        return y_TE

    @property
    def held(self) -> range:
        """Experts of which this rank has at least a part."""
        return range(self.config.num_experts)

    def expert(self, index: int) -> tuple[Linear, Linear]:
        """Return the two products of one whole expert, to be filled."""
        [experts] = self.slices
        return experts.gate_up.expert(index), experts.down.expert(index)

    def linears(self) -> Iterator[Loadable]:
        for experts in self.slices:
            yield from experts
        if self.shared is not None:
            yield from self.shared.linears()

    def destinations(self, prefix: str) -> dict[str, Destination]:
        names, size = self.config.names, self.config.intermediate_size
        router = [(names.router, self.config.num_experts)]
        parts = stacked_destinations(f"{prefix}.{names.block}", router, self.router)
        if self.config.stacked is not None:
            parts |= self._stacked_destinations(f"{prefix}.{names.block}", self.config.stacked)
        for index in self.held if self.config.stacked is None else ():
            expert = f"{prefix}.{names.block}.experts.{index}"
            gate_up, down = self.expert(index)
            parts |= stacked_destinations(expert, [(names.gate, size), (names.up, size)], gate_up)
            parts |= stacked_destinations(expert, [(names.down, self.hidden_size)], down)
        if self.bias_N is not None:
            parts[f"{prefix}.{names.block}.{names.bias}"] = Destination((len(self.bias_N),), self._put_bias)
        return parts if self.shared is None else {**parts, **self.shared.destinations(prefix)}

    def _put_bias(self, stored: torch.Tensor) -> None:
        assert self.bias_N is not None
        self.bias_N.copy_(stored.view(-1))  # ERNIE's is [1, N]

    def _stacked_destinations(self, block: str, names: StackedNames) -> dict[str, Destination]:
        """Return the destinations of tensors of all experts. Raises ValueError when their format is not read so."""
        size, parts = self.config.intermediate_size, dict[str, Destination]()
        pairs = [self.expert(index) for index in self.held]
        gates, ups = ([gate_up.row_destinations(start, size) for gate_up, _ in pairs] for start in (0, size))
        downs = [down.row_destinations(0, self.hidden_size) for _, down in pairs]
        for name, sections in ((names.gate_up, [gates, ups]), (names.down, [downs])):
            for last in sections[0][0]:
                stored = _STACKED_ENDS.get(last)
                if stored is None:
                    raise ValueError(f"{block}.{name}: stacked experts are read as dense tensors and in MXFP4 only")
                pieces = [[one[last] for one in section] for section in sections]
                end = names.end if last == "weight" else stored
                parts[f"{block}.{name}{end}"] = self._all_experts(pieces, names, last)
        return parts

    def _all_experts(self, pieces: list[list[Destination]], names: StackedNames, last: str) -> Destination:
        """Return the destination of one stored tensor of all experts. Raises ValueError if it can be read two ways.

        `pieces` are those of each held expert, of gates and ups or of one matrix.
        """
        first, held = pieces[0][0], self.held
        transposed, alternating = names.transposed and last == "weight", names.alternating and len(pieces) == 2
        plain = [len(pieces) * first.shape[0], *first.shape[1:]]
        shape = plain[::-1] if transposed else plain
        if names.either_way and transposed and plain[0] == plain[1]:
            raise ValueError(
                f"experts of {plain[0]} inputs and as many outputs are stored in either order here, and their shape "
                "does not tell in which"
            )
        if last == "weight_packed":  # a group's 32 numbers are 16 bytes
            shape = [shape[0], shape[1] // (MXFP4_GROUP // 2), MXFP4_GROUP // 2]

        def put(stored: torch.Tensor) -> None:
            for place, index in enumerate(held):
                matrix = stored[index].flatten(1) if last == "weight_packed" else stored[index]
                matrix = matrix.t() if transposed and list(stored.shape[1:]) == shape else matrix
                count = len(pieces)
                rows = [matrix[part::count] for part in range(count)] if alternating else matrix.chunk(count)
                for own, part in zip(pieces, rows, strict=True):
                    piece = own[place]
                    piece.put(part if piece.part is None else part[piece.part])

        count = self.config.num_experts
        other_shape = (count, *plain) if names.either_way else None
        return Destination((count, *shape), put, first.dtypes, other_shape=other_shape)


# Names of an expert's tensors, and what the names of those of all experts end in.
_STACKED_ENDS = {"weight": "", "bias": "_bias", "weight_packed": "_blocks", "weight_scale": "_scales"}
