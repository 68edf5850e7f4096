"""The Triton kernels as a set of device ops, with plain torch where a kernel would gain nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..arguments import AttentionArgs, Chunk, DecodeAttentionArgs
from ..kv_cache import KvCache
from ..ops import Attention, LatentArgs
from ..reference import experts as reference_experts
from ..reference import sampling as reference_sampling
from ..reference import trees
from ..reference.ops import DeterministicOps, ReferenceOps
from . import experts, layers, logits, lora, recurrence, sampling, store
from .attention import latent_attention, paged_attention


@dataclass(frozen=True)
class TritonOps:
    """Device ops of CUDA devices. `deterministic` fixes tiles and splits, at the price of speed."""

    deterministic: bool = False
    attention_cap: float | None = None

    name = "triton"
    groups_experts = True

    rms_norm = staticmethod(layers.rms_norm)
    add_rms_norm = staticmethod(layers.add_rms_norm)
    silu_and_mul = staticmethod(layers.silu_and_mul)
    clamped_swiglu = staticmethod(layers.clamped_swiglu)
    rope_and_store = staticmethod(store.rope_and_store)
    route = staticmethod(experts.route)
    store_latent = staticmethod(latent_attention.store_latent)
    route_by_groups = staticmethod(reference_experts.route_by_groups)
    combine_experts = staticmethod(experts.combine_experts)
    add_low_rank = staticmethod(lora.add_low_rank)
    step_states = staticmethod(recurrence.step_states)
    apply_token_bitmask = staticmethod(logits.apply_token_bitmask)
    likeliest_tokens = staticmethod(reference_sampling.likeliest_tokens)
    drawn_logprobs = staticmethod(reference_sampling.drawn_logprobs)
    log_sums = staticmethod(sampling.log_sums)
    sample_tokens = staticmethod(sampling.sample_tokens)
    walk_trees = staticmethod(trees.walk_trees)

    def attention(self, args: AttentionArgs) -> Attention:
        if isinstance(args.window, Chunk) or any(row.blocks for row in args.rows):  # which kernels do not know
            ops = DeterministicOps if self.deterministic else ReferenceOps
            return ops(self.attention_cap).attention(args)
        return paged_attention.step_attention(args, deterministic=self.deterministic, soft_cap=self.attention_cap)

    def decode_attention(self, args: DecodeAttentionArgs) -> paged_attention.TritonAttention:
        return paged_attention.decode_attention(args, deterministic=self.deterministic, soft_cap=self.attention_cap)

    def attend_latents(
        self, q_TY: torch.Tensor, first_TX: torch.Tensor, kv: KvCache, args: LatentArgs
    ) -> torch.Tensor | None:
        """Return None: products of queries and outputs are torch's."""

    def grouped_matmul(
        self, x: torch.Tensor, weight_NOI: torch.Tensor, ends_N: torch.Tensor, rows_P: torch.Tensor | None
    ) -> torch.Tensor:
        return experts.grouped_matmul(x, weight_NOI, ends_N, rows_P, fixed=self.deterministic)
