"""Batches of groups in flight, with runs of drawn length. Judge: the bounds, counted here from what ran when."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Iterator

import pytest

from ramiform.lang.rollouts.in_flight import GroupsInFlight


class Runs:
    """Runs of drawn lengths. Notes how many are in flight, and the batches handed over before each began."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.num_batches = 0
        self.began: dict[tuple[int, int], int] = {}  # the batches that were handed over when a run began
        self.num_running = 0
        self.most_running = 0

    async def run(self, number: int, example: str, run: int) -> str:
        self.began[number, run] = self.num_batches
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        for _ in range(self.draw.choice((1, 2, 3, 60))):
            await asyncio.sleep(0)
        self.num_running -= 1
        return f"{example}.{run}"


@pytest.mark.parametrize("seed", range(25))
def test_batches_are_whole_bounded_in_age_and_lose_nothing(seed: int) -> None:
    draw = random.Random(seed)
    num_examples, group, batch = draw.randrange(1, 30), draw.randrange(1, 4), draw.randrange(1, 5)
    staleness, concurrency = draw.randrange(4), draw.randrange(1, 20)
    runs = Runs(seed)
    examples = (str(number) for number in range(num_examples))
    in_flight = GroupsInFlight(
        examples, runs.run, group=group, batch=batch, max_staleness=staleness, concurrency=concurrency
    )
    seen: list[int] = []

    async def consume() -> None:
        async for found in in_flight.batches():
            numbers = [int(example) for example, _ in found]
            assert numbers == sorted(numbers)
            assert len(found) == min(batch, num_examples - len(seen))
            for example, results in found:
                assert results == [f"{example}.{run}" for run in range(group)]
                # The weights that the first run may have begun with: one change for each batch before this one.
                assert min(runs.began[int(example), run] for run in range(group)) >= runs.num_batches - staleness
            seen.extend(numbers)
            for _ in range(draw.randrange(30)):
                await asyncio.sleep(0)  # the trainer's step
            runs.num_batches += 1

    asyncio.run(asyncio.wait_for(consume(), 30))
    assert sorted(seen) == list(range(num_examples))
    assert runs.most_running <= concurrency


def test_a_short_group_overtakes_a_long_one_and_runs_go_on_during_a_step() -> None:
    async def consume() -> None:
        tasks = asyncio.all_tasks()
        gates = {number: asyncio.Event() for number in range(8)}
        begun: list[int] = []

        async def run(number: int, example: int, run: int) -> int:
            begun.append(number)
            await gates[number].wait()
            return number

        in_flight = GroupsInFlight(itertools.count(), run, group=1, batch=1, max_staleness=2, concurrency=9)
        async with contextlib.aclosing(in_flight.batches()) as found:
            gates[1].set()
            assert await anext(found) == [(1, [1])]
            assert begun == [0, 1, 2]
            gates[3].set()
            gates[4].set()
            following = asyncio.ensure_future(anext(found))
            for _ in range(50):
                await asyncio.sleep(0)
            # 0 and 2 are due by the third batch: the second is one of them, though 3 has ended.
            assert begun == [0, 1, 2, 3]
            assert not following.done()
            gates[2].set()
            assert await following == [(2, [2])]
            following = asyncio.ensure_future(anext(found))
            for _ in range(50):
                await asyncio.sleep(0)
            assert begun == [0, 1, 2, 3, 4]
            assert not following.done()
            gates[0].set()
            assert await following == [(0, [0])]
        assert asyncio.all_tasks() == tasks  # closing it ended the runs

    asyncio.run(asyncio.wait_for(consume(), 30))


def test_errors_of_runs_and_examples_are_raised() -> None:
    async def run(number: int, example: int, run: int) -> int:
        await asyncio.sleep(0)
        if number == 2:
            raise ValueError("run 2")
        return run

    def examples() -> Iterator[int]:
        yield 0
        raise LookupError("no second example")

    async def consume(source: Iterator[int]) -> int:
        in_flight = GroupsInFlight(source, run, group=2, batch=1, max_staleness=0, concurrency=1)
        return len([found async for found in in_flight.batches()])

    with pytest.raises(ValueError, match="run 2"):
        asyncio.run(consume(iter(range(5))))
    with pytest.raises(LookupError, match="no second example"):
        asyncio.run(consume(examples()))
    assert asyncio.run(consume(iter([]))) == 0
