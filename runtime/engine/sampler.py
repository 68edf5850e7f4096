"""Chooses each row's next token from its logits. Every row by its own parameters, whatever its neighbours ask for.

In order: logit bias, penalties, mask; then argmax, or temperature, filters and the draw. Log-probabilities are those
of the logits as they came. A step that only wants argmax pays for nothing else.

Legend: R rows, V vocabulary, n some of the rows, W mask words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...kernels import Deferred, Ops, PenaltyTensors, SamplingTensors, apply_penalties, to_device, to_host
from ..protocol.sampling import TokenLogprob
from ..scheduler.plan import Penalties, Sample


def sample(ops: Ops, logits_RV: torch.Tensor, samples: Sequence[Sample], masks: Sequence[bytes | None]) -> torch.Tensor:
    """A token for each row of float32 logits: int64 [R], on their device. `masks` are token bitmasks as in `Row.mask`,
    each allowing some token."""
    return _choose(ops, _constrain(ops, logits_RV, samples, masks), samples)


def chosen_logprobs(
    ops: Ops, logits_RV: torch.Tensor, tokens_R: torch.Tensor, samples: Sequence[Sample]
) -> Deferred[dict[int, TokenLogprob]]:
    """By row, the log-probabilities of what was chosen there, for those that want them."""
    wanted = [row for row, s in enumerate(samples) if s.num_top_logprobs is not None]
    if not wanted:
        return dict
    [rows_n] = to_device([np.array(wanted)], logits_RV.device)
    nums_top = [samples[row].num_top_logprobs or 0 for row in wanted]
    asked = [samples[row].logprobs_of for row in wanted]
    found = list_logprobs(ops, logits_RV[rows_n], tokens_R[rows_n], nums_top, asked)
    return lambda: dict(zip(wanted, found(), strict=True))


def list_logprobs(
    ops: Ops,
    logits_RV: torch.Tensor,
    tokens_R: torch.Tensor,
    nums_top: Sequence[int],
    asked: Sequence[tuple[int, ...]],
) -> Deferred[list[TokenLogprob]]:
    """Each row's log-probability of its token, its `nums_top` likeliest, and those of the tokens `asked` for."""
    logprob_R, top_RM, ids_RM = ops.token_logprobs(logits_RV, tokens_R, max(nums_top))
    arriving = to_host([logprob_R, tokens_R, top_RM, ids_RM, _logprobs_of(logits_RV, tokens_R, logprob_R, asked)])

    def read() -> list[TokenLogprob]:
        logprobs, tokens, tops, ids, others = (array.tolist() for array in arriving())
        values = iter(others)
        return [
            TokenLogprob(logprob, token, list(zip(top[:num], ids_M[:num], strict=True)), [next(values) for _ in of])
            for logprob, token, top, ids_M, num, of in zip(logprobs, tokens, tops, ids, nums_top, asked, strict=True)
        ]

    return read


def _logprobs_of(
    logits_RV: torch.Tensor, tokens_R: torch.Tensor, logprob_R: torch.Tensor, asked: Sequence[tuple[int, ...]]
) -> torch.Tensor:
    """Row after row, those of the tokens asked for. They differ from that of the row's own token as their logits do."""
    if not any(asked):
        return logprob_R[:0]
    pairs = np.array([(row, token) for row, of in enumerate(asked) for token in of])
    rows, tokens = to_device([pairs[:, 0], pairs[:, 1]], logits_RV.device)
    own_R = logits_RV.gather(1, tokens_R[:, None]).squeeze(1)
    return logits_RV[rows, tokens] - own_R[rows] + logprob_R[rows]


def _choose(ops: Ops, logits_RV: torch.Tensor, samples: Sequence[Sample]) -> torch.Tensor:
    if all(s.temperature == 0 for s in samples):
        return logits_RV.argmax(dim=-1)
    V = logits_RV.shape[1]
    top_ks = [V if s.top_k is None else min(s.top_k, V) for s in samples]
    both = [top_k for top_k, s in zip(top_ks, samples, strict=True) if top_k < V and s.top_p < 1]
    columns = to_device(
        [
            np.array([s.temperature for s in samples], dtype=np.float32),
            np.array(top_ks, dtype=np.int64),
            np.array([s.top_p for s in samples], dtype=np.float64),
            np.array([s.min_p for s in samples], dtype=np.float32),
            np.array([s.draw for s in samples], dtype=np.int64),
        ],
        logits_RV.device,
    )
    return ops.sample_tokens(logits_RV, SamplingTensors(*columns, max_top_k=max(both, default=0)))


def _constrain(
    ops: Ops, logits_RV: torch.Tensor, samples: Sequence[Sample], masks: Sequence[bytes | None]
) -> torch.Tensor:
    """The logits with bias, penalties and masks applied: a new tensor, unless no row has any."""
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
    """int32 [n, ceil(V / 32)]. Tokens beyond a mask's words (a vocabulary padded in the checkpoint) are not allowed."""
    bitmask_nW = np.zeros((len(masks), -(-vocab_size // 32)), dtype=np.int32)
    for words_W, mask in zip(bitmask_nW, masks, strict=True):
        words = np.frombuffer(mask, dtype="<i4")[: len(words_W)]
        assert words.any(), "a mask must allow some token"
        words_W[: len(words)] = words
    return bitmask_nW
