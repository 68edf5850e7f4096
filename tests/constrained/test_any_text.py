"""Schemas, patterns, grammars and tags that a stranger wrote are compiled or refused, in counted work.

An output is begun with what was compiled: the first masks must not fail otherwise either.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from ramiform.constrained import (
    Grammar,
    GrammarError,
    JsonSchema,
    Regex,
    StructuralTag,
    Vocabulary,
    compile_constraint,
)
from ramiform.tests.fuzzing import fuzz, mutated_json, mutated_text

TOKENS: list[bytes | None] = [bytes([byte]) for byte in range(256)]
VOCABULARY = Vocabulary.from_tokens([*TOKENS, b'{"a":', b"true", None], [258])
SCHEMAS: list[Any] = [
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"$ref": "#/$defs/x"}},
        "required": ["a"],
        "additionalProperties": False,
        "patternProperties": {"^c": {"type": "null"}},
        "$defs": {
            "x": {"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 1, "uniqueItems": True}
        },
    },
    {"anyOf": [{"enum": [1, "a", None]}, {"const": {"b": []}}, {"type": "string", "format": "date-time"}]},
    {"allOf": [{"type": "number", "multipleOf": 0.5}, {"not": {"minimum": 9}}], "if": {"const": 1}, "then": False},
    {"oneOf": [{"type": "string", "pattern": "^a+$"}, {"$ref": "#"}], "unevaluatedProperties": False},
    {"type": ["array"], "prefixItems": [True, {"type": "boolean"}], "contains": {"const": 1}, "maxContains": 2},
    {"type": "object", "propertyNames": {"maxLength": 3}, "minProperties": 1, "dependentRequired": {"a": ["b"]}},
]
PATTERNS = [
    r"^(?:[a-z0-9]+[.-]){1,5}(?i:COM|org)$",
    r"(?=a)\w{2,8}\b[^\s\d]?(?!x)",
    r"(?P<year>\d{4})-(0[1-9]|1[0-2])\p{L}*",
    r"[\x00-\x1f\u00e9\U0001f642]+|\\.|a{0,200}",
    r"(a|b)*a(a|b){9}",
]
LARK = [
    'start: item (","i item)* -> list\nitem: NAME | "(" start ")"\nNAME: /[a-z]+/i\n%ignore " "\n%import common.INT\n',
    '?start: a~2..4 | [b]\n_b: "x" | "y".."z"\na.2: b+ // comment\nb: _b | a?\n',
]
GBNF = ['root ::= ws "a" [0-9]{2,3} (b | "c")* ws # comment\nb ::= root | [^\\n"]+\nws ::= [ \\t\\n]*\n']
TAGS: list[Any] = [
    {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}],
        "triggers": ["<f"],
    },
    {
        "type": "structural_tag",
        "format": {
            "type": "sequence",
            "elements": [
                {"type": "const_string", "value": "a"},
                {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": ">"},
                {
                    "type": "or",
                    "elements": [{"type": "json_schema", "json_schema": {}}, {"type": "regex", "pattern": "a"}],
                },
            ],
        },
    },
]


def begin(constraint: Any) -> None:
    """Compile a constraint and follow the first allowed tokens. Only GrammarError may be raised."""
    with contextlib.suppress(GrammarError):
        matcher = compile_constraint(constraint, VOCABULARY).matcher()
        mask = np.zeros(VOCABULARY.num_words, np.int32)
        for _ in range(4):
            matcher.mask(mask)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            if not len(allowed) or allowed[len(allowed) // 2] == 258:
                return
            assert matcher.accept(int(allowed[len(allowed) // 2]))


@pytest.mark.slow
@fuzz(mutated_json(SCHEMAS) | mutated_text([json.dumps(schema) for schema in SCHEMAS]))
def test_any_schema_is_compiled_or_refused(schema: Any) -> None:
    begin(JsonSchema(schema if isinstance(schema, str) else json.dumps(schema)))


@pytest.mark.slow
@fuzz(mutated_text(PATTERNS))
def test_any_pattern_is_compiled_or_refused(pattern: str) -> None:
    begin(Regex(pattern))


@pytest.mark.slow
@fuzz(st.tuples(st.just("lark"), mutated_text(LARK)) | st.tuples(st.just("gbnf"), mutated_text(GBNF)))
def test_any_grammar_is_compiled_or_refused(grammar: tuple[Any, str]) -> None:
    syntax, text = grammar
    begin(Grammar(text, syntax=syntax))


@fuzz(mutated_json(TAGS))
def test_any_structural_tag_is_compiled_or_refused(tag: Any) -> None:
    begin(StructuralTag(json.dumps(tag)))


@pytest.mark.parametrize(
    "path", ["%import.secret.X", "%import \\\n .secret.X", "%import secret.X", "%import\\\nsecret (X)"]
)
def test_a_grammar_reads_no_file(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.lark").write_text('X: "a"\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GrammarError, match="imports are from Lark's own grammars only"):
        compile_constraint(Grammar(f"start: X\n{path}\n"), VOCABULARY)


def test_names_that_a_member_requires_are_texts() -> None:
    with pytest.raises(GrammarError, match=r"'dependentRequired' must be an object of arrays of strings"):
        compile_constraint(JsonSchema({"dependentRequired": {"a": [None]}}), VOCABULARY)


@pytest.mark.parametrize("terminal", ['"\x00[a-z]+"', "/\x00[a-z]+/i", "/a\nb/"])
def test_a_terminal_that_lark_cannot_read_is_refused(terminal: str) -> None:
    with pytest.raises(GrammarError, match="a terminal cannot be read"):
        compile_constraint(Grammar(f"start: A\nA: {terminal}\n"), VOCABULARY)
