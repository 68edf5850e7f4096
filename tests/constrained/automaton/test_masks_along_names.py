"""Masks inside names and given texts that other texts may replace, compared with accepting every token in turn."""

from __future__ import annotations

from typing import Any

import pytest

from ramiform.constrained import JsonSchema, Matcher, PropertyOrder, Vocabulary, compile_constraint
from ramiform.tests.constrained.walks import EOS, TOKENS, allowed

PIECES: list[bytes | None] = [
    *TOKENS,
    b'a":',
    b'aa":"',
    b'a"}',
    b'a",',
    b'ab":1',
    b'\\u0061"',
    b"aa\\",
    b'\xc3\xa9":',
    b'"a":',
]
VOCABULARY = Vocabulary.from_tokens(PIECES, [EOS])
NAMES = ["a", "aa", "ab", "aab", "é", "a/b", 'a"b', ""]
# Schemas, and texts through which outputs go byte by byte, up to where one is refused.
GIVEN: dict[str, tuple[dict[str, Any], list[str]]] = {
    "open": (
        {"type": "object", "properties": {name: {"type": "integer"} for name in NAMES}},
        ['{"aab":1, "aa":2,"ab":3,"a":4,"abc":[{"a', '{"é":1,"ét":2,"a/b":3,"b"', '{"a\\"b":1,"a\\"bc'],
    ),
    "with others of a kind": (
        {"type": "object", "properties": {"aa": True, "ab": True}, "additionalProperties": {"type": "string"}},
        ['{"aa":1,"aab":"aa","ab":{"aa":1,"ab'],
    ),
    "inside each other": (
        {"type": "object", "properties": {"a": {"type": "object", "properties": {"aa": {"properties": {"b": True}}}}}},
        ['{"a":{"aa":{"b":{},"ba":1},"aab":2},"aa', '{"a":{"a":{"aa'],
    ),
    "asked for": (
        {"properties": {"a": True, "aa": True}, "required": ["aa"], "type": "object"},
        ['{"a":1,"aab":1,"aa":1}'],
    ),
    "counted, so that names are asked": (
        {"properties": {"aa": True, "ab": True}, "minProperties": 4, "type": "object"},
        ['{"aa":1,"b":1,"bb":1,"ab":1,"bb"', '{"a":1,"b":1,"ab":1,"aab'],
    ),
    "by patterns": (
        {"properties": {"aa": {"type": "null"}}, "patternProperties": {"^a": {"type": ["null", "string"]}}},
        ['{"aa":null,"aab":"aa","b":1,"ab'],
    ),
    "words and any string": ({"type": "string", "not": {"enum": ["a", "aa", "aab", "é"]}}, ['"aab', '"aa:"', '"étaa"']),
    "words that say more": (
        {
            "items": {
                "type": "object",
                "oneOf": [
                    {"properties": {"a": {"enum": ["aa", "ab"]}, "b": {"type": "null"}}},
                    {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["b"]},
                ],
            }
        },
        ['[{"a":"ab","b":1},{"a":"aab","b":2},{"b":null,"a":"aa"}'],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("order", ["any", "schema"])
@pytest.mark.parametrize("name", GIVEN)
def test_along_names_a_token_is_in_the_mask_exactly_if_it_is_accepted(name: str, order: PropertyOrder) -> None:
    schema, texts = GIVEN[name]
    grammar = compile_constraint(JsonSchema(schema), VOCABULARY, whitespace="any", order=order)
    for text in texts:
        matcher = grammar.matcher()
        for place, byte in enumerate(text.encode()):
            found = allowed(matcher, VOCABULARY)
            assert found == _stepped(matcher), text.encode()[:place]
            assert allowed(matcher, VOCABULARY) == found, "what is remembered is what was worked out"
            if not matcher.accept(byte):
                break


def _stepped(matcher: Matcher) -> list[int]:
    """Return the tokens that are accepted."""
    found = []
    for token in range(len(PIECES)):
        if matcher.accept(token):
            matcher.rollback(1)
            found.append(token)
    return found
