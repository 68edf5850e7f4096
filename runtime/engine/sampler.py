"""Sampling of each row's next token from its logits, by the row's own parameters.

In order: logit bias, penalties, mask; then argmax, or temperature, filters and the draw. A step in which no row asks
for more than argmax computes nothing else.

Legend: R rows, V vocabulary, n some of the rows, W mask words.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np
import torch

from ...kernels import SAMPLING_DTYPES, Ops, PenaltyTensors, SamplingTensors, apply_penalties, to_device
from ..scheduler.plan import Penalties, Sample

_COLUMNS = [(name, attrgetter(name), dtype) for name, dtype in SAMPLING_DTYPES.items()]


def sample(ops: Ops, logits_RV: torch.Tensor, samples: Sequence[Sample], masks: Sequence[bytes | None]) -> torch.Tensor:
    """Sample a token for each row of float32 logits; int64 [R], on their device.

    `masks` are token bitmasks as in `Row.mask`; each allows some token.
    """
    return _draw(ops, process_logits(ops, logits_RV, samples, masks), samples)


def _draw(ops: Ops, logits_RV: torch.Tensor, samples: Sequence[Sample]) -> torch.Tensor:
    if all(s.temperature == 0 for s in samples):
        return ops.likeliest_tokens(logits_RV)
    V = logits_RV.shape[1]
    top_ks = [V if s.top_k is None else min(s.top_k, V) for s in samples]
    both = [top_k for top_k, s in zip(top_ks, samples, strict=True) if top_k < V and s.top_p < 1]
    columns = [
        np.fromiter(top_ks if name == "top_k" else map(field, samples), dtype, len(samples))
        for name, field, dtype in _COLUMNS
    ]
    tensors = to_device(columns, logits_RV.device)
    return ops.sample_tokens(logits_RV, SamplingTensors(*tensors, max_top_k=max(both, default=0)))


def process_logits(
    ops: Ops, logits_RV: torch.Tensor, samples: Sequence[Sample], masks: Sequence[bytes | None]
) -> torch.Tensor:
    """Return the logits with bias, penalties and masks applied: a new tensor, unless no row has any."""
    biased = [(row, token, bias) for row, s in enumerate(samples) for token, bias in s.logit_bias.items()]
    if biased:
        rows_N, tokens_N, biases_N = zip(*biased, strict=True)
        rows, tokens, biases = to_device(
            [np.array(rows_N), np.array(tokens_N), np.array(biases_N, dtype=np.float32)], logits_RV.device
        )
        logits_RV = logits_RV.index_put((rows, tokens), biases, accumulate=True)
    penalised = [(row, s.penalties) for row, s in enumerate(samples) if s.penalties is not None]
    if penalised:
        logits_RV = _penalise(logits_RV, penalised)
    masked = [(row, mask) for row, mask in enumerate(masks) if mask is not None]
    if masked:
        words_nW = _bitmask([mask for _, mask in masked], logits_RV.shape[1])
        rows_n, bitmask_nW = to_device([np.array([row for row, _ in masked]), words_nW], logits_RV.device)
        if len(masked) == len(masks):
            return ops.apply_token_bitmask(logits_RV, bitmask_nW)
        allowed_nV = ops.apply_token_bitmask(logits_RV[rows_n], bitmask_nW)
        logits_RV = logits_RV.index_copy(0, rows_n, allowed_nV)
    return logits_RV


def _penalise(logits_RV: torch.Tensor, penalised: Sequence[tuple[int, Penalties]]) -> torch.Tensor:
    V, device = logits_RV.shape[1], logits_RV.device
    columns: list[np.ndarray] = []
    for row, penalties in penalised:
        counts_V = np.bincount(np.array(penalties.output, dtype=np.int64), minlength=V)
        seen_V = counts_V > 0
        if penalties.repetition != 1.0:
            seen_V[penalties.prompt] = True
        tokens = np.flatnonzero(seen_V)
        own = [row, penalties.repetition, penalties.frequency, penalties.presence]
        columns.append(np.stack((tokens, counts_V[tokens], *(np.full(len(tokens), value) for value in own))))
    tokens, counts, rows, *strengths = to_device([np.concatenate(columns, axis=1)], device)[0]
    pairs = rows.long(), tokens.long(), counts.float()
    return apply_penalties(logits_RV, PenaltyTensors(*pairs, *(strength.float() for strength in strengths)))


def _bitmask(masks: Sequence[bytes], vocab_size: int) -> np.ndarray:
    """Return the masks as int32 [n, ceil(V / 32)]. Tokens beyond a mask's words, as of a padded vocabulary, are not
    allowed."""
    bitmask_nW = np.zeros((len(masks), -(-vocab_size // 32)), dtype=np.int32)
    for words_W, mask in zip(bitmask_nW, masks, strict=True):
        words = np.frombuffer(mask, dtype="<i4")[: len(words_W)]
        assert words.any(), "a mask must allow some token"
        words_W[: len(words)] = words
    return bitmask_nW
