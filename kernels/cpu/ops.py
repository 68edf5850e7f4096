"""The ops of a CPU: plain torch, and compiled loops where a step is so small that torch's calls are what it costs.

Those are float32 steps of few tokens. All else, bfloat16 included, is plain torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..kv_cache import KvCache
from ..ops import Attention
from ..reference.layout import KeyRope, RowSpan
from ..reference.ops import ReferenceOps
from . import layers
from .attention import Sight, attend
from .sampling import sample_rows
from .sight import see
from .trees import walk_trees

_MAX_TOKENS = 64  # of a step; beyond it torch's own loops have the work that they need to pay


@dataclass(frozen=True)
class PagedTokens:
    """Tokens that read their keys where they lie."""

    sight: Sight

    def attend(self, q_THD: torch.Tensor, kv: KvCache, scale: float) -> torch.Tensor:
        out_THD = torch.empty_like(q_THD, memory_format=torch.contiguous_format)
        attend(q_THD.contiguous().numpy(), kv.k_SKD.numpy(), kv.v_SKD.numpy(), *self.sight, scale, out_THD.numpy())
        return out_THD


class CpuOps(ReferenceOps):
    name = "cpu"
    groups_experts = False

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if not (_is_small(x) and x.dim() == 2 and weight.dim() == 1):
            return super().rms_norm(x, weight, eps)
        out = torch.empty_like(x)
        layers.rms_norm(x.numpy(), weight.numpy(), eps, out.numpy())
        return out

    def add_rms_norm(
        self, x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not (_is_small(x_TE) and _is_small(residual_TE)):
            return super().add_rms_norm(x_TE, residual_TE, weight_E, eps)
        out_TE, sum_TE = torch.empty_like(x_TE), torch.empty_like(x_TE)
        layers.add_rms_norm(x_TE.numpy(), residual_TE.numpy(), weight_E.numpy(), eps, out_TE.numpy(), sum_TE.numpy())
        return out_TE, sum_TE

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        if not (_is_small(gate_up) and gate_up.dim() == 2):
            return super().silu_and_mul(gate_up)
        out = gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
        layers.silu_and_mul(gate_up.numpy(), out.numpy())
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
        if not (_is_small(qkv_TND) and is_plain(kv) and qk_norm_HD is None and rotate_keys):
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
        layers.rope_and_store(
            qkv_TND.numpy(),
            cos_T1D.view(T, D).numpy(),
            sin_T1D.view(T, D).numpy(),
            slots_T.numpy(),
            kv.k_SKD.numpy(),
            kv.v_SKD.numpy(),
            q_THD.numpy(),
        )
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
        if dtype == torch.float32 and is_plain(kv) and key_rope is None:
            sight = see(rows, page_size, window)
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
        return PagedTokens(sight)


def _is_small(x: torch.Tensor) -> bool:
    return x.dtype == torch.float32 and len(x) <= _MAX_TOKENS and x.is_contiguous()


def is_plain(kv: KvCache) -> bool:
    """Held in float32, without scales."""
    return kv.k_SKD.dtype == torch.float32 and kv.k_scale_K is None
