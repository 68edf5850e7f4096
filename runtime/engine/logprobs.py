"""Log-probabilities of given tokens at many positions, without ever holding many positions' logits.

Legend: O positions scored, E hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ...kernels import Deferred, Ops, to_device
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
) -> Deferred[list[list[TokenLogprob]]]:
    """One list per Score, an entry per target. `hidden_OE` holds the scores' positions, concatenated in order;
    `head` makes float32 logits of hidden states."""
    [targets] = to_device([np.array([token for s in scores for token in s.targets])], hidden_OE.device)
    nums_top = [s.num_top for s in scores for _ in s.targets]
    asked = [s.of for s in scores for _ in s.targets]
    size = max(1, _MAX_LOGITS // vocab_size)
    parts = [slice(start, start + size) for start in range(0, len(nums_top), size)]
    found = [list_logprobs(ops, head(hidden_OE[part]), targets[part], nums_top[part], asked[part]) for part in parts]

    def read() -> list[list[TokenLogprob]]:
        entries = iter([entry for part in found for entry in part()])
        return [[next(entries) for _ in s.targets] for s in scores]

    return read
