"""There is always a token that may come, also in outputs that prefer to repeat what was written before.

Unique items and names may run out. So a walk repeats the text before it wherever the mask allows, and closes last.
`jsonschema` judges the outputs.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.constrained import CompiledGrammar, GrammarError, JsonObject, JsonSchema, compile_constraint
from ramiform.tests.constrained.strategies import many
from ramiform.tests.constrained.walks import TOKENS, accepts, allowed, shared_vocabulary

from .oracle_jsonschema import is_valid, judge
from .schemas import SCHEMAS
from .test_end_search import ARRAYS, OBJECTS

MANY = many(40)
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}


def closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


ITEMS: dict[str, Any] = {
    "one letter": {"type": "string", "pattern": "^[ab]$"},
    "two letters": {"type": "string", "pattern": "^[a-c]*$", "maxLength": 2},
    "any letter": {"type": "string", "maxLength": 1},
    "short texts": {"type": "string", "maxLength": 2},
    "texts and numbers": {"anyOf": [{"type": "string", "maxLength": 3}, {"enum": ["abcd", 1]}, {"type": "integer"}]},
    "addresses": {"type": "string", "format": "email"},
    "nested texts": {"enum": ["aa", "ab", "a", "", "é", "/", "//", 1, 1.5, None, [], {}, {"a": 1}, {"a": 2}]},
    "few integers": DIGIT,
    "few numbers": {"type": "number", "minimum": 0, "maximum": 3, "multipleOf": 0.5},
    "integers": {"type": "integer", "maximum": 100},
    "closed objects": closed({"a": DIGIT}, "a"),
    "optional members": closed({"a": {"enum": [0, 1, 2]}, "b": {"type": "boolean"}}),
    "free text first": closed({"id": {"type": "string"}, "k": {"const": 1}}, "id", "k"),
    "pattern names": {
        "patternProperties": {"^[ab]$": {"enum": [0, 1]}},
        "additionalProperties": False,
        "type": "object",
    },
    "one member": {"type": "object", "propertyNames": {"maxLength": 1}, "maxProperties": 1},
    "short arrays": {"type": "array", "items": {"enum": [0, 1, 2]}, "maxItems": 3},
    "pairs": {"type": "array", "items": DIGIT, "minItems": 2, "maxItems": 2},
    "unique inside": {"type": "array", "items": {"enum": [0, 1, 2]}, "uniqueItems": True},
    "objects inside": closed({"a": {"type": "array", "items": closed({"c": {"enum": [0, 1]}}), "maxItems": 2}}, "a"),
    "alternatives": {"anyOf": [closed({"a": {"enum": [0, 1]}}, "a"), closed({"b": {"enum": [0, 1]}}, "b")]},
    "of two types": {"anyOf": [{"type": "boolean"}, {"enum": ["a", [], {}]}, closed({"a": DIGIT}, "a")]},
    "open objects": {"type": "object", "properties": {"a": {"const": 1}}},
    "anything": True,
}
UNIQUE: dict[str, Any] = {
    "contains": {"items": ITEMS["optional members"], "contains": {"required": ["a"]}},
    "contains a text": {"items": ITEMS["any letter"], "contains": {"const": "a"}},
    "many needed": {"items": {"enum": [*range(40)]}, "minItems": 39},
    "all needed": {"items": {"type": "string", "pattern": "^[a-f][a-c]$"}, "minItems": 18},
    "all objects needed": {"items": closed({"a": DIGIT}, "a"), "minItems": 10},
    "tuple": {"prefixItems": [ITEMS["optional members"], {"enum": [1, 2]}], "items": {"enum": [1, 2, 3]}},
}
NAMES: dict[str, Any] = {
    "two names": {"patternProperties": {"^[ab]$": True}, "additionalProperties": False},
    "all names": {
        "patternProperties": {"^[ab][01]?$": {"const": 1}},
        "additionalProperties": False,
        "minProperties": 6,
    },
    "names with an end": {
        "patternProperties": {"^[ab]+_i$": {"const": 1}},
        "additionalProperties": False,
        "minProperties": 20,
    },
    "given names": {"propertyNames": {"enum": ["a", "b", "ab"]}, "additionalProperties": DIGIT, "minProperties": 2},
    "short names": {"propertyNames": {"maxLength": 1}, "additionalProperties": {"const": 1}, "minProperties": 50},
}


def compiled(schema: Any, order: str = "any") -> CompiledGrammar | None:
    """Compile a schema; None if no value is valid, or if it is refused as too complex."""
    try:
        return compile_constraint(JsonSchema(schema), shared_vocabulary(), whitespace="compact", order=order)  # type: ignore[arg-type]
    except GrammarError:
        return None


def repeating(output: bytes, tokens: list[int]) -> int | None:
    """Return an allowed byte that follows the longest text which ends the output and has come before; None if none."""
    for length in range(min(len(output), 24), 0, -1):
        at = output.rfind(output[-length:], 0, len(output) - 1)
        if at >= 0 and output[at + length] in tokens:
            return output[at + length]
    return None


def is_outermost(output: bytes) -> bool:
    """Return True if a closing bracket would end the output."""
    return len(re.findall(rb"[\[{]", output)) - len(re.findall(rb"[\]}]", output)) == 1


def walked(grammar: CompiledGrammar, rng: random.Random, repeats: float, steps: int) -> bytes | None:
    """Walk with a preference for repeating and for not ending; in its second half for closing. None if it is too long.

    A walk that cannot close is in a loop, such as zeros behind the point of a number that may not come again.
    """
    matcher, output, vocabulary = grammar.matcher(), b"", shared_vocabulary()
    for step in range(steps):
        tokens = allowed(matcher, vocabulary)
        assert tokens, f"a mask is empty after {output!r}"
        if matcher.is_accepting():
            return output
        for token in rng.sample(range(len(TOKENS)), 3):
            assert matcher.accept(token) == (token in tokens), (output, TOKENS[token])
            if token in tokens:
                matcher.rollback(1)
        last = [token for token in tokens if TOKENS[token] in (b"]", b"}")] if is_outermost(output) else []
        others = [token for token in tokens if token not in last] if step < steps // 2 else tokens
        token = repeating(output, others) if step < steps // 2 and rng.random() < repeats else None
        if step >= steps // 2 and rng.random() < 0.9:
            in_string = re.sub(rb"\\.", b"", output).count(b'"') % 2
            token = next((end for end in (b'"' if in_string else b'}]"') if end in tokens), None)
        if token is None:
            plain = [token for token in others if token < 128 and token != ord("\\")]
            token = rng.choice(plain or others or tokens)
        assert matcher.accept(token), (output, TOKENS[token])
        output += TOKENS[token] or b""
    return None


def walk_all(schema: Any, steps: int, ends: bool = True) -> None:
    validator = judge(schema)
    orders = ("any", "schema") if "object" in json.dumps(schema) else ("any",)  # of members
    for order in orders:
        grammar = compiled(schema, order)
        for number, repeats in enumerate((1.0, 1.0, 0.9, 0.5)):
            text = walked(grammar, random.Random(number), repeats, steps) if grammar is not None else None
            assert text is not None or not ends
            assert text is None or is_valid(validator, text.decode()), text


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ITEMS)
def test_unique_items_that_are_repeated_as_far_as_may_be(name: str) -> None:
    schema = {"type": "array", "uniqueItems": True, "items": ITEMS[name]}
    assert compiled(schema) is not None
    walk_all(schema, 250)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", UNIQUE)
def test_unique_items_of_which_many_are_needed(name: str) -> None:
    schema = {"type": "array", "uniqueItems": True, **UNIQUE[name]}
    assert compiled(schema) is not None
    walk_all(schema, 400)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_repeated_as_far_as_may_be(name: str) -> None:
    schema = {"type": "object", **NAMES[name]}
    assert compiled(schema) is not None
    walk_all(schema, 1000)


@pytest.mark.exhaustive
@MANY
@given(
    items=SCHEMAS, more=st.sampled_from([{}, {"minItems": 2}, {"minItems": 3, "maxItems": 5}]), seed=st.integers(0, 99)
)
def test_unique_items_of_random_schemas(items: Any, more: dict[str, Any], seed: int) -> None:
    references = {"$defs": items.pop("$defs")} if isinstance(items, dict) and "$defs" in items else {}
    schema = {"type": "array", "uniqueItems": True, "items": items, **more, **references}
    grammar, validator = compiled(schema), judge(schema)
    for repeats in (1.0, 0.9):
        text = walked(grammar, random.Random(seed), repeats, 200) if grammar is not None else None
        assert text is None or is_valid(validator, text.decode()), text


@pytest.mark.exhaustive
@MANY
@given(schema=ARRAYS | OBJECTS, seed=st.integers(0, 99), order=st.sampled_from(["any", "schema"]))
def test_repeated_structures_of_conflicting_constraints(schema: Any, seed: int, order: str) -> None:
    for outer in (
        schema,
        {"type": "array", "uniqueItems": True, "items": {"type": ["array", "object"], "allOf": [schema]}},
    ):
        grammar, validator = compiled({**outer, "type": outer.get("type", ["array", "object"])}, order), judge(outer)
        for repeats in (1.0, 0.8):
            text = walked(grammar, random.Random(seed), repeats, 150) if grammar is not None else None
            assert text is None or is_valid(validator, text.decode()), text


@pytest.mark.parametrize(
    ("items", "begun", "refused"),
    [
        (ITEMS["one letter"], b'["a","', b"a"),
        ({"type": "string", "maxLength": 2}, b'["ab","a', b"b"),
        ({"enum": ["aa", "ab", "b"]}, b'["aa","ab","', b"a"),
        ({"type": "integer", "minimum": 10, "maximum": 12}, b"[10,11,1", b"1"),
        ({"type": "integer"}, b"[12,12", b"."),
        ({"type": "integer"}, b"[12,12", b"]"),
        (closed({"a": DIGIT}, "a"), b'[{"a":1},{"a":', b"1"),
        (ITEMS["free text first"], b'[{"k":1,"id":"x"},{"id":"x', b'"'),
        (ITEMS["pairs"], b"[[1,2],[1,", b"2"),
        (ITEMS["short arrays"], b"[[1],[1", b"]"),
        (closed({"a": {"const": 1}}), b'[{},{"a":1},', b"{"),
    ],
)
def test_the_last_choice_that_would_repeat_an_item_is_refused(items: Any, begun: bytes, refused: bytes) -> None:
    grammar = compiled({"type": "array", "uniqueItems": True, "items": items})
    assert grammar is not None
    matcher = grammar.matcher()
    for at, byte in enumerate(begun):
        assert matcher.accept(byte) or begun[at:] == b",", begun[:at]
    assert not matcher.accept(refused[0])


@pytest.mark.parametrize(
    "keywords",
    [
        {"items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 101},
        {"items": closed({"a": DIGIT}, "a"), "minItems": 11},
        {"items": {"type": "string", "pattern": "^[ab]{3}$"}, "minItems": 9},
        {"items": {"enum": [[], {}, 1, 1.0, "a"]}, "minItems": 5},
    ],
)
def test_more_unique_items_than_there_are_values_are_refused_before_the_first_token(keywords: dict[str, Any]) -> None:
    keywords = {"type": "array", "uniqueItems": True, **keywords}
    with pytest.raises(GrammarError, match="no text at all"):
        compile_constraint(JsonSchema(keywords), shared_vocabulary())
    assert compiled({**keywords, "minItems": keywords["minItems"] - 1}) is not None


def test_more_names_than_there_are_are_refused_before_the_first_token() -> None:
    names = {"patternProperties": {"^[a-j][a-j]$": True}, "additionalProperties": False}
    with pytest.raises(GrammarError, match="no text at all"):
        compile_constraint(JsonSchema({"type": "object", **names, "minProperties": 101}), shared_vocabulary())
    assert compiled({"type": "object", **names, "minProperties": 99}) is not None


def test_a_repeated_item_is_valid_where_only_another_alternative_forbids_it() -> None:
    unique = {"type": "array", "uniqueItems": True, "items": closed({"a": DIGIT}, "a")}
    either = compiled({"anyOf": [unique, {"type": "array", "maxItems": 2}]})
    exactly = compiled({"oneOf": [unique, {"type": "array", "maxItems": 2}]})
    negated = compiled({"not": unique, "type": "array"})
    assert either is not None
    assert exactly is not None
    assert negated is not None
    same, three = b'[{"a":1},{"a":1}]', b'[{"a":1},{"a":2},{"a":1}]'
    assert [accepts(grammar, same) for grammar in (either, exactly, negated)] == [True, True, True]
    assert [accepts(grammar, three) for grammar in (either, exactly, negated)] == [False, False, True]


TEXTS_AND_NUMBERS = {"type": "array", "uniqueItems": True, "items": {"type": ["string", "number"], "maxLength": 9}}
INSIDE: dict[str, Any] = {
    "%s": TEXTS_AND_NUMBERS,
    '{"a":%s}': {"type": "object", "properties": {"a": TEXTS_AND_NUMBERS}},
    '[["ab",1,10],%s]': {"type": "array", "items": TEXTS_AND_NUMBERS},
    "[[],%s]": {"type": "array", "items": TEXTS_AND_NUMBERS, "uniqueItems": True},
}


@pytest.mark.parametrize("around", INSIDE)
@pytest.mark.parametrize("first", ['"é"', '"\\u00e9"', '"\\""', '" "', "1", "10", "-0"])
def test_a_text_or_number_comes_once_in_its_array_however_it_is_spelled(around: str, first: str) -> None:
    grammar = compile_constraint(JsonSchema(INSIDE[around]), shared_vocabulary(), whitespace="any")
    validator = judge(INSIDE[around])
    for second in ('"é"', '"\\u00E9"', '"\\""', '"éé"', '" "', "1", " 1.0", "10.0", "0", '"1"'):
        for items in (f"[{first},{second}]", f"[ {first} ,2,{second} ]"):
            text = around % items
            assert accepts(grammar, text.encode()) is is_valid(validator, text), text


@pytest.mark.parametrize("form", ["email", "uri", "hostname", "date"])
@pytest.mark.parametrize("limits", [{}, {"maxLength": 60}])
def test_items_of_a_format_may_differ(form: str, limits: dict[str, Any]) -> None:
    values = {
        "email": ["ab@cd.ef", "b@cd.ef", "ab@cd.efg"],
        "uri": ["http://a.b/0", "http://a.b/01", "http://a.b/1"],
        "hostname": ["ab.cd", "ab.cde", "b"],
        "date": ["2026-01-01", "2026-01-02", "2026-11-02"],
    }[form]
    grammar = compiled({"type": "array", "uniqueItems": True, "items": {"type": "string", "format": form, **limits}})
    assert grammar is not None
    assert accepts(grammar, json.dumps(values, separators=(",", ":")).encode())
    assert not accepts(grammar, json.dumps([*values, values[0]], separators=(",", ":")).encode())


@pytest.mark.parametrize("form", ["email", "idn-email", "uri", "hostname", "date-time"])
@pytest.mark.parametrize("limits", [{}, {"maxLength": 60}, {"minLength": 6}])
def test_single_texts_of_a_format_are_excluded(form: str, limits: dict[str, Any]) -> None:
    first = {"uri": "http://a.b/0", "hostname": "ab.cd.e", "date-time": "2026-01-01T00:00:00Z"}.get(form, "ab@cd.ef")
    other = {"uri": "http://a.b/01", "hostname": "ab.cd.f", "date-time": "2026-01-02T00:00:00Z"}.get(form, "ab@cd.efg")
    grammar = compiled({"type": "string", "format": form, **limits, "not": {"const": first}})
    assert grammar is not None
    assert [accepts(grammar, json.dumps(text).encode()) for text in (first, other)] == [False, True]


@pytest.mark.slow
def test_states_of_unique_texts_do_not_grow_with_the_items_before() -> None:
    grammar = compiled({"type": "array", "uniqueItems": True, "items": {"type": "string", "maxLength": 20}})
    assert grammar is not None
    matcher, sizes = grammar.matcher(), []
    for number in range(40):
        for byte in (b"," if number else b"[") + json.dumps(f"item{number}").encode():
            assert allowed(matcher, shared_vocabulary())
            assert matcher.accept(byte)
        sizes.append(grammar.generation.automaton.num_filled)
    assert sizes[39] == sizes[4]


@pytest.mark.slow
def test_states_of_an_item_do_not_grow_with_the_items_before() -> None:
    schema = {
        "type": "array",
        "uniqueItems": True,
        "items": closed({"id": {"type": "integer"}, "k": {"const": 1}}, "id"),
    }
    grammar = compiled(schema)
    assert grammar is not None
    matcher, sizes = grammar.matcher(), []
    for number in range(120):
        for byte in (b"," if number else b"[") + json.dumps(
            {"id": 1000 + number, "k": 1}, separators=(",", ":")
        ).encode():
            assert matcher.accept(byte)
        sizes.append(len(grammar.generation.automaton._values))  # without the literal states of earlier texts
    assert sizes[119] - sizes[100] <= 2 * (sizes[39] - sizes[20])


@pytest.mark.parametrize("number", [90, 91, 300])
def test_given_objects_are_unique_items_in_any_number(number: int) -> None:
    values = [{"a": value} for value in range(number)]
    grammar = compiled({"type": "array", "items": {"enum": values}, "uniqueItems": True})
    assert grammar is not None
    for items, unique in ((values[:12], True), ([*values[:12], values[3]], False)):
        assert accepts(grammar, json.dumps(items, separators=(",", ":")).encode()) is unique


@pytest.mark.parametrize("constraint", [JsonSchema({}), JsonSchema({"enum": [[1, {"a": [], "b": "c"}]]}), JsonObject()])
def test_a_walk_that_prefers_whitespace_finds_one_space_after_commas_and_colons(
    constraint: JsonSchema | JsonObject,
) -> None:
    vocabulary = shared_vocabulary()
    for seed in range(12):
        rng, matcher, output = random.Random(seed), compile_constraint(constraint, vocabulary).matcher(), b""
        for _ in range(150):
            bytes_ = [token for token in allowed(matcher, vocabulary) if token < 256]
            in_string = re.sub(rb"\\.", b"", output).count(b'"') % 2
            spaces = [] if in_string else [token for token in bytes_ if token in b" \n\t\r"]
            assert spaces == ([ord(" ")] if not in_string and output[-1:] in (b",", b":") else [])
            if not bytes_:
                break
            ends_string = [ord('"')] if in_string and ord('"') in bytes_ else []
            token = rng.choice(spaces or ends_string or bytes_)
            assert matcher.accept(token)
            output += bytes([token])
