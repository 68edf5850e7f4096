"""Parameters in the XML of several models, judged by a reader that splits them and by `jsonschema`."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from ramiform.constrained import GrammarError, StructuralTag, Vocabulary, compile_constraint
from ramiform.tests.constrained.walks import BYTES, accepts, byte_vocabulary

# How each style writes a name and a value, and what it calls strings and other types.
STYLES: dict[str, tuple[str, dict[str, str] | None]] = {
    "qwen_xml": ("<parameter={name}>{value}</parameter>", None),
    "minimax_xml": ('<parameter name="{name}">{value}</parameter>', None),
    "glm_xml": ("<arg_key>{name}</arg_key><arg_value>{value}</arg_value>", None),
    "deepseek_xml": ('<｜DSML｜parameter name="{name}" string="{kind}">{value}</｜DSML｜parameter>', {"str": "true"}),
    "deepseek_v4_1_xml": (
        '<｜DSML｜ parameter name="{name}" string="{kind}">{value}</｜DSML｜ parameter>',
        {"str": "true"},
    ),
    "kimi_k3_xml": (
        '<|open|>argument key="{name}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>',
        {"str": "string", "int": "number", "bool": "boolean", "dict": "object", "list": "array", "NoneType": "null"},
    ),
}
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 5},
        "kind": {"enum": ["a", "b", 3, None]},
        "count": {"type": "integer", "minimum": 1},
        "inner": {"$ref": "#/$defs/inner"},
        "either": {"anyOf": [{"type": "string", "pattern": "^x"}, {"type": "array", "items": {"type": "boolean"}}]},
    },
    "required": ["city", "count"],
    "$defs": {"inner": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}},
}
VALUES: dict[str, list[Any]] = {
    "city": ["Bonn", "", "é<", "a\nb", "</par", "too long", 3],
    "kind": ["a", "b", 3, None, "c", True],
    "count": [1, 20, 0, "1", 1.5],
    "inner": [{"q": "<"}, {"q": 1}, "{}"],
    "either": ["x</", "y", [True], [1], []],
}


def written(style: str, name: str, value: Any) -> str:
    form, kinds = STYLES[style]
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    kind = "" if kinds is None else kinds.get(type(value).__name__, "number" if "int" in kinds else "false")
    return form.format(name=name, value=text, kind=kind)


def is_valid(style: str, text: str, members: list[tuple[str, Any]]) -> bool:
    """Return True if the parameters come in order, and some reading of each value is valid.

    A value is a string if its style says so or does not say, and else what JSON reads.
    """
    names = [name for name, _ in members]
    if names != [name for name in SCHEMA["properties"] if name in names] or not {"city", "count"} <= {*names}:
        return False
    for name, value in members:
        readings = [value]
        if isinstance(value, str) and STYLES[style][1] is None:
            readings += [json.loads(value)] if re.fullmatch(r"\d+|\{.*\}", value) else []
        elif STYLES[style][1] is None and not isinstance(value, str):
            readings.append(json.dumps(value, separators=(",", ":")))
        validator = jsonschema.Draft202012Validator({**SCHEMA, "required": []})
        if not any(validator.is_valid({name: reading}) for reading in readings):
            return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_random_parameters_agree_with_a_reader_and_jsonschema(style: str) -> None:
    spec = {"format": {"type": "json_schema", "json_schema": SCHEMA, "style": style}}
    grammar = compile_constraint(StructuralTag(spec), byte_vocabulary())
    rng, num_valid = random.Random(style), 0
    for _ in range(120):
        names = [name for name in SCHEMA["properties"] if name in ("city", "count") or rng.random() < 0.5]
        if rng.random() < 0.1:
            rng.shuffle(names)
        members = [(name, rng.choice(VALUES[name][:3] if rng.random() < 0.8 else VALUES[name])) for name in names]
        blank = rng.choice(["", "\n"])
        text = blank.join(written(style, name, value) for name, value in members)
        expected = is_valid(style, text, members)
        num_valid += expected
        assert accepts(grammar, text.encode()) == expected, text
    assert 10 < num_valid < 110


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_xgrammar_reads_the_same_parameters(style: str) -> None:
    """Without the pattern `^x`: it takes patterns of such strings as whole ones."""
    xgrammar = pytest.importorskip("xgrammar", exc_type=ImportError)  # the extra `backends`
    info = xgrammar.TokenizerInfo([*BYTES, b"\xff\xff"], vocab_size=257, stop_token_ids=[256])
    schema = {**SCHEMA, "properties": {name: value for name, value in SCHEMA["properties"].items() if name != "either"}}
    spec = {"format": {"type": "json_schema", "json_schema": schema, "style": style}}
    peer = xgrammar.GrammarCompiler(info, max_threads=1).compile_structural_tag({"type": "structural_tag", **spec})
    grammar, rng = compile_constraint(StructuralTag(spec), byte_vocabulary()), random.Random(style)
    for _ in range(60):
        names = [name for name in schema["properties"] if name in ("city", "count") or rng.random() < 0.5]
        values = [rng.choice(VALUES[name][:3] if rng.random() < 0.8 else VALUES[name]) for name in names]
        text = "".join(written(style, name, value) for name, value in zip(names, values, strict=True)).encode()
        matcher = xgrammar.GrammarMatcher(peer)
        assert (all(map(matcher.accept_token, text)) and matcher.is_completed()) == accepts(grammar, text), text


# How the styles whose values nest in tags write an item or a member around what is in it.
NESTED_STYLES: dict[str, Callable[[str | None, str, str], str]] = {
    "cohere_xml": lambda name, kind, inner: (
        "<cofl:value" + ("" if name is None else f' name="{name}"') + f' type="{kind}">{inner}</cofl:value>'
    ),
    "minimax_m3_xml": lambda name, _, inner: "]<]minimax[>[<{0}>{1}]<]minimax[>[</{0}>".format(
        "item" if name is None else name, inner
    ),
}
TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
POINT = {"type": "object", "properties": {"x": WHOLE, "name": TEXT}, "required": ["x"]}
NESTED = {
    "type": "object",
    "properties": {
        "city": TEXT,
        "kind": {"enum": ["a", "b", 3, None]},
        "at": {"$ref": "#/$defs/point"},
        "tags": {"type": "array", "items": TEXT, "maxItems": 2},
        "rows": {"type": "array", "minItems": 1, "items": {"type": "array", "items": {"$ref": "#/$defs/point"}}},
        "pair": {"type": "array", "prefixItems": [WHOLE, POINT], "minItems": 2, "items": {"type": "boolean"}},
        "either": {"anyOf": [TEXT, {"type": "array", "items": WHOLE}]},
        "none": {"type": "object", "properties": {}},
    },
    "required": ["city"],
    "$defs": {"point": POINT},
}
NESTED_VALUES: dict[str, list[Any]] = {
    "city": ["Bonn", "", "é<", "</cofl:value", "]<]minimax[>", 3],
    "kind": ["a", 3, None, "c", True],
    "at": [{"x": 1, "name": "<"}, {"x": 2}, {"name": "q"}, {"x": "1 "}, [], {}],
    "tags": [[], ["a", ""], ["a"], ["a", "b", "c"], [1, {}], "a"],
    "rows": [[[]], [[{"x": 1}], [{"x": 2, "name": "b"}, {"x": 3}]], [[{}]], [], [{"x": 1}]],
    "pair": [[1, {"x": 2}], [1, {"x": 2}, True, False], [1], [{"x": 1}, 2], [1, {"x": 2}, 3]],
    "either": ["text", [1, 2], [], 3, ["a"], {"x": 1}],
    "none": [{}, {"x": 1}],
}


def nested(style: str, name: str | None, value: Any) -> str:
    """Write a value in its tag, and what is in it."""
    if isinstance(value, dict | list):
        members = value.items() if isinstance(value, dict) else ((None, item) for item in value)
        inner = "".join(nested(style, *member) for member in members)
        return NESTED_STYLES[style](name, "dict" if isinstance(value, dict) else "list", inner)
    is_text = isinstance(value, str)
    return NESTED_STYLES[style](name, "raw" if is_text else "json", value if is_text else json.dumps(value))


def nested_spec(style: str, schema: Any, **fields: Any) -> StructuralTag:
    return StructuralTag({"format": {"type": "json_schema", "json_schema": schema, "style": style, **fields}})


@pytest.mark.parametrize("style", NESTED_STYLES)
def test_values_in_nested_tags_agree_with_jsonschema_and_xgrammar(style: str) -> None:
    """Where a style does not tell types apart, each reading of a text counts: no value here has two."""
    xgrammar = pytest.importorskip("xgrammar", exc_type=ImportError)  # the extra `backends`
    info = xgrammar.TokenizerInfo([*BYTES, b"\xff\xff"], vocab_size=257, stop_token_ids=[256])
    tag = nested_spec(style, NESTED)
    peer = xgrammar.GrammarCompiler(info, max_threads=1).compile_structural_tag({"type": "structural_tag", **tag.spec})
    grammar, rng, num_valid = compile_constraint(tag, byte_vocabulary()), random.Random(style), 0
    for _ in range(200):
        names = [name for name in NESTED["properties"] if rng.random() < (0.9 if name == "city" else 0.4)]
        value = {n: rng.choice(NESTED_VALUES[n][: 2 if rng.random() < 0.8 else None]) for n in names}
        text = "".join(nested(style, *member) for member in value.items()).encode()
        read = accepts(grammar, text)
        matcher = xgrammar.GrammarMatcher(peer)
        assert read == (all(map(matcher.accept_token, text)) and matcher.is_completed()), text
        num_valid += read
        valid = jsonschema.Draft202012Validator(NESTED).is_valid(value)
        is_ambiguous = style == "minimax_m3_xml" and any(
            names_of in value and isinstance(value[names_of], kinds)
            for names_of, kinds in (("city", int), ("either", int | dict), ("none", list), ("tags", str | list))
        )
        if not is_ambiguous and "none" not in value:
            assert read == valid, text
    assert 40 < num_valid < 180


def test_blanks_stand_between_nested_tags_as_between_parameters() -> None:
    grammar = compile_constraint(nested_spec("minimax_m3_xml", NESTED), byte_vocabulary())
    mark = "]<]minimax[>["
    for blank, is_read in [("", True), ("\n", True), ("\n\n", False)]:
        inner = f"{blank}{mark}<x>1{mark}</x>{blank}"
        text = f"{blank}{mark}<city>{mark}</city>{blank}{mark}<at>{inner}{mark}</at>{blank}"
        assert accepts(grammar, text.encode()) == is_read, text
    assert not accepts(grammar, f"{mark}<city>{mark}</city>{mark}<at>{mark}<x> 1{mark}</x>{mark}</at>".encode())


def test_nested_members_in_any_order_come_once_and_required_ones_do() -> None:
    grammar = compile_constraint(nested_spec("cohere_xml", NESTED, any_order=True), byte_vocabulary())
    for at, is_read in [({"name": "a", "x": 1}, True), ({"x": 1, "name": "a"}, True), ({"name": "a"}, False)]:
        for order in (1, -1):
            text = "".join(nested("cohere_xml", *part) for part in [("city", "b"), ("at", at)][::order])
            assert accepts(grammar, text.encode()) == is_read, text


@pytest.mark.parametrize(
    ("inner", "pointer"),
    [
        ({}, ""),
        ({"type": "object"}, ""),
        ({"type": "array"}, ""),
        ({"type": "array", "items": TEXT, "uniqueItems": True}, "/uniqueItems"),
        ({"type": "array", "items": {"type": "object", "properties": {"b>": {}}}}, "/items/properties/b>"),
        ({"type": "object", "properties": {"b": {"$ref": "#/properties/a"}}}, "/properties/b"),
        ({"enum": [{"b": 1}]}, ""),
        ({"oneOf": [POINT, POINT]}, "/oneOf"),
        ({"type": "array", "items": TEXT, "minItems": 2, "maxItems": 1}, ""),
    ],
)
def test_what_nested_tags_cannot_write_is_refused_with_its_pointer(inner: Any, pointer: str) -> None:
    schema = {"type": "object", "properties": {"a": inner}}
    for style in NESTED_STYLES:
        with pytest.raises(GrammarError) as caught:
            compile_constraint(nested_spec(style, schema), byte_vocabulary())
        assert (caught.value.pointer or "").startswith("/format/json_schema/properties/a" + pointer), str(caught.value)


def test_ten_parameters_in_any_order_share_what_follows_them() -> None:
    schema = {"type": "object", "properties": dict.fromkeys("abcdefghij", WHOLE), "required": ["j"]}
    spec = {"format": {"type": "json_schema", "json_schema": schema, "style": "qwen_xml", "any_order": True}}
    grammar = compile_constraint(StructuralTag(spec), byte_vocabulary())
    for names, is_read in [("jihgfedcba", True), ("aj", True), ("abcdefghi", False), ("jaj", False)]:
        assert accepts(grammar, "".join(f"<parameter={n}>1</parameter>" for n in names).encode()) == is_read, names


def test_parameters_in_any_order_come_once_and_required_ones_do() -> None:
    schema = {"type": "object", "properties": {n: {"type": "integer"} for n in "abc"}, "required": ["a", "b"]}
    spec = {"format": {"type": "json_schema", "json_schema": schema, "style": "qwen_xml", "any_order": True}}
    grammar = compile_constraint(StructuralTag(spec), byte_vocabulary())
    for names, is_read in [("ab", True), ("ba", True), ("cab", True), ("acb", True), ("a", False), ("aab", False)]:
        text = "".join(f"<parameter={name}>1</parameter>" for name in names)
        assert accepts(grammar, text.encode()) == is_read, names


def test_markers_that_are_special_tokens_are_written_as_tokens() -> None:
    vocabulary = Vocabulary.from_tokens([*BYTES, None, None, None, None], [259], {"<|open|>": 256, "<|sep|>": 257})
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    spec = {"format": {"type": "json_schema", "json_schema": schema, "style": "kimi_k3_xml"}}
    matcher = compile_constraint(StructuralTag(spec), vocabulary, whitespace="compact").matcher()
    tokens = [256, *b'argument key="a" type="string"', 257, *b"x<|sep|>", *b"<|close|>argument", 257]
    assert all(matcher.accept(token) for token in tokens)
    assert matcher.is_accepting()


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "string"}, ""),
        ({"type": "object"}, ""),
        ({"type": "object", "properties": {}, "patternProperties": {}}, "/patternProperties"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "/required/0"),
        ({"type": "object", "properties": {"a>": {}}}, "/properties/a>"),
        ({"type": "object", "properties": {"a": {"not": {"const": "x"}}}}, "/properties/a/not"),
        ({"type": "object", "properties": {"a": {"type": "integer", "minimum": "1"}}}, "/properties/a/minimum"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}, "/properties/a/pattern"),
        ({"type": "object", "properties": {"a": {"type": "integer", "maximum": 1, "minimum": 2}}}, ""),
    ],
)
def test_what_a_style_cannot_write_is_refused_with_its_pointer(schema: Any, pointer: str) -> None:
    spec = {"format": {"type": "json_schema", "json_schema": schema, "style": "qwen_xml"}}
    with pytest.raises(GrammarError) as caught:
        compile_constraint(StructuralTag(spec), byte_vocabulary())
    assert (caught.value.pointer or "").startswith("/format/json_schema" + pointer), str(caught.value)


def test_other_styles_are_refused_by_name() -> None:
    spec = {"format": {"type": "json_schema", "json_schema": SCHEMA, "style": "yaml"}}
    with pytest.raises(GrammarError, match="yaml") as caught:
        compile_constraint(StructuralTag(spec), byte_vocabulary())
    assert caught.value.pointer == "/format/style"
