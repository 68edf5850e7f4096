"""A linear layer of 4-bit codes with a scale and a zero point per group of inputs.

Legend: T tokens, N outputs, C inputs, G groups of a row's C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F

from .... import kernels
from ..linear import Destination, bias_destination, total_bytes
from . import int4_packing
from .rounding import GROUP_SIZES, MANY_ROWS, int4_groups
from .scheme import Scheme

if TYPE_CHECKING:
    from ....kernels.cpu.products.packed_matrix import PackedMatrix

STORED_GROUP_SIZES = (256, *GROUP_SIZES)

_INT32 = (torch.int32,)
_TRANSPOSED = {"outputs": 1, "inputs": 0}  # the stored axes are inputs, outputs
_OF_GROUPS = ("weight_scale", "weight_zero_point", "scales", "qzeros")  # tensors with a number for each group
_ACT_ORDER = "groups inputs that are not neighbours (act-order), which the config does not say"


class Int4Linear:
    """4-bit linear layer: weight[n, c] = (code[n, c] - zero[n, g]) * scale[n, g], codes and zero points in [0, 16).

    Codes are stored at once in place, two to a byte, low nibble first. On a CPU `finish` packs them for the compiled
    loops, which multiply them by rows rounded to int8 by group. On a GPU it packs them for a kernel that multiplies few
    rows by the codes; for MANY_ROWS, which are bound by compute, the weight is widened first.

    With `scheme.act_order` a group has inputs of any place. `finish` puts the columns of a group side by side, and the
    products take their inputs in that order.
    """

    def __init__(
        self,
        scheme: Scheme,
        outputs: int,
        inputs: int,
        bias: bool,
        *,
        group_size: int,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        self.scheme = scheme
        self.group_size = group_size
        self.codes_NC2 = torch.empty((outputs, inputs // 2), device=device, dtype=torch.uint8)
        groups_dtype = torch.float32 if torch.device(device).type == "cpu" else dtype
        # Scale s and the weight of code 8, (8 - zero) * s.
        self.groups_GN2 = torch.empty((inputs // group_size, outputs, 2), device=device, dtype=groups_dtype)
        self.zeros_NG = torch.full((outputs, inputs // group_size), 8, device=device, dtype=torch.uint8)
        self.bias_N = torch.empty(outputs, device=device, dtype=dtype) if bias else None
        self._orders: list[torch.Tensor] = []  # of the modules that are fused here, which must be the same
        self.order_C: torch.Tensor | None = None  # int64: the input of each column, by group; None: as they come
        self.packed: PackedMatrix | None = None
        self._products = kernels.quantised_products(self.codes_NC2.device)
        self.codes: Any = None  # the whole layer, packed for `_products`

    @property
    def matrix(self) -> PackedMatrix | None:
        """The whole layer, packed for compiled loops that give it all inputs in place; None of others."""
        return self.packed if self.order_C is None else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.order_C is not None:
            x = x[:, self.order_C]
        if self.packed is not None:
            from ....kernels.cpu.products.matmul import packed_matmul

            return packed_matmul(x, self.packed)
        if self.codes is not None:
            if len(x) < MANY_ROWS:
                return self.product(x, self.codes)
            return F.linear(x, self._products.dequantise(self.codes, x.dtype), self.bias_N)
        y = F.linear(x, self._dequantised().to(x.dtype))
        return y if self.bias_N is None else y + self.bias_N

    def product(self, x: torch.Tensor, codes: Any, experts: Any = None, *, fixed: bool = False) -> torch.Tensor:
        """Multiply by `codes`, this layer's or those of all experts that are like it, in a kernel."""
        y: torch.Tensor = self._products.matmul(x, codes, self.bias_N, experts=experts, fixed=fixed)
        return y

    def finish(self) -> None:
        if self.order_C is not None:
            codes_NC = _two_to_one(self.codes_NC2)[:, self.order_C]
            self.codes_NC2.copy_(codes_NC[:, ::2] | codes_NC[:, 1::2] << 4)
        if self.scheme.source != "gguf":  # GGUF stores the weight of code 8 itself; its zero points are no integers
            self.groups_GN2[..., 1] = (8 - self.zeros_NG.t().float()) * self.groups_GN2[..., 0].float()
        if self._products is not None:
            scale_GN, base_GN = (x.contiguous() for x in self.groups_GN2.unbind(-1))
            packed = self._products.pack_groups(self.codes_NC2, self.group_size)
            self.codes = self._products.Codes(packed, scale_GN, base_GN, self.group_size)
        elif self.codes_NC2.device.type == "cpu":
            from ....kernels.cpu.products.packed_matrix import PackedMatrix  # here, because it imports numba

            scale_NG, base_NG = self.groups_GN2.permute(2, 1, 0)
            self.packed = PackedMatrix.of_int4(self.codes_NC2, scale_NG, base_NG, self.bias_N)
        else:
            return
        self.codes_NC2, self.groups_GN2, self.zeros_NG = (torch.empty(0) for _ in range(3))

    def _dequantised(self) -> torch.Tensor:
        """Return the dense weight [N, C], its columns in the order of groups."""
        codes = _two_to_one(self.codes_NC2).to(self.groups_GN2.dtype) - 8
        scale_NG, base_NG = self.groups_GN2.permute(2, 1, 0)
        groups = codes.view(len(codes), -1, self.group_size)
        return (groups * scale_NG[..., None] + base_NG[..., None]).flatten(1)

    def release(self) -> None:
        """Drop the codes, which the caller has copied."""
        self.codes = None

    @property
    def nbytes(self) -> int:
        if self.packed is not None:
            return self.packed.nbytes
        if self.codes is not None:
            return total_bytes(self.codes.codes, self.codes.scale, self.codes.base, self.bias_N)
        return total_bytes(self.codes_NC2, self.groups_GN2, self.bias_N)

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        own = slice(start, start + size)
        scale_NG, base_NG = self.groups_GN2[:, own].permute(2, 1, 0)
        one_group = self.scheme.group_size is None and self.scheme.source != "dense"
        rows = _StoredRows(self.codes_NC2[own], self.zeros_NG[own], scale_NG, base_NG, one_group)
        match self.scheme.source:
            case "dense":
                pieces = rows.of_dense()
            case "gguf":
                pieces = rows.of_gguf()
            case "compressed-tensors":
                pieces = rows.of_compressed_tensors(zero_points=self.scheme.zero_points)
                if self.scheme.act_order:
                    pieces["weight_g_idx"] = self._index_destination()
            case "gptq":
                pieces = rows.of_gptq(1 if self.scheme.zeros_less_one else 0)
                if self.scheme.has_index:
                    pieces["g_idx"] = self._index_destination()
            case "awq":
                pieces = rows.of_awq()
        if one_group:  # whole in every slice of inputs
            scales = {name: pieces[name] for name in _OF_GROUPS if name in pieces}
            pieces |= {name: piece._replace(inputs=None) for name, piece in scales.items()}
        return {**pieces, **bias_destination(self.bias_N, start, size)}

    def _index_destination(self) -> Destination:
        """Return the destination of the group of each input."""
        C, size, seen = 2 * self.codes_NC2.shape[1], self.group_size, self._orders
        stored_size = C if self.scheme.group_size is None else size

        def put(stored_C: torch.Tensor) -> None:
            neighbours = [c // stored_size for c in range(C)]
            if not self.scheme.act_order:
                if (stored_C - stored_C[0]).tolist() != neighbours:  # groups of a slice count from its first one
                    raise ValueError(_ACT_ORDER)
                return
            order_C = torch.argsort(stored_C, stable=True)
            if stored_C[order_C].tolist() != neighbours:
                raise ValueError(f"does not name {C // size} groups of {size} inputs")
            in_place = stored_C.tolist() == neighbours
            seen.append(order_C)
            if not torch.equal(seen[0], order_C):
                raise ValueError("orders inputs otherwise than the modules that it is fused with")
            self.order_C = None if in_place else order_C.to(self.codes_NC2.device)

        return Destination((C,), put, (torch.int32, torch.int64), outputs=None, inputs=0)


class _StoredRows(NamedTuple):
    """Rows of a layer, and the destinations that fill them from the tensors of each format.

    With `one_group` a stored row has one scale and zero point, which all its groups here take.
    """

    codes_NC2: torch.Tensor
    zeros_NG: torch.Tensor
    scale_NG: torch.Tensor
    base_NG: torch.Tensor
    one_group: bool = False

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, inputs and stored groups."""
        size, G = self.scale_NG.shape
        return size, 2 * self.codes_NC2.shape[1], 1 if self.one_group else G

    def put_codes(self, codes_NC: torch.Tensor) -> None:
        self.codes_NC2.copy_(codes_NC[:, ::2] | codes_NC[:, 1::2] << 4)

    def of_dense(self) -> dict[str, Destination]:
        size, C, G = self.sizes

        def put(weight: torch.Tensor) -> None:
            codes_NC, scale, zeros = int4_groups(weight.to(self.codes_NC2.device), C // G)
            self.put_codes(codes_NC)
            self.scale_NG.copy_(scale)
            self.zeros_NG.copy_(zeros)

        return {"weight": Destination((size, C), put)}

    def of_gguf(self) -> dict[str, Destination]:
        size, C, G = self.sizes
        return {
            "codes_NC": Destination((size, C), self.put_codes, (torch.uint8,)),
            "scales_NG": Destination((size, G), self.scale_NG.copy_),
            "bases_NG": Destination((size, G), self.base_NG.copy_),
        }

    def of_compressed_tensors(self, *, zero_points: bool) -> dict[str, Destination]:
        size, C, G = self.sizes
        pieces = {
            "weight_packed": Destination((size, C // 8), lambda w: self.put_codes(int4_packing.unpack(w, 1)), _INT32),
            "weight_scale": Destination((size, G), self.scale_NG.copy_),
            # The stored shape is the whole layer's; this may be a slice.
            "weight_shape": Destination(
                (2,), _multiple_of([size, C]), (torch.int64, torch.int32), outputs=None, inputs=None
            ),
        }
        if zero_points:
            pieces["weight_zero_point"] = Destination(
                (-(-size // 8), G), lambda w: self.zeros_NG.copy_(int4_packing.unpack(w, 0)[:size]), _INT32
            )
        return pieces

    def of_gptq(self, less: int) -> dict[str, Destination]:
        size, C, G = self.sizes
        return {
            "qweight": Destination(
                (C // 8, size), lambda w: self.put_codes(int4_packing.unpack(w, 0).t()), _INT32, **_TRANSPOSED
            ),
            "scales": Destination((G, size), lambda s: self.scale_NG.copy_(s.t()), **_TRANSPOSED),
            # The format's first version stores zero points minus one, modulo 16.
            "qzeros": Destination(
                (G, size // 8),
                lambda z: self.zeros_NG.copy_((int4_packing.unpack(z, 1).t() + less) & 15),
                _INT32,
                **_TRANSPOSED,
            ),
        }

    def of_awq(self) -> dict[str, Destination]:
        size, C, G = self.sizes
        order = int4_packing.AWQ_ORDER
        return {
            "qweight": Destination(
                (C, size // 8), lambda w: self.put_codes(int4_packing.unpack(w, 1, order).t()), _INT32, **_TRANSPOSED
            ),
            "scales": Destination((G, size), lambda s: self.scale_NG.copy_(s.t()), **_TRANSPOSED),
            "qzeros": Destination(
                (G, size // 8),
                lambda z: self.zeros_NG.copy_(int4_packing.unpack(z, 1, order).t()),
                _INT32,
                **_TRANSPOSED,
            ),
        }


def _two_to_one(codes_NC2: torch.Tensor) -> torch.Tensor:
    return torch.stack((codes_NC2 & 15, codes_NC2 >> 4), dim=2).flatten(1)


def _multiple_of(sizes: list[int]) -> Callable[[torch.Tensor], None]:
    def check(stored: torch.Tensor) -> None:
        if any(whole <= 0 or whole % size for whole, size in zip(stored.tolist(), sizes, strict=True)):
            raise ValueError(f"holds {stored.tolist()}, which are not multiples of {sizes}")

    return check
