"""An adapter on its way to the other ranks, in messages of bounded size."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ramiform.runtime.models.lora.peft import AdapterWeights
from ramiform.runtime.parallel import rank_zero
from ramiform.runtime.parallel.messages import PutAdapter
from ramiform.runtime.parallel.rank_zero import RankZeroEngine


class Recorder:
    """Stands for rank 0's engine and the link to the other ranks."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def load_adapter(self, number: int, weights: AdapterWeights) -> None:
        pass

    def send(self, message: Any) -> None:
        self.sent.append(message)


def test_an_adapter_travels_in_parts_that_make_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero, "_ADAPTER_PART_BYTES", 1000)
    weights = AdapterWeights(
        4, {(1, "o"): (torch.randn(4, 96), torch.randn(4, 64)), (0, "qkv"): (torch.ones(12, 9), torch.ones(4, 9))}
    )
    ranks: Any = Recorder()
    RankZeroEngine(ranks, ranks, None).load_adapter(3, weights)
    assert all(isinstance(message, PutAdapter) and len(message.data) <= 1000 for message in ranks.sent)
    assert [message.is_last for message in ranks.sent] == [False] * (len(ranks.sent) - 1) + [True]
    assert len(ranks.sent) > 2
    got = AdapterWeights.from_bytes(b"".join(message.data for message in ranks.sent), ranks.sent[0].rank)
    assert (got.rank, got.digest) == (weights.rank, weights.digest)
