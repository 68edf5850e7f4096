"""The scheduler with a fake engine: batching, sharing, retraction, grammars, aborts, limits."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from ramiform.runtime.protocol.core import CoreReply, CoreStats, Finish, FlushCache, GetStats
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.sampling import Constraint, LogprobParams
from ramiform.runtime.scheduler.admission import MAX_PASSES

from .fake_grammars import FakeMatcher
from .fake_model import EOS
from .harness import Runtime, generate
from .sequential_run import assert_equal, sequential

FREE: dict[str, Any] = {"ignore_eos": True}  # runs to max_new_tokens


def test_a_prefill_chunk_and_decode_rows_share_a_step_and_its_budget() -> None:
    runtime = Runtime(budget=8)
    runtime.add(generate("short", [2, 3], max_new_tokens=20, **FREE))
    runtime.step()
    runtime.add(generate("long", [3] * 30, **FREE))
    runtime.step()
    plan = runtime.plans[-1]
    assert [(row.rid, len(row.tokens)) for row in plan.rows] == [("short", 1), ("long", 7)]
    while runtime.answers["long"].num_messages == 0:
        before = len(runtime.answers["short"].ids)
        runtime.step()
        assert len(runtime.answers["short"].ids) == before + 1, "a long prompt never stalls a running stream"
    runtime.finish()


def test_a_prompt_is_widened_by_its_own_length_whatever_is_computed_beside_it() -> None:
    """Chunks of a long prompt may be short, and short prompts come together. What is forced first is as the prompt is,
    whenever the grammar says so."""
    prompts, forced = {"long": 21, "short": 7, "another": 7, "forced": 9}, [2, 8, 2]
    choices = Constraint("choices", json.dumps([[*forced, 9, 9], [*forced, 10, 10]]))

    def widened(*rids: str, budget: int = 100, is_late: bool = False) -> dict[str, list[int]]:
        """Return the positions of each request's widened rows."""
        runtime = Runtime(widened_from=8, budget=budget)
        for token, rid in enumerate(rids, 2):
            constraint = {"constraint": choices} if rid == "forced" else {}
            runtime.add(generate(rid, [token] * prompts[rid], max_new_tokens=6, **constraint))
            if is_late:  # the prompt is computed before its grammar is compiled
                runtime.step()
        runtime.finish()
        found: dict[str, list[int]] = {rid: [] for rid in rids}
        for row in (row for plan in runtime.plans for row in plan.rows if row.widened):
            found[row.rid] += range(row.first_position, row.first_position + len(row.tokens))
        return found

    wanted: dict[str, list[int]] = {"long": [*range(21)], "short": [], "another": [], "forced": [*range(9 + 3)]}
    for budget in (5, 16, 100):
        for is_late in (False, True):
            assert widened(*prompts, budget=budget, is_late=is_late) == wanted
    assert {rid: widened(rid)[rid] for rid in prompts} == wanted


def test_short_decode_steps_are_planned_several_at_once_while_nobody_waits() -> None:
    runtime = Runtime(continuous=True)
    runtime.add(generate("greedy", [2, 3], max_new_tokens=30, **FREE))
    runtime.add(generate("drawn", [3, 3], max_new_tokens=25, temperature=1.0, **FREE))
    expected = {rid: sequential(request.message) for rid, request in runtime.scheduler._requests.items()}
    runtime.finish()
    assert {rid: answer.ids for rid, answer in runtime.answers.items()} == {r: e.ids for r, e in expected.items()}
    decodes = [plan.num_decodes for plan in runtime.plans]
    assert max(decodes) > 2
    assert sum(decodes) == runtime.scheduler.stats().num_steps == 30, "as many forwards as without"
    assert runtime.answers["greedy"].num_passes == 30
    assert len(decodes) < 20


def test_a_plan_whose_decode_steps_end_early_loses_no_token() -> None:
    runtime = Runtime(continuous=True)
    runtime.engine.interrupts = True
    runtime.add(generate("greedy", [2, 3], max_new_tokens=40, **FREE))
    runtime.add(generate("drawn", [3, 3], max_new_tokens=37, temperature=1.0, **FREE))
    expected = {rid: sequential(request.message) for rid, request in runtime.scheduler._requests.items()}
    runtime.finish()
    assert {rid: answer.ids for rid, answer in runtime.answers.items()} == {r: e.ids for r, e in expected.items()}
    assert sum(plan.num_decodes for plan in runtime.plans) > runtime.scheduler.stats().num_steps == 40
    assert runtime.answers["greedy"].num_passes == 40


def test_no_decode_step_is_computed_after_the_end_of_an_output() -> None:
    runtime = Runtime(continuous=True)
    runtime.add(generate("ignores", [2, 3], max_new_tokens=60, **FREE))
    runtime.step()
    runtime.step()
    stop = sequential(generate("stops", [3, 3], max_new_tokens=60, **FREE)).ids[7]
    runtime.add(generate("stops", [3, 3], max_new_tokens=60, stop_token_ids=[stop], **FREE))
    while "stops" in runtime.scheduler._requests:
        runtime.step()
    assert runtime.plans[-1].num_decodes > 1
    assert runtime.plans[-1].end_tokens == {stop}
    assert runtime.answers["stops"].ids[-1] == stop
    num_alone = len(runtime.answers["ignores"].ids)
    runtime.finish()
    assert runtime.scheduler.stats().num_steps == 60
    assert num_alone < 60


def test_stop_strings_shorten_a_plan() -> None:
    def most(**params: Any) -> int:
        runtime = Runtime(continuous=True)
        runtime.add(generate("one", [2, 3], max_new_tokens=60, **FREE, **params))
        runtime.finish()
        return max(plan.num_decodes for plan in runtime.plans)

    assert 1 < most(stop=["no such text"]) < most()


def test_decode_steps_are_timed_alone_when_there_are_more_rows() -> None:
    runtime = Runtime(continuous=True)
    runtime.add(generate("first", [2, 3], max_new_tokens=60, **FREE))
    for _ in range(4):
        runtime.step()
    assert runtime.plans[-1].num_decodes > 1
    runtime.add(*(generate(f"more {number}", [3, number], max_new_tokens=30, **FREE) for number in range(2, 6)))
    runtime.finish()
    decodes = [(len(plan.rows), plan.num_decodes) for plan in runtime.plans if plan.num_tokens == len(plan.rows)]
    grown = [after for (before, _), after in pairwise(decodes) if after[0] > before]
    assert grown == [(5, 1)], "the time of one row says nothing of five"
    assert max(num_decodes for num_rows, num_decodes in decodes if num_rows == 5) > 1


@pytest.mark.parametrize(
    "needs",
    [
        {"logprobs": LogprobParams(num_top=1)},
        {"frequency_penalty": 0.5},
        {"constraint": Constraint("choices", json.dumps([[4, 5] * 8, [5, 4] * 8])), "ignore_eos": False},
        {"min_new_tokens": 12, "ignore_eos": False},
        {"banned": [[5, 6]]},
    ],
    ids=str,
)
def test_a_request_that_looks_at_each_token_decodes_one_by_one(needs: dict[str, Any]) -> None:
    runtime = Runtime(continuous=True, jump_forward=False)
    runtime.add(generate("plain", [2, 3], max_new_tokens=12, **FREE))
    runtime.add(generate("other", [3, 3], max_new_tokens=12, **FREE | needs))
    runtime.finish()
    assert {plan.num_decodes for plan in runtime.plans if "other" in {row.rid for row in plan.rows}} == {1}


@pytest.mark.parametrize("budget", [16, 1])
@pytest.mark.parametrize("num_prompt", [2, 3, 14, 46])
def test_samples_of_one_prompt_compute_it_once(budget: int, num_prompt: int) -> None:
    runtime = Runtime(budget=budget, page_size=16)
    prompt = ([2, 3, 3] * 16)[:num_prompt]
    runtime.add(*(generate(f"r{i}", prompt, temperature=1.0, seed=i, max_new_tokens=1) for i in range(6)))
    runtime.finish()
    assert runtime.engine.num_computed == num_prompt + 5
    assert [runtime.answers[f"r{i}"].num_cached for i in range(6)] == [0, *[num_prompt - 1] * 5]


def test_branches_wait_only_for_the_shared_prefix() -> None:
    runtime = Runtime(budget=8)
    stem = [2] * 30
    runtime.add(generate("first", [*stem, *[3] * 40]), generate("second", [*stem, *[4] * 40]))
    runtime.finish()
    assert runtime.answers["second"].num_cached == 30
    prefilled = sum(len(row.tokens) for plan in runtime.plans for row in plan.rows if len(row.tokens) > 1)
    assert prefilled == 70 + 40


def test_a_prompt_is_shared_to_its_last_token_while_it_is_answered() -> None:
    runtime = Runtime(budget=16, page_size=16)
    runtime.add(generate("first", [2] * 17, max_new_tokens=9, **FREE))
    runtime.step()
    runtime.step()
    runtime.add(generate("longer", [*[2] * 17, 4, 5]))
    runtime.step()
    assert not runtime.answers["first"].over
    runtime.finish()
    assert runtime.answers["longer"].num_cached == 17


def test_no_request_waits_for_a_prefix_in_another_namespace() -> None:
    runtime = Runtime(budget=64)
    runtime.add(generate("first", [2] * 20, namespace="a"), generate("second", [2] * 20, namespace="b"))
    runtime.step()
    assert len(runtime.plans[0].rows) == 2
    runtime.finish()


def test_a_token_in_common_is_not_worth_a_wait() -> None:
    runtime = Runtime(budget=64)
    runtime.add(generate("first", [9, *[3] * 20]), generate("second", [9, *[4] * 20]))
    runtime.step()
    assert len(runtime.plans[0].rows) == 2
    runtime.finish()


def test_a_request_computes_the_awaited_prefix_itself_when_the_other_is_aborted() -> None:
    runtime = Runtime(budget=8)
    prompt = [2, 3] * 20
    runtime.add(generate("first", prompt), generate("second", prompt))
    runtime.step()
    runtime.step()
    runtime.abort("first")
    runtime.finish()
    assert runtime.answers["second"].num_cached == 16
    assert_equal(runtime.answers["second"], sequential(generate("second", prompt)))


def test_a_follow_up_turn_computes_one_token_more_than_it_adds() -> None:
    runtime = Runtime(page_size=16)
    runtime.add(generate("turn", [2] * 21, max_new_tokens=30, **FREE))
    runtime.finish()
    spoken = [2] * 21 + runtime.answers["turn"].ids
    runtime.add(generate("next", [*spoken, 3, 4], max_new_tokens=1))
    runtime.finish()
    assert runtime.answers["next"].num_cached == len(spoken) - 1


def test_under_memory_pressure_the_junior_is_retracted_and_goes_on_where_it_was() -> None:
    runtime = Runtime(num_pages=10)
    mix = [generate(f"r{i}", [2 + i] * 6, temperature=1.0, max_new_tokens=25, **FREE) for i in range(3)]
    runtime.add(*mix)
    runtime.finish()
    assert runtime.answers["r0"].num_retractions == 0, "the most senior is never retracted"
    assert (
        sum(answer.num_retractions for answer in runtime.answers.values())
        == runtime.scheduler.stats().num_retractions
        > 0
    )
    for message in mix:
        assert_equal(runtime.answers[message.rid], sequential(message))


def test_a_higher_priority_keeps_its_pages() -> None:
    runtime = Runtime(num_pages=10)
    runtime.add(generate("low", [2] * 6, max_new_tokens=25, **FREE))
    runtime.step()
    runtime.add(generate("high", [3] * 6, max_new_tokens=25, priority=1, **FREE))
    runtime.finish()
    assert runtime.answers["low"].num_retractions > 0
    assert runtime.answers["high"].num_retractions == 0


@pytest.mark.slow
def test_many_requests_get_through_a_pool_that_holds_two() -> None:
    runtime = Runtime(num_pages=16, max_running=64, budget=64, max_waiting=200)
    mix = [
        generate(f"r{i}", [2 + i % 7, *[3] * (i % 11)], max_new_tokens=20, seed=i, temperature=1.0) for i in range(200)
    ]
    runtime.add(*mix[:100])
    for message in mix[100:]:
        runtime.step()
        runtime.add(message)
    runtime.finish()
    for message in mix:
        assert_equal(runtime.answers[message.rid], sequential(message))


def test_requests_start_by_priority_then_arrival_and_a_program_s_together() -> None:
    runtime = Runtime(max_running=8, budget=8, cache=False)
    runtime.add(
        generate("a", [2], program="p", max_new_tokens=9, **FREE),
        generate("b", [3], **FREE),
        generate("c", [4], program="p", **FREE),
        generate("d", [5], priority=1, max_new_tokens=3, **FREE),
        generate("e", [6], program="p", priority=-1, **FREE),
    )
    runtime.finish()
    first_seen = list(dict.fromkeys(row.rid for plan in runtime.plans for row in plan.rows))
    assert first_seen == ["d", "a", "c", "b", "e"]


def test_an_endless_program_does_not_starve_others() -> None:
    runtime = Runtime(max_running=1, cache=False)
    runtime.add(generate("p0", [2], program="p"), generate("other", [3]))
    for i in range(1, MAX_PASSES + 3):
        runtime.add(generate(f"p{i}", [2], program="p"))
        while not runtime.answers[f"p{i - 1}"].over and not runtime.answers["other"].over:
            runtime.step()
    assert runtime.answers["other"].over
    runtime.finish()


def test_the_first_in_the_queue_is_not_overtaken_by_smaller_requests() -> None:
    runtime = Runtime(num_pages=10, cache=False)
    runtime.add(generate("running", [2] * 16, max_new_tokens=20, **FREE))
    runtime.step()
    runtime.add(generate("big", [3] * 30), generate("small", [4]))
    runtime.finish()
    first_seen = list(dict.fromkeys(row.rid for plan in runtime.plans for row in plan.rows))
    assert first_seen == ["running", "big", "small"]


def test_a_newcomer_leaves_a_page_to_each_request_that_runs() -> None:
    runtime = Runtime(num_pages=8, cache=False)
    runtime.add(generate("first", [2] * 23, max_new_tokens=9, **FREE))  # six pages now, eight in the end
    runtime.step()
    runtime.add(generate("second", [3] * 5))  # two pages
    runtime.finish()
    assert runtime.scheduler.stats().num_retractions == 0


def test_a_copy_that_was_never_made_is_not_published() -> None:
    class DeadEnd(FakeMatcher):
        def mask(self, out: Any) -> None:
            out[:] = 0

    class Grammar:
        def matcher(self) -> FakeMatcher:
            return DeadEnd([])

    runtime = Runtime()
    runtime.add(generate("first", [2] * 7, max_new_tokens=1, **FREE))
    runtime.finish()
    runtime.add(generate("dead", [2] * 7, constraint=Constraint("choices", "[]")))
    runtime.grammars.pending.pop()[0].set_result(Grammar())
    runtime.finish()
    assert runtime.answers["dead"].error.code == "dead_end"
    message = generate("next", [2] * 8)
    runtime.add(message)
    runtime.finish()
    assert_equal(runtime.answers["next"], sequential(message))


def test_a_request_waits_for_its_grammar_without_holding_others_up() -> None:
    runtime = Runtime()
    constraint = Constraint("choices", json.dumps([[2, 3], [2, 4, 5]]))
    message = generate("constrained", [2], constraint=constraint, min_new_tokens=8, ignore_eos=True)
    runtime.add(message, generate("free", [3]))
    while not runtime.scheduler.idle:
        runtime.step()
    assert runtime.answers["free"].over
    assert runtime.scheduler.pending_grammars
    runtime.finish()
    assert not runtime.scheduler.pending_grammars
    assert_equal(runtime.answers["constrained"], sequential(message))
    assert runtime.answers["constrained"].finish == Finish("stop", EOS)


def test_a_prompt_is_computed_while_its_grammar_is_compiled_and_holds_no_place() -> None:
    runtime = Runtime(max_running=1)
    constraint = Constraint("choices", json.dumps([[2, 3, 2], [2, 4, 5]]))
    message = generate("constrained", [2, 3] * 7, constraint=constraint)
    runtime.add(message, generate("free", [3]))
    while not runtime.scheduler.idle:
        runtime.step()
    assert runtime.engine.num_computed >= 13
    assert runtime.answers["free"].over
    assert runtime.scheduler.pending_grammars
    num_computed = runtime.engine.num_computed
    runtime.finish()
    assert_equal(runtime.answers["constrained"], sequential(message))
    # The first token is forced, so it goes with the prompt's last one; then the second and the third.
    assert runtime.engine.num_computed - num_computed <= 4


@pytest.mark.parametrize(
    ("language", "params", "num_passes"),
    [
        ([[2, 8, 2]], {}, 1),  # all is forced: the prompt's pass samples the first token
        ([[2], [3]], {}, 1),
        ([[2, 8], [3, 8]], {}, 1),
        ([[2], [3], [2, 8], [3, 8]], {}, 2),  # after the first token the model chooses whether to end
        ([[2], [3]], {"min_new_tokens": 8, "ignore_eos": True}, 1),
        ([[2], [3]], {"logprobs": LogprobParams(num_top=0)}, 2),  # the end has a log-probability too
        ([[2], [3]], {"jump_forward": False}, 2),
    ],
)
def test_an_output_that_can_only_end_ends_without_a_pass(
    language: list[list[int]], params: dict[str, Any], num_passes: int
) -> None:
    runtime = Runtime(jump_forward=params.pop("jump_forward", True))
    message = generate("a", [5, 5, 5], constraint=Constraint("choices", json.dumps(language)), **params)
    runtime.add(message)
    runtime.finish()
    assert_equal(runtime.answers["a"], sequential(message))
    assert runtime.answers["a"].finish == Finish("stop", EOS)
    assert runtime.answers["a"].num_passes == num_passes


@pytest.mark.parametrize("seed", range(8))
def test_an_output_whose_last_mask_is_late_ends_without_a_pass_too(seed: int) -> None:
    runtime = Runtime(slow_masks=seed)
    message = generate("a", [5, 5, 5], constraint=Constraint("choices", json.dumps([[2], [3]])))
    runtime.add(message)
    runtime.finish()
    assert_equal(runtime.answers["a"], sequential(message))
    assert runtime.answers["a"].num_passes == 1


def test_a_bad_grammar_frees_the_pages_of_its_prompt() -> None:
    runtime = Runtime(budget=4)
    runtime.add(generate("bad", [2] * 20, constraint=Constraint("regex", "(")))
    runtime.step()
    assert runtime.cache.leases
    runtime.grammars.pending.pop()[0].set_exception(RequestError("missing )"))
    assert not runtime.step()
    assert runtime.answers["bad"].error is not None
    assert not runtime.cache.leases


def test_a_bad_grammar_fails_its_request_only() -> None:
    runtime = Runtime()
    runtime.add(generate("bad", [2], constraint=Constraint("regex", "(")), generate("good", [3]))
    [(future, _)] = runtime.grammars.pending
    runtime.grammars.pending.clear()
    future.set_exception(RequestError("missing )", param="regex", code="invalid_grammar"))
    runtime.finish()
    error = runtime.answers["bad"].error
    assert (error.kind, error.param, error.code) == ("request", "regex", "invalid_grammar")
    assert runtime.answers["good"].finish is not None


def test_a_bad_grammar_is_answered_when_nothing_else_runs() -> None:
    runtime = Runtime()
    runtime.add(generate("bad", [2], constraint=Constraint("regex", "(")))
    runtime.grammars.pending[0][0].set_exception(RequestError("missing )"))
    assert not runtime.step()
    assert runtime.answers["bad"].error is not None
    assert runtime.scheduler.idle


def test_a_grammar_at_a_dead_end_fails_its_request_and_frees_its_pages() -> None:
    class DeadEnd(FakeMatcher):
        def mask(self, out: Any) -> None:
            super().mask(out)
            if self.accepted:
                out[:] = 0

    class Grammar:
        def matcher(self) -> FakeMatcher:
            return DeadEnd([[2, 3]])

    runtime = Runtime()
    runtime.add(generate("dead", [2], constraint=Constraint("choices", "[]")), generate("good", [3]))
    runtime.grammars.pending[0][0].set_result(Grammar())
    runtime.grammars.pending.clear()
    runtime.finish()
    assert runtime.answers["dead"].ids == [2]
    assert runtime.answers["dead"].error.code == "dead_end"
    assert runtime.answers["good"].finish is not None


def teach_that_outputs_are_short(runtime: Runtime) -> None:
    """Run short outputs, so that more is admitted than there is room for."""
    for i in range(100):
        runtime.add(generate(f"short {i}", [2], max_new_tokens=1, **FREE))
    runtime.finish()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["waiting for its grammar", "waiting", "running", "in flight", "retracted"])
def test_an_abort_is_answered_once_at_any_moment_and_frees_the_pages(moment: str) -> None:
    runtime = Runtime(num_pages=10, max_running=2)
    teach_that_outputs_are_short(runtime)
    senior = generate("senior", [2] * 6, max_new_tokens=30, **FREE)
    constraint = Constraint("choices", "[[2]]") if moment == "waiting for its grammar" else None
    victim = generate("victim", [3] * 6, max_new_tokens=30, constraint=constraint, **FREE)
    runtime.add(senior)
    runtime.step()
    if moment == "waiting":
        runtime.add(generate("other", [4], max_new_tokens=20, **FREE))
    runtime.add(victim)
    runtime.step(["victim"] if moment == "in flight" else [])
    while moment == "retracted" and runtime.scheduler.stats().num_retractions == 0:
        runtime.step()
    if moment != "in flight":
        runtime.abort("victim")
    runtime.abort("victim")
    assert runtime.answers["victim"].finish == Finish("abort")
    runtime.finish()
    assert_equal(runtime.answers["senior"], sequential(senior))


def test_aborting_everything_ends_the_senders_requests_only() -> None:
    runtime = Runtime()
    runtime.add(generate("a1", [2], **FREE), generate("a2", [3], **FREE), owner=b"a")
    runtime.add(generate("b1", [4], **FREE), owner=b"b")
    runtime.step()
    runtime.abort("b1", owner=b"a")
    runtime.abort(None, owner=b"a")
    runtime.finish()
    finishes = {rid: answer.finish.type for rid, answer in runtime.answers.items() if answer.finish}
    assert (finishes["a1"], finishes["a2"]) == ("abort", "abort")
    assert finishes["b1"] != "abort"


def test_prompt_scores_on_a_cache_hit_equal_a_cold_run_s_and_cost_only_what_is_requested() -> None:
    prompt = [2, 3, 4, 5] * 10
    message = generate("scored", prompt, max_new_tokens=0, logprobs=LogprobParams(num_top=2, prompt_from=25))
    runtime = Runtime(budget=7)
    runtime.add(generate("warm", prompt, max_new_tokens=0))
    runtime.finish()
    before = runtime.engine.num_computed
    runtime.add(message)
    runtime.finish()
    assert_equal(runtime.answers["scored"], sequential(message))
    assert runtime.engine.num_computed - before == 40 - 24
    assert runtime.answers["scored"].num_cached == 24


def test_the_first_position_has_no_score() -> None:
    runtime = Runtime()
    runtime.add(generate("r", [5], max_new_tokens=0, logprobs=LogprobParams(prompt_from=0)))
    runtime.finish()
    assert runtime.answers["r"].prompt_logprobs == [None]


def test_a_prompt_that_is_cached_whole_and_wants_nothing_is_answered_without_a_step() -> None:
    runtime = Runtime()
    runtime.add(generate("first", [2, 3, 4], max_new_tokens=0))
    runtime.finish()
    runtime.add(generate("again", [2, 3, 4], max_new_tokens=0))
    assert not runtime.step()
    assert runtime.answers["again"].finish == Finish("length")
    assert runtime.answers["again"].num_cached == 3


def test_a_request_that_can_never_run_is_refused_with_the_parameter() -> None:
    full = Runtime(num_pages=20, context_length=50)
    full.add(generate("full", [2] * 50, max_new_tokens=5), generate("scored", [2] * 50, max_new_tokens=0))
    error = full.answers["full"].error
    assert (error.param, error.code) == ("prompt", "context_length_exceeded")
    assert full.answers["scored"].error is None
    runtime = Runtime(num_pages=10, context_length=50)
    cases: list[tuple[list[int], dict[str, Any], str, str, list[str]]] = [
        ([], {}, "prompt", "empty_prompt", []),
        ([2, 12], {}, "prompt", "invalid_value", ["12"]),
        ([2, -1], {}, "prompt", "invalid_value", ["-1"]),
        ([2] * 51, {}, "prompt", "context_length_exceeded", ["51", "50"]),
        ([2] * 40, {}, "prompt", "context_length_exceeded", ["40"]),
        ([2], {"stop_token_ids": (99,)}, "stop_token_ids", "invalid_value", ["99"]),
        ([2], {"logit_bias": {77: 1.0}}, "logit_bias", "invalid_value", ["77"]),
        ([2], {"seed": None, "temperature": 1.0}, "seed", "invalid_value", []),
    ]
    for i, (tokens, params, param, code, quoted) in enumerate(cases):
        runtime.add(generate(f"r{i}", tokens, **params))
        error = runtime.answers[f"r{i}"].error
        assert (error.kind, error.param, error.code) == ("request", param, code)
        assert all(text in error.message for text in quoted)
    assert runtime.scheduler.idle


def test_more_prompt_logprobs_than_a_message_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramiform.runtime.scheduler.request.MAX_PROMPT_LOGPROBS", 30)
    runtime = Runtime()
    runtime.add(generate("fits", [2] * 10, logprobs=LogprobParams(num_top=2, prompt_from=0)))
    runtime.add(generate("not", [2] * 11, logprobs=LogprobParams(num_top=2, prompt_from=0)))
    error = runtime.answers["not"].error
    assert error is not None
    assert (error.param, error.code) == ("logprob_start_len", "too_long")
    assert runtime.answers["fits"].error is None
    runtime.finish()


def test_a_queue_that_is_full_answers_busy_and_works_on() -> None:
    runtime = Runtime(max_waiting=2)
    runtime.add(*(generate(f"r{i}", [2 + i]) for i in range(4)))
    assert [runtime.answers[f"r{i}"].error and runtime.answers[f"r{i}"].error.kind for i in range(4)] == [
        None,
        None,
        "busy",
        "busy",
    ]
    runtime.finish()
    assert all(answer.over for answer in runtime.answers.values())


@pytest.mark.parametrize(("num_pages", "context_length", "num_tokens"), [(5, 200, 20), (64, 23, 23)])
def test_an_output_ends_where_the_pool_or_the_context_does(
    num_pages: int, context_length: int, num_tokens: int
) -> None:
    runtime = Runtime(num_pages=num_pages, context_length=context_length)
    runtime.add(generate("r", [2] * 7, max_new_tokens=100, **FREE))
    runtime.finish()
    assert len(runtime.answers["r"].ids) == num_tokens - 7
    assert runtime.answers["r"].finish == Finish("length")


def test_stats_and_flush_are_answered_by_call_number() -> None:
    runtime = Runtime()
    runtime.add(generate("r", [2] * 10, max_new_tokens=3, **FREE), generate("s", [2] * 10, max_new_tokens=3, **FREE))
    runtime.finish()
    [reply] = runtime.scheduler.handle(GetStats(5), 0.0)
    assert isinstance(reply, CoreReply)
    stats = reply.stats
    assert isinstance(stats, CoreStats)
    assert (reply.call, stats.num_prompt_tokens, stats.num_cached_tokens, stats.num_output_tokens) == (5, 20, 9, 6)
    assert stats.num_free_pages + stats.num_cached_pages == stats.num_pages
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert runtime.scheduler.handle(FlushCache(6), 0.0) == [CoreReply(6)]
    assert runtime.scheduler.stats().num_cached_pages == 0
