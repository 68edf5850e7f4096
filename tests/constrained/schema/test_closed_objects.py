"""SchemaOptions as the server sets them: closed objects, integers in digits, conditions as in JSON Schema."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import combinations, permutations, product
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.constrained import (
    CompiledGrammar,
    GrammarError,
    JsonObject,
    JsonSchema,
    SchemaOptions,
    StructuralTag,
    Vocabulary,
    compile_constraint,
)
from ramiform.tests.constrained.strategies import many
from ramiform.tests.constrained.walks import accepts, allowed, compiled_or_none, sample, shared_vocabulary

CLOSED = SchemaOptions("closed", "digits")
DIGITS = SchemaOptions("schema", "digits")
PERSON = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a"],
}
LINKED = {
    "$defs": {
        "N": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]}},
            "required": ["v"],
        }
    },
    "allOf": [{"$ref": "#/$defs/N"}],
    "properties": {"w": {}},
}
ONE_OF_TWO = [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]
TAGGED = [
    {"type": "object", "properties": {"kind": {"const": kind}, name: {"type": "integer"}}, "required": ["kind", name]}
    for kind, name in (("cat", "meow"), ("dog", "bark"))
]
OPEN = {"type": "object", "properties": {"a": {}}}
IS_X = {"properties": {"k": {"const": "x"}}, "required": ["k"]}
HAS_INTEGER = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
CASES: list[tuple[Any, list[str], list[str]]] = [
    # What is listed comes in its order, what is optional may be left out, and nothing else comes.
    (PERSON, ['{"a":1}', '{"a":1,"b":"x"}'], ['{"b":"x","a":1}', '{"a":1,"c":1}', "{}"]),
    ({"type": "object", "patternProperties": {"^x": {}}}, ['{"xq":1}', "{}"], ['{"q":1}']),
    (OPEN | {"patternProperties": {"^x": {}}}, ['{"a":1,"xq":1}'], ['{"a":1,"q":1}']),
    ({"type": "object", "properties": {}}, ["{}"], ['{"a":1}']),
    # What lists nothing, or says what else may come, stays as it is.
    ({"type": "object"}, ['{"x":1}', '{"x":{"y":1.0}}'], []),
    ({}, ['{"x":1}', "1.0"], []),
    (OPEN | {"additionalProperties": True}, ['{"a":1,"q":1}', '{"q":1,"a":1}'], []),
    (OPEN | {"unevaluatedProperties": {"type": "null"}}, ['{"a":1,"q":null}'], ['{"a":1,"q":1}']),
    (OPEN | {"additionalProperties": {"type": "integer"}}, ['{"a":1,"q":1}'], ['{"a":1,"q":1.0}', '{"q":"x"}']),
    ({"type": "object", "properties": {"a": False}}, ['{"b":1}', "{}"], ['{"a":1}']),
    ({"enum": [{"a": 1, "b": 1.0}], "properties": {"a": {}}}, ['{"a":1,"b":1}'], ['{"a":1}', '{"a":1,"b":1.0}']),
    # What must be there can be.
    (OPEN | {"required": ["q"]}, ['{"q":1}', '{"a":1,"q":[]}'], ['{"a":1}', '{"q":1,"x":2}']),
    (OPEN | {"dependentRequired": {"a": ["b"]}}, ['{"a":1,"b":1}', "{}"], ['{"a":1}']),
    (OPEN | {"minProperties": 2}, ['{"a":1,"q":1}', '{"u":1,"q":[]}'], ['{"a":1}']),
    # Schemas beside one another list together.
    ({"allOf": [OPEN, {"properties": {"b": {}}}]}, ['{"a":1,"b":2}', '{"b":2}'], ['{"c":1}']),
    (
        {"$ref": "#/$defs/A", "properties": {"z": {}}, "required": ["z"], "$defs": {"A": PERSON}},
        ['{"a":1,"z":2}', '{"a":1,"b":"x","z":2}'],
        ['{"a":1,"z":2,"q":2}', '{"a":1}'],
    ),
    (
        {"type": "object", "properties": {"c": {}}, "anyOf": ONE_OF_TWO},
        ['{"c":1,"a":1}', '{"c":1,"b":1}', '{"c":1,"a":1,"b":1}'],
        ['{"c":1}', '{"a":1,"d":1}'],
    ),
    ({"anyOf": [{"type": "object"}, OPEN]}, ['{"xq":1}'], []),
    ({"type": "object", "oneOf": ONE_OF_TWO}, ['{"a":1}', '{"b":1}'], ['{"a":1,"b":1}', '{"a":1,"c":2}']),
    (
        {"oneOf": TAGGED},
        ['{"kind":"cat","meow":1}', '{"kind":"dog","bark":1}'],
        ['{"kind":"cat","bark":1}', '{"kind":"cat","meow":1,"bark":1}', '{"kind":"cat","meow":1.0}'],
    ),
    (
        {
            "type": "object",
            "properties": {"k": {"enum": ["x", "y"]}},
            "if": IS_X,
            "then": {"properties": {"m": {}}, "required": ["m"]},
            "else": {"properties": {"n": {}}},
        },
        ['{"k":"x","m":1}', '{"k":"y","n":1}', '{"k":"y"}'],
        ['{"k":"x"}', '{"k":"y","m":1}', '{"k":"x","m":1,"n":2}'],
    ),
    (
        OPEN | {"dependentSchemas": {"a": {"properties": {"b": {}}, "required": ["b"]}}},
        ['{"a":1,"b":1}', "{}"],
        ['{"a":1}', '{"b":1}'],
    ),
    # The same definition as a whole value and as a part of one.
    (LINKED, ['{"v":1,"next":{"v":2,"next":null},"w":1}'], ['{"v":1,"next":{"v":2,"w":1}}']),
    # A member that several schemas describe.
    (
        {
            "type": "object",
            "allOf": [
                {"properties": {"p": {"properties": {name: {}}, "required": [name], "type": "object"}}}
                for name in ("x", "y")
            ],
        },
        ['{"p":{"x":1,"y":2}}', "{}"],
        ['{"p":{"x":1,"y":2,"z":3}}', '{"p":{"x":1}}'],
    ),
    # Conditions are not closed, and an integer in them is a number of whole value.
    ({"type": "object", "not": HAS_INTEGER}, ['{"a":"x","z":1}', "{}"], ['{"a":1}', '{"a":1.0}', '{"a":1,"b":2}']),
    (OPEN | {"not": HAS_INTEGER}, ['{"a":"x"}', "{}"], ['{"a":1}', '{"a":1.0}', '{"b":2}']),
    (
        {"type": "array", "items": PERSON, "contains": {"properties": {"b": {"const": "q"}}, "required": ["b"]}},
        ['[{"a":1,"b":"q"}]', '[{"a":1},{"a":2,"b":"q"}]'],
        ['[{"a":1}]', '[{"a":1,"b":"q","c":2}]'],
    ),
    (
        {"type": "object", "properties": {"a": {}, "b": {}}, "if": HAS_INTEGER, "then": {"required": ["b"]}},
        ['{"a":1.0,"b":2}', '{"a":1,"b":2}', '{"a":1.5}'],
        ['{"a":1.0}', '{"a":1}'],
    ),
]
NUMBERS: list[tuple[Any, list[str], list[str]]] = [
    ({"type": "integer"}, ["0", "12", "-7"], ["12.0", "1e2", "01", "1E+22"]),
    ({"type": ["integer", "null"], "multipleOf": 5}, ["5", "null", "-10"], ["5.0", "3"]),
    ({"type": "integer", "minimum": -3, "exclusiveMaximum": 1000}, ["-3", "999", "0"], ["-3.0", "1000", "1e2"]),
    ({"type": "integer", "const": 1.0}, ["1"], ["1.0"]),
    ({"type": "integer", "enum": [1.0, 2, 2.5]}, ["1", "2"], ["1.0", "2.0", "2.5"]),
    ({"enum": [1, 1.5, "x"]}, ["1", "1.5", '"x"'], ["1.0"]),
    ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, ["3", "12"], ["3.0", "2"]),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, ["3", '"a"'], ["3.0"]),
    ({"anyOf": [{"type": "integer", "minimum": 10}, {"type": "number", "maximum": 5}]}, ["12", "4.0"], ["12.0"]),
    ({"oneOf": [{"type": "integer"}, {"type": "number", "maximum": 5}]}, ["4.5", "12"], ["4", "4.0", "12.0"]),
    ({"type": "number", "not": {"type": "integer"}}, ["1.5"], ["1", "1.0"]),
    ({"type": "number", "multipleOf": 5}, ["5", "5.0"], ["3"]),
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, ["[1,2]"], ["[1,1]", "[1.0]"]),
]


def compiled(schema: Any, options: SchemaOptions = CLOSED) -> CompiledGrammar:
    return compile_constraint(JsonSchema(schema, options), shared_vocabulary(), whitespace="compact")


@pytest.mark.parametrize(("schema", "good", "bad"), CASES, ids=lambda value: str(value)[:50])
def test_an_object_that_lists_members_is_closed(schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = compiled(schema)
    for text in good:
        jsonschema.validate(json.loads(text), schema)
        assert accepts(grammar, text.encode()), text
    for text in bad:
        assert not accepts(grammar, text.encode()), text


@pytest.mark.parametrize("options", [CLOSED, DIGITS], ids=["closed", "open"])
@pytest.mark.parametrize(("schema", "good", "bad"), NUMBERS, ids=lambda value: str(value)[:50])
def test_integers_are_written_in_digits(options: SchemaOptions, schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = compiled(schema, options)
    assert [text for text in good if not accepts(grammar, text.encode())] == []
    assert [text for text in bad if accepts(grammar, text.encode())] == []


def test_by_default_a_schema_means_what_json_schema_says() -> None:
    grammar = compile_constraint(JsonSchema(PERSON), shared_vocabulary(), whitespace="compact")
    for text in ('{"a":1.0,"z":1,"b":"x"}', '{"b":"x","a":1}'):
        assert accepts(grammar, text.encode())


def test_the_options_apply_to_schemas_in_structural_tags() -> None:
    spec = {"structures": [{"begin": "<f>", "schema": PERSON, "end": "</f>"}], "triggers": ["<f"]}
    grammar = compile_constraint(StructuralTag(spec, CLOSED), shared_vocabulary(), whitespace="compact")
    assert accepts(grammar, b'x<f>{"a":1}</f>')
    assert not accepts(grammar, b'x<f>{"a":1,"c":1}</f>')
    assert not accepts(grammar, b'x<f>{"a":1.0}</f>')


def test_the_error_names_closing_if_it_leaves_no_value() -> None:
    schema = {"type": "object", "properties": {"a": {}}, "not": {"required": ["a"]}, "minProperties": 1}
    assert accepts(compiled(schema, DIGITS), b'{"b":1}')
    with pytest.raises(GrammarError, match="additional_properties"):
        compiled(schema)


# Generated values, judged by jsonschema: under the schema, and with every object closed by keywords.

_leaves = st.sampled_from([{"type": "integer"}, {"type": "boolean"}, {"enum": ["x", 2, None]}, {"type": "object"}, {}])
_members = st.dictionaries(st.sampled_from("abcd"), st.deferred(lambda: _schemas), max_size=2)
_objects = st.builds(
    lambda properties, required, rest: {"type": "object", "properties": properties} | required | rest,
    _members,
    st.sampled_from([{}, {"required": ["a"]}, {"required": ["b", "c"]}]),
    st.sampled_from([{}, {}, {}, {"additionalProperties": {"type": "integer"}}, {"additionalProperties": False}]),
)
_beside = st.one_of(
    st.builds(lambda a, b: a | {"allOf": b}, _objects, st.lists(_objects, min_size=1, max_size=2)),
    st.builds(lambda a, b: a | {"anyOf": b}, _objects, st.lists(_objects, min_size=1, max_size=2)),
    st.builds(lambda a, b: {"type": "object", "oneOf": [a, b]}, _objects, _objects),
    st.builds(lambda a, b, c: a | {"if": b, "then": c}, _objects, _objects, _objects),
    st.builds(lambda a, b: a | {"not": b}, _objects, _objects),
    st.builds(lambda a, b: a | {"dependentSchemas": {"a": b}}, _objects, _objects),
)
_schemas: st.SearchStrategy[Any] = st.one_of(_leaves, _leaves, _leaves, _objects, _beside)


def closed(schema: Any, *, whole: bool = True) -> Any:
    """Add `unevaluatedProperties: false` wherever the schemas of a whole value list members."""
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for name in ("allOf", "anyOf", "oneOf"):
        if name in schema:
            found[name] = [closed(part, whole=False) for part in schema[name]]
    for name in ("then", "additionalProperties"):
        if name in schema:
            found[name] = closed(schema[name], whole=name != "then")
    if "dependentSchemas" in schema:
        found["dependentSchemas"] = {n: closed(part, whole=False) for n, part in schema["dependentSchemas"].items()}
    if "properties" in schema:
        rest = [] if "additionalProperties" in schema else schema.get("required", [])
        required = {name: True for name in rest if name not in schema["properties"]}
        found["properties"] = {name: closed(part) for name, part in schema["properties"].items()} | required
    lists = "properties" in found or any(name in found for name in ("allOf", "anyOf", "oneOf"))
    return found | {"unevaluatedProperties": False} if whole and lists else found


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


def written(constraint: JsonSchema | JsonObject, seed: int) -> Any:
    """Draw a value from the masks; None if there is none."""
    grammar = compiled_or_none(constraint, shared_vocabulary(), "compact")
    if grammar is None:
        return None
    return json.loads(sample(grammar, random.Random(seed)), object_pairs_hook=_without_repeats)


@pytest.mark.exhaustive
@many(40)
@given(schema=st.one_of(_objects, _beside), seed=st.integers(0, 2**32), options=st.sampled_from([CLOSED, DIGITS]))
def test_generated_values_are_valid_and_repeat_no_name(schema: Any, seed: int, options: SchemaOptions) -> None:
    value = written(JsonSchema(schema, options), seed)
    if value is not None:
        jsonschema.validate(value, schema)
        if options is CLOSED and "type" in schema:
            jsonschema.validate(value, closed(schema))


@pytest.mark.exhaustive
@many(40)
@given(
    schema=st.sampled_from(
        [
            {"type": "object"},
            {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "null"}},
            {"type": "object", "patternProperties": {"^[ab]$": {}}, "additionalProperties": False, "minProperties": 1},
            {"type": "object", "propertyNames": {"maxLength": 1}, "additionalProperties": {"type": "null"}},
            {"type": "object", "minProperties": 6, "additionalProperties": {"type": "null"}},
            {"anyOf": [{"type": "object", "patternProperties": {"^é": {"type": "null"}}}, {"type": "array"}]},
        ]
    ),
    seed=st.integers(0, 2**32),
)
def test_no_name_is_repeated_with_any_options(schema: Any, seed: int) -> None:
    for options in (SchemaOptions(), CLOSED):
        assert written(JsonSchema(schema, options), seed) is not None
    assert written(JsonObject(), seed) is not None


@pytest.mark.parametrize(
    "text",
    [
        '{"z":1,"z"',
        '{"é":1,"y":2,"\\u00e9"',
        '{"a":{"z":1},"z":2,"z"',
        '[{"z":1},{"z":1,"z"',
        '{"":1,""',
        '{"z":":","z"',
    ],
)
def test_a_used_name_is_refused(text: str) -> None:
    matcher = compiled({}, SchemaOptions()).matcher()
    *before, last = text.encode()
    assert all(matcher.accept(byte) for byte in before)
    assert not matcher.accept(last)
    assert matcher.accept(ord("x"))
    assert matcher.accept(last)


def switch(count: int, *, names_tag: bool) -> dict[str, Any]:
    """Return a schema with a tag, and for each of its values a member that only comes with that value."""
    tags = [f"t{number}" for number in range(count)]
    return {
        "type": "object",
        "properties": {"k": {"enum": tags}},
        "required": ["k"],
        "allOf": [
            {
                "if": {"properties": {"k": {"const": tag}}} | ({"required": ["k"]} if names_tag else {}),
                "then": {"properties": {f"f{tag}": {"type": "integer"}}, "required": [f"f{tag}"]},
            }
            for tag in tags
        ],
    }


def integers(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "integer"} for name in names}}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "schema",
    [
        switch(5, names_tag=True),
        switch(20, names_tag=False),
        {
            "type": "object",
            "allOf": [
                {"anyOf": [integers("a") | {"required": ["a"]}, integers("b") | {"required": ["b"]}]},
                {"anyOf": [integers("c") | {"required": ["c"]}, integers("d") | {"required": ["d"]}]},
            ],
        },
        {"oneOf": [integers(f"p{number}") | {"required": [f"p{number}"]} for number in range(14)]},
        integers(*"abcdefghijklmnop") | {"oneOf": [{"required": [name]} for name in "abcdefghijklmnop"]},
    ],
    ids=["switch", "long switch", "two anyOf", "long oneOf", "oneOf of required"],
)
def test_with_many_alternatives_only_members_of_those_that_hold_are_allowed(schema: Any) -> None:
    for seed in range(12):
        value = written(JsonSchema(schema, CLOSED), seed)
        jsonschema.validate(value, schema | {"unevaluatedProperties": False})


def switch(number: int, member: Callable[[int], str]) -> dict[str, Any]:
    """Return a schema without a type: for each value of `k`, a member that must be there and its greatest value."""
    return {
        "properties": {"k": {"type": "string"}},
        "required": ["k"],
        "allOf": [
            {
                "if": {"properties": {"k": {"const": f"v{n}"}}, "required": ["k"]},
                "then": {"properties": {member(n): {"type": "integer", "maximum": n}}, "required": [member(n)]},
            }
            for n in range(number)
        ],
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [2, 33, 300])
@pytest.mark.parametrize("member", ["d".format, "r{}".format])
def test_a_switch_without_a_type_holds_for_objects_and_other_values(member: Callable[[int], str], number: int) -> None:
    schema = switch(number, member)
    grammar = compile_constraint(JsonSchema(schema, CLOSED), shared_vocabulary(), whitespace="compact")
    validator = jsonschema.Draft202012Validator(schema)
    values: list[Any] = ["v1", 3, None, [], True, {}, {"k": 1}, {"k": "v1"}, {"k": "v"}, {member(1): 1}]
    for tag, name, value in product([0, 1, number - 1], [0, 1, number - 1], [-1, 0, 1, 2, number - 1, number, "x"]):
        values.append({"k": f"v{tag}", member(name): value})
    for value in values:
        listed = not isinstance(value, dict) or value.get("k") == "v" or validator.is_valid(value)
        if isinstance(value, dict) and len(value) == 2 and member(0) != "d":
            listed = [*value][1] == member(int(value["k"][1:]))  # another member is not listed
        expected = listed and validator.is_valid(value)
        assert accepts(grammar, json.dumps(value, separators=(",", ":")).encode()) is expected, value


def test_a_switch_applies_all_its_cases_to_values_that_are_no_objects() -> None:
    schema = {
        "allOf": [
            {
                "if": {"properties": {"k": {"const": tag}}, "required": ["k"]},
                "then": {"properties": {tag: {}}, "maximum": most, "type": ["object", kind, "number"]},
            }
            for tag, most, kind in (("x", 5, "string"), ("y", 9, "null"))
        ]
    }
    grammar = compile_constraint(JsonSchema(schema, CLOSED), shared_vocabulary(), whitespace="compact")
    for value in (3, 5, 6, 9, "x", None, True, [], {"k": "x", "x": 1}, {"k": "y", "y": 1}):
        expected = jsonschema.Draft202012Validator(schema).is_valid(value)
        assert accepts(grammar, json.dumps(value, separators=(",", ":")).encode()) is expected, value


@pytest.mark.parametrize("depth", [350, 1000, 100_000])
def test_a_schema_that_is_nested_too_deep_is_refused_as_such(depth: int) -> None:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"not": schema}
    with pytest.raises(GrammarError, match="nested"):
        compile_constraint(JsonSchema(schema, CLOSED), shared_vocabulary())


@pytest.mark.slow
@pytest.mark.parametrize("required_first", [False, True])
@pytest.mark.parametrize("number", [3, 300])
def test_members_that_require_others_come_in_order(number: int, required_first: bool) -> None:
    names = [f"{kind}{n}" for kind in ("ba" if required_first else "ab") for n in range(number)]
    schema = {
        "type": "object",
        "properties": {name: {} for name in names},
        "dependentRequired": {f"a{n}": [f"b{n}"] for n in range(number)},
    }
    grammar = compile_constraint(JsonSchema(schema, CLOSED), shared_vocabulary(), whitespace="compact")
    chosen = [name for name in names if int(name[1:]) < 3]
    for size in range(len(chosen) + 1):
        for members in combinations(chosen, size):
            value = dict.fromkeys(members, 1)
            expected = jsonschema.Draft202012Validator(schema).is_valid(value)
            assert accepts(grammar, json.dumps(value, separators=(",", ":")).encode()) is expected, value


def test_an_object_stays_open_where_its_listed_members_are_forbidden() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": False}, "minProperties": 2}
    value = written(JsonSchema(schema, CLOSED), 0)
    jsonschema.validate(value, schema)


@pytest.mark.parametrize("name", ["aé", "a\\u00e9"])
@pytest.mark.parametrize("gap", ["", " "])
def test_a_token_that_contains_a_used_name_is_not_allowed(name: str, gap: str) -> None:
    words = ["", '"aé":', ',"aé"', '"aé', '"aéc":']
    end, whole, after_comma, begun, other = range(256, 256 + len(words))
    vocabulary = Vocabulary.from_tokens([bytes([b]) for b in range(256)] + [word.encode() for word in words], [end])
    matcher = compile_constraint(JsonObject(), vocabulary, whitespace="any").matcher()
    for byte in f'{{"{name}"{gap}:1'.encode():
        assert byte in allowed(matcher, vocabulary)  # masks are asked for on the way, as in generation
        assert matcher.accept(byte)
    assert after_comma not in allowed(matcher, vocabulary)
    assert matcher.accept(ord(","))
    found = allowed(matcher, vocabulary)
    assert whole not in found
    assert {begun, other} <= set(found)
    matcher.rollback(1)
    assert matcher.accept(ord("2"))
    assert after_comma not in allowed(matcher, vocabulary)


@pytest.mark.exhaustive
@many(60)
@given(
    parts=st.lists(
        st.sampled_from(
            [
                {"type": "integer"},
                {"minimum": -20},
                {"exclusiveMaximum": 900},
                {"multipleOf": 4},
                {"multipleOf": 0.5},
                {"enum": [4.0, 8, 1.5, "x", 1e3]},
                {"type": ["integer", "string"]},
                {"not": {"const": 8}},
                {"anyOf": [{"minimum": 10}, {"maximum": 6.0}]},
            ]
        ),
        max_size=4,
    ),
    how=st.sampled_from(["allOf", "beside", "anyOf"]),
    seed=st.integers(0, 2**32),
)
def test_generated_integers_are_ints_in_python(parts: list[Any], how: str, seed: int) -> None:
    schema: Any = {"allOf": [{"type": "integer"}, *parts]}
    if how == "beside":
        schema = {"type": "integer", "allOf": parts} if parts else {"type": "integer"}
    elif how == "anyOf":
        schema = {"anyOf": [schema, {"type": "integer", "const": 3.0}]}
    for options in (CLOSED, DIGITS):
        grammar = compiled_or_none(JsonSchema(schema, options), shared_vocabulary(), "compact")
        if grammar is not None:
            text = sample(grammar, random.Random(seed)).decode()
            assert type(json.loads(text)) is int
            jsonschema.validate(json.loads(text), schema)


def listed(names: str, required: str) -> dict[str, Any]:
    """Return the schema of an object with these members, of one letter each, and no others."""
    members = {name: {"type": "integer"} for name in names}
    return {"type": "object", "properties": members, "required": [*required], "additionalProperties": False}


@pytest.mark.parametrize("seed", range(6))
def test_each_of_several_closed_alternatives_has_its_own_order(seed: int) -> None:
    rng = random.Random(seed)
    lists = []
    for _ in range(rng.choice([2, 3, 9])):
        names = rng.sample("abcd", rng.randint(1, 4))
        lists.append(("".join(names), "".join(name for name in names if rng.random() < 0.5)))
    grammar = compiled({"anyOf": [listed(names, required) for names, required in lists]})
    for length in range(5):
        for chosen in permutations("abcd", length):
            expected = any(
                set(required) <= set(chosen) <= set(names) and list(chosen) == [n for n in names if n in chosen]
                for names, required in lists
            )
            text = "{" + ",".join(f'"{name}":1' for name in chosen) + "}"
            assert accepts(grammar, text.encode()) is expected, (lists, text)
