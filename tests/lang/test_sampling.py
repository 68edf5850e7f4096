"""Precedence of sampling arguments; every one reaches the runtime."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform import RequestError, gen, select
from ramiform.lang.expressions.expr import GEN_NAMES, RUN_ARGUMENTS, GenExpr
from ramiform.lang.expressions.lowering import defaults_of, gen_operation, select_operation
from ramiform.runtime.protocol import session
from ramiform.runtime.protocol.sampling import PARAMETERS, Constraint, LogprobParams, SamplingParams

# For each argument of gen: two values, and what the runtime is asked for each.
ARGUMENTS: dict[str, list[tuple[Any, str, Any]]] = {
    "max_tokens": [(7, "max_new_tokens", 7), (9, "max_new_tokens", 9)],
    "min_tokens": [(1, "min_new_tokens", 1), (2, "min_new_tokens", 2)],
    "stop": [("a", "stop", ("a",)), (["b", "c"], "stop", ("b", "c"))],
    "stop_token_ids": [([1], "stop_token_ids", (1,)), ((2, 3), "stop_token_ids", (2, 3))],
    "temperature": [(0, "temperature", 0.0), (0.5, "temperature", 0.5)],
    "top_p": [(0.1, "top_p", 0.1), (0.9, "top_p", 0.9)],
    "top_k": [(5, "top_k", 5), (-1, "top_k", None)],
    "top_n_sigma": [(1, "top_n_sigma", 1.0), (-1, "top_n_sigma", -1.0)],
    "min_p": [(0.1, "min_p", 0.1), (0.2, "min_p", 0.2)],
    "typical_p": [(0.1, "typical_p", 0.1), (1, "typical_p", 1.0)],
    "xtc_probability": [(0.1, "xtc_probability", 0.1), (1, "xtc_probability", 1.0)],
    "xtc_threshold": [(0.2, "xtc_threshold", 0.2), (0, "xtc_threshold", 0.0)],
    "dynatemp_range": [(0.5, "dynatemp_range", 0.5), (1, "dynatemp_range", 1.0)],
    "dynatemp_exponent": [(2, "dynatemp_exponent", 2.0), (0.5, "dynatemp_exponent", 0.5)],
    "frequency_penalty": [(0.1, "frequency_penalty", 0.1), (0.2, "frequency_penalty", 0.2)],
    "presence_penalty": [(0.1, "presence_penalty", 0.1), (0.2, "presence_penalty", 0.2)],
    "repetition_penalty": [(1.1, "repetition_penalty", 1.1), (1.2, "repetition_penalty", 1.2)],
    "logit_bias": [({"5": 1.0}, "logit_bias", {5: 1.0}), ({6: -1}, "logit_bias", {6: -1.0})],
    "dry_multiplier": [(0.5, "dry_multiplier", 0.5), (1, "dry_multiplier", 1.0)],
    "dry_base": [(2, "dry_base", 2.0), (1.5, "dry_base", 1.5)],
    "dry_allowed_length": [(3, "dry_allowed_length", 3), (0, "dry_allowed_length", 0)],
    "dry_penalty_last_n": [(64, "dry_penalty_last_n", 64), (-1, "dry_penalty_last_n", None)],
    "dry_sequence_breakers": [
        (".", "dry_sequence_breakers", (".",)),
        (["a", "b"], "dry_sequence_breakers", ("a", "b")),
        ([], "dry_sequence_breakers", ()),
    ],
    "bad_words": [("a", "bad_words", ("a",)), (["b", "c"], "bad_words", ("b", "c"))],
    "allowed_token_ids": [([1], "allowed_token_ids", (1,)), ((2, 3), "allowed_token_ids", (2, 3))],
    "stop_regex": [("a+", "stop_regex", ("a+",)), (["b", "c|d"], "stop_regex", ("b", "c|d"))],
    "seed": [(0, "seed", 0), (-3, "seed", -3)],
    "ignore_eos": [(True, "ignore_eos", True), (False, "ignore_eos", False)],
}


def gen_expr(*args: Any, **kwargs: Any) -> GenExpr:
    expr = gen(*args, **kwargs)
    assert isinstance(expr, GenExpr)
    return expr


@pytest.mark.slow
@given(
    own=st.sets(st.sampled_from(sorted(ARGUMENTS))),
    run=st.sets(st.sampled_from(sorted(ARGUMENTS))),
    which=st.integers(0, 1),
)
def test_gen_overrides_run_overrides_the_default(own: set[str], run: set[str], which: int) -> None:
    expr = gen_expr(**{name: ARGUMENTS[name][which][0] for name in own})
    defaults = defaults_of({name: ARGUMENTS[name][1 - which][0] for name in run})
    sampling = gen_operation(expr, defaults, stream=False)[0].sampling
    for name, cases in ARGUMENTS.items():
        field = cases[0][1]
        expected = getattr(SamplingParams(), field)
        if name in run:
            expected = cases[1 - which][2]
        if name in own:
            expected = cases[which][2]
        assert getattr(sampling, field) == expected, name


def test_the_signature_of_gen_has_every_sampling_parameter_of_the_table() -> None:
    named = {row.name_in("gen") for row in PARAMETERS.values()} - {None}
    signature = inspect.signature(gen).parameters
    assert named == set(GEN_NAMES.values()) == set(ARGUMENTS)
    assert set(RUN_ARGUMENTS.values()) <= set(signature)
    assert all(signature[name].default is None for name in RUN_ARGUMENTS.values())


def test_run_takes_every_sampling_argument_by_gen_s_name_and_the_parameter_s() -> None:
    for row in PARAMETERS.values():
        if (name := row.name_in("gen")) is not None:
            assert defaults_of({row.name: 5}) == defaults_of({name: 5}) == {name: 5}
    assert {"n", "return_logprob", "logprob_start_len", "top_logprobs_num"} <= set(RUN_ARGUMENTS)


@pytest.mark.parametrize(
    ("arguments", "constraint"),
    [
        ({"regex": "a+"}, Constraint("regex", "a+")),
        ({"json_schema": {"type": "object"}}, Constraint("json_schema", '{"type": "object"}')),
        ({"json_schema": "{}"}, Constraint("json_schema", "{}")),
        ({"grammar": "start: A"}, Constraint("grammar", "start: A")),
        ({"schema": bool}, Constraint("json_schema", '{"type": "boolean"}', "any", "closed")),
    ],
    ids=str,
)
def test_a_constraint_survives_beside_other_arguments(arguments: dict[str, Any], constraint: Constraint) -> None:
    expr = gen_expr("x", temperature=0.3, stop="z", **arguments)
    sampling = gen_operation(expr, defaults_of({"top_p": 0.5}), stream=False)[0].sampling
    assert sampling.constraint == constraint
    assert (sampling.temperature, sampling.stop, sampling.top_p) == (0.3, ("z",), 0.5)


def test_a_typed_gen_takes_a_stop_of_its_own_too() -> None:
    sampling = gen_operation(gen_expr(dtype=int, stop="."), {}, stream=False)[0].sampling
    assert sampling.stop == (".", "\n")
    assert sampling.constraint is not None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, None),
        ({"return_logprob": True}, LogprobParams()),
        (
            {"return_logprob": True, "logprob_start_len": 3, "top_logprobs_num": 2},
            LogprobParams(num_top=2, prompt_from=3),
        ),
        ({"top_logprobs_num": 2}, LogprobParams(num_top=2)),
        ({"return_logprob": True, "logprob_start_len": -1}, LogprobParams()),
        ({"return_logprob": False, "top_logprobs_num": 2}, None),
    ],
)
def test_log_probabilities_are_asked_for(arguments: dict[str, Any], expected: LogprobParams | None) -> None:
    assert gen_operation(gen_expr(**arguments), {}, stream=False)[0].logprobs == expected
    assert gen_operation(gen_expr(), defaults_of(arguments), stream=False)[0].logprobs == expected


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"max_tokens": 1.5}, "max_new_tokens"),
        ({"stop": ["a", 3]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"n": 0}, "n"),
        ({"n": "2"}, "n"),
        ({"n": True}, "n"),
        ({"regex": ["a"]}, "regex"),
        ({"grammar": 5}, "grammar"),
        ({"stop_regex": ""}, "stop_regex"),
        ({"stop_regex": ["a", 3]}, "stop_regex"),
        ({"stop_regex": ["a"] * 65}, "stop_regex"),
        ({"top_logprobs_num": 1000}, "top_logprobs"),
        ({"dtype": list}, "dtype"),
    ],
)
def test_a_bad_argument_is_named(arguments: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        gen_operation(gen_expr(**arguments), {}, stream=False)
    assert caught.value.param == param


@pytest.mark.parametrize("seed", ["a", True, 1.5])
def test_a_bad_seed_of_a_select_is_named(seed: Any) -> None:
    with pytest.raises(RequestError) as caught:
        select_operation(dataclasses.replace(select("x", ["a", "b"]), seed=seed), {})
    assert caught.value.param == "seed"


def test_a_select_keeps_its_temperature_and_takes_the_run_s_seed() -> None:
    chosen = select("x", ["a", "b"], temperature=0.7, choices_method="greedy_token_selection")
    assert select_operation(chosen, defaults_of({"seed": 5, "temperature": 0.1})) == session.Select(
        choices=("a", "b"), method="greedy_token_selection", temperature=0.7, seed=5
    )
