"""Log-probabilities: of sampled tokens, and of given tokens at many positions without holding all their logits at once.

Legend: R rows, V vocabulary, n some of the rows, O positions scored, E hidden size, M alternatives, N (row, token)
pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from msgspec.structs import replace

from ...kernels import Deferred, Ops, to_device, to_host
from ..protocol.sampling import TokenDetails, TokenLogprob, forced_details
from ..scheduler.plan import Sample, Score
from .sampler import drawn_logprobs, process_logits

_NUM_LISTED = 5  # tensors that make a TokenLogprob
_MAX_LOGITS = 1 << 24  # scored at once: 64 MiB of float32


def chosen_logprobs(
    ops: Ops,
    logits_RV: torch.Tensor,
    tokens_R: torch.Tensor,
    samples: Sequence[Sample],
    masks: Sequence[bytes | None],
) -> Deferred[dict[int, TokenLogprob]]:
    """Return the log-probabilities of the sampled tokens by row, for the rows that ask for them.

    `samples` and `masks` are those of `sample`.
    """
    wanted = [row for row, s in enumerate(samples) if s.num_top_logprobs is not None]
    if not wanted:
        return dict
    tokens_R = tokens_R.clamp_min(0)  # those of rows that are not finite are dropped
    found: list[tuple[list[int], Deferred[list[TokenLogprob]]]] = []
    detailed = [row for row in wanted if samples[row].logprob_details]
    plain = [row for row in detailed if samples[row].is_plain_draw and _is_own(samples[row], masks[row])]
    ruled = [row for row in detailed if row not in plain] if plain else detailed
    for rows in ([row for row in wanted if not samples[row].logprob_details] if detailed else wanted, plain, ruled):
        if not rows:
            continue
        all_rows = len(rows) == len(logits_RV)
        [rows_n] = [slice(None)] if all_rows else to_device([np.array(rows)], logits_RV.device)
        nums_top = [samples[row].num_top_logprobs or 0 for row in rows]
        extra_tokens = [samples[row].logprobs_of for row in rows]
        arguments = ops, logits_RV[rows_n], tokens_R[rows_n], nums_top, extra_tokens
        if rows is plain:
            found.append((rows, _plain_details(*arguments)))
        elif rows is ruled:
            own_samples, own_masks = [samples[row] for row in rows], [masks[row] for row in rows]
            found.append((rows, _detailed_logprobs(*arguments, own_samples, own_masks)))
        else:
            found.append((rows, list_logprobs(*arguments)))
    return lambda: {row: entry for rows, read in found for row, entry in zip(rows, read(), strict=True)}


def list_logprobs(
    ops: Ops,
    logits_RV: torch.Tensor,
    tokens_R: torch.Tensor,
    nums_top: Sequence[int],
    extra_tokens: Sequence[tuple[int, ...]],
) -> Deferred[list[TokenLogprob]]:
    """Return each row's log-probability of its token, of its `nums_top` likeliest, and of `extra_tokens`."""
    pending = to_host(_listed(ops, logits_RV, tokens_R, nums_top, extra_tokens)[:_NUM_LISTED])
    return lambda: _entries(pending(), nums_top, extra_tokens)


def _listed(
    ops: Ops,
    logits_RV: torch.Tensor,
    tokens_R: torch.Tensor,
    nums_top: Sequence[int],
    extra_tokens: Sequence[tuple[int, ...]],
) -> list[torch.Tensor]:
    """Return log p of the tokens [R], the tokens [R], log p of the likeliest [R, M], these [R, M], log p of the extra
    tokens [N]; and the entropies [R], the logarithms of the sums of exponentials [R]."""
    num_top = min(max(nums_top), logits_RV.shape[1])
    ids_RM = logits_RV.topk(num_top, dim=-1).indices if num_top else tokens_R[:, None][:, :0]
    log_sum_R, entropy_R = ops.log_sums(logits_RV)
    logprob_R, top_RM, others_N = _logprobs_of(logits_RV, log_sum_R, tokens_R, ids_RM, extra_tokens)
    return [logprob_R, tokens_R, top_RM, ids_RM, others_N, entropy_R, log_sum_R]


def _logprobs_of(
    logits_RV: torch.Tensor,
    log_sum_R: torch.Tensor,
    tokens_R: torch.Tensor,
    ids_RM: torch.Tensor,
    extra_tokens: Sequence[tuple[int, ...]],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log p of the tokens [R], of the ids [R, M], and of each row's extra tokens, row after row [N]."""
    logprob_RM = logits_RV.gather(1, torch.cat((tokens_R[:, None], ids_RM), 1)) - log_sum_R[:, None]
    if not any(extra_tokens):
        return logprob_RM[:, 0], logprob_RM[:, 1:], log_sum_R[:0]
    pairs = np.array([(row, token) for row, tokens in enumerate(extra_tokens) for token in tokens])
    rows_N, tokens_N = to_device([pairs[:, 0], pairs[:, 1]], logits_RV.device)
    return logprob_RM[:, 0], logprob_RM[:, 1:], logits_RV[rows_N, tokens_N] - log_sum_R[rows_N]


def _entries(
    listed: Sequence[np.ndarray], nums_top: Sequence[int], extra_tokens: Sequence[tuple[int, ...]]
) -> list[TokenLogprob]:
    logprobs, tokens, tops, ids, others = (array.tolist() for array in listed)
    values = iter(others)
    return [
        TokenLogprob(logprob, token, list(zip(top[:num], ids_M[:num], strict=True)), [next(values) for _ in extra])
        for logprob, token, top, ids_M, num, extra in zip(
            logprobs, tokens, tops, ids, nums_top, extra_tokens, strict=True
        )
    ]


def _is_own(sample: Sample, mask: bytes | None) -> bool:
    """Return whether a row is drawn from the model's own logits, but for the temperature and filters."""
    return mask is None and not (sample.logit_bias or sample.dry) and sample.penalties is None


def _plain_details(
    ops: Ops,
    logits_RV: torch.Tensor,
    tokens_R: torch.Tensor,
    nums_top: Sequence[int],
    extra_tokens: Sequence[tuple[int, ...]],
) -> Deferred[list[TokenLogprob]]:
    """Return what `_detailed_logprobs` does for rows that are drawn from the model's own distribution."""
    pending = to_host(_listed(ops, logits_RV, tokens_R, nums_top, extra_tokens)[: _NUM_LISTED + 1])

    def read() -> list[TokenLogprob]:
        *arrays, entropies = pending()
        return [
            replace(
                entry,
                details=TokenDetails(
                    masked_logprob=entry.logprob,
                    allowed_mass=1.0,
                    num_allowed=None,
                    entropy=entropy,
                    origin="sampled",
                    top=[logprob for logprob, _ in entry.top],
                    of=entry.of,
                    drawn_logprob=entry.logprob,
                ),
            )
            for entry, entropy in zip(_entries(arrays, nums_top, extra_tokens), entropies.tolist(), strict=True)
        ]

    return read


def _detailed_logprobs(
    ops: Ops,
    logits_RV: torch.Tensor,
    tokens_R: torch.Tensor,
    nums_top: Sequence[int],
    extra_tokens: Sequence[tuple[int, ...]],
    samples: Sequence[Sample],
    masks: Sequence[bytes | None],
) -> Deferred[list[TokenLogprob]]:
    """Return what `list_logprobs` does, with TokenDetails."""
    *listed, log_sum_R = _listed(ops, logits_RV, tokens_R, nums_top, extra_tokens)
    masked_RV = process_logits(ops, logits_RV, samples, masks)
    masked_sum_R, _ = ops.log_sums(masked_RV)
    columns = _logprobs_of(masked_RV, masked_sum_R, tokens_R, listed[3], extra_tokens)
    allowed_sum_R = log_sum_R
    if any(mask is not None for mask in masks):
        allowed_sum_R, _ = ops.log_sums(logits_RV.masked_fill(masked_RV == -torch.inf, -torch.inf))
    mass_R = (allowed_sum_R - log_sum_R).exp()
    pending = to_host([*listed, *columns, mass_R, drawn_logprobs(ops, masked_RV, tokens_R, samples)])

    def read() -> list[TokenLogprob]:
        arrays = pending()
        entropies, own, tops, others, masses, drawn = (array.tolist() for array in arrays[_NUM_LISTED:])
        values = iter(others)
        entries = []
        for row, (entry, extra) in enumerate(
            zip(_entries(arrays[:_NUM_LISTED], nums_top, extra_tokens), extra_tokens, strict=True)
        ):
            mask, sample = masks[row], samples[row]
            is_own = _is_own(sample, mask)
            details = TokenDetails(
                masked_logprob=entry.logprob if is_own else own[row],
                allowed_mass=1.0 if mask is None else min(1.0, masses[row]),
                num_allowed=None if mask is None else int.from_bytes(mask, "little").bit_count(),
                entropy=entropies[row],
                origin="sampled",
                top=[_finite(value) for value in tops[row][: nums_top[row]]],
                of=[_finite(next(values)) for _ in extra],
                drawn_logprob=entry.logprob if is_own and sample.is_plain_draw else drawn[row],
            )
            if is_own:  # without the rounding of a second sum
                details = replace(details, top=[logprob for logprob, _ in entry.top], of=entry.of)
            entries.append(replace(entry, details=details))
        return entries

    return read


def _finite(logprob: float) -> float | None:
    return logprob if logprob > -np.inf else None


def score(
    ops: Ops,
    hidden_OE: torch.Tensor,
    scores: Sequence[Score],
    head: Callable[[torch.Tensor], torch.Tensor],
    vocab_size: int,
) -> Deferred[list[list[TokenLogprob]]]:
    """Score the targets of each Score: one list per Score, an entry per target.

    `hidden_OE` holds the scores' positions, concatenated in order; `head` maps hidden states to float32 logits.
    """
    [targets] = to_device([np.array([token for s in scores for token in s.targets])], hidden_OE.device)
    nums_top = [s.num_top for s in scores for _ in s.targets]
    extra_tokens = [s.of for s in scores for _ in s.targets]
    size = max(1, _MAX_LOGITS // vocab_size)
    parts = [slice(start, start + size) for start in range(0, len(nums_top), size)]
    detailed = [s.details for s in scores for _ in s.targets]
    found = [
        _scored(ops, head(hidden_OE[part]), targets[part], nums_top[part], extra_tokens[part], detailed[part])
        for part in parts
    ]

    def read() -> list[list[TokenLogprob]]:
        entries = iter([entry for part in found for entry in part()])
        return [[next(entries) for _ in s.targets] for s in scores]

    return read


def _scored(
    ops: Ops,
    logits_RV: torch.Tensor,
    tokens_R: torch.Tensor,
    nums_top: Sequence[int],
    extra_tokens: Sequence[tuple[int, ...]],
    detailed: Sequence[bool],
) -> Deferred[list[TokenLogprob]]:
    """Return what `list_logprobs` does, with the details of tokens that had to come where `detailed`."""
    pending = to_host(_listed(ops, logits_RV, tokens_R, nums_top, extra_tokens)[: _NUM_LISTED + 1])

    def read() -> list[TokenLogprob]:
        *arrays, entropies = pending()
        entries = _entries(arrays, nums_top, extra_tokens)
        return [
            replace(entry, details=forced_details(entry, extra, entropy)) if wanted else entry
            for entry, extra, entropy, wanted in zip(entries, extra_tokens, entropies.tolist(), detailed, strict=True)
        ]

    return read
