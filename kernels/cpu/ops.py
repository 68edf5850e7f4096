"""The ops of a CPU: compiled loops between the products of float32 and bfloat16, where torch calls several operators
that each go through memory; and for the attention of float32 steps of few tokens. All else is plain torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ..kv_cache import KvCache
from ..ops import Attention
from ..reference.attention_layout import KeyRope, RowSpan
from ..reference.ops import ReferenceOps
from . import layers
from .attention import AttentionSpans, attend
from .attention_spans import spans_of_rows
from .bfloat16 import as_float_array
from .sampling import sample_rows, walk_trees
from .thread_pool import num_threads, share

_PART_NUMBERS = 1 << 17  # that a thread reads at least: some 0.1 ms, twice what waking it takes


@dataclass(frozen=True)
class CompiledAttention:
    """Tokens that read their keys where they lie."""

    spans: AttentionSpans

    def attend(self, q_THD: torch.Tensor, kv: KvCache, scale: float) -> torch.Tensor:
        out_THD = torch.empty_like(q_THD, memory_format=torch.contiguous_format)
        attend(q_THD.contiguous().numpy(), kv.k_SKD.numpy(), kv.v_SKD.numpy(), *self.spans, scale, out_THD.numpy())
        return out_THD


class CpuOps(ReferenceOps):
    name = "cpu"
    groups_experts = False

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if not (_are_loops(x, weight) and x.dim() == 2 and weight.dim() == 1):
            return super().rms_norm(x, weight, eps)
        out = torch.empty_like(x)
        of, to, weights = as_float_array(x), as_float_array(out), as_float_array(weight)
        _by_rows(x, lambda own: layers.rms_norm(of[own], weights, eps, to[own]))
        return out

    def add_rms_norm(
        self, x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not _are_loops(x_TE, residual_TE, weight_E):
            return super().add_rms_norm(x_TE, residual_TE, weight_E, eps)
        out_TE, sum_TE = torch.empty_like(x_TE), torch.empty_like(x_TE)
        x, residual, weights, out, total = map(as_float_array, (x_TE, residual_TE, weight_E, out_TE, sum_TE))
        _by_rows(x_TE, lambda own: layers.add_rms_norm(x[own], residual[own], weights, eps, out[own], total[own]))
        return out_TE, sum_TE

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        if not (_are_loops(gate_up) and gate_up.dim() == 2):
            return super().silu_and_mul(gate_up)
        out = gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
        of, to = as_float_array(gate_up), as_float_array(out)
        _by_rows(gate_up, lambda own: layers.silu_and_mul(of[own], to[own]))
        return out

    def rope_and_store(
        self,
        qkv_TND: torch.Tensor,
        cos_T1D: torch.Tensor,
        sin_T1D: torch.Tensor,
        kv: KvCache,
        slots_T: torch.Tensor,
        *,
        num_heads: int,
        qk_norm_HD: torch.Tensor | None,
        eps: float,
        rotate_keys: bool,
    ) -> torch.Tensor:
        stored_as_they_are = kv.k_SKD.dtype == qkv_TND.dtype and kv.k_scale_K is None
        tensors = qkv_TND, cos_T1D, sin_T1D, kv.k_SKD, kv.v_SKD
        if not (_are_loops(*tensors) and stored_as_they_are and qk_norm_HD is None and rotate_keys):
            return super().rope_and_store(
                qkv_TND,
                cos_T1D,
                sin_T1D,
                kv,
                slots_T,
                num_heads=num_heads,
                qk_norm_HD=qk_norm_HD,
                eps=eps,
                rotate_keys=rotate_keys,
            )
        T, _, D = qkv_TND.shape
        q_THD = qkv_TND.new_empty((T, num_heads, D))
        qkv, cos, sin, k, v, q = map(
            as_float_array, (qkv_TND, cos_T1D.view(T, D), sin_T1D.view(T, D), kv.k_SKD, kv.v_SKD, q_THD)
        )
        slots = slots_T.numpy()
        _by_rows(qkv_TND, lambda own: layers.rope_and_store(qkv[own], cos[own], sin[own], slots[own], k, v, q[own]))
        return q_THD

    def sample_tokens(
        self,
        logits_RV: torch.Tensor,
        *,
        temperature_R: torch.Tensor,
        top_k_R: torch.Tensor,
        top_p_R: torch.Tensor,
        min_p_R: torch.Tensor,
        draw_R: torch.Tensor,
        max_top_k: int,
    ) -> torch.Tensor:
        # Row by row, whoever else is there: what the two ways round differently must not depend on others.
        ranked_R = (temperature_R > 0) & ((top_k_R < logits_RV.shape[1]) | (top_p_R < 1))
        whole_R = ~ranked_R
        tokens_R = torch.empty(len(logits_RV), dtype=torch.int64)
        if whole_R.any():
            every = bool(whole_R.all())
            logits, temperature, min_p, draw = (
                x if every else x[whole_R] for x in (logits_RV, temperature_R, min_p_R, draw_R)
            )
            found = torch.empty(len(logits), dtype=torch.int64)
            sample_rows(logits.contiguous().numpy(), temperature.numpy(), min_p.numpy(), draw.numpy(), found.numpy())
            if every:
                return found
            tokens_R[whole_R] = found
        tokens_R[ranked_R] = super().sample_tokens(
            logits_RV[ranked_R],
            temperature_R=temperature_R[ranked_R],
            top_k_R=top_k_R[ranked_R],
            top_p_R=top_p_R[ranked_R],
            min_p_R=min_p_R[ranked_R],
            draw_R=draw_R[ranked_R],
            max_top_k=max_top_k,
        )
        return tokens_R

    def walk_trees(
        self, sampled_O: torch.Tensor, guessed_O: torch.Tensor, parents_O: torch.Tensor, *, max_depth: int
    ) -> torch.Tensor:
        on_way_O = torch.empty(len(sampled_O), dtype=torch.bool)
        walk_trees(sampled_O.numpy(), guessed_O.numpy(), parents_O.numpy(), on_way_O.numpy())
        return on_way_O

    def attention(
        self,
        rows: Sequence[RowSpan],
        kv: KvCache,
        *,
        num_heads: int,
        page_size: int,
        window: int | None,
        dtype: torch.dtype,
        key_rope: KeyRope | None = None,
    ) -> Attention:
        sight = None
        if dtype == torch.float32 and is_unscaled_float32(kv) and key_rope is None:
            sight = spans_of_rows(rows, page_size, window)
        if sight is None:
            return super().attention(
                rows,
                kv,
                num_heads=num_heads,
                page_size=page_size,
                window=window,
                dtype=dtype,
                key_rope=key_rope,
            )
        return CompiledAttention(sight)


def _are_loops(*tensors: torch.Tensor) -> bool:
    """Whether compiled loops take them: of one type that they know, and lying row by row."""
    dtype = tensors[0].dtype
    return dtype in (torch.float32, torch.bfloat16) and all(x.dtype == dtype and x.is_contiguous() for x in tensors)


def _by_rows(x: torch.Tensor, compute: Callable[[slice], object]) -> None:
    """`compute` for all rows of `x`, in parts that threads share if there is enough to do."""
    T = len(x)
    count = min(num_threads(), T, x.numel() // _PART_NUMBERS)
    if count < 2:
        compute(slice(0, T))
    else:
        share([partial(compute, slice(T * part // count, T * (part + 1) // count)) for part in range(count)])


def is_unscaled_float32(kv: KvCache) -> bool:
    """Held in float32, without scales."""
    return kv.k_SKD.dtype == torch.float32 and kv.k_scale_K is None
