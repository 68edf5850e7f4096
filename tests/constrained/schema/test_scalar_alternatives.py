"""Many alternatives of one string or number: they are one automaton, and say what `jsonschema` says."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.constrained import GrammarError, JsonSchema, compile_constraint
from ramiform.tests.constrained.strategies import many
from ramiform.tests.constrained.walks import accepts, compiled_or_none, shared_vocabulary

PATTERNS = [*"abcdef", "^.*a", "b$", "^a*$", "^(?!a)", "ab", "^.$", "", "(?=.*c)d", "^b", r"\bc", "[^a]"]
TEXTS = ["", "a", "b", "z", "ab", "ba", "cd", "aa", "abc", "a c", "2020-01-02", "fed", "abcdef", "zzzzzz"]
NUMBERS = [-11, -10, -3, -1, 0, 1, 2, 3, 4, 5, 9, 10, 11, 12, 20, 21, 99, 100, 101, 0.5, 2.5, -2.5, 10.25]


def combined(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return schemas of several leaves under each of the applicators, two levels deep."""
    schemas = leaf
    for most in (12, 3):
        several = st.lists(schemas, min_size=1, max_size=most)
        joined = [st.fixed_dictionaries({keyword: several}) for keyword in ("anyOf", "oneOf", "allOf")]
        schemas = leaf | st.one_of(*joined) | schemas.map(lambda inner: {"not": inner})
    return schemas


def agrees(schema: Any, values: list[Any]) -> None:
    judge = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(["date"]))
    grammar = compiled_or_none(JsonSchema(schema), shared_vocabulary())
    for value in values:
        found = grammar is not None and accepts(grammar, json.dumps(value).encode())
        assert found == judge.is_valid(value), value


@pytest.mark.exhaustive
@many(60)
@given(
    combined(
        st.one_of(
            st.sampled_from(PATTERNS).map(lambda pattern: {"pattern": pattern}),
            st.sampled_from([{"minLength": 2}, {"maxLength": 3}, {"enum": ["a", "abc"]}, {"format": "date"}]),
            st.tuples(st.sampled_from(PATTERNS), st.integers(0, 3)).map(lambda p: {"pattern": p[0], "minLength": p[1]}),
        )
    )
)
def test_alternatives_of_strings(schema: Any) -> None:
    agrees({"type": "string", "allOf": [schema]}, TEXTS)


BOUNDS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["integer", "number"]),
        "minimum": st.sampled_from([-10, 0, 2, 2.5, 10, 10.0]),
        "maximum": st.sampled_from([-3, 0, 3, 10.25, 20, 100]),
        "exclusiveMinimum": st.sampled_from([-1, 1, 9]),
        "exclusiveMaximum": st.sampled_from([3, 4, 101]),
    },
)


@pytest.mark.exhaustive
@many(60)
@given(
    combined(BOUNDS | st.sampled_from([{"multipleOf": 5}, {"enum": [3, 2.5, 12]}, {"type": "integer", "minimum": 4}]))
)
def test_alternatives_of_numbers(schema: Any) -> None:
    agrees({"type": "number", "allOf": [schema]}, NUMBERS)


@pytest.mark.parametrize("around", ["anyOf", "oneOf", "not anyOf", "allOf not", "member", "minLength"])
@pytest.mark.parametrize("pattern", ["{}", "^.*{}", "{0}{0}1", "^{0}+$", "(?=.*{0}).*x"])
def test_sixteen_patterns_whose_product_is_large(pattern: str, around: str) -> None:
    letters = "abcdefghijklmnop"
    patterns = [{"pattern": pattern.format(letter)} for letter in letters]
    schemas: dict[str, Any] = {
        "anyOf": {"anyOf": patterns},
        "oneOf": {"oneOf": patterns},
        "not anyOf": {"not": {"anyOf": patterns}},
        "allOf not": {"allOf": [{"not": each} for each in patterns]},
        "member": {"properties": {"s": {"anyOf": patterns}}},
        "minLength": {"minLength": 3, "anyOf": patterns, "pattern": "[a-z]"},
    }
    schema: Any = {"type": "object" if around == "member" else "string", **schemas[around]}
    rng = random.Random(1)
    texts = ["", "a", "zzz", "aa1", "bb1aa1", "ax", *("".join(rng.choices("abpz1x", k=4)) for _ in range(20))]
    agrees(schema, [{"s": text} for text in texts] if around == "member" else texts)


@pytest.mark.exhaustive
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_thousands_of_ranges_or_patterns(keyword: str) -> None:
    ranges = [{"type": "integer", "minimum": 10 * n, "maximum": 10 * n + 3} for n in range(2000)]
    grammar = compile_constraint(JsonSchema({keyword: ranges}), shared_vocabulary())
    for number in range(-11, 20_020, 7):
        assert accepts(grammar, str(number).encode()) == (0 <= number < 20_000 and number % 10 < 4), number
    patterns = [{"pattern": f"^p{n}[a-f]{{3}}$"} for n in range(2000)]
    grammar = compile_constraint(JsonSchema({"type": "string", keyword: patterns}), shared_vocabulary())
    for text, is_valid in {"p7abc": True, "p1999fff": True, "p2000abc": False, "p7abg": False, "p7ab": False}.items():
        assert accepts(grammar, json.dumps(text).encode()) == is_valid, text


def test_neighbouring_ranges_of_integers_have_as_many_values_as_they_hold() -> None:
    ranges = [{"minimum": low, "maximum": low + 1} for low in (0, 2, 10**30)]
    items = {"type": "integer", "anyOf": ranges}
    schema = {"type": "array", "items": items, "uniqueItems": True, "minItems": 6}
    grammar = compile_constraint(JsonSchema(schema), shared_vocabulary())
    values = [0, 3, 10**30 + 1, 2, 1, 10**30]
    assert accepts(grammar, json.dumps(values).encode())
    with pytest.raises(GrammarError, match="no text at all"):
        compile_constraint(JsonSchema(schema | {"minItems": 7}), shared_vocabulary())


@pytest.mark.exhaustive
def test_more_patterns_than_can_be_read_are_refused_with_a_pointer() -> None:
    patterns = [{"pattern": f"^p{n}[a-f]{{3}}$"} for n in range(12_000)]
    with pytest.raises(GrammarError, match="more than 200,000,000 steps") as refused:
        compile_constraint(JsonSchema({"properties": {"a": {"anyOf": patterns}}}), shared_vocabulary())
    assert (refused.value.pointer or "").startswith("/properties/a/anyOf/")


@pytest.mark.slow
def test_a_product_that_is_large_is_refused_with_a_pointer() -> None:
    schema = {"type": "string", "allOf": [{"pattern": letter} for letter in "abcdefghijklmnop"]}
    with pytest.raises(GrammarError, match="too complex") as refused:
        compile_constraint(JsonSchema({"properties": {"a": schema}}), shared_vocabulary())
    assert refused.value.pointer == "/properties/a"
