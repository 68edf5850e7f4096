"""Parameters in the XML of several models, judged by a reader that splits them and by `jsonschema`."""

from __future__ import annotations

import json
import random
import re
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


@pytest.mark.parametrize("style", ["cohere_xml", "minimax_m3_xml", "yaml"])
def test_other_styles_are_refused_by_name(style: str) -> None:
    with pytest.raises(GrammarError, match=style) as caught:
        compile_constraint(
            StructuralTag({"format": {"type": "json_schema", "json_schema": SCHEMA, "style": style}}), byte_vocabulary()
        )
    assert caught.value.pointer == "/format/style"
