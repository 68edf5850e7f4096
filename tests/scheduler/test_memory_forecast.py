"""Pages that running requests will need. Judge: their futures, step by step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.scheduler.memory_forecast import MemoryGrowth, peak_pages

growths = st.builds(MemoryGrowth, st.integers(0, 60), st.integers(-16, 100), st.integers(0, 300))


@given(st.lists(growths, max_size=8), st.sampled_from([1, 4, 16]))
def test_the_peak_is_the_most_that_is_needed_at_any_step(running: list[MemoryGrowth], page_size: int) -> None:
    worst = 0
    for step in range(max((growth.num_steps for growth in running), default=0) + 1):
        alive = [growth for growth in running if growth.num_steps >= step]
        freed = sum(growth.num_freed for growth in running if growth.num_steps < step)
        worst = max(worst, sum(growth.num_wanted + step + page_size for growth in alive) - freed)
    assert peak_pages(sorted(running), page_size) == -(-worst // page_size)


def test_who_ends_soon_makes_room_for_who_goes_on() -> None:
    ends, goes_on = MemoryGrowth(2, 0, 320), MemoryGrowth(300, 0, 0)
    assert peak_pages([ends, goes_on], 16) < 300 // 16
