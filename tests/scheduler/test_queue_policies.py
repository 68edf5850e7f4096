"""Properties of all queue policies, and of each."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from ramiform.runtime.protocol.config import OrderName
from ramiform.runtime.protocol.core import ProgramProgress
from ramiform.runtime.scheduler.admission import MAX_ARRANGED, MAX_PASSES, WaitingQueue
from ramiform.runtime.scheduler.queue_policies import QUEUE_POLICIES, QueueContext
from ramiform.runtime.scheduler.request import Request
from ramiform.runtime.scheduler.stops import StopRules

from .fake_model import VOCABULARY
from .harness import Runtime, generate
from .sequential_run import assert_equal, sequential

NAMES: list[OrderName] = ["fcfs", "lpm", "dfs", "program"]


def request(
    serial: int, tokens: list[int], program: str | None = None, rank: int | None = None, **fields: Any
) -> Request:
    message = generate(f"r{serial}", tokens, program=program, **fields)
    return Request(
        message=message,
        owner=b"",
        serial=serial,
        rank=serial if rank is None else rank,
        end=len(tokens) + 8,
        stops=StopRules(message.sampling, VOCABULARY),
        tokens=tokens,
    )


def context_of(
    cached: dict[str, int] | None = None, running: list[Request] | None = None, max_running: int = 8
) -> QueueContext:
    known = cached or {}
    return QueueContext(lambda r: known.get(r.rid, 0), lambda r: r.rank < r.serial, running or [], max_running, 4)


def drain(queue: WaitingQueue, context: QueueContext) -> list[int]:
    order = []
    while queue:
        first = queue.front(context)[0]
        queue.start(first)
        order.append(first.serial)
    return order


@pytest.mark.parametrize("name", NAMES)
def test_everybody_starts_once_and_priority_precedes_everything(name: OrderName) -> None:
    draw = random.Random(name)
    for _ in range(30):
        waiting = [
            request(
                i,
                draw.choices([2, 3], k=12),
                draw.choice([None, "p", "q"]),
                draw.randrange(i + 1),
                priority=draw.randrange(3),
            )
            for i in range(20)
        ]
        queue = WaitingQueue(QUEUE_POLICIES[name])
        for each in draw.sample(waiting, 20):
            queue.add(each)
        order = drain(queue, context_of({each.rid: draw.randrange(12) for each in waiting}))
        assert sorted(order) == list(range(20))
        priorities = [waiting[serial].message.priority for serial in order]
        assert priorities == sorted(priorities, reverse=True)


@pytest.mark.parametrize("name", NAMES)
def test_no_request_is_overtaken_more_than_max_passes_times(name: OrderName) -> None:
    """New requests that every policy would prefer keep coming."""
    queue = WaitingQueue(QUEUE_POLICIES[name])
    unlucky = request(1, [9] * 8)
    queue.add(unlucky)
    num_passed = 0
    for serial in range(2, 200):
        queue.add(request(serial, [2] * 8, "old", rank=0))
        front = queue.front(context_of({f"r{i}": 8 for i in range(2, 200)}))
        queue.start(front[0])
        if front[0] is unlucky:
            break
        num_passed += 1
    assert num_passed <= MAX_PASSES


def test_the_longest_cached_prefix_goes_first() -> None:
    queue = WaitingQueue(QUEUE_POLICIES["lpm"])
    for serial in range(10):
        queue.add(request(serial, [2] * 20))
    cached = {f"r{serial}": (serial * 7) % 10 for serial in range(10)}
    assert drain(queue, context_of(cached)) == sorted(range(10), key=lambda serial: -cached[f"r{serial}"])


def test_depth_first_keeps_those_with_a_cached_prefix_in_common_together() -> None:
    draw = random.Random(5)
    stems = [draw.choices([2, 3, 4], k=8) for _ in range(4)]
    waiting = [request(i, [*stems[i % 4], *draw.choices([2, 3], k=4)]) for i in range(24)]
    queue = WaitingQueue(QUEUE_POLICIES["dfs"])
    for each in waiting:
        queue.add(each)
    front = queue.front(context_of({each.rid: 8 for each in waiting}))
    groups = [tuple(each.tokens[:8]) for each in front]
    assert sum(a != b for a, b in itertools.pairwise(groups)) == len(set(groups)) - 1


def test_programs_that_have_begun_go_first_and_the_older_before_the_younger() -> None:
    queue = WaitingQueue(QUEUE_POLICIES["program"])
    queue.add(request(5, [2] * 8, "new"))
    queue.add(request(6, [2] * 8, "young", rank=3))
    queue.add(request(7, [2] * 8, "old", rank=1))
    assert drain(queue, context_of()) == [7, 6, 5]


def test_of_programs_that_have_begun_the_nearest_to_its_end_goes_first() -> None:
    """Judge: plain sorting of the generations that each is known to have left."""
    draw = random.Random(11)
    for _ in range(20):
        left = {serial: draw.choice([None, *range(6)]) for serial in range(10, 20)}
        queue = WaitingQueue(QUEUE_POLICIES["program"])
        for serial in draw.sample(sorted(left), 10):
            told = left[serial]
            progress = ProgramProgress(draw.randrange(6)) if told is None else ProgramProgress(told, complete=True)
            queue.add(request(serial, [2] * 8, f"p{serial}", rank=serial - 10, progress=progress))
        queue.add(request(99, [2] * 8, "new", progress=ProgramProgress(0, complete=True)))
        known = sorted((num, serial) for serial, num in left.items() if num is not None)
        unknown = sorted(serial for serial, num in left.items() if num is None)
        assert drain(queue, context_of()) == [*(serial for _, serial in known), *unknown, 99]


def test_of_programs_that_have_begun_the_one_with_the_least_left_to_compute_goes_first() -> None:
    """Judge: plain sorting of the tokens that are not cached; an older program does not count for more."""
    draw = random.Random(12)
    for _ in range(20):
        sizes = {serial: draw.randrange(1, 40) for serial in range(10, 20)}
        cached = {f"r{serial}": draw.randrange(size) for serial, size in sizes.items()}
        queue = WaitingQueue(QUEUE_POLICIES["program"])
        for serial, size in sizes.items():
            queue.add(request(serial, [2] * size, f"p{serial}", rank=19 - serial))
        left = sorted((size - cached[f"r{serial}"], 19 - serial, serial) for serial, size in sizes.items())
        assert drain(queue, context_of(cached)) == [serial for _, _, serial in left]


def test_a_program_does_not_take_more_than_its_share_while_others_wait() -> None:
    queue = WaitingQueue(QUEUE_POLICIES["program"])
    for serial in range(1, 9):
        queue.add(request(serial, [2] * 8, "many", rank=0))
    queue.add(request(9, [3] * 8, "one"))
    order = [each.serial for each in queue.front(context_of(max_running=8))]
    assert order.index(9) == 4, "two programs share eight places"


def test_branches_stay_together_however_many_others_wait() -> None:
    queue = WaitingQueue(QUEUE_POLICIES["program"])
    for serial in range(1, 5):
        queue.add(request(serial, [2] * 8, "wide", rank=0))
    for serial in range(5, 60):
        queue.add(request(serial, [3] * 8))
    assert [each.serial for each in queue.front(context_of(max_running=32))[:4]] == [1, 2, 3, 4]


def test_only_so_many_are_looked_at_in_a_step() -> None:
    looked_at: list[str] = []

    def num_cached(each: Request) -> int:
        looked_at.append(each.rid)
        return 0

    queue = WaitingQueue(QUEUE_POLICIES["lpm"])
    for serial in range(4000):
        queue.add(request(serial, [2]))
    queue.front(QueueContext(num_cached, lambda r: False, [], 8, 4))
    assert len(looked_at) <= MAX_ARRANGED


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_64_pages_serve_200_requests_to_the_end(name: OrderName) -> None:
    draw = random.Random(2)
    runtime = Runtime(num_pages=64, budget=32, max_running=16, max_waiting=300, order=name, eviction="program")
    stems = [draw.choices([2, 3], k=20) for _ in range(5)]
    messages = [
        generate(
            f"r{i}",
            [*draw.choice(stems), *draw.choices([2, 3, 4], k=draw.randrange(12))],
            program=draw.choice([None, "p", "q"]),
            seed=i,
            temperature=1.0,
            max_new_tokens=draw.choice([1, 8, 40]),
            ignore_eos=True,
        )
        for i in range(200)
    ]
    runtime.add(*messages)
    runtime.finish()
    for message in messages:
        assert_equal(runtime.answers[message.rid], sequential(message))
