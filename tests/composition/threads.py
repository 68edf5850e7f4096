"""Ranks as threads of one process: a group that meets in memory, and an engine made of several ranks' engines.

The ranks' tensors are exchanged by hand, in their order, so that sums are the same in every run.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from ramiform.runtime.engine import EngineInfo, ForwardEngine, build_engine
from ramiform.runtime.engine.build import DraftSourceFactory
from ramiform.runtime.engine.draft_source import DraftSource
from ramiform.runtime.engine.in_flight_step import InFlightStep
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.load import load_embedding_and_head
from ramiform.runtime.models.parallel.group import Group, WaitSent, is_rank_zero, tree_sum
from ramiform.runtime.models.parallel.shard import Shard, shard_of
from ramiform.runtime.models.parallel.stage import Stage, stage_of
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.parallel.messages import without_pixels
from ramiform.runtime.parallel.worker import CaptureOnlySource
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.scheduler.plan import ForwardPlan, ForwardResult, SamplingPlan

T = TypeVar("T")
PATIENCE = 120.0  # seconds until ranks that ask different things of each other are told so


class Meeting:
    """Where `size` threads exchange what they have."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=PATIENCE)
        self._brought: list[torch.Tensor] = [torch.empty(0)] * size

    def exchange(self, rank: int, x: torch.Tensor) -> list[torch.Tensor]:
        self._brought[rank] = x
        self._barrier.wait()
        brought = list(self._brought)
        assert len({(part.shape, part.dtype) for part in brought}) == 1, "ranks ask different things of each other"
        self._barrier.wait()
        return brought

    def leave(self) -> None:
        self._barrier.abort()


@dataclass(frozen=True)
class ThreadGroup:
    shard: Shard
    stage: Stage
    meeting: Meeting  # of the ranks of the stage
    everybody: Meeting
    mail: dict[tuple[int, int, int], queue.Queue[torch.Tensor]]  # of rank, from one stage to another

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return tree_sum(self.meeting.exchange(self.shard.rank, x))

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.meeting.exchange(self.shard.rank, x))

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        return self.everybody.exchange(number(self), x)[0].clone()

    def least(self, value: int) -> int:
        return int(min(self.everybody.exchange(number(self), torch.tensor(value))))

    def send(self, x: torch.Tensor, stage: int) -> WaitSent:
        self.mail[self.shard.rank, self.stage.index, stage].put(x)
        return lambda: None

    def receive(self, x: torch.Tensor, stage: int) -> torch.Tensor:
        come = self.mail[self.shard.rank, stage, self.stage.index].get(timeout=PATIENCE)
        assert (come.shape, come.dtype) == (x.shape, x.dtype), "stages ask different things of each other"
        return come

    def leave(self) -> None:
        """Nobody waits for the one that failed."""
        self.meeting.leave()
        self.everybody.leave()


def number(group: Group) -> int:
    """Global rank."""
    return group.stage.index * group.shard.size + group.shard.rank


def groups(
    path: Path, size: int, *, stages: int = 1, ordered: bool = False, whole_experts: bool = False
) -> list[ThreadGroup]:
    """Groups of the model in directory `path`, one per rank; `size` ranks in each stage."""
    config, everybody = read_config(path), Meeting(size * stages)
    ways = itertools.product(range(size), range(stages), range(stages))
    mail: dict[tuple[int, int, int], queue.Queue[torch.Tensor]] = {way: queue.Queue() for way in ways}
    made = []
    for index in range(stages):
        stage, meeting = stage_of(config, index=index, size=stages), Meeting(size)
        for rank in range(size):
            shard = shard_of(config, rank=rank, size=size, ordered=ordered, whole_experts=whole_experts)
            made.append(ThreadGroup(shard, stage, meeting, everybody, mail))
    return made


def on_each(groups: Sequence[ThreadGroup], do: Callable[[Group], T]) -> list[T]:
    """Results of `do` on each rank, run at the same time."""

    def run(group: ThreadGroup) -> T:
        try:
            return do(group)
        except BaseException:
            for one in groups:
                one.leave()
            raise

    with ThreadPoolExecutor(len(groups)) as pool:
        futures = [pool.submit(run, group) for group in groups]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError | queue.Empty):
            raise error
    return [future.result() for future in futures]


class RanksEngine:
    """An engine of several ranks: results and the draft source are rank 0's."""

    def __init__(
        self,
        config: CoreConfig,
        path: Path,
        size: int,
        make_source: DraftSourceFactory | None = None,
        *,
        stages: int = 1,
    ) -> None:
        self._groups = groups(path, size, stages=stages, ordered=config.deterministic)
        captured: list[tuple[int, ...]] = []
        known = threading.Event()

        def source(target: Decoder, *, num_pages: int, num_host_pages: int) -> DraftSource | None:
            whole = load_embedding_and_head(path, device=target.device, dtype=target.dtype)
            made = (
                None if make_source is None else make_source(whole, num_pages=num_pages, num_host_pages=num_host_pages)
            )
            captured.append(() if made is None else made.captures)
            known.set()
            return made

        def stand_in(target: Decoder, *, num_pages: int, num_host_pages: int) -> DraftSource | None:
            assert known.wait(PATIENCE)
            return CaptureOnlySource(captured[0]) if captured[0] else None

        def build(group: Group) -> ForwardEngine:
            return build_engine(config, path, None, source if is_rank_zero(group) else stand_in, group)

        self.engines = on_each(self._groups, build)

    @property
    def info(self) -> EngineInfo:
        return self.engines[0].info

    def launch(self, plan: ForwardPlan) -> RanksLaunched:
        other = without_pixels(plan)
        launched = on_each(
            self._groups, lambda group: self.engines[number(group)].launch(plan if is_rank_zero(group) else other)
        )
        return RanksLaunched(self._groups, launched)

    def run(self, plan: ForwardPlan) -> ForwardResult:
        return self.launch(plan).wait()


@dataclass(frozen=True)
class RanksLaunched:
    """A step on all ranks; its result is rank 0's."""

    groups: Sequence[ThreadGroup]
    launched: Sequence[InFlightStep]

    def sample(self, sampling: SamplingPlan) -> None:
        on_each(self.groups, lambda group: self.launched[number(group)].sample(sampling))

    def wait(self) -> ForwardResult:
        return self.launched[0].wait()
