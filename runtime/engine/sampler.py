"""Sampling of each row's next token from its logits, by the row's own parameters.

In order: logit bias, penalties, DRY, mask; then argmax, or temperature, filters and the draw. A step in which no row
asks for more than argmax computes nothing else.

Legend: R rows, V vocabulary, n some of the rows, W mask words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from ...kernels import (
    FILTER_DTYPES,
    NOT_FINITE,
    SAMPLING_DTYPES,
    FilterTensors,
    Ops,
    PenaltyTensors,
    SamplingTensors,
    apply_penalties,
    logprobs_of_weights,
    rare_filters,
    to_device,
)
from ..scheduler.plan import Penalties, Sample


def sample(ops: Ops, logits_RV: torch.Tensor, samples: Sequence[Sample], masks: Sequence[bytes | None]) -> torch.Tensor:
    """Sample a token for each row of float32 logits; int64 [R], on their device.

    `masks` are token bitmasks as in `Row.mask`; each allows some token.
    """
    return _draw(ops, process_logits(ops, logits_RV, samples, masks), samples)


def _draw(ops: Ops, logits_RV: torch.Tensor, samples: Sequence[Sample]) -> torch.Tensor:
    if all(s.temperature == 0 for s in samples):
        return ops.likeliest_tokens(logits_RV)
    rows = [row for row, s in enumerate(samples) if s.temperature > 0 and rare_filters.act_on(s)]
    if not rows:
        return ops.sample_tokens(logits_RV, _sampling_tensors(logits_RV, samples))
    filtered, others = [samples[row] for row in rows], list(samples)
    for row in rows:
        others[row] = replace(samples[row], temperature=0.0)
    tokens_R = ops.sample_tokens(logits_RV, _sampling_tensors(logits_RV, others))
    rows_n, *columns = to_device([np.array(rows), *_columns(filtered, FILTER_DTYPES)], logits_RV.device)
    logits_nV = logits_RV[rows_n]
    drawn_n = rare_filters.sample_tokens(logits_nV, _sampling_tensors(logits_nV, filtered), FilterTensors(*columns))
    drawn_n = torch.where(tokens_R[rows_n] == NOT_FINITE, NOT_FINITE, drawn_n)
    return tokens_R.index_copy(0, rows_n, drawn_n)


def drawn_logprobs(
    ops: Ops, logits_RV: torch.Tensor, tokens_R: torch.Tensor, samples: Sequence[Sample]
) -> torch.Tensor:
    """Return log p of the tokens in the distributions that `_draw` draws them from, float64 [R]: 0 at temperature 0.

    `logits_RV` are those of `process_logits`. XTC's distribution is the one after its own draw of whether it acts.
    """
    found_R = torch.zeros(len(samples), dtype=torch.float64, device=logits_RV.device)
    plain = [row for row, s in enumerate(samples) if s.temperature > 0 and not rare_filters.act_on(s)]
    rare = [row for row, s in enumerate(samples) if s.temperature > 0 and rare_filters.act_on(s)]
    for rows in (plain, rare):
        if not rows:
            continue
        own = [samples[row] for row in rows]
        all_rows = len(rows) == len(samples)
        [rows_n] = [slice(None)] if all_rows else to_device([np.array(rows)], logits_RV.device)
        logits_nV, tokens_n = logits_RV[rows_n], tokens_R[rows_n]
        sampling = _sampling_tensors(logits_nV, own)
        if rows is plain:
            found_R[rows_n] = ops.drawn_logprobs(logits_nV, tokens_n, sampling)
        else:
            filters = FilterTensors(*to_device(_columns(own, FILTER_DTYPES), logits_nV.device))
            found_R[rows_n] = logprobs_of_weights(rare_filters.filtered_weights(logits_nV, sampling, filters), tokens_n)
    return found_R


def _sampling_tensors(logits_RV: torch.Tensor, samples: Sequence[Sample]) -> SamplingTensors:
    V = logits_RV.shape[1]
    top_ks = [V if s.top_k is None else min(s.top_k, V) for s in samples]
    both = [top_k for top_k, s in zip(top_ks, samples, strict=True) if top_k < V and s.top_p < 1]
    columns = _columns(samples, SAMPLING_DTYPES, top_k=top_ks)
    return SamplingTensors(*to_device(columns, logits_RV.device), max_top_k=max(both, default=0))


def _columns(samples: Sequence[Sample], dtypes: Mapping[str, type[np.generic]], **given: Iterable[int]) -> list[Any]:
    return [
        np.fromiter(given.get(name) or map(attrgetter(name), samples), dtype, len(samples))
        for name, dtype in dtypes.items()
    ]


def process_logits(
    ops: Ops, logits_RV: torch.Tensor, samples: Sequence[Sample], masks: Sequence[bytes | None]
) -> torch.Tensor:
    """Return the logits with bias, penalties and masks applied: a new tensor, unless no row has any."""
    logits_RV = _added(logits_RV, [s.logit_bias for s in samples])
    penalised = [(row, s.penalties) for row, s in enumerate(samples) if s.penalties is not None]
    if penalised:
        logits_RV = _penalise(logits_RV, penalised)
    logits_RV = _added(logits_RV, [s.dry for s in samples], -1.0)
    masked = [(row, mask) for row, mask in enumerate(masks) if mask is not None]
    if masked:
        words_nW = _bitmask([mask for _, mask in masked], logits_RV.shape[1])
        rows_n, bitmask_nW = to_device([np.array([row for row, _ in masked]), words_nW], logits_RV.device)
        if len(masked) == len(masks):
            return ops.apply_token_bitmask(logits_RV, bitmask_nW)
        allowed_nV = ops.apply_token_bitmask(logits_RV[rows_n], bitmask_nW)
        logits_RV = logits_RV.index_copy(0, rows_n, allowed_nV)
    return logits_RV


def _added(logits_RV: torch.Tensor, rows: Sequence[Mapping[int, float]], factor: float = 1.0) -> torch.Tensor:
    """Return the logits with `factor` times each row's number of a token added to that token's."""
    added = [(row, token, factor * each) for row, own in enumerate(rows) if own for token, each in own.items()]
    if not added:
        return logits_RV
    rows_N, tokens_N, numbers_N = zip(*added, strict=True)
    arrays = [np.array(rows_N), np.array(tokens_N), np.array(numbers_N, dtype=np.float32)]
    row_numbers, tokens, numbers = to_device(arrays, logits_RV.device)
    return logits_RV.index_put((row_numbers, tokens), numbers, accumulate=True)


def _penalise(logits_RV: torch.Tensor, penalised: Sequence[tuple[int, Penalties]]) -> torch.Tensor:
    V = logits_RV.shape[1]
    # Pairs as row * V + token. All rows are counted by one sort of what they hold, not of the vocabulary.
    outputs = [row * V + np.array(own.output, dtype=np.int64) for row, own in penalised]
    prompts = [row * V + np.array(own.prompt, dtype=np.int64) for row, own in penalised if own.repetition != 1.0]
    pairs_N, first_N, counts_N = np.unique(np.concatenate(outputs + prompts), return_index=True, return_counts=True)
    if prompts:
        num_output = sum(map(len, outputs))
        in_output = first_N < num_output
        counts_N = np.zeros_like(counts_N)
        counts_N[in_output] = np.unique(np.concatenate(outputs), return_counts=True)[1]
    rows_N, tokens_N = np.divmod(pairs_N, V)
    strengths_R3 = np.zeros((len(logits_RV), 3), dtype=np.float32)
    for row, own in penalised:
        strengths_R3[row] = own.repetition, own.frequency, own.presence
    strengths = np.ascontiguousarray(strengths_R3[rows_N].T)
    tensors = to_device([rows_N, tokens_N, counts_N.astype(np.float32), *strengths], logits_RV.device)
    return apply_penalties(logits_RV, PenaltyTensors(*tensors))


def _bitmask(masks: Sequence[bytes], vocab_size: int) -> np.ndarray:
    """Return the masks as int32 [n, ceil(V / 32)]. Tokens beyond a mask's words, as of a padded vocabulary, are not
    allowed."""
    bitmask_nW = np.zeros((len(masks), -(-vocab_size // 32)), dtype=np.int32)
    for words_W, mask in zip(bitmask_nW, masks, strict=True):
        words = np.frombuffer(mask, dtype="<i4")[: len(words_W)]
        assert words.any(), "a mask must allow some token"
        words_W[: len(words)] = words
    return bitmask_nW
