"""Values nested near the greatest depth: none is begun that cannot end within it, and none is refused that can."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import pytest

from ramiform.constrained import (
    CompiledGrammar,
    GrammarError,
    JsonSchema,
    Matcher,
    SchemaOptions,
    StructuralTag,
    compile_constraint,
)
from ramiform.constrained.automaton.layout import LIMITED_LEVEL, MAX_DEPTH
from ramiform.constrained.explain.walks import BYTES, END_TOKEN
from ramiform.constrained.schema.nesting import MAX_NEEDED, MAX_START_DEPTH
from ramiform.tests.constrained.walks import TOKENS, accepts, allowed, shared_vocabulary

from .oracle_jsonschema import judge

DEEPEST = MAX_DEPTH - 1  # levels of a value, the outermost of which has no value around it
CHILD = {
    "type": "object",
    "properties": {"child": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["child"],
    "additionalProperties": False,
}


def chain(length: int, last: Any = None) -> Any:
    """Return the schema of objects inside each other."""
    schema = {"type": "object", "additionalProperties": False} if last is None else last
    for _ in range(length):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    return schema


def defined_chain(length: int) -> dict[str, Any]:
    links = {f"n{n}": chain(1, {"$ref": f"#/$defs/n{n + 1}"}) for n in range(length)}
    return {"$defs": {**links, f"n{length}": chain(0)}}


def optional_chain(length: int) -> dict[str, Any]:
    """Return the schema of objects of any depth, in which chains may begin."""
    members = {"x": {"$ref": "#"}, "deep": {"$ref": "#/$defs/n0"}}
    return {"type": "object", "properties": members, "additionalProperties": False, **defined_chain(length)}


SCHEMAS: dict[str, Any] = {
    "any": {},
    "child": CHILD,
    "chains": optional_chain(7),
    "long chains": optional_chain(MAX_NEEDED + 20),
    "items": {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"const": 1}]}, "minItems": 1, "maxItems": 2},
    "alternatives": {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": 1}, "v": {"$ref": "#"}}, "required": ["k", "v"]},
            {"type": "object", "properties": {"k": {"const": 2}, "v": chain(4)}, "required": ["k"]},
            {"type": "boolean"},
        ]
    },
    "conditions": {
        "type": ["object", "null"],
        "properties": {"k": {"enum": [0, 1]}, "v": {"$ref": "#"}},
        "required": ["k"],
        "if": {"properties": {"k": {"const": 1}}},
        "then": {"required": ["v"], "properties": {"v": {"not": {"type": "null"}}}},
    },
    "given": {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"enum": [[[[[1]]]], {"a": {"a": {"a": 0}}}]}]},
    "unique": {"type": "array", "items": {"$ref": "#"}, "uniqueItems": True, "maxItems": 2},
    "both": {
        "$defs": {
            "two": {"type": ["object", "null"], "properties": {"a": {"$ref": "#/$defs/two"}}, "required": ["a"]},
        },
        "type": "array",
        "items": {"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#/$defs/two"}, chain(3, {"type": "null"})]}]},
    },
}


def deepest_output(grammar: CompiledGrammar, rng: random.Random) -> bytes:
    """Open what can be opened, sometimes else anything, up to the greatest depth; then end. No mask is empty."""
    matcher, text, level, deepest, in_string = grammar.matcher(), bytearray(), 0, 0, False
    for step in range(60_000):
        tokens = allowed(matcher, BYTES)
        assert tokens, f"a mask is empty at level {level}: {bytes(text[-40:])!r}"
        if END_TOKEN in tokens and (deepest or tokens == [END_TOKEN]):
            return bytes(text)
        goes_down = deepest < DEEPEST - 1 and step < 20_000
        preferred = b'"' if in_string else b"{[" if goes_down else b"}]1n"
        plain = [token for token in tokens if 0x20 <= token < 0x7F and token not in b"\\-e0123456789."]
        token = rng.choice([token for token in tokens if token in preferred] or plain or tokens)
        if rng.random() < 0.1:
            token = rng.choice(plain or tokens)
        assert matcher.accept(token)
        text.append(token)
        if token == ord('"'):
            in_string = not in_string
        elif not in_string:
            level += (token in b"{[") - (token in b"}]")
            deepest = max(deepest, level)
    raise AssertionError(f"the output does not end: {bytes(text[-40:])!r}")


def judged(schema: Any, text: bytes) -> bool:
    """Validate a text as the judge does, which calls itself several times for each level."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        return judge(schema).is_valid(json.loads(text))
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("options", [SchemaOptions(), SchemaOptions("closed")], ids=["schema", "closed"])
def test_what_is_begun_near_the_greatest_depth_can_end(name: str, options: SchemaOptions) -> None:
    schema = SCHEMAS[name]
    grammar = compile_constraint(JsonSchema(schema, options), BYTES, whitespace="compact")
    for seed in range(3):
        text = deepest_output(grammar, random.Random(seed))
        assert judged(schema, text)
        assert accepts(grammar, text)


def test_at_the_greatest_depth_a_required_child_is_null() -> None:
    matcher = compile_constraint(JsonSchema(CHILD), BYTES, whitespace="compact").matcher()
    for level in range(1, DEEPEST + 1):
        assert all(matcher.accept(byte) for byte in b'{"child":')
        assert (ord("{") in allowed(matcher, BYTES)) == (level < DEEPEST)
    assert allowed(matcher, BYTES) == [ord("n")]
    assert all(matcher.accept(byte) for byte in b"null" + b"}" * DEEPEST)
    assert matcher.is_accepting()


@pytest.mark.exhaustive
@pytest.mark.parametrize("length", [1, 7, 30, MAX_NEEDED, MAX_NEEDED + 20])
def test_a_chain_begins_exactly_where_it_can_end(length: int) -> None:
    schema = optional_chain(length)
    deepest = MAX_DEPTH if length <= MAX_NEEDED else MAX_START_DEPTH + 1  # the innermost is empty
    grammar = compile_constraint(JsonSchema(schema), BYTES, whitespace="compact")
    rest = b"deep" + b'":' + b'{"a":' * length + b"{}" + b"}" * length
    for around in (deepest - length - 1, deepest - length):  # objects around the chain
        text = b'{"x":' * (around - 1) + b'{"' + rest + b"}" * around
        assert accepts(grammar, text) == (around + length + 1 <= deepest), around
    matcher = grammar.matcher()
    assert all(matcher.accept(byte) for byte in b'{"x":' * (deepest - length - 1) + b'{"')
    assert allowed(matcher, BYTES) == [ord("x")], "the name of the chain is not begun"


@pytest.mark.slow
@pytest.mark.parametrize("length", [100, MAX_START_DEPTH, MAX_START_DEPTH + 1, 300])
@pytest.mark.parametrize("is_defined", [False, True])
def test_a_schema_whose_values_are_all_nested_too_deep_is_refused(length: int, is_defined: bool) -> None:
    schema = {"$ref": "#/$defs/n0", **defined_chain(length)} if is_defined else chain(length)
    optional = {"properties": {"n": schema}, "$defs": schema.pop("$defs", {})}
    schema |= {"$defs": optional["$defs"]}
    text = b'{"a":' * length + b"{}" + b"}" * length
    if length <= MAX_START_DEPTH:
        assert accepts(compile_constraint(JsonSchema(schema), BYTES, whitespace="compact"), text)
        return
    for whole, pointer in ((schema, ""), (optional, "/properties/n")):
        with pytest.raises(GrammarError, match="nested deeper than") as caught:
            compile_constraint(JsonSchema(whole), BYTES)
        assert caught.value.pointer == pointer


@pytest.mark.slow
@pytest.mark.parametrize("name", ["any", "chains", "items", "given"])
def test_masks_near_the_levels_that_limit_values_agree_with_steps(name: str) -> None:
    vocabulary = shared_vocabulary()
    grammar = compile_constraint(JsonSchema(SCHEMAS[name]), vocabulary, whitespace="compact")
    opening, closing = (b'{"x":', b"}") if name == "chains" else (b"[", b"]")
    rng = random.Random(name)
    for level in (3, 20, *range(LIMITED_LEVEL - 6, LIMITED_LEVEL + 3), 230, *range(DEEPEST - 3, DEEPEST)):
        for before in (b"", opening + closing, opening):
            matcher = grammar.matcher()
            start = opening * level
            if before and before != opening and name != "chains":
                start += before + b","
            elif before == opening:
                start += opening
            if not all(matcher.accept(byte) for byte in start):
                continue
            for _ in range(3):
                tokens = [token for token in allowed(matcher, vocabulary) if token < len(TOKENS) - 2]
                assert tokens == naive(matcher), (level, start[-10:])
                assert matcher.accept(rng.choice(tokens))


def naive(matcher: Matcher) -> list[int]:
    """Return the tokens all of whose bytes are accepted one by one."""
    found = []
    for number, token in enumerate(TOKENS[:-2]):
        data = token or b""
        steps = next((n for n, byte in enumerate(data) if not matcher.accept(byte)), len(data))
        matcher.rollback(steps)
        if data and steps == len(data):
            found.append(number)
    return found


def test_a_value_inside_a_tag_ends_within_the_greatest_depth() -> None:
    spec = {"type": "tag", "begin": "<t>", "content": {"type": "json_schema", "json_schema": CHILD}, "end": "</t>"}
    grammar = compile_constraint(StructuralTag({"type": "structural_tag", "format": spec}), BYTES, whitespace="compact")
    matcher = grammar.matcher()
    assert all(matcher.accept(byte) for byte in b"<t>")
    num_levels = 0
    while all(matcher.accept(byte) for byte in b'{"child":') and num_levels < MAX_DEPTH:
        num_levels += 1
    assert num_levels == DEEPEST - 1
    assert all(matcher.accept(byte) for byte in b"null" + b"}" * num_levels + b"</t>")
    assert matcher.is_accepting()
