"""Judge: the tasks run one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from ramiform.kernels.cpu import thread_pool


@pytest.fixture(autouse=True, params=[1, 2, 3], ids=["alone", "two threads", "three threads"])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = thread_pool.num_threads()
    thread_pool.set_num_threads(request.param)
    yield
    thread_pool.set_num_threads(before)


def test_every_task_has_run_once_when_the_call_returns() -> None:
    for count in (0, 1, 2, 7, 40):
        done: list[int] = []
        thread_pool.run_tasks([partial(done.append, part) for part in range(count)])
        assert sorted(done) == list(range(count))


def test_tasks_run_in_parallel() -> None:
    count = thread_pool.num_threads()
    meeting = threading.Barrier(count, timeout=60)
    thread_pool.run_tasks([meeting.wait] * count)  # each waits for all others


def test_several_callers_get_their_own_tasks_done() -> None:
    def call(_: int) -> list[tuple[int, int]]:
        done: list[tuple[int, int]] = []
        for part in range(20):
            thread_pool.run_tasks([partial(done.append, (part, half)) for half in range(2)])
        return done

    with ThreadPoolExecutor(4) as callers:
        for done in callers.map(call, range(4)):
            assert sorted(done) == [(part, half) for part in range(20) for half in range(2)]


def test_an_error_of_a_task_reaches_the_caller_and_the_threads_survive() -> None:
    def fail() -> None:
        raise ValueError("part")

    for _ in range(5):
        with pytest.raises(ValueError, match="part"):
            thread_pool.run_tasks([fail, fail, fail])
    done: list[int] = []
    thread_pool.run_tasks([partial(done.append, part) for part in range(3)])
    assert sorted(done) == [0, 1, 2]
