"""Weights that change on several ranks: all ranks take them, or none does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ramiform.runtime.parallel.messages import DropWeights, PrepareWeights, TakeWeights, WeightsPrepared
from ramiform.runtime.parallel.rank_zero import RankZeroEngine
from ramiform.runtime.protocol.errors import ErrorInfo, RequestError, RuntimeFailed

READ = ((1, 2, 3),)


class Rank:
    """Stands for rank 0's engine and the link to the others, and notes what happens to their weights."""

    def __init__(self, answer: Callable[[], WeightsPrepared], *, refuses: bool = False) -> None:
        self.seen: list[Any] = []
        self._answer, self._refuses = answer, refuses

    def send(self, message: Any) -> None:
        self.seen.append(message)

    def receive_prepared(self) -> list[WeightsPrepared]:
        self.seen.append("answers")
        return [WeightsPrepared(READ), self._answer()]

    def prepare_weights(self, path: str) -> Any:
        self.seen.append("own")
        if self._refuses:
            raise RequestError("rank 0 refuses", param="model_path")
        return READ

    def take_weights(self) -> None:
        self.seen.append("taken")

    def drop_weights(self) -> None:
        self.seen.append("dropped")


def test_all_ranks_take_the_weights_that_all_have_prepared() -> None:
    rank: Any = Rank(lambda: WeightsPrepared(READ))
    engine = RankZeroEngine(rank, rank, None)
    assert engine.prepare_weights("new") == READ
    engine.take_weights()
    assert rank.seen == [PrepareWeights("new"), "own", "answers", TakeWeights(), "taken"]


@pytest.mark.parametrize(
    ("answer", "refuses", "reason"),
    [
        (WeightsPrepared(error=ErrorInfo.of(RequestError("no numbers", param="model_path"))), False, "no numbers"),
        (WeightsPrepared(READ), True, "rank 0 refuses"),
        (WeightsPrepared(((1, 2, 4),)), False, "changed while the ranks read it"),
    ],
    ids=["another rank", "this rank", "other files"],
)
def test_what_one_rank_refuses_all_drop(answer: WeightsPrepared, refuses: bool, reason: str) -> None:
    rank: Any = Rank(lambda: answer, refuses=refuses)
    with pytest.raises(RequestError, match=reason):
        RankZeroEngine(rank, rank, None).prepare_weights("new")
    assert rank.seen == [PrepareWeights("new"), "own", "answers", DropWeights(), "dropped"]


def test_a_rank_that_dies_while_it_reads_ends_the_update() -> None:
    def die() -> WeightsPrepared:
        raise RuntimeFailed("rank 1 was killed")

    rank: Any = Rank(die)
    with pytest.raises(RuntimeFailed, match="rank 1 was killed"):
        RankZeroEngine(rank, rank, None).prepare_weights("new")
    assert TakeWeights() not in rank.seen
