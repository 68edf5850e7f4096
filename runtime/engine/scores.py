"""Log-probabilities of given tokens at many positions, without ever holding many positions' logits.

Legend: O positions scored, E hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...kernels import Ops
from ..protocol.sampling import TokenLogprob
from ..scheduler.plan import Score
from .sampler import list_logprobs

_MAX_LOGITS = 1 << 24  # at once: 64 MiB of float32


def score(
    ops: Ops,
    hidden_OE: torch.Tensor,
    scores: Sequence[Score],
    head: Callable[[torch.Tensor], torch.Tensor],
    vocab_size: int,
) -> list[list[TokenLogprob]]:
    """One list per Score, an entry per target. `hidden_OE` holds the scores' positions, concatenated in order;
    `head` makes float32 logits of hidden states."""
    targets = torch.tensor([token for s in scores for token in s.targets], device=hidden_OE.device)
    nums_top = [s.num_top for s in scores for _ in s.targets]
    asked = [s.of for s in scores for _ in s.targets]
    size = max(1, _MAX_LOGITS // vocab_size)
    found: list[TokenLogprob] = []
    for start in range(0, len(nums_top), size):
        part = slice(start, start + size)
        found += list_logprobs(ops, head(hidden_OE[part]), targets[part], nums_top[part], asked[part])
    entries = iter(found)
    return [[next(entries) for _ in s.targets] for s in scores]
