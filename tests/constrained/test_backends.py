"""Peers behind the common interface: masks, rollback and ends agree with the native engine where both define them."""

from __future__ import annotations

import json
import random
import sys
from typing import Any, get_args

import numpy as np
import pytest

from ramiform.constrained import (
    Choices,
    Grammar,
    GrammarError,
    GrammarSource,
    JsonSchema,
    Regex,
    SchemaOptions,
    StructuralTag,
)
from ramiform.constrained.backends import BackendName, Compile, backend
from ramiform.runtime.protocol.config import GrammarBackendName

from .walks import EOS, shared_vocabulary

SCHEMA = JsonSchema(
    {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
)
CALL = {"structures": [{"begin": "<f>", "schema": {"type": "boolean"}, "end": "</f>"}], "triggers": ["<f"]}
GBNF = 'root ::= "(" root ")" | [ab]+'
LARK = 'start: "(" start ")" | /[ab]+/'
CASES: list[tuple[BackendName, GrammarSource, str]] = [
    ("llguidance", Regex(r"(ab|c)[0-9]{1,3}é?"), "ab12é"),
    ("llguidance", Choices(["ab", "abc", 'q"é']), 'q"é'),
    ("llguidance", SCHEMA, '{"a":true}'),
    ("llguidance", Grammar(LARK), "((ab))"),
    ("xgrammar", Regex(r"(ab|c)[0-9]{1,3}é?"), "ab12é"),
    ("xgrammar", Choices(["ab", "abc", 'q"é']), 'q"é'),
    ("xgrammar", SCHEMA, '{"a":true}'),
    ("xgrammar", Grammar(GBNF, "gbnf"), "((ab))"),
    ("xgrammar", StructuralTag(CALL), "x<f>true</f>y"),
    ("outlines", Regex(r"(ab|c)[0-9]{1,3}d?"), "ab12d"),
    ("outlines", Choices(["abc", "ab", "q.é"]), "q.é"),
    ("outlines", SCHEMA, '{"a":true}'),
]
_backends: dict[BackendName, Compile] = {}


PACKAGES = {"llguidance": "llguidance", "xgrammar": "xgrammar", "outlines": "outlines_core"}


def compiler(name: BackendName) -> Compile:
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name], exc_type=ImportError)  # the extra `backends`
    if name not in _backends:
        _backends[name] = backend(name, shared_vocabulary(), whitespace="compact")
    return _backends[name]


# xgrammar's free text may end inside a character, and ours may not.
@pytest.mark.parametrize(("name", "constraint", "text"), [c for c in CASES if not isinstance(c[1], StructuralTag)])
@pytest.mark.parametrize("seed", range(4))
def test_a_peers_masks_equal_ours(name: BackendName, constraint: GrammarSource, text: str, seed: int) -> None:
    ours, theirs = (compiler(each)(constraint, "any").matcher() for each in ("native", name))
    rng = random.Random(seed)
    masks = np.zeros((2, shared_vocabulary().num_words), np.int32)
    for byte in [*text.encode()][: rng.randrange(len(text.encode()) + 1)]:
        assert ours.accept(byte) == theirs.accept(byte) is True
    for _ in range(8):
        ours.mask(masks[0])
        theirs.mask(masks[1])
        assert not (masks[1] & ~masks[0]).any()
        if name != "llguidance" or not ours.forced():  # which holds forced text to one way to write it
            assert (masks[0] == masks[1]).all()
        assert ours.is_accepting() == theirs.is_accepting()
        bits = np.flatnonzero(np.unpackbits(masks[1].view(np.uint8), bitorder="little"))
        if not len(bits):
            break
        token = int(rng.choice(bits))
        assert not theirs.accept(next(t for t in range(256) if not masks[0][t >> 5] >> (t & 31) & 1))
        assert ours.accept(token)
        assert theirs.accept(token)


@pytest.mark.parametrize(("name", "constraint", "text"), CASES)
def test_rollback_restores_the_masks(name: BackendName, constraint: GrammarSource, text: str) -> None:
    matcher = compiler(name)(constraint, "any").matcher()
    data = text.encode()
    before = np.zeros((len(data) + 1, shared_vocabulary().num_words), np.int32)
    for position, byte in enumerate(data):
        matcher.mask(before[position])
        assert matcher.accept(byte)
    matcher.mask(before[-1])
    assert matcher.is_accepting()
    assert matcher.accept(EOS)
    assert not matcher.accept(data[0])
    after = np.ones(shared_vocabulary().num_words, np.int32)
    matcher.mask(after)
    assert not after.any()
    matcher.rollback(3)
    matcher.mask(after)
    assert (after == before[len(data) - 2]).all()
    assert matcher.accept(data[-2])


LISTING = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "required": ["a"]}
NESTED = {"type": "array", "items": {"$ref": "#/$defs/L"}, "minItems": 1, "maxItems": 1, "$defs": {"L": LISTING}}
CLOSED = SchemaOptions("closed", "digits")


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize(("schema", "around"), [(LISTING, "{}"), (NESTED, "[{}]")], ids=["object", "nested"])
def test_a_peer_closes_objects_as_we_do(name: BackendName, schema: Any, around: str) -> None:
    theirs, ours = (compiler(each)(JsonSchema(schema, CLOSED), "any") for each in (name, "native"))
    begin, end = around.split("{}")
    for text, is_good in (
        ('{"a":1}', True),
        ('{"a":12,"b":null}', True),
        ('{"a":1,"c":1}', False),
        ('{"a":1.0}', False),
        ("{}", False),
    ):
        for grammar in (theirs, ours):
            matcher = grammar.matcher()
            read = all(matcher.accept(byte) for byte in (begin + text + end).encode())
            assert (read and matcher.is_accepting()) is is_good, text


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize(
    "schema",
    [
        LISTING | {"allOf": [{"properties": {"c": {}}}]},
        {"allOf": [LISTING, {"properties": {"c": {}}}]},
        LISTING | {"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}},
        LISTING | {"required": ["c"]},
        {"oneOf": [LISTING, LISTING | {"required": []}]},
        {"not": LISTING},
    ],
    ids=lambda schema: "-".join(schema),
)
def test_a_peer_refuses_what_it_cannot_close(name: BackendName, schema: Any) -> None:
    with pytest.raises(GrammarError, match="cannot close"):
        compiler(name)(JsonSchema(schema, CLOSED), "any")


def test_outlines_refuses_objects_that_it_would_close() -> None:
    with pytest.raises(GrammarError, match="outlines-core allows no members"):
        compiler("outlines")(JsonSchema(LISTING), "any")


@pytest.mark.parametrize("pattern", ['a"b', r"a\\", r"\n+", '["\\n]x', r"\u0022"])
def test_xgrammar_gets_no_pattern_of_characters_that_it_would_not_escape(pattern: str) -> None:
    for schema, pointer in (
        ({"type": "object", "properties": {"a/b": {"type": "string", "pattern": pattern}}}, "/properties/a~1b/pattern"),
        ({"type": "object", "patternProperties": {pattern: True}}, "/patternProperties/"),
        ({"type": "object", "propertyNames": {"pattern": pattern}}, "/propertyNames/pattern"),
    ):
        with pytest.raises(GrammarError, match="does not escape") as caught:
            compiler("xgrammar")(JsonSchema(schema), "any")
        assert str(caught.value.pointer).startswith(pointer)
        tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}
        with pytest.raises(GrammarError, match="does not escape"):
            compiler("xgrammar")(StructuralTag(tag), "any")


def test_xgrammar_keeps_patterns_without_such_characters() -> None:
    schema = {"type": "string", "pattern": "^[a-z]{2}-[0-9]+$", "enum": ["a"], "title": "a"}
    compiler("xgrammar")(JsonSchema({k: v for k, v in schema.items() if k != "enum"}), "any")


@pytest.mark.parametrize("pattern", ["^[^,]+$", ".", r"\w+\s", r"[\s\S]{1,9}", '["a]+x', r"^(a|\\)$"])
def test_xgrammar_writes_json_under_patterns_of_wider_classes(pattern: str) -> None:
    """Judge: the json module, on texts drawn from xgrammar's masks, rather with characters that JSON escapes."""
    grammar, draw = compiler("xgrammar")(JsonSchema({"type": "string", "pattern": pattern}), "any"), random.Random(1)
    for _ in range(20):
        matcher, text = grammar.matcher(), b""
        while len(text) < 40 and not (len(text) > 6 and matcher.is_accepting()):
            mask = np.zeros(shared_vocabulary().num_words, np.int32)
            matcher.mask(mask)
            tokens = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:128]).tolist()
            if not tokens:
                break
            rare = [token for token in tokens if bytes([token]) in b'"\\\n\x01']
            token = draw.choice(rare if rare and draw.random() < 0.4 else tokens)
            assert matcher.accept(token)
            text += bytes([token])
        if matcher.is_accepting():
            json.loads(text)
    compiler("xgrammar")(JsonSchema({"const": {"pattern": "."}}), "any")


@pytest.mark.parametrize("name", ["llguidance", "xgrammar"])
def test_forced_bytes_begin_with_ours(name: BackendName) -> None:
    forced = [compiler(each)(SCHEMA, "any").matcher().forced() for each in ("native", name)]
    assert forced[0] == b'{"a":'
    assert forced[0].startswith(forced[1])
    assert forced[1]


@pytest.mark.parametrize(
    ("name", "constraint"),
    [
        ("outlines", Grammar(LARK)),
        ("outlines", Regex("a(b")),
        ("outlines", JsonSchema({"allOf": 3})),
        ("llguidance", StructuralTag(CALL)),
        ("llguidance", Grammar(GBNF, "gbnf")),
        ("llguidance", JsonSchema({"not": {}})),
        ("llguidance", Regex("a(b")),
        ("xgrammar", Grammar(LARK)),
        ("xgrammar", Regex("a(b")),
        ("xgrammar", Grammar("root = 1", "gbnf")),
    ],
)
def test_a_kind_that_a_peer_does_not_support_is_refused(name: BackendName, constraint: GrammarSource) -> None:
    with pytest.raises(GrammarError, match=name):
        compiler(name)(constraint, "any")


@pytest.mark.parametrize("name", PACKAGES)
def test_a_peer_refuses_spaced_json_and_writes_what_else_is_asked(name: BackendName) -> None:
    def texts(whitespace: Any) -> list[str]:
        source = JsonSchema(SCHEMA.schema, SchemaOptions(whitespace=whitespace))
        matchers = {text: compiler(name)(source, "any").matcher() for text in ('{"a":true}', '{"a": true}')}
        return [text for text, matcher in matchers.items() if all(map(matcher.accept, text.encode()))]

    with pytest.raises(GrammarError, match=r"exactly one space .* needs the grammar engine 'native'"):
        texts("spaced")
    assert texts("compact") == ['{"a":true}']
    assert texts("any") == ['{"a":true}', '{"a": true}']


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "outlines_core", None)
    monkeypatch.delitem(sys.modules, "ramiform.constrained.peers.outlines", raising=False)
    with pytest.raises(ImportError, match="outlines_core"):
        backend("outlines", shared_vocabulary())


def test_the_setting_names_the_engines_that_there_are() -> None:
    assert get_args(GrammarBackendName) == get_args(BackendName)
