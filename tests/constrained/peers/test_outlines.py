"""The backend outlines: its outputs are valid, unsupported keywords are refused by name, and it never hangs."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from ramiform.constrained import (
    Choices,
    GrammarError,
    GrammarSource,
    JsonObject,
    JsonSchema,
    Regex,
    SchemaOptions,
    Vocabulary,
)
from ramiform.constrained.backends import Compile, MatcherSource, OutputMatcher, WhitespacePolicy, backend
from ramiform.tests.constrained.walks import EOS, shared_vocabulary

CLOSED = SchemaOptions("closed", "digits")  # the backend refuses objects that may have other members
_backends: dict[WhitespacePolicy, Compile] = {}
NAMES = ["a", "b", "c.d", "é", "x y", "k{"]
VALUES = [1, 12, 1.5, "a", "ab", 'q"\n', None, True, [1, "x"], {"a": [2]}]
PATTERNS = ["^a|b$", "a.c", "^[^x]{2,4}$", r"\d+[^\d]?", r'["x]\\?y', "^(a|ab)(c|bcd)$"]


def compiled(constraint: GrammarSource, whitespace: WhitespacePolicy = "compact") -> MatcherSource:
    if whitespace not in _backends:
        _backends[whitespace] = backend("outlines", shared_vocabulary(), whitespace=whitespace)
    return _backends[whitespace](constraint, "any")


def accepts(constraint: GrammarSource, text: str) -> bool:
    matcher = compiled(constraint).matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.is_accepting()


def object_of(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


# Each of these was compiled, and let through what is invalid or no JSON at all.
@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "integer", "minimum": 3}, "/minimum"),
        ({"type": "number", "multipleOf": 2}, "/multipleOf"),
        ({"allOf": [{"type": "integer"}, {"type": "number"}]}, "/allOf"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "/oneOf"),
        ({"type": "string", "pattern": "^a", "maxLength": 3}, "/pattern"),
        ({"type": "null", "anyOf": [{"type": "integer"}]}, "/type"),
        ({"type": "array", "uniqueItems": True}, "/uniqueItems"),
        ({"type": "array", "contains": {"type": "null"}}, "/contains"),
        ({"type": "object", "minProperties": 2}, "/minProperties"),
        ({"type": "object", "required": ["q"]}, "/required"),
        ({"type": "object", "properties": {'a"b': {"type": "null"}}}, "/properties"),
        ({"type": "object", "properties": {"a": {}}}, "/properties/a"),
        ({"type": "string", "not": {"const": "x"}}, "/not"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "/properties/a/$ref"),
        ({"type": "string", "minLength": 10**9}, "/minLength"),
        ({"enum": [1], "type": "string"}, ""),
        ({"type": "integer", "disallow": "integer"}, "/disallow"),
        (object_of({"type": "array", "items": {"$recursiveRef": "#"}}), "/properties/a/items/$recursiveRef"),
        (object_of({"$id": "x", "$ref": "#/$defs/b", "$defs": {"b": {"type": "null"}}}), "/properties/a/$id"),
        (object_of({"type": "string", "format": "email"}), "/properties/a/format"),
        (object_of({"type": "string", "maxLength": -1}), "/properties/a/maxLength"),
        (object_of({"type": "string", "pattern": "a(b"}), "/properties/a/pattern"),
    ],
    ids=str,
)
def test_a_keyword_is_enforced_or_refused_with_its_pointer(schema: Any, pointer: str) -> None:
    with pytest.raises(GrammarError, match="outlines") as raised:
        compiled(JsonSchema(schema, CLOSED))
    assert raised.value.pointer == pointer


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    def inner() -> dict[str, Any]:
        return random_schema(rng, depth + 1)

    low = rng.randrange(3)
    flat = ["integer", "number", "boolean", "null", "string", "length", "pattern", "format", "enum", "types"]
    nested = ["anyOf", "items", "prefixItems", "properties", "additionalProperties", "free"]
    match rng.choice(flat if depth == 2 else flat + nested):
        case "length":
            return {"type": "string", "minLength": low, "maxLength": low + rng.randrange(30)}
        case "pattern":
            return {"type": "string", "pattern": rng.choice(PATTERNS)}
        case "format":
            return {"type": "string", "format": rng.choice(["date", "uuid", "ipv4"])}
        case "enum":
            return {"enum": rng.sample(VALUES, rng.randint(1, 4))}
        case "types":
            return {"type": rng.sample(["string", "integer", "null", "boolean"], 2)}
        case "anyOf":
            return {"anyOf": [inner() for _ in range(rng.randint(1, 3))], "title": "annotations say nothing"}
        case "items":
            return {"type": "array", "items": inner(), "minItems": low, "maxItems": low + rng.randrange(3)}
        case "prefixItems":
            return {"type": "array", "prefixItems": [inner() for _ in range(rng.randint(1, 3))]}
        case "properties":
            names = rng.sample(NAMES, rng.randint(1, 4))
            required = rng.sample(names, rng.randint(0, len(names)))
            return {"type": "object", "properties": {name: inner() for name in names}, "required": required}
        case "additionalProperties":
            return {"type": "object", "additionalProperties": inner()}
        case "free":
            return rng.choice(
                [{"type": "object"}, {"type": "array"}, {"type": "object", "additionalProperties": False}]
            )
        case name:
            return {"type": name}


def walked(rng: random.Random, matcher: OutputMatcher) -> str | None:
    """Return a random text of the grammar; None if it grows too long."""
    mask = np.zeros(shared_vocabulary().num_words, np.int32)
    data = bytearray()
    while len(data) < 2000:
        matcher.mask(mask)
        allowed = [int(token) for token in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))]
        assert allowed, f"a dead end after {bytes(data)!r}"
        closing = [token for token in allowed if token in {*b'"]}', EOS}]
        token = rng.choice(closing if closing and (rng.random() < 0.3 or len(data) > 200) else allowed)
        assert matcher.accept(token)
        if token == EOS:
            return data.decode()
        data += shared_vocabulary().tokens[token] or b""
    return None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(120))
def test_every_output_is_valid(seed: int) -> None:
    rng = random.Random(seed)
    schema = random_schema(rng)
    try:
        grammar = compiled(JsonSchema(schema, CLOSED), rng.choice(["compact", "any"]))
    except GrammarError as error:
        if "too" in error.reason:  # complex, or many states: never a keyword
            return
        raise
    checker = jsonschema.FormatChecker(["date", "uuid", "ipv4"])
    for _ in range(4):
        if (text := walked(rng, grammar.matcher())) is not None:
            jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (JsonSchema({"enum": [1, 12]}), "12"),
        (Choices(["a", "ab"]), "ab"),
        (Choices(["a\nb", "", "[é🙂]|#"]), "a\nb"),
        (Choices(["a\nb", "", "[é🙂]|#"]), "[é🙂]|#"),
        (Choices(["a\nb", "", "[é🙂]|#"]), ""),
        (Regex("[\ud800]|b"), "b"),
        (Regex("^ab$"), "ab"),
        (Regex("a|ab|abcd"), "abcd"),
        (Regex("[0-9]+?(?:[.][0-9]+?)??"), "12.50"),
        (JsonSchema({"anyOf": [{"type": "integer"}, {"type": "number"}]}), "-1.5e+3"),
        (Regex("(?i)[a-c]+é"), "Abé"),
        (JsonObject(), '{"a":[1,"x\\n"],"b":{"c":null}}'),
        (JsonSchema({"type": "string", "maxLength": 200}), '"' + "é" * 200 + '"'),
        (JsonSchema(object_of({"$ref": "#/$defs/a~1b"}) | {"$defs": {"a/b": {"type": "null"}}}, CLOSED), '{"a":null}'),
        (JsonSchema({"type": ["array", "null"], "description": "x"}), "[true,[]]"),
    ],
    ids=str,
)
def test_valid_values_are_accepted(constraint: GrammarSource, text: str) -> None:
    assert accepts(constraint, text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [(r"\d+", "٣"), (r"\w", "é"), (r"\s", "\xa0"), ("[a&&b]", "&&"), ("a|b", "ab"), ("^a|b$", "ab")],
)
def test_a_pattern_means_what_it_means_in_python(pattern: str, text: str) -> None:
    assert not accepts(Regex(pattern), text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "constraint",
    [
        Regex(r'"([^"\\]|\\.){0,60}"'),  # with 16 in the place of 60 it took 4 s, and each one more doubles that
        Regex("(a|b)*a(a|b){60}"),
        Regex("(((a{999}){999}){999}){999}"),
        Regex(r"(?u)\w{0,9999}"),
        Regex("(?=a)a"),
        Regex("[\ud800]"),
        JsonSchema({"type": "array", "items": {"type": "array"}, "minItems": 9000}),
        JsonSchema({"enum": ["x" * 1000 + str(n) for n in range(1000)]}),
        JsonSchema(
            {
                "$ref": "#/$defs/a0",
                "$defs": {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 4} for n in range(20)}
                | {"a20": {"type": "null"}},
            }
        ),
        JsonSchema("[" * 100_000),
    ],
    ids=lambda constraint: str(constraint)[:60],
)
def test_an_exponential_pattern_is_refused(constraint: GrammarSource) -> None:
    with pytest.raises(GrammarError, match="outlines"):
        compiled(constraint)


@pytest.mark.slow
def test_an_index_that_exceeds_memory_is_refused() -> None:
    words = [bytes([a, b, c]) for a in range(97, 123) for b in range(97, 123) for c in range(97, 123)]
    tokens = [bytes([n]) for n in range(256)] + words + [None]
    compile_one = backend("outlines", Vocabulary.from_tokens(tokens, [len(tokens) - 1]))
    assert compile_one(Regex("[a-z]{0,50}"), "any").matcher().is_accepting()
    with pytest.raises(GrammarError, match=r"outlines: .*states, each for 17831 tokens"):
        compile_one(Regex("[a-z]{0,400}"), "any")
