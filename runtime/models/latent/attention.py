"""Multi-head latent attention, computed on the latents themselves (DeepSeek-AI 2024, DeepSeek-V2, section 2.1).

The cache holds one head for all: a token's normalised latent, and the rotated part of its key. Queries are multiplied
by the matrix that would expand the latent to their head's key, and outputs, which are sums of latents, by the one that
would expand it to a value. So attention has one key head of `key_size` numbers, whose first `rank` are the value. The
compiled loops of CPUs compute the same, and expand the keys and values of prompts where that takes less
(`kernels.cpu.attention.latent`).

Legend: T tokens, E hidden size, H query heads of this rank, h those of a slice, N plain dimensions of a head, R rotated
ones, V of its value, C rank of the latent, Q rank of the queries' latent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from .... import loops
from ....kernels import Attention, KvCache, LatentArgs, Ops, RopeAndStoreArgs
from ....kernels.reference.fixed_rows import FIXED_ROWS, in_fixed_rows
from ..linear import Destination, Linear, Loadable, stacked_destinations, total_bytes
from ..packed_linear import can_pack
from .config import NORM_EPS, LatentConfig

if TYPE_CHECKING:
    from ....kernels.cpu.attention.latent import LatentMatrices


class LatentStep(NamedTuple):
    """Arguments of latent attention that are the same in all layers of a step."""

    attention: Attention
    scale: float
    ops: Ops
    slices: Sequence[slice] | None  # heads that are computed one slice after the other; None: all at once


class Expansion:
    """The product that expands latents to keys and values, kept as the two products that take its place.

    It is filled as a linear layer of any format. `finish` reads its weight back as a product with the identity. On a
    CPU it is packed for compiled loops.
    """

    def __init__(self, sizes: LatentConfig, linear: Linear, dtype: torch.dtype, device: torch.device | str) -> None:
        self._sizes, self._linear, self._dtype, self._device = sizes, linear, dtype, device
        self._products: tuple[torch.Tensor, torch.Tensor] | None = None  # [H, N, C] and [H, C, V]
        self.matrices: LatentMatrices | None = None  # in place of them

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        return self._linear.row_destinations(start, size)

    def finish(self) -> None:
        sizes = self._sizes
        for part in getattr(self._linear, "slices", (self._linear,)):
            if (scale_1 := getattr(part, "input_scale_1", None)) is not None:
                scale_1.fill_(1.0)  # the stored one is of latents: it would round the identity
        self._linear.finish()
        weight_CO = self._linear(torch.eye(sizes.rank, dtype=self._dtype, device=self._device))
        weight_CHX = weight_CO.unflatten(1, (-1, sizes.expanded_size))
        key_HNC = weight_CHX[..., : sizes.plain_size].permute(1, 2, 0).contiguous()
        self._products = key_HNC, weight_CHX[..., sizes.plain_size :].transpose(0, 1).contiguous()
        del self._linear
        if loops.ready("ramiform.kernels"):
            self.use_loops()

    def use_loops(self) -> None:
        """Pack the matrices for compiled loops, if these compute them; called again, do nothing."""
        sizes = self._sizes
        if self._products is None or not can_pack(self._device, self._dtype) or sizes.plain_size % 2:
            return
        from ....kernels.cpu.attention.latent import LatentMatrices  # here, because it imports numba

        self.matrices, self._products = LatentMatrices(*self._products), None

    @property
    def nbytes(self) -> int:
        return self.matrices.nbytes if self.matrices is not None else total_bytes(*self._dense())

    def _dense(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the matrices of both products. Packed ones are held twice from then on: few caches need that."""
        if self._products is None:
            assert self.matrices is not None
            self._products = self.matrices.dense()
        return self._products

    def absorb(self, q_ThN: torch.Tensor, heads: slice, *, fixed: bool) -> torch.Tensor:
        """Return the queries of `heads` as queries of latents, [T, h, C]."""
        return _by_head(q_ThN, self._dense()[0][heads], fixed=fixed)

    def values(self, out_ThC: torch.Tensor, heads: slice, *, fixed: bool) -> torch.Tensor:
        """Return sums of latents as sums of values, [T, h, V]."""
        return _by_head(out_ThC, self._dense()[1][heads], fixed=fixed)


def _by_head(x_ThI: torch.Tensor, weight_hIO: torch.Tensor, *, fixed: bool) -> torch.Tensor:
    """Multiply each head by its matrix; with `fixed` a token's bits do not depend on the number of tokens."""
    h, I, O = weight_hIO.shape  # noqa: E741

    def product(x_Ti: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x_Ti.view(-1, h, I).transpose(0, 1), weight_hIO).transpose(0, 1).reshape(-1, h * O)

    x_Ti = x_ThI.reshape(len(x_ThI), h * I)
    return (in_fixed_rows(product, x_Ti, FIXED_ROWS) if fixed else product(x_Ti)).view(-1, h, O)


@dataclass(frozen=True, slots=True)
class LatentParameters:
    """Tensors of a layer's latent attention behind its first product, which gives the latents."""

    sizes: LatentConfig
    query: Linear | None  # Q -> H * (N + R); None: the first product gives the queries themselves
    query_norm_Q: torch.Tensor | None
    norm_C: torch.Tensor
    expansion: Expansion

    @classmethod
    def unfilled(
        cls,
        sizes: LatentConfig,
        query: Linear | None,
        expand: Linear,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> LatentParameters:
        """Make the parameters, with uninitialised norms."""
        query_norm_Q = None
        if sizes.query_rank is not None:
            query_norm_Q = torch.empty(sizes.query_rank, device=device, dtype=dtype)
        norm_C = torch.empty(sizes.rank, device=device, dtype=dtype)
        return cls(sizes, query, query_norm_Q, norm_C, Expansion(sizes, expand, dtype, device))

    def linears(self) -> Iterator[Loadable]:
        """Iterate over the layers that may be quantised."""
        if self.query is not None:
            yield self.query
        yield self.expansion

    def each(self, change: Callable[[Linear], Linear]) -> LatentParameters:
        """Replace the product of queries by `change` of it."""
        return self if self.query is None else replace(self, query=change(self.query))

    def first_modules(self, num_heads: int) -> list[tuple[str, int]]:
        """Return the modules of the first product, and their outputs, of a model of `num_heads` heads."""
        sizes = self.sizes
        queries = ("q_proj", num_heads * sizes.query_size)
        if sizes.query_rank is not None:
            queries = ("q_a_proj", sizes.query_rank)
        return [queries, ("kv_a_proj_with_mqa", sizes.key_size)]

    def destinations(self, prefix: str, num_heads: int) -> dict[str, Destination]:
        """Map the checkpoint tensors below `prefix` to these tensors, for a model of `num_heads` heads."""
        sizes = self.sizes
        parts = {f"{prefix}.kv_a_layernorm.weight": Destination((sizes.rank,), self.norm_C.copy_)}
        expanded = [("kv_b_proj", num_heads * sizes.expanded_size)]
        parts |= stacked_destinations(prefix, expanded, self.expansion)  # type: ignore[arg-type]  # it has the rows
        if self.query is not None and self.query_norm_Q is not None:
            norm = Destination(tuple(self.query_norm_Q.shape), self.query_norm_Q.copy_)
            parts[f"{prefix}.q_a_layernorm.weight"] = norm
            parts |= stacked_destinations(prefix, [("q_b_proj", num_heads * sizes.query_size)], self.query)
        return parts

    def attend(self, first: torch.Tensor, args: RopeAndStoreArgs, kv: KvCache, step: LatentStep) -> torch.Tensor:
        """Compute attention up to its output projection, [T, H * V]; write the tokens' latents to the cache.

        `first` is the output of the first product: the queries or their latent, then the latent and the rotated part
        of the key.
        """
        sizes, ops = self.sizes, step.ops
        T, H = len(first), args.num_heads
        q, latent_TC, key_TR = first.split((first.shape[1] - sizes.key_size, sizes.rank, sizes.rope_size), dim=1)
        if self.query is not None and self.query_norm_Q is not None:
            q = self.query(ops.rms_norm(q.contiguous(), self.query_norm_Q, NORM_EPS))
        if self.expansion.matrices is not None:
            own = LatentArgs(
                step.attention, self.expansion.matrices, step.scale, self.norm_C, NORM_EPS, args, sizes.interleaved
            )
            found = ops.attend_latents(first if self.query is None else q, first, kv, own)
            if found is not None:
                return found
        q_THD = q.reshape(T, H, sizes.query_size)
        latent_TC = ops.rms_norm(latent_TC.contiguous(), self.norm_C, NORM_EPS)
        rope_TNR = torch.cat((q_THD[..., sizes.plain_size :], key_TR[:, None]), dim=1)
        rope_THR = ops.store_latent(latent_TC, rope_TNR, kv, args, sizes.interleaved)
        plain_THN, fixed = q_THD[..., : sizes.plain_size], ops.deterministic
        parts = []
        for heads in step.slices or [slice(0, H)]:
            absorbed_ThC = self.expansion.absorb(plain_THN[:, heads], heads, fixed=fixed)
            q_ThD = torch.cat((absorbed_ThC, rope_THR[:, heads]), dim=-1)
            out_ThC = step.attention.attend(q_ThD, kv, step.scale)
            parts.append(self.expansion.values(out_ThC, heads, fixed=fixed).flatten(1))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
