"""The report on a keyword agrees with what the compiled schema does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ramiform.constrained.explain import walks
from ramiform.constrained.explain.report import JsonOptions, explain

OPEN = JsonOptions("schema", "any", "any", "schema")
DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
    None: None,
}
# A schema, and a value that its first keyword alone refuses where that is enforced.
REFUSED: list[tuple[dict[str, Any], Any]] = [
    ({"type": "string"}, 1),
    ({"enum": [1]}, 2),
    ({"const": 1}, 2),
    ({"minLength": 2}, "a"),
    ({"format": "ipv4"}, "a"),
    ({"format": "colour"}, "a"),
    ({"maxlength": 2}, "abc"),
    ({"title": "a"}, "b"),
    ({"$comment": "a"}, "b"),
    ({"minimum": 2}, 1),
    ({"multipleOf": 2}, 1),
    ({"divisibleBy": 2}, 1),
    ({"exclusiveMinimum": True, "minimum": 2}, 2),
    ({"exclusiveMinimum": True}, 2),
    ({"properties": {"a": {"type": "null"}}}, {"a": 1}),
    ({"additionalProperties": False}, {"a": 1}),
    ({"patternProperties": {"a": False}}, {"a": 1}),
    ({"propertyNames": {"maxLength": 1}}, {"ab": 1}),
    ({"required": ["a"]}, {}),
    ({"required": True}, {}),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1}),
    ({"dependencies": {"a": ["b"]}}, {"a": 1}),
    ({"dependentSchemas": {"a": False}}, {"a": 1}),
    ({"items": {"type": "null"}}, [1]),
    ({"prefixItems": [{"type": "null"}]}, [1]),
    ({"additionalItems": False, "items": [True]}, [1, 2]),
    ({"additionalItems": False, "items": True}, [1, 2]),
    ({"uniqueItems": True}, [1, 1]),
    ({"contains": {"const": 1}}, [2]),
    ({"minContains": 2, "contains": {"minimum": 1}}, [1]),
    ({"maxContains": 1, "contains": {"minimum": 1}}, [1, 1]),
    ({"minContains": 2}, [1]),
    ({"not": {"type": "string"}}, "a"),
    ({"oneOf": [{"type": "string"}, True]}, "a"),
    ({"then": False, "if": {"type": "string"}}, "a"),
    ({"else": False, "if": {"type": "string"}}, 1),
    ({"then": False}, "a"),
    ({"if": {"type": "string"}, "then": False}, "a"),
    ({"if": {"type": "string"}}, "a"),
    ({"unevaluatedProperties": False}, {"a": 1}),
    ({"unevaluatedItems": False}, [1]),
    ({"nullable": True, "type": "string"}, 1),
    ({"nullable": True}, 1),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, 1),
    ({"minLength": 2, "$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, "a"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(("schema", "value"), REFUSED, ids=lambda value: json.dumps(value)[:40])
def test_a_keyword_is_enforced_exactly_if_it_is_said_so(
    schema: dict[str, Any], value: Any, draft: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "NUM_RANDOM_OUTPUTS", 1)  # they are the cost, of which other tests are
    declared = {"$schema": DRAFTS[draft]} if draft else {}
    keyword = next(iter(schema))
    found = explain("s.json", json.dumps(schema | declared), "schema", OPEN, json.dumps(value).encode())
    assert not found.refused
    [use] = [use for use in found.keywords if use.pointer == f"/{keyword}"]
    assert found.verdict is not None
    if keyword != "nullable":
        assert (use.status == "enforced") == (not found.verdict.walk.accepted)
    assert (use.status == "warning") == bool(use.reason)


def test_all_refusals_of_single_subschemas_are_listed() -> None:
    schema = {"properties": {"a": {"pattern": "("}, "b": {"$ref": "#/c"}, "c": {"minLength": -1}}, "type": "object"}
    found = explain("s.json", json.dumps(schema), "schema")
    assert [remark.pointer for remark in found.refused] == [
        "/properties/a/pattern",
        "/properties/b/$ref",
        "/properties/c/minLength",
    ]
    assert "/properties/a/pattern" not in [use.pointer for use in found.keywords]


def test_a_schema_that_is_refused_as_a_whole_is_a_refusal() -> None:
    found = explain("s.json", '{"allOf": [{"$ref": "#"}]}', "schema")
    assert [(remark.pointer, remark.line) for remark in found.refused] == [("/allOf/0", 1)]


@pytest.mark.slow
def test_constraints_on_one_string_that_are_too_complex_together_are_refused() -> None:
    patterns = [{"pattern": letter} for letter in "abcdefghijklmnop"]  # each in any order: 2^16 states
    schema = {"properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "string", "allOf": patterns}]}}}
    found = explain("s.json", json.dumps(schema), "schema", None, b'{"a": ""}')
    assert [remark.pointer for remark in found.refused] == ["/properties/a"]
    assert "the constraint is too complex" in found.text()
