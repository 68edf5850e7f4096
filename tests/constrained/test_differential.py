"""Masks compared with other engines that define the same language: llguidance bit for bit, `re` by brute force."""

from __future__ import annotations

import itertools
import json
import random
import re
from functools import cache
from typing import Any, Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ramiform.constrained import CompiledGrammar, JsonSchema, Regex, Vocabulary, compile_constraint
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.tokenizer import load_tokenizer

from .oracle_llguidance import Judge, json_grammar, regex_grammar, schema_grammar
from .strategies import many
from .walks import accepts, shared_vocabulary

Whitespace = Literal["compact", "any"]
DRAFT_4 = "http://json-schema.org/draft-04/schema#"  # where 1.0 is no integer, as for llguidance


@cache
def model_judge() -> tuple[Vocabulary, Judge]:
    """Judge over the tokenizer of the shipped model, a byte-level BPE."""
    tokenizer = load_tokenizer(SHIPPED_MODEL)
    vocabulary = Vocabulary.from_tokens(tokenizer.token_bytes, tokenizer.eos_ids[:1])
    return vocabulary, Judge(vocabulary, lambda text: tokenizer.encode(text, parse_special=False, continues=True))


@cache
def byte_judge() -> Judge:
    """Judge over the tests' vocabulary, whose tokens cross every boundary of JSON; cut byte by byte."""
    return Judge(shared_vocabulary(), lambda text: list(text.encode()))


def judges() -> list[tuple[Vocabulary, Judge]]:
    return [model_judge(), (shared_vocabulary(), byte_judge())]


@pytest.mark.exhaustive
@pytest.mark.parametrize("whitespace", ["compact", "any"])
@pytest.mark.parametrize("start", ["value", "object", "array", "STRING", "NUMBER"])
def test_any_json_is_masked_as_llguidance_does(whitespace: Whitespace, start: str) -> None:
    types = {"object": "object", "array": "array", "STRING": "string", "NUMBER": "number"}
    schema = {"type": types[start]} if start in types else {}
    judged = json_grammar(spaced=whitespace == "any", start=start)
    for vocabulary, judge in judges():
        grammar = compile_constraint(JsonSchema(schema), vocabulary, whitespace=whitespace)
        rng = random.Random(start + whitespace)
        assert sum(judge.walk(grammar, judged, rng, num_tokens=40) for _ in range(25)) >= 40


def schemas(depth: int = 2) -> st.SearchStrategy[Any]:
    """Draw schemas that llguidance enforces as the standard says, except for the order, which is the schema's here.

    No free strings, no integers, no numbers: it refuses U+007F, `1.0` and exponents within bounds, and allows 1e999,
    which reads as no finite number.
    """
    words = st.lists(st.sampled_from(["a", "ab", "abc", "b c", "true", "", "x:y", "a,b"]), min_size=1, unique=True)
    patterns = ["^[a-z]{1,3}$", "^(ab|cd)*$", "^[0-9]{4}-[0-9]{2}$", "^a?b+c*$"]
    leaves = st.one_of(
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}]),
        words.map(lambda values: {"enum": values}),
        st.sampled_from(patterns).map(lambda pattern: {"type": "string", "pattern": pattern}),
        st.sampled_from(["uuid", "ipv4"]).map(lambda name: {"type": "string", "format": name}),
    )
    if not depth:
        return leaves
    inner = schemas(depth - 1)
    sizes = st.tuples(st.integers(0, 3), st.integers(0, 2))
    arrays = st.tuples(inner, sizes).map(
        lambda drawn: {
            "type": "array",
            "items": drawn[0],
            "minItems": drawn[1][0],
            "maxItems": drawn[1][0] + drawn[1][1],
        }
    )
    tuples = st.lists(inner, min_size=1, max_size=3).map(
        lambda parts: {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
    )
    names = st.lists(st.sampled_from(["a", "ab", "b", "long name", "c"]), min_size=1, max_size=4, unique=True)
    objects = names.flatmap(
        lambda keys: st.tuples(st.tuples(*(inner for _ in keys)), st.tuples(*(st.booleans() for _ in keys))).map(
            lambda drawn: {
                "type": "object",
                "properties": dict(zip(keys, drawn[0], strict=True)),
                "required": [key for key, needed in zip(keys, drawn[1], strict=True) if needed],
                "additionalProperties": False,
            }
        )
    )
    return leaves | arrays | tuples | objects


@pytest.mark.exhaustive
@given(schema=schemas(), whitespace=st.sampled_from(["compact", "any"]), seed=st.integers(0, 2**32))
@many(60)
def test_a_simple_schema_in_its_order_is_masked_as_llguidance_does(
    schema: Any, whitespace: Whitespace, seed: int
) -> None:
    judged = schema_grammar(schema, spaced=whitespace == "any")
    rng = random.Random(seed)
    for vocabulary, judge in judges():
        grammar = compile_constraint(JsonSchema(schema), vocabulary, whitespace=whitespace, order="schema")
        for _ in range(4):
            judge.walk(grammar, judged, rng, num_tokens=60)


@pytest.mark.slow
@given(low=st.integers(-300, 300), width=st.integers(0, 1500), seed=st.integers(0, 2**32))
@many(40)
def test_integers_between_bounds_are_masked_as_llguidance_does(low: int, width: int, seed: int) -> None:
    assume(not low <= 0 <= low + width)  # it refuses -0
    schema = {"type": "integer", "minimum": low, "maximum": low + width}
    grammar = compile_constraint(JsonSchema({"$schema": DRAFT_4, **schema}), shared_vocabulary())
    rng = random.Random(seed)
    for _ in range(5):
        byte_judge().walk(grammar, schema_grammar(schema, spaced=False), rng, num_tokens=20)


ATOMS = st.sampled_from([*"abc.é", "[ab]", "[^a]", "[a-cé]", "[0-9]", "東", "🙂", "[^b🙂]"])
QUANTIFIERS = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "{0,2}"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, QUANTIFIERS).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=6,
)


@pytest.mark.exhaustive
@given(pattern=PATTERNS, seed=st.integers(0, 2**32))
@many(60)
def test_a_regular_expression_is_masked_as_llguidance_does(pattern: str, seed: int) -> None:
    rng = random.Random(seed)
    for vocabulary, judge in judges():
        grammar = compile_constraint(Regex(pattern), vocabulary)
        for _ in range(3):
            judge.walk(grammar, regex_grammar(pattern), rng, num_tokens=30)


LOOKING = st.recursive(
    st.sampled_from([*"ab.", "[ab]", "[^a]", r"\d", r"\w", r"\b", r"\s"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, QUANTIFIERS | st.sampled_from(["*?", "??"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.tuples(st.sampled_from(["(?=", "(?!"]), inner, inner).map(lambda p: f"{p[0]}{p[1]}){p[2]}"),
    ),
    max_leaves=5,
)
SHORT = ["".join(text) for length in range(5) for text in itertools.product("ab1 \n", repeat=length)]


@pytest.mark.slow
@given(pattern=LOOKING)
@many(40)
def test_a_regular_expression_accepts_the_short_texts_that_re_does(pattern: str) -> None:
    try:
        judge = re.compile(pattern, re.ASCII)
    except re.error:
        assume(False)
    expected = {text for text in SHORT if judge.fullmatch(text)}
    assume(expected)
    assert _language(compile_constraint(Regex(pattern), shared_vocabulary())) == expected


def _language(grammar: CompiledGrammar) -> set[str]:
    """Return the accepted texts of SHORT; only accepted prefixes are extended."""
    matcher, found = grammar.matcher(), set[str]()

    def descend(text: str) -> None:
        if matcher.is_accepting():
            found.add(text)
        for character in "ab1 \n" if len(text) < 4 else "":
            if matcher.accept(ord(character)):
                descend(text + character)
                matcher.rollback(1)

    descend("")
    return found


@pytest.mark.slow
@given(pattern=LOOKING, anchors=st.sampled_from([("", ""), ("^", ""), ("", "$"), ("^", "$")]))
@many(40)
def test_a_pattern_accepts_the_strings_in_which_re_finds_it(pattern: str, anchors: tuple[str, str]) -> None:
    # Python's $ also stands before a last newline; \Z is what ECMA-262 means.
    try:
        judge = re.compile(f"{anchors[0]}(?:{pattern})" + (r"\Z" if anchors[1] else ""), re.ASCII)
    except re.error:
        assume(False)
    texts = [text for text in SHORT if "\n" not in text]
    expected = {text for text in texts if judge.search(text)}
    assume(expected)
    schema = {"type": "string", "pattern": f"{anchors[0]}(?:{pattern}){anchors[1]}"}
    grammar = compile_constraint(JsonSchema(schema), shared_vocabulary())
    assert {text for text in texts if accepts(grammar, json.dumps(text).encode())} == expected


def test_a_walk_notices_a_mask_that_differs() -> None:
    grammar = compile_constraint(Regex("[ab]c?"), shared_vocabulary())
    with pytest.raises(AssertionError, match="after"):
        byte_judge().walk(grammar, regex_grammar("[ab]c"), random.Random(0), num_tokens=5)
