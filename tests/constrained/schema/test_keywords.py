"""Keywords in combination: a text is accepted exactly if `jsonschema` finds its value valid."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.constrained import GrammarError, JsonSchema, compile_constraint
from ramiform.tests.constrained.strategies import many
from ramiform.tests.constrained.walks import accepts, allowed, compiled_or_none, shared_vocabulary

from .oracle_jsonschema import is_valid, judge

NAMES = st.sampled_from(["a", "b", "ab", "c/d", "é", ""])
SCALARS = st.sampled_from([None, True, False, 0, 1, 2, 3, 1.5, -1, 1.0, "", "a", "b", "ab", "é", "c/d", "1"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=5
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
COUNTS = st.integers(0, 3)
PATTERNS = st.sampled_from(["a", "^a", "b$", "^.$", "^(?!a)", "é"])


def keywords(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    schemas = st.lists(inner, min_size=1, max_size=3)
    return {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        "minLength": COUNTS,
        "maxLength": COUNTS,
        "pattern": PATTERNS,
        "minimum": st.integers(-1, 3),
        "exclusiveMaximum": st.integers(-1, 3),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "properties": st.dictionaries(NAMES, inner, max_size=3),
        "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
        "additionalProperties": inner,
        "propertyNames": inner,
        "required": st.lists(NAMES, max_size=2, unique=True),
        "minProperties": COUNTS,
        "maxProperties": COUNTS,
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
        "dependentSchemas": st.dictionaries(NAMES, inner, max_size=1),
        "items": inner,
        "prefixItems": schemas,
        "contains": inner,
        "minContains": COUNTS,
        "maxContains": COUNTS,
        "minItems": COUNTS,
        "maxItems": COUNTS,
        "uniqueItems": st.booleans(),
        "allOf": schemas,
        "anyOf": schemas,
        "oneOf": schemas,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "unevaluatedProperties": inner,
        "unevaluatedItems": inner,
    }


@st.composite
def schemas(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Any:
    table = keywords(inner)
    chosen = draw(st.lists(st.sampled_from(sorted(table)), min_size=1, max_size=4, unique=True))
    return {name: draw(table[name]) for name in chosen}


SCHEMAS = st.recursive(st.booleans() | st.fixed_dictionaries({"type": TYPES}), schemas, max_leaves=6)


@pytest.mark.exhaustive
@many(150)
@given(schema=SCHEMAS, values=st.lists(VALUES, min_size=1, max_size=6), spaced=st.booleans())
def test_a_value_is_accepted_exactly_when_it_is_valid(schema: Any, values: list[Any], spaced: bool) -> None:
    judge = jsonschema.Draft202012Validator(schema)
    grammar = compiled_or_none(JsonSchema(schema), shared_vocabulary())
    for value in values:
        text = json.dumps(value, ensure_ascii=spaced, separators=None if spaced else (",", ":"))
        accepted = grammar is not None and accepts(grammar, text.encode())
        assert accepted == judge.is_valid(value), text


@pytest.mark.slow
@many(60)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_an_output_that_may_end_is_valid(schema: Any, seed: int) -> None:
    grammar = compiled_or_none(JsonSchema(schema), shared_vocabulary())
    if grammar is None:
        return
    judge, rng = jsonschema.Draft202012Validator(schema), random.Random(seed)
    matcher, output = grammar.matcher(), b""
    for _ in range(60):
        if matcher.is_accepting():
            assert judge.is_valid(json.loads(output)), output
        tokens = [token for token in allowed(matcher, shared_vocabulary()) if token not in shared_vocabulary().eos_ids]
        if not tokens:
            break
        token = rng.choice(tokens)
        assert matcher.accept(token)
        output += shared_vocabulary().tokens[token] or b""


DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({**DRAFT_4, "type": "integer", "minimum": 1, "exclusiveMinimum": True}, ["2"], ["1", "2.0"]),
        ({**DRAFT_4, "enum": [[None], {"a": 1}]}, ["[null]", '{"a":1}'], ["[1]", '{"a":2}']),
        ({**DRAFT_7, "items": [{"type": "null"}], "additionalItems": False}, ["[null]", "[]"], ["[1]", "[null,1]"]),
        ({**DRAFT_7, "$ref": "#/definitions/a", "type": "null", "definitions": {"a": {"type": "string"}}}, ['"x"'], []),
        ({**DRAFT_7, "dependencies": {"a": ["b"]}}, ['{"b":1}', '{"a":1,"b":2}'], ['{"a":1}']),
        ({"definitions": {"a": {"$id": "x.json", "type": "null"}}, "$ref": "x.json"}, ["null"], ["1"]),
        ({"$defs": {"a": {"$anchor": "here", "type": "null"}}, "items": {"$ref": "#here"}}, ["[null]"], ["[1]"]),
        ({"items": {"$ref": "#"}, "maxItems": 1}, ["[[[]]]", "3"], ["[[1,2]]"]),
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"x"']),
        ({"type": "string", "format": "unheard of"}, ['"x"'], ["1"]),
        ({"type": "string", "x-unknown": 3}, ['"x"'], ["1"]),
    ],
)
def test_dialects_and_references(schema: Any, valid: list[str], invalid: list[str]) -> None:
    grammar = compile_constraint(JsonSchema(schema), shared_vocabulary())
    assert [text for text in valid + invalid if accepts(grammar, text.encode())] == valid


def test_properties_come_in_the_schemas_order_on_request() -> None:
    schema = {"properties": {"b": {}, "a": {}, "c": {}}, "required": ["a"], "type": "object"}
    grammar = compile_constraint(JsonSchema(schema), shared_vocabulary(), order="schema")
    assert accepts(grammar, b'{"a":1}')
    assert accepts(grammar, b'{"b":1,"a":1,"c":2,"z":3}')
    for text in (b'{"a":1,"b":1}', b'{"c":1,"a":1}', b'{"z":1,"a":1}', b'{"a":1,"z":1,"c":1}'):
        assert not accepts(grammar, text)
        assert accepts(compile_constraint(JsonSchema(schema), shared_vocabulary()), text)


def test_every_alternative_can_be_taken_in_the_schemas_order() -> None:
    def closed(*names: str) -> dict[str, Any]:
        of = {name: {"type": "null"} for name in names}
        return {"type": "object", "properties": of, "required": list(names), "additionalProperties": False}

    schema = {"anyOf": [closed("a", "b"), closed("c"), closed("d", "a"), closed("e")]}
    grammar = compile_constraint(JsonSchema(schema), shared_vocabulary(), order="schema")
    for text in (b'{"a":null,"b":null}', b'{"c":null}', b'{"e":null}'):
        assert accepts(grammar, text), text
    assert any(accepts(grammar, text) for text in (b'{"d":null,"a":null}', b'{"a":null,"d":null}'))
    for text in (b'{"b":null,"a":null}', b'{"a":null}', b'{"c":null,"e":null}'):
        assert not accepts(grammar, text), text


def test_a_listed_name_comes_once() -> None:
    grammar = compile_constraint(JsonSchema({"properties": {"a": {}}}), shared_vocabulary())
    assert not accepts(grammar, b'{"a":1,"a":2}')
    assert not accepts(compile_constraint(JsonSchema({"minProperties": 2}), shared_vocabulary()), b'{"x":1,"x":2}')


def test_items_are_compared_by_value_at_every_depth() -> None:
    unique = {"uniqueItems": True}
    grammar = compile_constraint(JsonSchema({**unique, "items": {**unique, "items": unique}}), shared_vocabulary())
    for text in (b"[[0],[],{}]", b"[[[1],[2]],[[1]]]", b'[{"a":1},{"a":2}]'):
        assert accepts(grammar, text), text
    for text in (b"[[0],[0.0]]", b'[{"a":1,"b":2},{"b":2,"a":1}]', b'["a","\\u00e9","\xc3\xa9"]', b"[[[1],[1]]]"):
        assert not accepts(grammar, text), text


def test_too_many_unevaluated_combinations_are_refused() -> None:
    branches = [{"patternProperties": {f"p{n}": {"type": "integer"}}, "required": [f"p{n}"]} for n in range(12)]
    with pytest.raises(GrammarError, match="more than 64 combinations") as caught:
        compile_constraint(JsonSchema({"anyOf": branches, "unevaluatedProperties": False}), shared_vocabulary())
    assert caught.value.pointer == "/unevaluatedProperties"


MANY_EVALUATIONS: list[Any] = [
    {"anyOf": [{"properties": {f"p{n}": {"const": n}}, "required": [f"p{n}"]} for n in range(20)]},
    {"allOf": [{"if": {"required": [f"p{n}"]}, "then": {"properties": {f"q{n}": {"const": n}}}} for n in range(20)]},
    {"dependentSchemas": {f"p{n}": {"properties": {f"p{n}": True, f"p{n + 1}": {"const": 7}}} for n in range(12)}},
    {"allOf": [{"oneOf": [{"required": ["p1"]}, {"properties": {f"p{n}": {"const": n}}}]} for n in range(6)]},
    {
        "patternProperties": {"2$": True},
        "properties": {"q9": True},
        "anyOf": [{"patternProperties": {"^p3": True}}, {"required": ["p5"], "patternProperties": {"^p": True}}],
    },
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("rest", [False, {"const": 7}])
@pytest.mark.parametrize("schema", MANY_EVALUATIONS)
def test_each_of_many_members_has_its_own_conditions_to_be_evaluated(schema: Any, rest: Any) -> None:
    schema = {"type": "object", **schema, "unevaluatedProperties": rest}
    judged, rng = judge(schema), random.Random(7)
    grammar = compile_constraint(JsonSchema(schema), shared_vocabulary())
    num_valid = 0
    for _ in range(200):
        names = [f"{rng.choice('pq')}{rng.randrange(21)}" for _ in range(rng.randrange(4))]
        value = {name: rng.choice([7, int(name[1:])]) for name in names}
        text = json.dumps(value)
        assert accepts(grammar, text.encode()) == is_valid(judged, text), text
        num_valid += is_valid(judged, text)
    assert num_valid > 10


def test_a_large_schema_is_compiled_lazily() -> None:
    branches = [{"properties": {"kind": {"const": f"k{n}"}, f"p{n}": {"type": "integer"}}} for n in range(60)]
    schema = {"type": "object", "required": ["kind"], "oneOf": [{**b, "additionalProperties": False} for b in branches]}
    grammar = compile_constraint(JsonSchema(schema), shared_vocabulary())
    assert accepts(grammar, b'{"kind":"k7","p7":1}')
    assert accepts(grammar, b'{"p7":1,"kind":"k7"}')
    assert not accepts(grammar, b'{"kind":"k7","p8":1}')


@pytest.mark.parametrize("seed", range(4))
def test_a_schema_may_be_an_object_or_text(seed: int) -> None:
    schema = {"type": "array", "items": {"const": seed}}
    assert accepts(compile_constraint(JsonSchema(schema), shared_vocabulary()), f"[{seed}]".encode())
    assert accepts(compile_constraint(JsonSchema(json.dumps(schema)), shared_vocabulary()), f"[{seed}]".encode())


def takes(schema: Any, text: str) -> bool:
    return accepts(compile_constraint(JsonSchema(schema), shared_vocabulary()), text.encode())


@pytest.mark.slow
@pytest.mark.parametrize("value", [1e308, -1e308, 1.7976931348623157e308, 5e-324, 2.2250738585072014e-308])
@pytest.mark.parametrize("keyword", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
def test_bounds_may_be_any_double(value: float, keyword: str) -> None:
    schema = {"type": "number", keyword: value}
    exact = Decimal(repr(value))
    judge = jsonschema.Draft202012Validator({keyword: exact})
    step = abs(exact) / 10
    for number in (exact, exact - step, exact + step, -exact, Decimal(0)):
        assert takes(schema, format(number, "f")) == judge.is_valid(number), number


@pytest.mark.parametrize("keyword", ["const", "enum"])
@pytest.mark.parametrize("value", [1e308, -1.7976931348623157e308, 5e-324, 10**320])
def test_listed_numbers_may_be_any_number(keyword: str, value: float) -> None:
    schema = {keyword: value if keyword == "const" else [value, 3]}
    assert takes(schema, json.dumps(value))
    assert takes(schema, format(Decimal(repr(value)), "f"))
    assert not takes(schema, format(Decimal(repr(value)) * 2, "f"))


@pytest.mark.parametrize("divisor", [1e-19, 1e-120, 5e-30])
def test_a_divisor_may_be_small(divisor: float) -> None:
    for number, multiple in [("0", True), ("1", True), (format(Decimal(repr(divisor)) * 3, "f"), True)]:
        assert takes({"multipleOf": divisor}, number) is multiple
    assert not takes({"multipleOf": divisor}, format(Decimal(repr(divisor)) / 2, "f"))


@pytest.mark.parametrize("bound", [10**120, 10**308, -(10**308)])
def test_bounds_may_be_long_integers(bound: int) -> None:
    assert takes({"type": "integer", "maximum": bound}, str(bound))
    assert not takes({"type": "integer", "maximum": bound}, str(bound + 1))


@pytest.mark.slow
@pytest.mark.parametrize("low", [10**28 + 1, -(2**127), 0, 1 - 10**300, 3 * 10**30 + 1])
@pytest.mark.parametrize("width", [0, 1, 5, 999, 1000, 2**128 - 1, 2**256 - 1])
@pytest.mark.parametrize("bounds", [("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])
def test_ranges_of_long_integers_are_exact(low: int, width: int, bounds: tuple[str, str]) -> None:
    high = low + width
    schema = {"type": "integer", bounds[0]: low, bounds[1]: high}
    judge = jsonschema.Draft202012Validator(schema)
    numbers = {low - 1, low, low + 1, high - 1, high, high + 1, 10 * low, 10 * high, -low, -high, 10**28, 0, width}
    grammar = compiled_or_none(JsonSchema(schema), shared_vocabulary())
    for number in numbers:
        found = grammar is not None and accepts(grammar, str(number).encode())
        assert found == judge.is_valid(number), number


@pytest.mark.parametrize("keyword", ["minimum", "exclusiveMaximum", "multipleOf"])
def test_a_number_of_too_many_digits_is_refused_with_its_pointer(keyword: str) -> None:
    with pytest.raises(GrammarError, match=f"more than 400 digits .at /items/{keyword} of") as refusal:
        compile_constraint(JsonSchema({"items": {keyword: 10**400}}), shared_vocabulary())
    assert refusal.value.pointer == f"/items/{keyword}"
