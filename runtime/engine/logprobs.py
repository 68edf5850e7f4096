"""Log-probabilities: of sampled tokens, and of given tokens at many positions without holding all their logits at once.

Legend: R rows, V vocabulary, n some of the rows, O positions scored, E hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ...kernels import Deferred, Ops, to_device, to_host
from ..protocol.sampling import TokenLogprob
from ..scheduler.plan import Sample, Score

_MAX_LOGITS = 1 << 24  # scored at once: 64 MiB of float32


def chosen_logprobs(
    ops: Ops, logits_RV: torch.Tensor, tokens_R: torch.Tensor, samples: Sequence[Sample]
) -> Deferred[dict[int, TokenLogprob]]:
    """Return the log-probabilities of the sampled tokens by row, for the rows that ask for them."""
    wanted = [row for row, s in enumerate(samples) if s.num_top_logprobs is not None]
    if not wanted:
        return dict
    [rows_n] = to_device([np.array(wanted)], logits_RV.device)
    nums_top = [samples[row].num_top_logprobs or 0 for row in wanted]
    extra_tokens = [samples[row].logprobs_of for row in wanted]
    found = list_logprobs(ops, logits_RV[rows_n], tokens_R[rows_n], nums_top, extra_tokens)
    return lambda: dict(zip(wanted, found(), strict=True))


def list_logprobs(
    ops: Ops,
    logits_RV: torch.Tensor,
    tokens_R: torch.Tensor,
    nums_top: Sequence[int],
    extra_tokens: Sequence[tuple[int, ...]],
) -> Deferred[list[TokenLogprob]]:
    """Return each row's log-probability of its token, of its `nums_top` likeliest, and of `extra_tokens`."""
    logprob_R, top_RM, ids_RM = ops.token_logprobs(logits_RV, tokens_R, max(nums_top))
    pending = to_host([logprob_R, tokens_R, top_RM, ids_RM, _logprobs_of(logits_RV, tokens_R, logprob_R, extra_tokens)])

    def read() -> list[TokenLogprob]:
        logprobs, tokens, tops, ids, others = (array.tolist() for array in pending())
        values = iter(others)
        return [
            TokenLogprob(logprob, token, list(zip(top[:num], ids_M[:num], strict=True)), [next(values) for _ in extra])
            for logprob, token, top, ids_M, num, extra in zip(
                logprobs, tokens, tops, ids, nums_top, extra_tokens, strict=True
            )
        ]

    return read


def _logprobs_of(
    logits_RV: torch.Tensor, tokens_R: torch.Tensor, logprob_R: torch.Tensor, extra_tokens: Sequence[tuple[int, ...]]
) -> torch.Tensor:
    """Return the log-probabilities of `extra_tokens`, row after row. They differ from that of the row's own token
    as their logits do."""
    if not any(extra_tokens):
        return logprob_R[:0]
    pairs = np.array([(row, token) for row, tokens in enumerate(extra_tokens) for token in tokens])
    rows, tokens = to_device([pairs[:, 0], pairs[:, 1]], logits_RV.device)
    own_R = logits_RV.gather(1, tokens_R[:, None]).squeeze(1)
    return logits_RV[rows, tokens] - own_R[rows] + logprob_R[rows]


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
    found = [
        list_logprobs(ops, head(hidden_OE[part]), targets[part], nums_top[part], extra_tokens[part]) for part in parts
    ]

    def read() -> list[list[TokenLogprob]]:
        entries = iter([entry for part in found for entry in part()])
        return [[next(entries) for _ in s.targets] for s in scores]

    return read
