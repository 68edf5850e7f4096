"""The LoRA adapters of a decoder on its device: a rank's part of them, and their products in a step.

Legend: T tokens of the step, A adapters of the step, C inputs, O outputs, S sections, R rank, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ....kernels import Ops, to_device
from ....kernels.lora import BLOCK_TOKENS, AdapterSegments, LowRank, LowRankProduct
from ..config import ModelConfig
from ..linear import Linear
from ..mlp import DenseMlp, Mlp
from ..parallel.group import Group
from ..parallel.layers import RowParallelLinear
from .peft import PRODUCTS, AdapterWeights, Product, product_sizes


@dataclass(frozen=True)
class StepAdapters:
    """The adapters of a step's tokens, and of those whose hidden states are wanted."""

    layers: LoraLayers
    tokens: AdapterSegments
    wanted: AdapterSegments

    def of(self, is_selected: bool) -> AdapterProducts:
        """Return the products of all tokens, or of the wanted ones."""
        return AdapterProducts(self.layers, self.wanted if is_selected else self.tokens)


@dataclass(frozen=True)
class AdapterProducts:
    """Products of a decoder's layers with the adapters of some tokens."""

    layers: LoraLayers
    segments: AdapterSegments

    def linear(self, place: int, product: Product, layer: Linear, x_TC: torch.Tensor, ops: Ops) -> torch.Tensor:
        """Compute a layer's product, adapters included. `place` is the decoder layer's."""
        own = self.layers.product(place, product)
        if own is None or not self.segments.places:
            return layer(x_TC)
        if isinstance(layer, RowParallelLinear):  # partial sums, before the ranks add them up
            [part] = layer.slices
            y_TO = part(x_TC)
            ops.add_low_rank(y_TO, x_TC, own, self.segments)
            return layer.total([y_TO])
        y_TO = layer(x_TC)
        ops.add_low_rank(y_TO, x_TC, own, self.segments)
        return y_TO

    def mlp(self, place: int, mlp: Mlp, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        """Compute a layer's MLP, adapters included."""
        if not isinstance(mlp, DenseMlp):
            return mlp(x_TE, ops)
        inner_TI = mlp.activate(self.linear(place, "gate_up", mlp.gate_up, x_TE, ops), ops)
        return self.linear(place, "down", mlp.down, inner_TI, ops)


class LoraLayers:
    """A rank's part of the adapters that are loaded. Adapters have numbers above 0; 0 is the base alone."""

    def __init__(self, whole: ModelConfig, group: Group, layers: range, *, device: torch.device, dtype: torch.dtype):
        """`layers` are those of the model that this rank computes; `dtype` is that of its activations."""
        self._group, self._layers, self._device = group, layers, device
        # The CPU's loops read these two.
        self._dtype = dtype if device.type == "cuda" or dtype == torch.bfloat16 else torch.float32
        self._pieces = _pieces(whole, group)
        self._places: dict[int, int] = {}  # of the loaded adapters
        self._records: np.ndarray | None = None  # of all adapters, once a compiled step has asked for them
        self._products: dict[tuple[int, Product], LowRankProduct] = {
            (place, product): LowRankProduct(self._pieces[product].sizes, [])
            for place in range(len(layers))
            for product in PRODUCTS
        }

    def __contains__(self, adapter: int) -> bool:
        return adapter in self._places

    def product(self, place: int, product: Product) -> LowRankProduct | None:
        """Return what adapters add to a product; None: nothing."""
        own = self._products[place, product]
        return own if any(part is not None for part in own.by_place) else None

    def add(self, adapter: int, weights: AdapterWeights) -> None:
        """Put an adapter on the device. Raises torch.OutOfMemoryError, with nothing changed, when it does not fit."""
        own = {
            key: self._part(weights.parts.get((self._layers[key[0]], key[1])), self._pieces[key[1]])
            for key in self._products
        }
        taken = set(self._places.values())
        place = next(index for index in range(len(taken) + 1) if index not in taken)
        for key, product in self._products.items():
            parts = [*product.by_place, *[None] * (place + 1 - len(product.by_place))]
            parts[place] = own[key]
            self._products[key] = self._with_table(product.sizes, parts)
        self._places[adapter] = place
        self._records = None

    def remove(self, adapter: int) -> None:
        """Remove an adapter that no step uses any more."""
        place, self._records = self._places.pop(adapter), None
        for key, product in self._products.items():
            parts = [None if index == place else part for index, part in enumerate(product.by_place)]
            self._products[key] = self._with_table(product.sizes, parts)

    def step(self, adapter_T: np.ndarray, wanted: np.ndarray) -> StepAdapters | None:
        """Return the adapters of a step's tokens, int64 [T]; None when there are none.

        `wanted` are the indices of the tokens whose hidden states are read.
        """
        adapters_A = np.unique(adapter_T[adapter_T > 0])
        if not len(adapters_A):
            return None
        return StepAdapters(self, self._segments(adapter_T, adapters_A), self._segments(adapter_T[wanted], adapters_A))

    def records(self, places: Sequence[int]) -> np.ndarray:
        """Return the records of adapters at these places for the compiled step, int64 [L, products, A, words]."""
        if self._records is None:
            rows = [[self._record(part) for part in product.by_place] for product in self._products.values()]
            records = np.array(rows, dtype=np.int64).reshape(len(self._layers), len(PRODUCTS), -1, 3)
            is_half = np.full((*records.shape[:-1], 1), self._dtype == torch.bfloat16, dtype=np.int64)
            self._records = np.concatenate((records, is_half), axis=-1)
        return np.ascontiguousarray(self._records[:, :, places])

    @property
    def section_sizes(self) -> np.ndarray:
        """Outputs of each product's sections, int64 [products, 3]; 0 for none."""
        sizes = [self._pieces[product].sizes for product in PRODUCTS]
        return np.array([[*own, *[0] * (3 - len(own))] for own in sizes], dtype=np.int64)

    def _record(self, part: LowRank | None) -> tuple[int, int, int]:
        return (0, 0, 0) if part is None else (part.a_SRC.data_ptr(), part.b_RO.data_ptr(), len(part.b_RO))

    def _segments(self, adapter_T: np.ndarray, adapters_A: np.ndarray) -> AdapterSegments:
        order_T = adapter_T.argsort(kind="stable")
        first, *ends = np.searchsorted(adapter_T[order_T], [0.5, *adapters_A], side="right").tolist()
        places, ends = [self._places[adapter] for adapter in adapters_A.tolist()], [end - first for end in ends]
        tokens_N, blocks = to_device([order_T[first:], _blocks(places, ends)], self._device)
        return AdapterSegments(places, ends, tokens_N, blocks)

    def _part(self, whole: tuple[torch.Tensor, torch.Tensor] | None, pieces: _Pieces) -> LowRank | None:
        if whole is None:
            return None
        a_SRC, b_RO = whole
        columns = torch.cat([b_RO[:, part] for part in pieces.outputs], dim=1)
        return LowRank(*(self._on_device(part) for part in (a_SRC[:, pieces.inputs], columns)))

    def _on_device(self, part: torch.Tensor) -> torch.Tensor:
        return part.to(self._device, self._dtype, copy=True).contiguous()

    def _with_table(self, sizes: tuple[int, ...], parts: Sequence[LowRank | None]) -> LowRankProduct:
        rows = torch.tensor([self._record(part) for part in parts], dtype=torch.int64)
        return LowRankProduct(sizes, list(parts), rows.to(self._device))


@dataclass(frozen=True)
class _Pieces:
    """A rank's part of a product."""

    inputs: slice
    outputs: tuple[slice, ...]  # of each section, among all outputs

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(part.stop - part.start for part in self.outputs)


def _blocks(places: Sequence[int], ends: Sequence[int]) -> np.ndarray:
    """Cut each adapter's tokens into blocks: its place, and the block's first token and end, int32 [blocks, 3]."""
    starts = [0, *ends[:-1]]
    rows = [
        (place, first, min(first + BLOCK_TOKENS, end))
        for place, start, end in zip(places, starts, ends, strict=True)
        for first in range(start, end, BLOCK_TOKENS)
    ]
    return np.array(rows, dtype=np.int32).reshape(-1, 3)


def _pieces(whole: ModelConfig, group: Group) -> dict[Product, _Pieces]:
    """Return the part of each product that a rank computes: queries, keys, values, gates and ups by their outputs, the
    other products by their inputs."""
    shard = group.shard
    pieces: dict[Product, _Pieces] = {}
    for product, (inputs, sizes) in product_sizes(whole).items():
        starts = [sum(sizes[:place]) for place in range(len(sizes))]
        if product in ("o", "down"):
            each = inputs // shard.size
            own = slice(shard.rank * each, (shard.rank + 1) * each)
            pieces[product] = _Pieces(own, tuple(map(slice, starts, np.add(starts, sizes).tolist())))
            continue
        counts = [shard.size] * len(sizes)
        if product == "qkv":  # ranks may hold the same key/value head
            counts = [min(count, shard.size) for count in (whole.num_heads, whole.num_kv_heads, whole.num_kv_heads)]
        lengths = [size // count for size, count in zip(sizes, counts, strict=True)]
        firsts = [
            start + shard.rank * count // shard.size * length
            for start, count, length in zip(starts, counts, lengths, strict=True)
        ]
        pieces[product] = _Pieces(
            slice(0, inputs), tuple(slice(first, first + length) for first, length in zip(firsts, lengths, strict=True))
        )
    return pieces
