"""The device ops of a CPU: compiled loops where torch calls several operators that each go through memory.

Loops compute attention, norms, rotation and the gate in float32 and bfloat16, draws, and the walk along draft trees.
All else is plain torch.

Legend: R rows, V vocabulary, O outputs of the step's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..arguments import NOT_FINITE, AttentionArgs, RopeAndStoreArgs
from ..kv_cache import KvCache
from ..ops import Attention, LatentArgs
from ..reference.ops import DeterministicOps, ReferenceOps
from ..reference.sampling import SamplingTensors
from . import layers
from .attention.latent import attend_latents
from .attention.paged import CompiledAttention, compiled_attention
from .bfloat16 import as_float_array
from .compiled import Ints, compiled
from .sampling import log_sums, ranked_logprobs, sample_ranked, sample_unfiltered, unfiltered_logprobs
from .thread_pool import share_rows


class CpuOps(ReferenceOps):
    """Device ops of CPUs: compiled loops, else the plain torch of `ReferenceOps`."""

    name = "cpu"
    groups_experts = False

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if not (_suit_loops(x, weight) and x.dim() == 2 and weight.dim() == 1):
            return super().rms_norm(x, weight, eps)
        out = torch.empty_like(x)
        source, target, weights = as_float_array(x), as_float_array(out), as_float_array(weight)
        norm = layers.rms_norm_float32 if x.dtype == torch.float32 else layers.rms_norm
        share_rows(x, lambda rows: norm(source[rows], weights, eps, target[rows]))
        return out

    def add_rms_norm(
        self, x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not _suit_loops(x_TE, residual_TE, weight_E):
            return super().add_rms_norm(x_TE, residual_TE, weight_E, eps)
        out_TE, sum_TE = torch.empty_like(x_TE), torch.empty_like(x_TE)
        x, residual, weights, out, total = map(as_float_array, (x_TE, residual_TE, weight_E, out_TE, sum_TE))
        share_rows(
            x_TE, lambda rows: layers.add_rms_norm(x[rows], residual[rows], weights, eps, out[rows], total[rows])
        )
        return out_TE, sum_TE

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        if not (_suit_loops(gate_up) and gate_up.dim() == 2):
            return super().silu_and_mul(gate_up)
        out = gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
        source, target = as_float_array(gate_up), as_float_array(out)
        share_rows(gate_up, lambda rows: layers.silu_and_mul(source[rows], target[rows]))
        return out

    def clamped_swiglu(self, gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
        if not (_suit_loops(gate_up) and gate_up.dim() == 2):
            return super().clamped_swiglu(gate_up, alpha, limit)
        out = gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
        source, target = as_float_array(gate_up), as_float_array(out)
        share_rows(gate_up, lambda rows: layers.clamped_swiglu(source[rows], alpha, limit, target[rows]))
        return out

    def rope_and_store(
        self, qkv_TND: torch.Tensor, kv: KvCache, qk_norm_HD: torch.Tensor | None, args: RopeAndStoreArgs
    ) -> torch.Tensor:
        fits_cache = kv.k_SKD.dtype == qkv_TND.dtype and kv.k_scale_K is None and kv.basis is None
        tensors = qkv_TND, args.cos_T1D, args.sin_T1D, kv.k_SKD, kv.v_SKD
        if qk_norm_HD is not None:
            tensors = *tensors, qk_norm_HD
        if not (_suit_loops(*tensors) and fits_cache):
            return super().rope_and_store(qkv_TND, kv, qk_norm_HD, args)
        if qk_norm_HD is not None:
            normed_TND = torch.empty_like(qkv_TND)
            source, weights, target = map(as_float_array, (qkv_TND, qk_norm_HD, normed_TND))
            share_rows(qkv_TND, lambda rows: layers.normalise_heads(source[rows], weights, args.eps, target[rows]))
            qkv_TND = normed_TND
        T, _, D = qkv_TND.shape
        q_THD = qkv_TND.new_empty((T, args.num_heads, D))
        qkv, cos, sin, k, v, q = map(
            as_float_array, (qkv_TND, args.cos_T1D.view(T, D), args.sin_T1D.view(T, D), kv.k_SKD, kv.v_SKD, q_THD)
        )
        slots = args.slots_T.numpy()
        share_rows(
            qkv_TND,
            lambda rows: layers.rope_and_store(qkv[rows], cos[rows], sin[rows], slots[rows], k, v, q[rows]),
        )
        return q_THD

    def attend_latents(
        self, q_TY: torch.Tensor, first_TX: torch.Tensor, kv: KvCache, args: LatentArgs
    ) -> torch.Tensor | None:
        return _attend_latents(self, q_TY, first_TX, kv, args)

    def likeliest_tokens(self, logits_RV: torch.Tensor) -> torch.Tensor:
        logits = logits_RV.numpy()
        tokens = logits.argmax(axis=1)  # some ten times as fast as torch's; NaN counts as the largest
        tokens[~np.isfinite(logits[np.arange(len(logits)), tokens])] = NOT_FINITE
        return torch.from_numpy(tokens)

    def sample_tokens(self, logits_RV: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
        ways = sample_unfiltered, sample_ranked, super().sample_tokens
        return _by_filters(ways, sampling, logits_RV)

    def drawn_logprobs(
        self, logits_RV: torch.Tensor, tokens_R: torch.Tensor, sampling: SamplingTensors
    ) -> torch.Tensor:
        ways = unfiltered_logprobs, ranked_logprobs, super().drawn_logprobs
        return _by_filters(ways, sampling, logits_RV, tokens_R)

    def log_sums(self, logits_RV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return log_sums(logits_RV)

    def walk_trees(
        self, sampled_O: torch.Tensor, guessed_O: torch.Tensor, parents_O: torch.Tensor, *, max_depth: int
    ) -> torch.Tensor:
        on_way_O = torch.empty(len(sampled_O), dtype=torch.bool)
        walk_trees(sampled_O.numpy(), guessed_O.numpy(), parents_O.numpy(), on_way_O.numpy())
        return on_way_O

    def attention(self, args: AttentionArgs) -> Attention:
        return compiled_attention(args, self.attention_cap) or super().attention(args)


def _by_filters(
    ways: Sequence[Callable[..., torch.Tensor]], sampling: SamplingTensors, *tensors: torch.Tensor
) -> torch.Tensor:
    """Return [R] from `ways(*tensors, sampling)` of the rows without filters but min-p, of those with top-k or top-p,
    and of all others.

    The ways round differently, so a row's own parameters choose: its token must not depend on the other rows.
    """
    V = tensors[0].shape[1]
    filtered_R = sampling.filtered_rows(V, beside=("min_p",))
    others_R = sampling.filtered_rows(V, beside=("top_k", "top_p", "min_p"))
    groups = [~filtered_R, filtered_R & ~others_R, others_R]
    parts = []
    for rows_R, way in zip(groups, ways, strict=True):
        if rows_R.all():
            return way(*tensors, sampling)
        if rows_R.any():
            parts.append((rows_R, way(*(tensor[rows_R] for tensor in tensors), sampling.select(rows_R))))
    found_R = torch.empty(len(filtered_R), dtype=parts[0][1].dtype)
    for rows_R, part in parts:
        found_R[rows_R] = part
    return found_R


class DeterministicCpuOps(DeterministicOps):
    """Deterministic ops of CPUs: compiled attention, whose bits depend on a query's own keys only, else plain torch.

    Like products, attention goes by dot products where there are tile registers too."""

    name = "deterministic cpu"

    def attention(self, args: AttentionArgs) -> Attention:
        return compiled_attention(args, self.attention_cap, tiles=False) or super().attention(args)

    def attend_latents(
        self, q_TY: torch.Tensor, first_TX: torch.Tensor, kv: KvCache, args: LatentArgs
    ) -> torch.Tensor | None:
        return _attend_latents(self, q_TY, first_TX, kv, args)


def _attend_latents(
    ops: ReferenceOps, q_TY: torch.Tensor, first_TX: torch.Tensor, kv: KvCache, args: LatentArgs
) -> torch.Tensor | None:
    """Compute latent attention by loops, if they compute the step's. Latents are stored as codes by plain torch."""
    if not isinstance(args.attention, CompiledAttention):
        return None
    H, C = args.rope.num_heads, len(args.norm_C)
    cos_TR, sin_TR = args.rope.cos_T1D[:, 0], args.rope.sin_T1D[:, 0]
    R = cos_TR.shape[1]
    D = args.matrices.plain_size + R
    q_THD = q_TY[:, : H * D].unflatten(1, (H, D))
    if _suit_loops(q_TY, first_TX, args.norm_C, cos_TR, sin_TR, kv.k_SKD) and kv.k_scale_K is None:
        q, first, norm, cos, sin, cache = map(
            as_float_array, (q_TY, first_TX, args.norm_C, cos_TR, sin_TR, kv.k_SKD[:, 0])
        )
        slots = args.rope.slots_T.numpy()

        def rotate(rows: slice) -> None:
            layers.rotate_and_store_latents(
                q[rows], first[rows], H, D, norm, args.eps, cos[rows], sin[rows], args.interleaved, slots[rows], cache
            )

        share_rows(first_TX, rotate)
    else:
        latent_TC = ops.rms_norm(first_TX[:, -C - R : -R].contiguous(), args.norm_C, args.eps)
        rope_TNR = torch.cat((q_THD[..., -R:], first_TX[:, None, -R:]), dim=1)
        q_THD[..., -R:] = ops.store_latent(latent_TC, rope_TNR, kv, args.rope, args.interleaved)
    # In deterministic mode all rows are absorbed: which form takes less depends on how a prompt is cut.
    return attend_latents(q_THD, kv, args.attention, args.matrices, args.scale, expand=not ops.deterministic)


def _suit_loops(*tensors: torch.Tensor) -> bool:
    """True if the compiled loops take the tensors: all float32 or all bfloat16, and contiguous."""
    dtype = tensors[0].dtype
    return dtype in (torch.float32, torch.bfloat16) and all(x.dtype == dtype and x.is_contiguous() for x in tensors)


@compiled("void(int64[::1], int64[::1], int64[::1], boolean[::1])")
def walk_trees(sampled_O: Ints, guessed_O: Ints, parents_O: Ints, on_way_O: NDArray[np.bool_]) -> None:
    """Set `on_way_O` where an output lies on the path that the samples confirm. Parents come before their children."""
    for output in range(len(sampled_O)):
        parent = parents_O[output]
        root = parent == output
        on_way_O[output] = root or (on_way_O[parent] and sampled_O[parent] == guessed_O[output])
