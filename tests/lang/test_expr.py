"""Expressions are values that chain; invalid ones are refused where they are written."""

from __future__ import annotations

from typing import Any

import pytest

import ramiform
from ramiform import RequestError, gen, select
from ramiform.lang.expressions.expr import Concat, Constant, GenExpr, RoleBeginExpr, RoleEndExpr, SelectExpr, parts_of


def test_strings_and_expressions_chain_in_order() -> None:
    chain = "a" + gen("x") + "b" + select("y", ["1", "2"]) + ramiform.user("c")
    assert [type(part) for part in parts_of(chain)] == [
        Constant,
        GenExpr,
        Constant,
        SelectExpr,
        RoleBeginExpr,
        Constant,
        RoleEndExpr,
    ]


def test_adding_does_not_change_what_is_added() -> None:
    first = "a" + gen("x")
    second = first + "b"
    assert len(first.parts) == 2
    assert len(second.parts) == 3


def test_an_empty_string_is_nothing() -> None:
    assert parts_of("") == ()
    assert parts_of("" + gen("x")) == (gen("x"),)


def test_roles_wrap_their_content() -> None:
    assert ramiform.system("s") == Concat((RoleBeginExpr("system"), Constant("s"), RoleEndExpr("system")))
    assert ramiform.assistant() == Concat((ramiform.assistant_begin(), ramiform.assistant_end()))
    assert ramiform.user("u").parts[0] == ramiform.user_begin()
    assert ramiform.user("u").parts[-1] == ramiform.user_end()
    assert ramiform.system("s").parts[0] == ramiform.system_begin()
    assert ramiform.system("s").parts[-1] == ramiform.system_end()


def test_gen_with_choices_is_a_select() -> None:
    chosen = gen("x", choices=["a", "b"], temperature=0.5, seed=3, choices_method=ramiform.greedy_token_selection)
    assert chosen == SelectExpr(
        name="x", choices=("a", "b"), temperature=0.5, method=ramiform.greedy_token_selection, seed=3
    )
    assert chosen == gen("x", choices=["a", "b"], temperature=0.5, seed=3, choices_method="greedy_token_selection")
    assert gen("x", choices=["a"]) == select("x", ["a"])


@pytest.mark.parametrize("choices", [[], (), None, "abc", ["a", ""], ["a", 1]])
def test_choices_that_are_none_are_refused(choices: Any) -> None:
    with pytest.raises(RequestError, match="choices must be") as caught:
        select("x", choices)
    assert caught.value.param == "choices"
    if choices is not None:
        with pytest.raises(RequestError, match="choices must be"):
            gen("x", choices=choices)


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"choices": ["a"], "choices_method": "best"}, "choices_method"),
        ({"choices": ["a"], "temperature": -1.0}, "temperature"),
        ({"choices": ["a"], "regex": "a"}, "regex"),
        ({"dtype": int, "json_schema": "{}"}, "json_schema"),
        ({"regex": "a", "grammar": "start: A"}, "grammar"),
        ({"dtype": int, "schema": int}, "schema"),
        ({"name": ""}, "name"),
        ({"name": 3}, "name"),
    ],
)
def test_an_impossible_argument_is_named(arguments: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        gen(**arguments)
    assert caught.value.param == param


@pytest.mark.parametrize("other", [3, None, ["a"], b"a"])
def test_only_strings_and_expressions_chain(other: Any) -> None:
    with pytest.raises(TypeError):
        gen("x") + other
    with pytest.raises(TypeError):
        other + gen("x")
    with pytest.raises(RequestError, match="cannot append"):
        parts_of(other)


def test_gen_int_and_gen_string_are_typed_gens() -> None:
    assert ramiform.gen_int("x", 8, stop="!") == gen("x", 8, dtype=int, stop="!")
    assert ramiform.gen_string("x") == gen("x", dtype=str)


@pytest.mark.parametrize(
    "extra",
    [
        {"max_tokens": 5},
        {"min_tokens": 1},
        {"n": 2},
        {"stop": "\n"},
        {"stop_token_ids": [1]},
        {"stop_regex": "a"},
        {"top_p": 0.5},
        {"top_k": 3},
        {"min_p": 0.1},
        {"top_n_sigma": 1.5},
        {"typical_p": 0.5},
        {"xtc_probability": 0.5},
        {"dynatemp_range": 0.5},
        {"frequency_penalty": 0.1},
        {"dry_multiplier": 0.5},
        {"dry_sequence_breakers": ["."]},
        {"logit_bias": {1: 1.0}},
        {"ignore_eos": True},
        {"top_logprobs_num": 2},
        {"return_text_in_logprobs": True},
        {"tool_errors": "raise"},
        {"tool_result": "{result}"},
        {"additional_properties": "closed"},
    ],
)
def test_what_a_choice_cannot_honour_is_refused_by_name(extra: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        gen("x", choices=["a", "b"], **extra)
    assert caught.value.param == next(iter(extra))


def test_what_a_choice_honours_is_taken() -> None:
    assert gen("x", choices=["a"], n=1, return_logprob=True, seed=1) == gen("x", choices=["a"], seed=1)


@pytest.mark.parametrize("extra", [{"choices_method": "greedy_token_selection"}, {"tool_errors": "raise"}])
def test_an_option_of_something_that_is_not_there_is_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        gen("x", **extra)
    assert caught.value.param == next(iter(extra))


def test_a_select_needs_no_name() -> None:
    assert select(["a", "b"]) == select(None, ["a", "b"])
    assert parts_of(ramiform.seq("<", select(["a", gen("x", regex="b")]))) != ()
