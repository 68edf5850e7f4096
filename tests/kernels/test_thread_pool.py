"""Judge: doing the parts one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from ramiform.kernels.cpu import thread_pool as workers


@pytest.fixture(autouse=True, params=[1, 2, 3], ids=["alone", "two threads", "three threads"])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = workers.num_threads()
    workers.set_num_threads(request.param)
    yield
    workers.set_num_threads(before)


def test_every_part_is_done_once_when_it_returns() -> None:
    for count in (0, 1, 2, 7, 40):
        done: list[int] = []
        workers.share([partial(done.append, part) for part in range(count)])
        assert sorted(done) == list(range(count))


def test_parts_run_beside_each_other() -> None:
    count = workers.num_threads()
    meeting = threading.Barrier(count, timeout=60)
    workers.share([meeting.wait] * count)  # each waits for all others


def test_several_callers_get_their_own_parts_done() -> None:
    def call(_: int) -> list[tuple[int, int]]:
        done: list[tuple[int, int]] = []
        for part in range(20):
            workers.share([partial(done.append, (part, half)) for half in range(2)])
        return done

    with ThreadPoolExecutor(4) as callers:
        for done in callers.map(call, range(4)):
            assert sorted(done) == [(part, half) for part in range(20) for half in range(2)]


def test_what_a_part_raises_reaches_the_caller_and_the_threads_live_on() -> None:
    def fail() -> None:
        raise ValueError("part")

    for _ in range(5):
        with pytest.raises(ValueError, match="part"):
            workers.share([fail, fail, fail])
    done: list[int] = []
    workers.share([partial(done.append, part) for part in range(3)])
    assert sorted(done) == [0, 1, 2]
