"""Judge: every task is claimed by exactly one thread, and no thread goes on before all are done."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ramiform.kernels.cpu.step.phases import claim_near, complete_tasks, new_phases, wait


@pytest.mark.parametrize("num_threads", [1, 2, 3, 6])
def test_each_task_of_ranges_is_claimed_once_and_done_before_any_thread_goes_on(num_threads: int) -> None:
    sizes = [0, 1, 2, 3, 7, 64, 5]
    phases = new_phases(len(sizes))
    claimed: list[list[int]] = [[] for _ in sizes]

    def work(thread: int) -> list[int]:
        seen = []
        for phase, num_tasks in enumerate(sizes):
            count = 0
            while (task := claim_near(phases, phase, num_tasks, thread, num_threads)) >= 0:
                claimed[phase].append(task)
                count += 1
            complete_tasks(phases, phase, count, num_tasks)
            wait(phases, phase, num_tasks)
            seen.append(len(claimed[phase]))
        return seen

    with ThreadPoolExecutor(num_threads) as pool:
        assert list(pool.map(work, range(num_threads))) == [sizes] * num_threads
    assert [sorted(tasks) for tasks in claimed] == [list(range(size)) for size in sizes]


def test_a_thread_takes_the_tasks_of_its_range_in_order_and_then_those_of_others() -> None:
    phases = new_phases(1)
    assert [claim_near(phases, 0, 8, 1, 2) for _ in range(9)] == [4, 5, 6, 7, 0, 1, 2, 3, -1]


def test_one_thread_can_do_all_tasks_before_the_others_come() -> None:
    phases = new_phases(1)
    assert sorted(claim_near(phases, 0, 11, 2, 3) for _ in range(11)) == list(range(11))
    assert [claim_near(phases, 0, 11, thread, 3) for thread in range(3)] == [-1] * 3
