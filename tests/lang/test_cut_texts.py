"""Texts of a constraint that `max_tokens` cut off raise when they are read, unless the program keeps them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

import ramiform
from ramiform import ProgramState, RequestError, Scripted, gen
from ramiform.lang.backends.model import ModelOutput
from ramiform.runtime.protocol.core import Finish

GRAMMAR = 'start: "a"+'


class CutOff(Scripted):
    """Answers of which each is cut off at max_tokens."""

    def generate(self, *args: Any) -> ModelOutput:
        output = super().generate(*args)
        cut = [msgspec.structs.replace(one, finish=Finish("length")) for one in output.sequences]
        return replace(output, sequences=cut)


def value_of(text: str, **constraint: Any) -> Any:
    def program(s: ProgramState) -> None:
        s += gen("x", max_tokens=3, **constraint)
        s["x"]

    return ramiform.function(program).run(backend=CutOff([text]))["x"]


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        ({"regex": "[a-z]{10}"}, "abc"),
        ({"regex": r"(?P<x>a)\p{L}+"}, "abc"),  # which Python's `re` does not know
        ({"json_schema": {"type": "object"}}, '{"a": 1'),
        ({"json_schema": {"type": "integer"}}, "12"),
        ({"grammar": GRAMMAR}, "aaa"),
    ],
)
def test_a_text_that_was_cut_off_raises_or_is_kept(constraint: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=r"cut off at max_tokens.*raise max_tokens") as caught:
        value_of(text, **constraint)
    assert (caught.value.code, caught.value.param) == ("invalid_result", "x")
    assert value_of(text, **constraint, on_cut="keep") == text


@pytest.mark.parametrize(
    ("constraint", "text"),
    [({"regex": "[a-z]+"}, "abc"), ({"json_schema": {"type": "object"}}, '{"a": 1}'), ({}, "abc")],
)
def test_a_text_that_is_complete_where_it_was_cut_off_is_the_value(constraint: dict[str, Any], text: str) -> None:
    assert value_of(text, **constraint) == text


def test_a_cut_text_is_an_invalid_attempt() -> None:
    def program(s: ProgramState) -> None:
        s += gen("x", json_schema={"type": "object"}, retries=1)
        s["x"]

    state = ramiform.function(program).run(backend=CutOff(['{"a', '{"a": 1}']))
    assert (state["x"], len(state.get_meta_info("x")["attempts"])) == ('{"a": 1}', 2)


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"on_cut": "drop", "regex": "a"}, "on_cut"),
        ({"on_cut": "keep", "dtype": int}, "on_cut"),
        ({"number_digits": -1, "json_schema": {}}, "number_digits"),
        ({"number_digits": 5}, "number_digits"),
        ({"json_whitespace": "none", "json_schema": {}}, "json_whitespace"),
        ({"json_whitespace": "compact", "regex": "a"}, "json_whitespace"),
    ],
)
def test_arguments_without_a_meaning_are_refused(arguments: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        gen("x", **arguments)
    assert caught.value.param == param
