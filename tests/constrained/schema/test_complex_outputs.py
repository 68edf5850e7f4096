"""Tests that an output fails which reaches what is too complex beyond the compiled states, and that others go on."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ramiform.constrained import (
    CompiledGrammar,
    GrammarError,
    JsonSchema,
    Matcher,
    SchemaOptions,
    compile_constraint,
    fill_batch,
)
from ramiform.constrained.automaton.batch import prepare_together
from ramiform.constrained.explain.report import explain
from ramiform.tests.constrained.walks import accepts, allowed, shared_vocabulary

from .oracle_jsonschema import judge


def far_inside(inner: Any) -> Any:
    """Return the schema of a value four members deep, among more states than compilation looks at."""
    for _ in range(4):
        others = {f"m{n}": {"type": "object", "properties": {f"n{k}": {} for k in range(20)}} for n in range(20)}
        inner = {"type": "object", "properties": {"x": inner, **others}}
    return inner


def inside(value: Any) -> bytes:
    return json.dumps({"x": {"x": {"x": {"x": value}}}}).encode()


def far_from_the_end(letter: str, distance: int) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^.*{letter}.{{{distance}}}$"}


PLACE = "/properties/x/properties/x/properties/x/properties/x"
CASES = {
    "divisors": ([{"type": "integer", "multipleOf": n} for n in (9973, 9967)], 9973 * 9967, "multipleOf"),
    "items": ([{"items": {"multipleOf": n}} for n in (9973, 9967)], [9973 * 9967], "items/multipleOf"),
    "additional": (
        [{"additionalProperties": {"multipleOf": n}} for n in (9973, 9967)],
        {"new": 9973 * 9967},
        "additionalProperties/multipleOf",
    ),
    "matching": (
        [{"patternProperties": {pattern: {"multipleOf": n}}} for pattern, n in (("^a", 9973), ("b$", 9967))],
        {"ab": 9973 * 9967},
        "patternProperties/",
    ),
    "patterns": ([far_from_the_end("abc"[n], 9 + n) for n in range(3)], "cba" + 9 * "z", "pattern"),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[CompiledGrammar, bytes, str]:
    """A grammar that is too complex inside, a text that is valid, and what the error's pointer names."""
    inner, value, named = CASES[request.param]
    schema = {"allOf": [far_inside(each) for each in inner]}
    text = inside(value)
    assert judge(schema).is_valid(json.loads(text))
    return compile_constraint(JsonSchema(schema), shared_vocabulary()), text, named


def written_up_to_the_error(grammar: CompiledGrammar, text: bytes) -> tuple[Matcher, GrammarError]:
    matcher = grammar.matcher()
    for byte in text:
        try:
            assert allowed(matcher, shared_vocabulary())
            assert matcher.accept(byte), "a valid text is refused"
        except GrammarError as error:
            return matcher, error
    raise AssertionError("nothing was too complex")


@pytest.mark.exhaustive
def test_an_output_that_gets_to_what_is_too_complex_fails_with_its_pointer(
    case: tuple[CompiledGrammar, bytes, str],
) -> None:
    grammar, text, named = case
    for _ in range(2):  # the error is not forgotten
        matcher, error = written_up_to_the_error(grammar, text)
        assert error.pointer is not None
        assert error.pointer.startswith(tuple(f"/allOf/{n}{PLACE}" for n in range(3)))
        assert named in error.pointer
        for _ in range(2):
            with pytest.raises(GrammarError, match="complex"):
                matcher.prepare(forced=False)
        assert accepts(grammar, b'{"m3": {"n1": [1, 2]}, "x": {"x": {"m1": {}}}}')


@pytest.mark.exhaustive
def test_outputs_beside_one_that_is_too_complex_get_their_masks(case: tuple[CompiledGrammar, bytes, str]) -> None:
    grammar, text, _ = case
    failing, _ = written_up_to_the_error(grammar, text)
    other = grammar.matcher()
    assert other.accept(ord("{"))
    prepare_together([failing, other])
    assert not failing.is_ready(forced=False)
    out = np.zeros((2, shared_vocabulary().num_words), np.int32)
    with pytest.raises(GrammarError, match="complex"):
        fill_batch([failing, other], out)
    assert other.is_ready(forced=False)
    fill_batch([other], out[1:])
    assert out[1].any()


@pytest.mark.slow
def test_the_report_on_a_schema_names_what_is_too_complex_for_a_text() -> None:
    inner, value, named = CASES["divisors"]
    schema = json.dumps({"allOf": [far_inside(each) for each in inner]})
    found = explain("schema.json", schema, "schema", instance=inside(value))
    assert not found.is_good
    [remark] = found.too_complex
    assert (remark.pointer or "").endswith(named)
    assert "too complex for some outputs: 1" in found.text()


def test_alternatives_that_differ_in_required_members_exclude_each_other_without_a_search() -> None:
    names = "abcdefghijklmnop"
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "oneOf": [{"required": [name]} for name in names],
    }
    grammar = compile_constraint(JsonSchema(schema, SchemaOptions("closed")), shared_vocabulary())
    for text in ('{"a": 1}', '{"p": 1}', '{"a": 1, "b": 2}', '{"c": 1, "d": "x"}', "{}"):
        assert accepts(grammar, text.encode()) == judge(schema).is_valid(json.loads(text))
