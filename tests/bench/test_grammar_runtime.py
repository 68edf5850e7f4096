"""What a model of random weights writes under a schema is valid, whichever schema. Judge: `jsonschema`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ramiform.bench.grammar.cases import Case
from ramiform.bench.grammar.judge import verdict
from ramiform.bench.grammar.jump import Bench, compare, tasks
from ramiform.bench.grammar.mask_share import OBJECT, PERSON, measure
from ramiform.bench.grammar.runtime import run
from ramiform.bench.random_models import tiny_llama
from ramiform.constrained import Vocabulary

STRING = {"type": "string", "maxLength": 12}
NODE = {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}
SCHEMAS: dict[str, Any] = {
    "anything": True,
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer", "minimum": -3, "maximum": 120},
    "number": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
    "decimal multiple": {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 9},
    "short string": STRING,
    "long enough": {"type": "string", "minLength": 3, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "pattern inside": {"type": "string", "pattern": "b+a", "maxLength": 10},
    "look-ahead": {"type": "string", "pattern": "^(?!ab)[a-c]{3,5}$"},
    "date": {"type": "string", "format": "date"},
    "date-time": {"type": "string", "format": "date-time"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "uuid": {"type": "string", "format": "uuid"},
    "enum": {"enum": ["red", "grün", 3, None, [1, 2], {"a": 1}]},
    "const": {"const": {"name": "Ada", "legs": 2}},
    "types": {"type": ["integer", "boolean", "null"], "maximum": 9, "minimum": 0},
    "array": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
    "unique": {"type": "array", "items": {"enum": [1, 2, 3, 4]}, "uniqueItems": True, "minItems": 2},
    "tuple": {"type": "array", "prefixItems": [STRING, {"type": "null"}], "items": False, "minItems": 2},
    "contains": {"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 2}, "maxContains": 2, "maxItems": 5},
    "object": {"type": "object", "properties": {"a": STRING}, "required": ["a"], "additionalProperties": False},
    "some of many": {
        "type": "object",
        "additionalProperties": {"type": "null"},
        "minProperties": 1,
        "maxProperties": 2,
    },
    "names": {"type": "object", "propertyNames": {"pattern": "^[a-c]$"}, "additionalProperties": {"type": "boolean"}},
    "patterns": {"type": "object", "patternProperties": {"^n": {"const": 1}}, "required": ["na"], "maxProperties": 2},
    "dependent": {
        "type": "object",
        "properties": {"a": {"const": 1}, "b": {"const": 2}},
        "dependentRequired": {"a": ["b"]},
        "additionalProperties": False,
    },
    "all": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 90}, {"multipleOf": 2}]},
    "any": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, STRING]},
    "one": {"oneOf": [{"type": "integer", "multipleOf": 2}, {"enum": [3, 4, 5]}], "maximum": 50, "minimum": 0},
    "not": {"type": "integer", "minimum": 0, "maximum": 30, "not": {"multipleOf": 3}},
    "if": {
        "type": "object",
        "properties": {"kind": {"enum": ["bird", "fish"]}, "legs": {"enum": [0, 2]}},
        "required": ["kind", "legs"],
        "additionalProperties": False,
        "if": {"properties": {"kind": {"const": "bird"}}},
        "then": {"properties": {"legs": {"const": 2}}},
        "else": {"properties": {"legs": {"const": 0}}},
    },
    "reference": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"type": "null"}, "maxItems": 3}}},
    "recursion": {"$ref": "#/$defs/node", "$defs": {"node": NODE | {"additionalProperties": False}}},
    "unevaluated": {
        "type": "object",
        "properties": {"a": {"const": 1}},
        "anyOf": [{"properties": {"b": {"const": 2}}, "required": ["b"]}, True],
        "unevaluatedProperties": False,
    },
    "draft 4": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "integer",
        "minimum": 0,
        "exclusiveMinimum": True,
        "maximum": 10,
    },
    "draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [{"type": "boolean"}],
        "additionalItems": {"type": "null"},
        "maxItems": 3,
    },
    "no more than one": {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "integer"}},
    "impossible": {"type": "string", "minLength": 3, "maxLength": 2},
}
# None of their values has a text that is longer than what the test allows. A number may have any number of zeros.
BOUNDED = ["null", "boolean", "short string", "long enough", "pattern", "pattern inside", "look-ahead", "date"]
BOUNDED += ["ipv4", "uuid", "array", "tuple", "reference"]
CASES = [Case(name, schema, []) for name, schema in SCHEMAS.items()]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    threads = torch.get_num_threads()
    yield tiny_llama(tmp_path_factory.mktemp("random"))
    torch.set_num_threads(threads)


@pytest.mark.exhaustive
@pytest.mark.parametrize("favour", [0.0, 6.0])
def test_whatever_random_weights_write_under_a_schema_is_valid_or_has_no_room(checkpoint: Path, favour: float) -> None:
    judged, figures = run(CASES, checkpoint, favour, max_tokens=150, at_once=16)
    fates = {one.name: one.outcome for one in judged}
    assert fates.pop("impossible") == "refused"
    assert set(fates.values()) <= {"valid", "length"}, [one for one in judged if one.outcome not in ("valid", "length")]
    assert not [name for name in BOUNDED if fates[name] != "valid"]
    assert figures["output tokens"] > 300


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"multipleOf": 0.01}, "19.99", "valid"),
        ({"type": "integer"}, "2.0", "valid"),
        ({"type": "integer"}, "2.5", "not valid"),
        ({"format": "date"}, '"2026-02-30"', "not valid"),
        ({}, '{"a": ', "not JSON"),
        ({}, "NaN", "not JSON"),
        ({"$ref": "https://example.org/other.json"}, "1", "not judged"),
        ({"type": "string", "pattern": "\\p{L}"}, '"a"', "not judged"),
    ],
)
def test_the_judge_tells_what_is_valid(schema: Any, text: str, expected: str) -> None:
    assert verdict(schema, text) == expected


@pytest.mark.exhaustive
def test_jumps_save_forwards_and_write_the_same_where_there_is_one_choice() -> None:
    bench = Bench(None)
    [choices] = [task for task in tasks() if task.name == "three long choices"]
    row = compare(bench, choices, "any", 2, repeat=1)
    assert row["same texts"] == 2
    assert row["forwards/token on"] < 0.5 * row["forwards/token off"]
    assert row["forced %"] > 50


@pytest.mark.slow
def test_masks_are_timed_at_every_place_of_a_valid_object() -> None:
    text = json.dumps(OBJECT)
    assert verdict(PERSON, text) == "valid"
    vocabulary = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), None], [256])
    assert min(measure(vocabulary, list(text.encode()), batch=2, repeat=1)) > 0
