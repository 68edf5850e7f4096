"""Masks do not depend on the hash seed of the process: equal schemas and tokens give equal bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

# Prints a digest of all masks on some ways through each schema that stands on its input.
WALK = """
import hashlib, json, random, sys
import numpy as np
from ramiform.constrained import JsonSchema, Vocabulary, compile_constraint

LETTERS = '{}[]",: abcdefxyz01.-truefalsn'
tokens = [None, *sorted({letter.encode() for letter in LETTERS} | {b'": ', b'", "', b'"}', b'true'})]
vocabulary = Vocabulary.from_tokens(tokens, [0])
for schema in json.load(sys.stdin):
    for order in ("any", "schema"):
        digest = hashlib.sha256()
        grammar = compile_constraint(JsonSchema(schema), vocabulary, order=order)
        for way in range(12):
            matcher, rng, out = grammar.matcher(), random.Random(way), np.zeros(vocabulary.num_words, np.int32)
            for _ in range(60):
                matcher.mask(out)
                digest.update(out.tobytes())
                may = np.flatnonzero(np.unpackbits(out.view(np.uint8), bitorder="little")).tolist()
                closing = [token for token in may if token and tokens[token][:1] in (b'"', b"}", b"]", b":")]
                token = rng.choice(closing if closing and rng.random() < 0.5 else may)
                if token == 0:
                    break
                assert matcher.accept(token)
        print(digest.hexdigest())
"""


def needs(*names: str) -> dict[str, Any]:
    return {"required": list(names)}


LETTERS = {"type": "object", "patternProperties": {"^[a-e]$": True}, "additionalProperties": False}
ONE_OF_TWO = {"anyOf": [needs("b"), needs("c")]}
INNER = {"a": {"type": "object", "required": ["x"]}, "b": {"enum": ["x", "y", "a/b"]}, "c": {"type": "integer"}}
SCHEMAS: dict[str, Any] = {
    "names that forbid each other": LETTERS
    | {
        "allOf": [
            {"dependencies": {"a": ONE_OF_TWO, "b": {"not": needs("a")}, "c": {"not": needs("a")}}},
            needs("d"),
        ],
        "minProperties": 2,
    },
    "a chain of names, of which few may come": LETTERS
    | {
        "allOf": [
            {"dependencies": {"a": ONE_OF_TWO, **{n: {"not": needs(m)} for n, m in zip("bcde", "cdea", strict=True)}}},
            needs("a"),
        ],
        "maxProperties": 2,
    },
    "properties of several schemas": {
        "allOf": [
            {"properties": {"b": {"type": "string"}, "a": {"type": "integer"}}},
            {"properties": {"d": True, "c": {"type": "boolean"}}, "required": ["c"]},
            {
                "anyOf": [
                    {"properties": {"e": {"const": 1}, "a": {"minimum": 0}}},
                    {"properties": {"f": False, "x": {}}},
                ]
            },
        ],
        "type": "object",
    },
    "one of several objects": {
        "oneOf": [{"type": "object", "properties": {n: v}, "required": [n]} for n, v in INNER.items()]
    },
    "strings that are told apart": {"oneOf": [{"pattern": "^a"}, {"enum": ["ab", "b", "x"]}, {"minLength": 3}]},
    "items that differ": {
        "type": "array",
        "uniqueItems": True,
        "contains": {"enum": ["a", "b", 1]},
        "items": {"anyOf": [{"enum": ["a", "b", "c"]}, {"type": "integer"}, {"type": "object", "properties": INNER}]},
    },
}


@pytest.fixture(scope="module")
def digests() -> list[dict[str, list[str]]]:
    """Return the digests of all masks: per process, schema and order."""
    found = []
    for seed in ("1", "2"):
        command = [sys.executable, "-c", WALK]
        given, environment = json.dumps(list(SCHEMAS.values())), os.environ | {"PYTHONHASHSEED": seed}
        run = subprocess.run(
            command, input=given, env=environment, cwd="/", capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
        lines = run.stdout.split()
        found.append({name: lines[2 * n : 2 * n + 2] for n, name in enumerate(SCHEMAS)})
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SCHEMAS)
def test_masks_do_not_depend_on_the_seed_of_hashes(name: str, digests: list[dict[str, list[str]]]) -> None:
    first, second = digests
    assert first[name] == second[name]


@pytest.mark.exhaustive
def test_the_ways_see_the_order_of_names(digests: list[dict[str, list[str]]]) -> None:
    for name in ("properties of several schemas", "names that forbid each other"):
        assert len(set(digests[0][name])) == 2
