"""best_of, first, vote and beam: exact results on scripted answers; logprobs, seeds and stopping on the runtime."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import ramiform
from ramiform import (
    ProgramState,
    RequestError,
    Scripted,
    abeam,
    abest_of,
    afirst,
    avote,
    beam,
    best_of,
    first,
    gen,
    predicate,
    rate,
    select,
    user,
    vote,
)
from ramiform.lang.backends.backend import get_server_info

LONG = gen("long", max_tokens=3000, ignore_eos=True)


def run(body: Callable[[ProgramState], Any], backend: Any = None, **arguments: Any) -> ProgramState:
    state: ProgramState = ramiform.function(body).run(backend=backend, **arguments)
    return state


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_best_branch_continues_the_state() -> None:
    def body(s: ProgramState) -> None:
        s += "Q"
        s["own"] = 1
        branch = best_of(s, 3, " A" + gen("x"), score=lambda branch: len(branch["x"]))
        assert (branch.text(), s["x"], s["own"]) == ("Q Abbb", "bbb", 1)
        s += "!" + gen("y")

    backend = Scripted(["a", "bbb", "cc", "end"])
    assert run(body, backend).text() == "Q Abbb!end"
    assert backend.prompts == ["Q A"] * 3 + ["Q Abbb!"]


def test_of_equal_scores_the_first_branch_wins() -> None:
    assert run(lambda s: best_of(s, 3, gen("x"), score=lambda branch: 1), Scripted(["a", "b", "c"])).text() == "a"


def test_a_program_is_a_step_and_its_branches_run_at_the_same_time(backend: ramiform.Runtime) -> None:
    import threading

    together = threading.Barrier(3, timeout=120)

    @ramiform.function
    def step(s: ProgramState) -> int:
        s += "A" + gen("x", max_tokens=4, ignore_eos=True)
        together.wait()
        return len(s["x"])

    def body(s: ProgramState) -> None:
        s += "Q"
        best_of(s, 3, step, score=lambda branch: branch.ret_value)

    assert run(body).text().startswith("QA")


def test_questions_score() -> None:
    def by_predicate(s: ProgramState) -> None:
        best_of(s, 2, gen("x"), score="Is it good?")

    def by_rate(s: ProgramState) -> None:
        best_of(s, 3, gen("x"), score=rate("How good?", ["bad", "fair", "good"]))

    generated = iter(["a", "b"])
    graded = {"a": "no", "b": "yes"}
    assert run(by_predicate, Scripted(lambda prompt: graded.get(prompt) or next(generated))).text() == "b"
    generated = iter(["b", "d", "c"])
    levels = {"b": "bad", "c": "fair", "d": "good"}
    assert run(by_rate, Scripted(lambda prompt: levels.get(prompt) or next(generated))).text() == "d"


def test_branches_that_fail_are_left_out_and_if_all_fail_the_first_error_is_raised() -> None:
    def body(s: ProgramState) -> None:
        s += "Q"
        best_of(s, 3, gen("x", dtype=int), score=lambda branch: branch["x"])

    assert run(body, Scripted([RequestError("no"), "5", "word"])).text() == "Q5"
    with pytest.raises(RequestError, match=r"test_searches\.py:\d+: the first"):
        run(body, Scripted([RequestError("the first"), RequestError("the second"), "word"]))


def test_errors_of_the_programs_own_functions_are_raised() -> None:
    def score(branch: ProgramState) -> float:
        return 1 / 0

    def step(branch: ProgramState) -> None:
        raise LookupError("step")

    with pytest.raises(ZeroDivisionError):
        run(lambda s: best_of(s, 2, gen("x"), score), Scripted(["a", "b"]))
    with pytest.raises(LookupError):
        run(lambda s: best_of(s, 2, step, lambda branch: 1), Scripted([]))
    for wrong in ("text", None, float("nan"), True):
        with pytest.raises(TypeError, match="a score must be a number"):
            run(lambda s, wrong=wrong: best_of(s, 1, gen("x"), lambda branch: wrong), Scripted(["a"]))


@pytest.mark.parametrize(
    ("search", "param"),
    [
        (lambda s: best_of(s, 0, "x"), "k"),
        (lambda s: best_of(s, True, "x"), "k"),
        (lambda s: best_of(s, 2, 3), "step"),
        (lambda s: best_of(s, 2, "x", score=3), "score"),
        (lambda s: best_of(s, 2, gen("x")), "score"),  # a script has no log-probabilities
        (lambda s: best_of(s, 2, "text"), "score"),
        (lambda s: best_of(s, 2, "x", score=ramiform.pick("Which?", ["a", "b"])), "score"),
        (lambda s: first([]), "branches"),
        (lambda s: first([s, "x"]), "branches"),
        (lambda s: first(s.fork(2), until=3), "until"),
        (lambda s: vote(s, 2, "text"), "step"),
        (lambda s: vote(s, 2, gen("x"), key=3), "key"),
        (lambda s: beam(s, gen("x"), 0, 1), "width"),
        (lambda s: beam(s, gen("x"), 1, 1.5), "depth"),
        (lambda s: beam(s, gen("x"), 1, 1, expand=-1), "expand"),
        (lambda s: s.fork()[0].adopt(s), "branch"),
        (lambda s: s.adopt(s.fork()[0].fork()[0]), "branch"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(search: Callable[[ProgramState], Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        run(search, Scripted(["a", "b", "c"]))
    assert refused.value.param == param


def test_first_returns_the_first_branch_that_will_do() -> None:
    def body(s: ProgramState) -> None:
        s += "Q"
        branches = s.fork(4)
        branches += gen("x", dtype=int)
        found = first(branches, until=lambda branch: branch["x"] > 1)
        assert found is branches[2]
        assert s.text() == "Q"
        s.adopt(found)
        assert first(s.fork(2), until=lambda branch: False) is None

    assert run(body, Scripted([RequestError("no"), "1", "2", "3"])).text() == "Q2"


def test_a_vote_takes_the_most_frequent_value() -> None:
    def body(s: ProgramState) -> None:
        s += "Q"
        result = vote(s, 5, "A" + gen("x") + ".", key=str.lower)
        assert (result.value, result.counts, result.share) == ("B", {"a": 1, "b": 3}, 0.75)
        assert (s["x"], result.branch["x"]) == ("B", "B")

    assert run(body, Scripted(["a", "B", "b", "b", "c"])).text() == "QAB."


def test_votes_count_choices_unhashable_values_and_what_functions_return() -> None:
    def by_select(s: ProgramState) -> None:
        assert vote(s, 3, select("x", ["a", "b"])).value == "b"

    def by_list(s: ProgramState) -> None:
        assert vote(s, 3, gen("x", schema=list[int])).value == [2]

    def by_function(s: ProgramState) -> None:
        def step(branch: ProgramState) -> int:
            branch += "x" + gen("x")
            return len(branch["x"])

        result = vote(s, 3, step)
        assert result.value == 2

    run(by_select, Scripted(["a", "b", "b"]))
    run(by_list, Scripted(["[1]", "[2]", "[2]"]))
    run(by_function, Scripted(["aa", "b", "cc"]))


def test_a_beam_keeps_the_best_branches_of_every_step() -> None:
    def body(s: ProgramState) -> None:
        s += "Q"
        best = beam(s, gen("x"), width=2, depth=3, score=lambda branch: sum(map(int, branch.text()[1:])))
        assert best.text() == s.text()

    numbers = itertools.cycle([1, 2, 5, 3, 4, 0, 2])
    backend = Scripted(lambda prompt: str(next(numbers)))
    state = run(body, backend)
    # Q1 Q2; Q25 Q23 of the better Q2, Q14 Q10 of Q1; Q252 Q251 of Q25, Q232 Q235 of Q23, which came before Q14
    assert backend.prompts[:6] == ["Q", "Q", "Q2", "Q2", "Q1", "Q1"]
    assert backend.prompts[6:] == ["Q25", "Q25", "Q23", "Q23"]
    assert (state.text(), state["x"]) == ("Q235", "5")


def test_searches_nest() -> None:
    def step(s: ProgramState) -> None:
        best_of(s, 2, gen("x"), score=lambda branch: int(branch["x"]))

    numbers = itertools.count(1)
    state = run(
        lambda s: best_of(s, 2, step, score=lambda branch: int(branch["x"])),
        Scripted(lambda prompt: str(next(numbers))),
    )
    assert state.text() == "4"


def test_async_programs_search_in_their_loop() -> None:
    @ramiform.function
    async def program(s: ProgramState) -> None:
        s += "Q"

        async def step(branch: ProgramState) -> int:
            branch += gen("x")
            return len(await branch.get("x"))

        async def score(branch: ProgramState) -> int:
            await asyncio.sleep(0)
            return int(branch.ret_value)

        await abest_of(s, 3, step, score=score)
        found = await afirst(s.fork(2), until=lambda branch: True)
        assert found is not None
        assert (await avote(s, 3, gen("y"))).value == "v"
        await abeam(s, gen("z"), 1, 2, score=lambda branch: len(branch["z"]))
        s += "." + gen("end")

    async def main() -> ProgramState:
        return await program.arun(backend=Scripted(["a", "bbb", "cc", "v", "v", "v", "1", "2", "end"]))

    state = asyncio.run(main())
    assert state.text() == "Qbbbv12.end"


def test_async_functions_need_the_searches_of_event_loops() -> None:
    async def step(branch: ProgramState) -> None:
        branch += "x"

    with pytest.raises(RequestError, match="an async function needs an event loop"):
        run(lambda s: best_of(s, 2, step, lambda branch: 1), Scripted([]))

    @ramiform.function
    async def program(s: ProgramState) -> None:
        best_of(s, 2, gen("x"), lambda branch: 1)

    with pytest.raises(RequestError) as blocked:
        program.run(backend=Scripted(["a", "b"]))
    assert blocked.value.code == "would_block"


def test_a_plan_ends_at_a_search_and_a_compiled_program_runs_it() -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += "Q"
        best_of(s, 2, gen("x"), score=lambda branch: len(branch["x"]))
        s += "!"

    plan = program.compile()
    assert (plan.is_whole, plan.num_generations) == (False, 2)
    states = program.run_batch([{}, {}], backend=Scripted(["a", "bb"] * 2), num_threads=1)
    assert [state.text() for state in states] == ["Qbb!"] * 2


def test_without_a_score_the_likeliest_branch_wins(backend: ramiform.Runtime) -> None:
    kept: list[list[float]] = []

    def step(branch: ProgramState) -> None:
        branch += gen("x", max_tokens=6, ignore_eos=True)
        tokens = branch.get_meta_info("x")["output_token_logprobs"]
        kept.append([logprob for logprob, _, _ in tokens])

    def body(s: ProgramState) -> None:
        s += user("Name a colour.")
        with s.assistant():
            best_of(s, 4, step)

    state = run(body, seed=5)
    own = [logprob for logprob, _, _ in state.get_meta_info("x")["output_token_logprobs"]]
    assert sum(own) / 6 == pytest.approx(max(sum(each) / 6 for each in kept))
    assert state.messages()[-1]["content"] == state["x"]


def test_branches_draw_differently_from_one_seed_and_alike_in_every_run(backend: ramiform.Runtime) -> None:
    def values(**arguments: Any) -> list[str]:
        found: list[str] = []

        def body(s: ProgramState) -> None:
            own = {} if arguments else {"seed": 11}
            step = "Once" + gen("x", max_tokens=6, ignore_eos=True, **own)
            best = best_of(s, 4, step, score=lambda branch: found.append(branch["x"]) or len(found))
            assert best.text() == "Once" + s["x"]

        run(body, **arguments)
        return sorted(found)

    for arguments in ({"seed": 11}, {}):
        assert values(**arguments) == values(**arguments)
        assert len(set(values(**arguments))) > 1


def test_losers_are_stopped_at_once(backend: ramiform.Runtime) -> None:
    def body(s: ProgramState) -> None:
        s += "Once"
        ended = True
        while ended:  # on a busy machine the losers may have ended by themselves
            branches = s.fork(5)
            branches += lambda index: gen("short", max_tokens=2, ignore_eos=True) if index == 3 else LONG
            assert first(branches) is branches[3]
            wait_until(lambda: get_server_info()["num_running"] == 0)
            ended = bool(branches[0].variables())
        with pytest.raises(ramiform.RuntimeFailed, match="another one was chosen"):
            branches[0].text()

    run(body)


def test_a_vote_stops_those_that_cannot_change_it(backend: ramiform.Runtime) -> None:
    def body(s: ProgramState) -> None:
        s += "Once"
        numbers = itertools.count()

        def step(branch: ProgramState) -> str:
            if next(numbers) < 3:
                return "a"
            branch += LONG
            return str(branch["long"])

        assert vote(s, 5, step).value == "a"
        wait_until(lambda: get_server_info()["num_running"] == 0)

    run(body)


def test_an_error_and_a_cancelled_program_stop_all_branches(backend: ramiform.Runtime) -> None:
    def refuse(branch: ProgramState) -> bool:
        raise LookupError("refused")

    def body(s: ProgramState) -> None:
        branches = s.fork(3)
        branches += lambda index: "short" if index == 0 else "Once" + LONG
        first(branches, until=refuse)

    with pytest.raises(LookupError):
        run(body)
    wait_until(lambda: get_server_info()["num_running"] == 0)

    @ramiform.function
    async def program(s: ProgramState) -> None:
        while True:  # however fast the runtime is
            await abest_of(s.fork(1)[0], 3, "Once" + LONG, score=predicate("Is it good?"))

    async def main() -> None:
        task = asyncio.create_task(program.arun())
        while get_server_info()["num_running"] < 3:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    wait_until(lambda: get_server_info()["num_running"] == 0)


def test_a_budget_ends_a_search(backend: ramiform.Runtime) -> None:
    with pytest.raises(RequestError) as ended:
        run(lambda s: best_of(s, 3, "Once" + LONG, score=lambda branch: 1), max_total_tokens=100)
    assert ended.value.param == "max_total_tokens"


def test_the_text_after_a_beam_is_cached(backend: ramiform.Runtime) -> None:
    def body(s: ProgramState) -> None:
        s += "Ada lives near a river and reads about spiders. " * 8
        beam(s, gen("line", max_tokens=16, ignore_eos=True), width=2, depth=3)
        s += gen("end", max_tokens=4, ignore_eos=True)

    meta = run(body, seed=1).get_meta_info("end")
    assert meta["prompt_tokens"] - meta["cached_tokens"] <= 17


def test_async_branches_may_be_forked_before_the_state_has_its_answer() -> None:
    forked = threading.Event()

    def answer(prompt: str) -> str:
        forked.wait(10)
        return "x"

    @ramiform.function
    async def program(s: ProgramState) -> None:
        s += gen("x")
        branches = s.fork(2)
        asyncio.get_running_loop().call_later(0.05, forked.set)
        assert await afirst(branches, until=lambda branch: bool(branch["x"] == "x")) is not None

    async def main() -> ProgramState:
        return await program.arun(backend=Scripted(answer))

    assert asyncio.run(main()).text() == "x"
