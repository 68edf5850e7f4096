"""Masks inside names and given texts, where any other text may come too, judged by the steps of every token."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from ramify.constrained import JsonSchema, PropertyOrder, Vocabulary, compile_constraint

from .walks import EOS, TOKENS, allowed

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
OPEN: dict[str, dict[str, Any]] = {
    "open": {"properties": {name: {"type": "integer"} for name in NAMES}},
    "with others of a kind": {"properties": {"aa": True, "ab": True}, "additionalProperties": {"type": "string"}},
    "inside each other": {"properties": {"a": {"properties": {"aa": {"properties": {"aab": True}}}}}},
    "asked for": {"properties": {"a": True, "aa": True}, "required": ["aa"], "type": "object"},
    "counted, so that names are asked": {"properties": {"aa": True, "ab": True}, "minProperties": 4, "type": "object"},
    "by patterns": {"properties": {"aa": {"type": "null"}}, "patternProperties": {"^a": {"type": ["null", "string"]}}},
    "words and any string": {"type": "string", "not": {"enum": ["a", "aa", "aab", "é"]}},
    "words that say more": {
        "items": {
            "type": "object",
            "oneOf": [
                {"properties": {"a": {"enum": ["aa", "ab"]}, "b": {"type": "null"}}},
                {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["b"]},
            ],
        }
    },
}


@pytest.mark.parametrize("order", ["any", "schema"])
@pytest.mark.parametrize("name", OPEN)
def test_along_names_a_token_is_in_the_mask_exactly_when_its_step_may_be(name: str, order: PropertyOrder) -> None:
    grammar = compile_constraint(JsonSchema(OPEN[name]), VOCABULARY, whitespace="any", order=order)
    rng = random.Random(name)
    out = np.zeros(VOCABULARY.num_words, np.int32)
    for _ in range(6):
        matcher, output = grammar.matcher(), b""
        for _ in range(14):
            found, expected = allowed(matcher, VOCABULARY), []
            for token in range(len(PIECES)):
                if matcher.accept(token):
                    matcher.rollback(1)
                    expected.append(token)
            assert found == expected, output
            before = out.copy()
            matcher.mask(out)
            matcher.mask(before)
            assert (out == before).all(), "what is remembered is what was worked out"
            # Rather what begins, goes on or ends as a name does than spaces, numbers and brackets.
            likely = [token for token in expected if set(PIECES[token] or b"") & set(b'a"{:\xc3\\')]
            token = rng.choice(likely or expected)
            if token == EOS:
                break
            assert matcher.accept(token)
            output += PIECES[token] or b""
