"""Copies of KV pages from and to the host. Judge: pages copied one by one, and an engine that copies at once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.engine.kv_pool import KvMemory, KvPool, page_runs
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.scheduler.plan import ForwardPlan, PageCopy, Row, Sample

NUM_PAGES, NUM_HOST_PAGES = 8, 6


class LateQueue:
    """A queue that copies as late as it may: when kernels wait for it."""

    def __init__(self) -> None:
        self.begun = 0
        self._copies: list[tuple[int | None, torch.Tensor, torch.Tensor]] = []  # a layer's mark, or a copy

    def begin(self) -> None:
        self.begun += 1

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self._copies.append((None, source, target))

    def mark(self, layer: int) -> None:
        self._copies.append((layer, torch.empty(0), torch.empty(0)))

    def wait(self, layer: int) -> None:
        marks = [place for place, (mark, _, _) in enumerate(self._copies) if mark == layer]
        for mark, source, target in self._copies[: marks[-1] + 1] if marks else []:
            if mark is None:
                target.copy_(source)
        del self._copies[: marks[-1] + 1 if marks else 0]


def random_copies(draw: random.Random) -> list[PageCopy]:
    """Copies whose pages often follow each other, within and between device and host."""
    copies: list[PageCopy] = []
    while len(copies) < 12:
        source, target = (draw.randrange(NUM_PAGES + NUM_HOST_PAGES) for _ in range(2))
        for step in range(draw.randint(1, 4)):
            if max(source, target) + step < NUM_PAGES + NUM_HOST_PAGES:
                copies.append(PageCopy(source + step, target + step, draw.choice([16, 16, 16, 5])))
    return copies


@pytest.mark.parametrize("seed", range(40))
def test_runs_of_pages_have_the_effect_of_their_copies(checkpoint: Path, seed: int) -> None:
    config, cpu = read_config(checkpoint), torch.device("cpu")
    memory, host = (KvMemory(config, num, device=cpu, dtype=torch.float32) for num in (NUM_PAGES, NUM_HOST_PAGES))
    for part in (memory.k_LSKD, memory.v_LSKD, host.k_LSKD, host.v_LSKD):
        part.normal_()
    judge = [torch.cat(parts, dim=1) for parts in zip(_parts(memory), _parts(host), strict=True)]
    queue = LateQueue() if seed % 2 else None
    pool, copies = KvPool(memory, host, None, queue), random_copies(random.Random(seed))
    for batch in (copies[:5], copies[5:]):
        pool.copy(batch)
    for copy in copies:
        for pages in judge:
            source, target = copy.source * 16, copy.target * 16
            pages[:, target : target + copy.num_tokens] = pages[:, source : source + copy.num_tokens].clone()
    pool.settle()
    for pages, parts in zip(judge, zip(_parts(memory), _parts(host), strict=True), strict=True):
        assert torch.equal(pages, torch.cat(parts, dim=1))


def _parts(memory: KvMemory) -> tuple[torch.Tensor, torch.Tensor]:
    return memory.k_LSKD, memory.v_LSKD


def test_pages_that_follow_each_other_are_one_copy() -> None:
    copies = [PageCopy(4 + i, 100 + i, 16) for i in range(7)] + [PageCopy(11, 107, 9), PageCopy(12, 108, 16)]
    assert page_runs(copies, 50) == [(4, 100, 8, 9), (12, 108, 1, 16)]
    assert len(page_runs([PageCopy(48 + i, i, 16) for i in range(4)], 50)) == 2  # from the device, then from the host


def test_a_step_waits_for_the_layers_that_it_reads(checkpoint: Path) -> None:
    """A prompt's pages go to the host and come back elsewhere, in steps that also compute."""

    def engine(queue: LateQueue | None) -> ForwardEngine:
        config = CoreConfig(device="cpu", dtype="float32", num_pages=8, host_kv_memory=0.001, kernels="reference")
        made = build_engine(config, checkpoint)
        made._runner.pool._queue = queue
        return made

    queue, draw = LateQueue(), random.Random(0)
    sample = Sample(temperature=0.0, draw=0, num_top_logprobs=3)
    prompt, other = (draw.choices(range(150), k=40) for _ in range(2))
    plans = [
        ([], Row(rid="a", tokens=prompt, first_position=0, pages=[0, 1, 2], sample=sample)),
        ([PageCopy(i, 8 + i, 16) for i in range(3)], Row(rid="b", tokens=other, first_position=0, pages=[0, 1, 2])),
        (
            [PageCopy(8 + i, 4 + i, 16) for i in range(3)],
            Row(rid="a", tokens=[7], first_position=40, pages=[4, 5, 6], sample=sample),
        ),
    ]
    results = []
    for made in (engine(queue), engine(None)):
        steps = [made.run(ForwardPlan(step=0, copies=copies, rows=[row])).rows for copies, row in plans]
        results.append([(result.tokens, result.logprobs) for rows in steps for result in rows])
    assert queue.begun == 2
    assert results[0] == results[1]
