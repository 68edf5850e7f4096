"""Pages of branches that a program abandons are free within one step."""

from __future__ import annotations

import pytest

from ramiform.runtime.protocol.core import ClientSession, EndStates, SoftPin

from .harness import Runtime, generate

SHARED = [2, 3, 4, 5] * 4


def branch(number: int, num_tokens: int) -> object:
    return generate(
        f"branch {number}",
        [*SHARED, 6 + number],
        max_new_tokens=num_tokens,
        ignore_eos=True,
        seed=number,
        program="p",
        soft_pins=[SoftPin(number)],
    )


@pytest.mark.parametrize("ahead", [False, True])
def test_pages_of_abandoned_branches_are_free_after_one_step(ahead: bool) -> None:
    runtime = Runtime(num_pages=64, ahead=ahead)
    runtime.add(*(branch(number, 60) for number in range(4)))
    for _ in range(12):
        runtime.step()
    leases = {lease: set(lease.pages) for lease in runtime.cache.leases}
    assert len(leases) == 4
    for number in range(3):
        runtime.abort(f"branch {number}")
    runtime.scheduler.handle(EndStates("p", [0, 1, 2]), 0.0)
    for _ in range(1 + ahead):  # a plan in flight still writes their pages
        runtime.step()
    (kept,) = (lease for lease in leases if lease.live)
    assert runtime.cache.num_available == runtime.cache.num_pages - len(kept.pages)
    assert not runtime.answers["branch 3"].over
    runtime.finish()
    assert len(runtime.answers["branch 3"].ids) == 60


def test_what_ended_branches_have_left_is_evicted_before_what_the_program_goes_on_with() -> None:
    runtime = Runtime(num_pages=64)
    runtime.add(*(branch(number, 12) for number in range(4)))
    runtime.finish()
    prompt = [*SHARED, 9, *runtime.answers["branch 3"].ids]
    assert runtime.cache.match(prompt) == len(prompt) - 1
    runtime.scheduler.handle(EndStates("p", [0, 1, 2]), 0.0)
    # More than fits beside all branches, but not more than fits beside the one that goes on.
    for number in range(7):
        name = f"other {number}"
        runtime.add(generate(name, [2, 3] * 12, max_new_tokens=4, ignore_eos=True, namespace=name))
        runtime.finish()
        assert runtime.answers[name].error is None
    assert runtime.cache.match(prompt) == len(prompt) - 1
    ended = [[*SHARED, 6 + number, *runtime.answers[f"branch {number}"].ids] for number in range(3)]
    assert runtime.cache.stats.num_evicted_pages > 0
    assert sum(map(runtime.cache.match, ended)) < sum(len(prompt) - 1 for prompt in ended)


def test_a_state_of_a_session_that_runs_is_not_replaced_by_another() -> None:
    def turn(rid: str, tokens: list[int], num_tokens: int) -> object:
        return generate(rid, tokens, max_new_tokens=num_tokens, ignore_eos=True, session=ClientSession("s"))

    runtime = Runtime(num_pages=64)
    runtime.add(turn("first", [*SHARED, 6], 4))
    runtime.finish()
    first = [*SHARED, 6, *runtime.answers["first"].ids]
    runtime.add(turn("second", [*first, 7], 30))
    runtime.step()
    runtime.add(turn("sub-agent", [*SHARED, 8], 8))
    runtime.finish()
    second = [*first, 7, *runtime.answers["second"].ids]
    runtime.add(turn("third", [*second, 9], 4))
    runtime.finish()
    [program] = runtime.scheduler._programs._programs.values()
    assert program.num_states == 2
    assert program.given_up == {24: ""}  # the sub-agent's, when the third turn began


def test_no_more_sessions_are_remembered_than_the_pool_has_pages() -> None:
    runtime = Runtime(num_pages=80)
    for number in range(120):
        runtime.add(
            generate(f"r{number}", [2 + number % 8, 2 + number // 8 % 8, 2 + number // 64, 5] * 4, max_new_tokens=2)
        )
        runtime.finish()
    assert len(runtime.scheduler._programs._programs) == 80
