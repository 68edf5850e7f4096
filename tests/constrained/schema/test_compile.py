"""JSON Schema: masks allow only valid outputs and all valid ones in our spelling; the rest is refused."""

from __future__ import annotations

import gc
import json
import random
import re
import weakref
from functools import partial
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ramiform.constrained import GrammarError, JsonSchema, SchemaOptions, WhitespacePolicy, compile_constraint
from ramiform.constrained.automaton.automaton import Automaton
from ramiform.constrained.automaton.matcher import CompiledGrammar
from ramiform.constrained.schema.compile import checked_document, schema_start
from ramiform.tests.constrained.walks import accepts, compiled_or_none, sample, shared_vocabulary

from .schemas import SCHEMAS, instances

CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER


def valid(value: Any, schema: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema, format_checker=CHECKER).is_valid(value))


@pytest.mark.exhaustive
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schema=SCHEMAS, seed=st.integers(0, 2**32), whitespace=st.sampled_from(["compact", "bounded", "any"]))
def test_outputs_drawn_from_masks_are_valid(schema: Any, seed: int, whitespace: WhitespacePolicy) -> None:
    # In the schema's order, for chance alone may never write a name that is required.
    grammar = compiled_or_none(JsonSchema(schema), shared_vocabulary(), whitespace=whitespace, order="schema")
    if grammar is None:
        return
    rng = random.Random(seed)
    for _ in range(3):
        text = sample(grammar, rng).decode()
        assert valid(json.loads(text), schema), text


@pytest.mark.exhaustive
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data(), schema=SCHEMAS)
def test_valid_values_are_accepted_as_json_dumps_writes_them(data: st.DataObject, schema: Any) -> None:
    strategy = instances(schema)
    assume(not strategy.is_empty)
    value = data.draw(strategy)
    assert valid(value, schema)
    ways: list[tuple[WhitespacePolicy, dict[str, Any]]] = [
        ("compact", {"separators": (",", ":")}),
        ("bounded", {}),
        ("bounded", {"separators": (",", ":")}),
        ("spaced", {}),
        ("any", {"indent": 2}),
        ("any", {"indent": "\t"}),
    ]
    whitespace, kwargs = data.draw(st.sampled_from(ways))
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()), **kwargs)
    grammar = compile_constraint(JsonSchema(schema), shared_vocabulary(), whitespace=whitespace)
    assert accepts(grammar, text.encode()), text


def with_spaces(text: str, space: str) -> str:
    """Return a text of JSON with these spaces after each comma and colon, and no others outside strings."""
    return re.sub(r'("(?:[^"\\]|\\.)*")|([,:])?\s*', lambda m: m[1] or (m[2] + space if m[2] else ""), text)


WORD = {"enum": ["a", 1, [1, {"b": 2, "c": []}], {"d": 1, "e": [2, 3]}]}


@pytest.mark.parametrize("options", [SchemaOptions(), SchemaOptions("closed")], ids=["schema", "closed"])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "boolean"}, "b": WORD, "c": {"items": WORD}}},
        {"type": "array", "items": WORD, "minItems": 3, "maxItems": 5},
        {"type": "array", "items": WORD, "uniqueItems": True, "minItems": 3},
        {
            "type": "array",
            "items": {"properties": {"a": WORD, "b": WORD}, "required": ["a", "b"], "additionalProperties": False},
            "uniqueItems": True,
            "minItems": 2,
            "maxItems": 3,
        },
        WORD,
    ],
)
def test_spaced_json_is_what_json_dumps_writes(schema: Any, options: SchemaOptions) -> None:
    grammar = compile_constraint(JsonSchema(schema, options), shared_vocabulary(), whitespace="spaced")
    rng = random.Random(3)
    for _ in range(6):
        text = sample(grammar, rng).decode()
        assert text == with_spaces(text, " "), text
        assert accepts(grammar, text.encode())
        for other in (with_spaces(text, ""), with_spaces(text, "  ")):
            assert other == text or not accepts(grammar, other.encode()), other


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"properties": {"a/b": {"multipleOf": 0}}}, "/properties/a~1b/multipleOf"),
        ({"type": "array", "items": {"uniqueItems": 1}}, "/items/uniqueItems"),
        ({"type": "string", "pattern": "(a)\\1"}, "/pattern"),
        ({"patternProperties": {"(": {}}}, "/patternProperties/("),
        ({"type": "string", "pattern": 3}, "/pattern"),
        ({"type": "strin"}, "/type"),
        ({"minLength": -1}, "/minLength"),
        ({"maxItems": 1.5}, "/maxItems"),
        ({"minimum": "1"}, "/minimum"),
        ({"minimum": 10**500}, "/minimum"),
        ({"multipleOf": 12345.678901}, "/multipleOf"),
        ({"required": "a"}, "/required"),
        ({"properties": []}, "/properties"),
        ({"enum": 3}, "/enum"),
        ({"anyOf": []}, "/anyOf"),
        ({"items": [3]}, "/items/0"),
        ({"items": 3}, "/items"),
        ({"$ref": "https://example.com/x"}, "/$ref"),
        ({"$ref": "#/$defs/none"}, "/$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}, "/$defs/a/anyOf/0/$ref"),
        ({"properties": {"x": {"allOf": [{"$ref": "#/properties/x"}]}}}, "/properties/x/allOf/0"),
        ("{", ""),
        ('{"const": NaN}', ""),
        ('{"const": 1e999}', ""),
        ("[" * 100_000, ""),
        ("3", ""),
    ],
)
def test_unsupported_keywords_are_refused_with_a_pointer(schema: Any, pointer: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_constraint(JsonSchema(schema), shared_vocabulary())
    assert caught.value.pointer == pointer
    assert (pointer or "the root") in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"enum": []},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4},
        {"type": "number", "exclusiveMinimum": 3, "maximum": 3},
        {"type": "string", "minLength": 2, "maxLength": 1},
        {"type": "string", "pattern": "^a$", "minLength": 2},
        {"type": "string", "format": "date", "pattern": "x"},
        {"type": "array", "items": False, "minItems": 1},
        {"type": "array", "minItems": 2, "maxItems": 1},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"const": "\ud800"},
        {"const": 1, "type": "string"},
    ],
)
def test_an_unsatisfiable_schema_is_refused(schema: Any) -> None:
    with pytest.raises(GrammarError, match="no text at all"):
        compile_constraint(JsonSchema(schema), shared_vocabulary())


def test_schemas_that_extend_others_are_refused_exactly_if_no_value_satisfies_them() -> None:
    """Judged by `jsonschema` on all values that these schemas can tell apart."""
    rng = random.Random(1)
    least: list[Any] = ["x", "y", 1, {}]
    inner = [*least, *({"a": value} for value in least)]
    values = [*inner, *({"b": value} for value in inner), *({"a": a, "b": b} for a in inner for b in inner)]
    values += [{"a": value} for value in inner]
    num_refused = 0
    for _ in range(60):
        base, schema = _extending(rng, 1, []), _extending(rng, 2, ["#/$defs/base"])
        schema["$defs"] = {"base": base}
        validator = jsonschema.Draft202012Validator(schema)
        try:
            compile_constraint(JsonSchema(schema), shared_vocabulary())
            assert any(map(validator.is_valid, values)), schema
        except GrammarError:
            num_refused += 1
            assert not any(map(validator.is_valid, values)), schema
    assert 10 < num_refused < 50


def _extending(rng: random.Random, depth: int, bases: list[str]) -> dict[str, Any]:
    """Return a random schema of texts, or of objects, that may extend others by `allOf`."""
    schema: dict[str, Any] = {}
    if depth:
        names = "ab"[: rng.randint(0, depth)]
        schema["type"] = "object"
        schema["properties"] = {name: _extending(rng, rng.choice([0, depth - 1]), []) for name in names}
        schema["required"] = rng.sample("ab"[:depth], rng.randint(0, depth))
    elif rng.random() < 0.7:
        schema = rng.choice(
            [{"enum": ["x"]}, {"enum": ["x", "y"]}, {"type": "string", "enum": ["y"]}, {"type": "object"}]
        )
    if bases or rng.random() < 0.3:
        schema = {**schema, "allOf": [*({"$ref": base} for base in bases), _extending(rng, depth, [])]}
    return schema


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_a_schema_that_doubles_at_every_reference_is_compiled_lazily(keyword: str) -> None:
    defs = {f"d{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(24)}
    schema = {keyword: [{"$ref": "#/$defs/d0"}], "$defs": defs | {"d24": {"type": "integer"}}}
    grammar = compile_constraint(JsonSchema(schema), shared_vocabulary())
    assert accepts(grammar, b"[" * 24 + b"1" + b"]" * 24)
    assert not accepts(grammar, b"[" * 24 + b"x" + b"]" * 24)


def test_deep_nesting_ends_in_an_error_not_in_a_crash() -> None:
    for keyword in ("items", "not", "additionalProperties"):
        schema: dict[str, Any] = {"type": "string"}
        for _ in range(450):
            schema = {keyword: schema}
        with pytest.raises(GrammarError, match="nested"):
            compile_constraint(JsonSchema(schema), shared_vocabulary())


def test_the_nesting_of_values_is_limited() -> None:
    grammar = compile_constraint(JsonSchema(True), shared_vocabulary())
    assert accepts(grammar, b"[" * 200 + b"]" * 200)
    assert not accepts(grammar, b"[" * 300 + b"]" * 300)


def test_nesting_that_is_allowed_compiles() -> None:
    schema: dict[str, Any] = {"type": "string", "pattern": "(" * 60 + "a" + ")" * 60}
    for _ in range(24):
        schema = {"type": "object", "properties": {"a": {"type": "array", "items": schema}}}
    assert compile_constraint(JsonSchema(schema), shared_vocabulary()).matcher().forced() == b"{"


OVERLAPS = [
    [{"type": "integer"}, {"type": "number"}],
    [{"type": "string"}, {"const": "a"}],
    [{"properties": {"a": {}}}, {"properties": {"b": {}}}],
    [{"type": "object", "properties": {"a": {}}, "required": ["a"]}, {"type": "object", "properties": {"b": {}}}],
    [{"enum": [1, 2]}, {"const": 1.0}],
    [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 3}],
    [{"anyOf": [{"type": "null"}, {"type": "string"}]}, {"type": "string"}],
]
DISJOINT = [
    [{"type": "integer"}, {"type": "string"}, {"type": ["null", "boolean"]}],
    [{"const": 1}, {"const": True}, {"const": "1"}],
    [{"type": "integer", "maximum": 3}, {"type": "number", "exclusiveMinimum": 3}],
    [
        {"type": "object", "properties": {"kind": {"const": kind}, kind: {"type": "integer"}}, "required": ["kind"]}
        for kind in ("a", "b", "c")
    ],
    [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"], "additionalProperties": False},
    ],
    [{"anyOf": [{"type": "null"}, {"type": "integer"}]}, {"type": "string"}],
]


@pytest.mark.parametrize("schemas", OVERLAPS + DISJOINT)
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
def test_applicators_combine_schemas_as_jsonschema_does(schemas: list[Any], keyword: str) -> None:
    schema = {keyword: schemas}
    for value in [
        1,
        1.5,
        3,
        "a",
        "b",
        None,
        True,
        {},
        {"a": 1},
        {"b": 1},
        {"kind": "a", "a": 2},
        {"a": 1, "b": 1},
        [2],
    ]:
        grammar = compiled_or_none(JsonSchema(schema), shared_vocabulary())
        assert (grammar is not None and accepts(grammar, json.dumps(value).encode())) == valid(value, schema), value


@pytest.mark.parametrize(
    "name", ["date", "time", "date-time", "duration", "uuid", "email", "hostname", "ipv4", "ipv6", "uri"]
)
def test_formats_agree_with_the_format_checkers(name: str) -> None:
    schema = {"type": "string", "format": name}
    grammar = compile_constraint(JsonSchema(schema), shared_vocabulary())
    for seed in range(40):
        value = json.loads(sample(grammar, random.Random(seed), patience=20))
        assert valid(value, schema), value


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "maxLength": 1}, r'"\ud83d\ude42"'),
        ({"type": "string", "pattern": "^\U0001f642$"}, r'"\uD83D\uDE42"'),
        ({"type": "string"}, r'"\/\b\u0000"'),
        ({"type": "object", "properties": {}}, "{}"),
        ({"type": "object", "required": ["z"]}, '{"z": [1, {"y": null}]}'),
        ({"minLength": 3}, "12.5e-3"),
        ({"allOf": [{"type": "null"}], "description": "one"}, "null"),
    ],
)
def test_texts_that_must_be_accepted(schema: Any, text: str) -> None:
    assert accepts(compile_constraint(JsonSchema(schema), shared_vocabulary()), text.encode())


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, r'"\ud83d"'),
        ({"type": "string"}, r'"\ude42\ud83d"'),
        ({"type": "string"}, '"a\nb"'),
        ({"type": "string", "maxLength": 1}, '"ab"'),
        ({"type": "integer"}, "01"),
        ({"type": "integer"}, "1.5"),
        ({"type": "number"}, "1."),
        ({"type": "object", "properties": {"a": {}, "b": {}}}, '{"a": 1 , "b": 2}'),
        ({"type": "object", "properties": {"a": {}}}, '{"a":  1}'),
        ({"type": "array"}, "[1,]"),
        ({}, ""),
        ({}, " 1"),
    ],
)
def test_texts_that_must_not_be_accepted(schema: Any, text: str) -> None:
    assert not accepts(compile_constraint(JsonSchema(schema), shared_vocabulary()), text.encode())


@pytest.mark.slow
def test_a_compiler_without_references_is_freed() -> None:
    different = {"oneOf": [{"minimum": 1}, {"maxItems": 2}]}
    schema = {"anyOf": [{"properties": {"a": {"not": {"type": "array"}}}}, different]}
    automaton = Automaton()
    start = schema_start(checked_document(schema), "any", "any", SchemaOptions(), automaton)
    assert automaton.edges_of(automaton.number(start))
    gone = weakref.ref(start.compiler)
    del automaton, start
    gc.collect()
    assert gone() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"properties": {"a": {"not": {"type": "array"}}, "b": {"$ref": "#"}}}, '{"a": 1, "b": {"a": 2}}'),
        ({"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"$ref": "#"}}}]}, '{"a": 1}'),
        ({"items": {"enum": [1, "a"]}, "contains": {"const": 1}, "uniqueItems": True, "minItems": 2}, '["a", 1]'),
        ({"patternProperties": {"^a": {"pattern": "b+$"}}, "additionalProperties": False}, '{"ab": "abb"}'),
    ],
)
@pytest.mark.parametrize("options", [SchemaOptions(), SchemaOptions(additional_properties="closed", integers="digits")])
def test_what_a_schema_held_is_freed_without_a_collection(schema: Any, text: str, options: SchemaOptions) -> None:
    """A core under steady load collects rarely, so what only a collection frees would fill its memory."""
    assert accepts(compile_constraint(JsonSchema(schema, options), shared_vocabulary()), text.encode())
    gc.collect()
    gc.disable()
    try:
        document = checked_document(schema | {"title": "another"})
        grammar = CompiledGrammar(partial(schema_start, document, "any", "any", options), shared_vocabulary())
        assert accepts(grammar, text.encode())
        compiler = grammar.generation.automaton._values[grammar.generation.start].compiler
        gone = [weakref.ref(document), weakref.ref(compiler)]
        del document, compiler, grammar
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()
