"""Chooses each row's next token from its logits. Every row by its own parameters, whatever its neighbours ask for.

In order: logit bias, penalties, mask; then argmax, or temperature, filters and the draw. Log-probabilities are those
of the logits as they came. A step that only wants argmax pays for nothing else.

Legend: R rows, V vocabulary, n some of the rows, W mask words.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ... import kernels
from ..protocol.sampling import TokenLogprob
from ..scheduler.plan import Penalties, Sample


def sample(logits_RV: torch.Tensor, samples: Sequence[Sample], masks: Sequence[bytes | None]) -> torch.Tensor:
    """A token for each row of float32 logits: int64 [R], on their device. `masks` are token bitmasks as in `Row.mask`,
    each allowing some token."""
    return _choose(_constrain(logits_RV, samples, masks), samples)


def chosen_logprobs(
    logits_RV: torch.Tensor, tokens_R: torch.Tensor, samples: Sequence[Sample], rows: Sequence[int]
) -> dict[int, TokenLogprob]:
    """By row, the log-probabilities of what was chosen there, for those of `rows` that want them."""
    wanted = [row for row in rows if samples[row].num_top_logprobs is not None]
    if not wanted:
        return {}
    rows_n = torch.tensor(wanted, device=logits_RV.device)
    nums_top = [samples[row].num_top_logprobs or 0 for row in wanted]
    asked = [samples[row].logprobs_of for row in wanted]
    found = list_logprobs(logits_RV[rows_n], tokens_R[rows_n], nums_top, asked)
    return dict(zip(wanted, found, strict=True))


def list_logprobs(
    logits_RV: torch.Tensor, tokens_R: torch.Tensor, nums_top: Sequence[int], asked: Sequence[tuple[int, ...]]
) -> list[TokenLogprob]:
    """Each row's log-probability of its token, its `nums_top` likeliest, and those of the tokens `asked` for."""
    logprob_R, top_RM, ids_RM = kernels.token_logprobs(logits_RV, tokens_R, max(nums_top))
    columns = zip(
        logprob_R.tolist(),
        tokens_R.tolist(),
        top_RM.tolist(),
        ids_RM.tolist(),
        nums_top,
        _logprobs_of(logits_RV, tokens_R, logprob_R, asked),
        strict=True,
    )
    return [
        TokenLogprob(logprob, token, list(zip(top[:num], ids[:num], strict=True)), of)
        for logprob, token, top, ids, num, of in columns
    ]


def _logprobs_of(
    logits_RV: torch.Tensor, tokens_R: torch.Tensor, logprob_R: torch.Tensor, asked: Sequence[tuple[int, ...]]
) -> list[list[float]]:
    """A token's log-probability differs from the row's own token's as their logits do."""
    if not any(asked):
        return [[] for _ in asked]
    device = logits_RV.device
    rows = torch.tensor([row for row, of in enumerate(asked) for _ in of], device=device)
    tokens = torch.tensor([token for of in asked for token in of], device=device)
    own_R = logits_RV.gather(1, tokens_R[:, None]).squeeze(1)
    found = (logits_RV[rows, tokens] - own_R[rows] + logprob_R[rows]).tolist()
    values = iter(found)
    return [[next(values) for _ in of] for of in asked]


def _choose(logits_RV: torch.Tensor, samples: Sequence[Sample]) -> torch.Tensor:
    tokens_R = logits_RV.argmax(dim=-1)
    drawn = [row for row, s in enumerate(samples) if s.temperature > 0]
    if not drawn:
        return tokens_R
    device, V = logits_RV.device, logits_RV.shape[1]
    rows_n = torch.tensor(drawn, device=device)

    def per_row(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    weights_nV = kernels.sampling_weights(
        logits_RV if len(drawn) == len(samples) else logits_RV[rows_n],
        temperature_R=per_row([samples[row].temperature for row in drawn], torch.float32),
        top_k_R=per_row([V if (k := samples[row].top_k) is None else min(k, V) for row in drawn], torch.int64),
        top_p_R=per_row([samples[row].top_p for row in drawn], torch.float64),
        min_p_R=per_row([samples[row].min_p for row in drawn], torch.float32),
    )
    draws_n = per_row([samples[row].draw for row in drawn], torch.int64)
    return tokens_R.index_copy(0, rows_n, kernels.draw_tokens(weights_nV, draws_n))


def _constrain(logits_RV: torch.Tensor, samples: Sequence[Sample], masks: Sequence[bytes | None]) -> torch.Tensor:
    """The logits with bias, penalties and masks applied: a new tensor, unless no row has any."""
    biased = [(row, token, bias) for row, s in enumerate(samples) for token, bias in s.logit_bias.items()]
    if biased:
        rows, tokens, biases = (torch.tensor(column, device=logits_RV.device) for column in zip(*biased, strict=True))
        logits_RV = logits_RV.index_put((rows, tokens), biases.float(), accumulate=True)
    penalised = [(row, s.penalties) for row, s in enumerate(samples) if s.penalties is not None]
    if penalised:
        logits_RV = _penalise(logits_RV, penalised)
    masked = [(row, mask) for row, mask in enumerate(masks) if mask is not None]
    if masked:
        rows_n = torch.tensor([row for row, _ in masked], device=logits_RV.device)
        bitmask_nW = _bitmask([mask for _, mask in masked], logits_RV.shape[1]).to(logits_RV.device)
        allowed_nV = kernels.apply_token_bitmask(logits_RV[rows_n], bitmask_nW)
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
    tokens, counts, rows, *strengths = torch.from_numpy(np.concatenate(columns, axis=1)).to(device)
    repetition, frequency, presence = (strength.float() for strength in strengths)
    return kernels.apply_penalties(
        logits_RV,
        rows_N=rows.long(),
        tokens_N=tokens.long(),
        counts_N=counts.float(),
        repetition_N=repetition,
        frequency_N=frequency,
        presence_N=presence,
    )


def _bitmask(masks: Sequence[bytes], vocab_size: int) -> torch.Tensor:
    """int32 [n, ceil(V / 32)]. Tokens beyond a mask's words (a vocabulary padded in the checkpoint) are not allowed."""
    bitmask_nW = np.zeros((len(masks), -(-vocab_size // 32)), dtype=np.int32)
    for words_W, mask in zip(bitmask_nW, masks, strict=True):
        words = np.frombuffer(mask, dtype="<i4")[: len(words_W)]
        assert words.any(), "a mask must allow some token"
        words_W[: len(words)] = words
    return torch.from_numpy(bitmask_nW)
