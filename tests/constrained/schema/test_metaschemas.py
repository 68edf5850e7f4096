"""References to JSON Schema's own metaschemas, and schemas of one draft inside schemas of another."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from ramiform.constrained import GrammarError, JsonSchema, compile_constraint
from ramiform.tests.constrained.walks import accepts, shared_vocabulary

DRAFTS = {
    "http://json-schema.org/draft-04/schema": jsonschema.Draft4Validator,
    "http://json-schema.org/draft-06/schema": jsonschema.Draft6Validator,
    "http://json-schema.org/draft-07/schema": jsonschema.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema.Draft202012Validator,
}
SCHEMAS: list[Any] = [
    {},
    True,
    {"minLength": 1},
    {"minLength": -1},
    {"type": "object", "properties": {"a": {"type": "strin"}}},
    {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}, "required": ["a"]},
    {"items": [{"minimum": 3}]},
    {"items": {"minimum": "3"}},
    {"allOf": [{"enum": [1]}, {"not": {}}]},
    {"allOf": []},
    {"$defs": {"a": {"maxItems": -1}}},
    {"required": ["a", "a"]},
    {"exclusiveMinimum": 3},
    3,
]


@pytest.mark.parametrize("fragment", ["", "#"])
@pytest.mark.parametrize("uri", DRAFTS)
def test_a_metaschema_may_be_referred_to(uri: str, fragment: str) -> None:
    grammar = compile_constraint(JsonSchema({"$ref": uri + fragment}), shared_vocabulary())
    for schema in SCHEMAS:
        judge = DRAFTS[uri](DRAFTS[uri].META_SCHEMA)
        assert accepts(grammar, json.dumps(schema).encode()) == judge.is_valid(schema), schema


def test_a_part_of_a_metaschema_may_be_referred_to() -> None:
    schema = {"items": {"$ref": "http://json-schema.org/draft-07/schema#/definitions/nonNegativeInteger"}}
    grammar = compile_constraint(JsonSchema(schema), shared_vocabulary())
    assert accepts(grammar, b"[0, 3]")
    assert not accepts(grammar, b"[-1]")


@pytest.mark.parametrize(
    "uri", ["http://json-schema.org/draft-99/schema#", "https://json-schema.org/learn", "http://example.com/schema"]
)
def test_nothing_else_is_fetched(uri: str) -> None:
    with pytest.raises(GrammarError, match="nothing is fetched") as refusal:
        compile_constraint(JsonSchema({"items": {"$ref": uri}}), shared_vocabulary())
    assert refusal.value.pointer == "/items/$ref"


DRAFT_7, DRAFT_2020 = "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        # Until draft 7 a $ref hides the keywords beside it.
        (
            {
                "$schema": DRAFT_2020,
                "$ref": "http://example.com/old",
                "$defs": {
                    "old": {
                        "$id": "http://example.com/old",
                        "$schema": DRAFT_7,
                        "properties": {"a": {"$ref": "#/definitions/n", "minimum": 5}},
                        "definitions": {"n": {"type": "integer"}},
                    }
                },
                "properties": {"b": {"$ref": "http://example.com/old#/definitions/n", "minimum": 5}},
            },
            ['{"a": 3}', '{"b": 5}'],
            ['{"a": "x"}', '{"b": 3}'],
        ),
        # In 2020-12 a list in `items` means nothing to us but the older form; `prefixItems` means nothing to draft 7.
        (
            {
                "$schema": DRAFT_7,
                "properties": {"new": {"$ref": "urn:new"}, "old": {"prefixItems": [{"type": "null"}]}},
                "definitions": {
                    "new": {"$id": "urn:new", "$schema": DRAFT_2020, "prefixItems": [{"type": "null"}]},
                },
            },
            ['{"new": [null]}', '{"old": [3]}'],
            ['{"new": [3]}'],
        ),
        # Draft 4 has bounds that are exclusive by a boolean.
        (
            {
                "$schema": DRAFT_2020,
                "properties": {"a": {"$ref": "urn:four"}},
                "$defs": {
                    "four": {
                        "$id": "urn:four",
                        "$schema": "http://json-schema.org/draft-04/schema#",
                        "minimum": 3,
                        "exclusiveMinimum": True,
                        "const": 7,
                    }
                },
            },
            ['{"a": 4}', '{"a": 7}'],
            ['{"a": 3}'],
        ),
        # An integer of draft 4 has no point, though equal schemas of one draft share a node.
        (
            {
                "$schema": DRAFT_2020,
                "properties": {
                    "a": {"type": "integer"},
                    "b": {"anyOf": [{"type": "null"}, {"type": "integer"}]},
                    "four": {
                        "$id": "urn:four",
                        "$schema": "http://json-schema.org/draft-04/schema#",
                        "properties": {
                            "a": {"type": "integer"},
                            "b": {"anyOf": [{"type": "null"}, {"type": "integer"}]},
                        },
                    },
                },
            },
            ['{"a": 1.0, "b": 1.0, "four": {"a": 1, "b": 1}}', '{"four": {"a": 1}, "a": 1.0}'],
            ['{"a": 1, "four": {"a": 1.0}}', '{"b": 1, "four": {"b": 1.0}}', '{"four": {"b": 1.0}}'],
        ),
        # Without an id of the draft around it, a schema is part of that draft's schema, whatever it declares.
        (
            {
                "properties": {"a": {"$ref": "#/definitions/four"}},
                "definitions": {
                    "four": {
                        "id": "schemata/four",
                        "$schema": "http://json-schema.org/draft-04/schema#",
                        "properties": {"b": {"$ref": "#/definitions/n"}},
                    },
                    "n": {"const": 7},
                },
            },
            ['{"a": {"b": 7}}'],
            ['{"a": {"b": 8}}'],
        ),
    ],
)
def test_a_resource_is_read_by_its_own_draft(schema: Any, valid: list[str], invalid: list[str]) -> None:
    grammar = compile_constraint(JsonSchema(schema), shared_vocabulary())
    assert [text for text in valid if not accepts(grammar, text.encode())] == []
    assert [text for text in invalid if accepts(grammar, text.encode())] == []
