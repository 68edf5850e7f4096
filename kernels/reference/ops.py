"""The plain torch ops as sets of device ops: the reference, and the deterministic one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..arguments import AttentionArgs, DecodeAttentionArgs, RopeAndStoreArgs
from ..kv_cache import KvCache
from ..ops import Attention, LatentArgs
from . import experts, layers, logits, lora, recurrence, sampling, trees
from .attention import paged_attention, store_kv, store_latent
from .attention_layout import AttentionLayout, attention_layout
from .deterministic_attention import deterministic_attention
from .sampling import SamplingTensors


@dataclass(frozen=True)
class PaddedAttention:
    """Attention in which rows of like size are padded and computed together."""

    layout: AttentionLayout
    cap: float | None = None

    def attend(
        self, q_THD: torch.Tensor, kv: KvCache, scale: float, sinks_H: torch.Tensor | None = None
    ) -> torch.Tensor:
        return paged_attention(q_THD, kv, self.layout, scale, self.cap, sinks_H)


class ReferenceOps:
    """Plain torch ops, for every device that torch knows."""

    name: str = "reference"
    deterministic: bool = False
    groups_experts: bool = True

    def __init__(self, attention_cap: float | None = None) -> None:
        self.attention_cap = attention_cap

    rms_norm = staticmethod(layers.rms_norm)
    add_rms_norm = staticmethod(layers.add_rms_norm)
    silu_and_mul = staticmethod(layers.silu_and_mul)
    clamped_swiglu = staticmethod(layers.clamped_swiglu)
    grouped_matmul = staticmethod(experts.grouped_matmul)
    route = staticmethod(experts.route)
    route_by_groups = staticmethod(experts.route_by_groups)
    store_latent = staticmethod(store_latent)
    combine_experts = staticmethod(experts.combine_experts)
    add_low_rank = staticmethod(lora.add_low_rank)
    step_states = staticmethod(recurrence.step_states)
    apply_token_bitmask = staticmethod(logits.apply_token_bitmask)
    likeliest_tokens = staticmethod(sampling.likeliest_tokens)
    sample_tokens = staticmethod(sampling.sample_tokens)
    drawn_logprobs = staticmethod(sampling.drawn_logprobs)
    log_sums = staticmethod(sampling.log_sums)
    walk_trees = staticmethod(trees.walk_trees)

    def attention(self, args: AttentionArgs) -> Attention:
        return PaddedAttention(
            attention_layout(
                args.rows,
                page_size=args.page_size,
                window=args.window,
                dtype=args.dtype,
                device=args.kv.k_SKD.device,
            ),
            self.attention_cap,
        )

    def decode_attention(self, args: DecodeAttentionArgs) -> None:
        """Return None: rows are grouped by their lengths, on the host."""

    def attend_latents(
        self, q_TY: torch.Tensor, first_TX: torch.Tensor, kv: KvCache, args: LatentArgs
    ) -> torch.Tensor | None:
        """Return None: the model computes the absorbed form by plain torch."""

    def rope_and_store(
        self, qkv_TND: torch.Tensor, kv: KvCache, qk_norm_HD: torch.Tensor | None, args: RopeAndStoreArgs
    ) -> torch.Tensor:
        H, K = args.num_heads, kv.k_SKD.shape[1]
        qk, v = qkv_TND[:, : H + K], qkv_TND[:, H + K :]
        if qk_norm_HD is not None:
            qk = self.rms_norm(qk, qk_norm_HD, args.eps)
        if kv.basis is not None:  # what is left of a key without its mean must not be its rounding
            dtype, wide = qk.dtype, torch.promote_types(qk.dtype, torch.float32)
            qk = layers.apply_rope(qk.to(wide), args.cos_T1D.to(wide), args.sin_T1D.to(wide))
            q, k = qk[:, :H].to(dtype), qk[:, H:]
        else:
            qk = layers.apply_rope(qk, args.cos_T1D, args.sin_T1D)
            q, k = qk[:, :H], qk[:, H:]
        store_kv(k, v, kv, args.slots_T, args.positions_T)
        return q


class PlainCpuOps(ReferenceOps):
    """Plain torch ops that serve a CPU until the compiled loops are loaded. Weights lie as `CpuOps` wants them."""

    name = "plain-cpu"
    groups_experts = False


class DeterministicOps(ReferenceOps):
    """Plain torch ops whose results for a row do not depend on the other rows.

    They compute row by row where torch chooses its algorithm by the number of rows. Products of weights are not among
    the ops: the layers that hold the weights give them one shape (`models.fixed_rows`).
    """

    deterministic = True

    grouped_matmul = staticmethod(experts.deterministic_grouped_matmul)
    route_by_groups = staticmethod(experts.deterministic_route_by_groups)
    silu_and_mul = staticmethod(layers.deterministic_silu_and_mul)
    clamped_swiglu = staticmethod(layers.deterministic_clamped_swiglu)

    def attention(self, args: AttentionArgs) -> Attention:
        assert not any(row.blocks for row in args.rows), "settings are refused with which queries see later ones"
        return deterministic_attention(
            args.rows,
            page_size=args.page_size,
            window=args.window,
            device=args.kv.k_SKD.device,
            cap=self.attention_cap,
        )

    def sample_tokens(self, logits_RV: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
        sample = super().sample_tokens
        rows = [slice(row, row + 1) for row in range(len(logits_RV))]
        return torch.cat([sample(logits_RV[row], sampling.select(row)) for row in rows])

    def log_sums(self, logits_RV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_sums, entropies = zip(*map(sampling.log_sums, logits_RV.split(1)), strict=True)
        return torch.cat(log_sums), torch.cat(entropies)
