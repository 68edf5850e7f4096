"""Structural tags, judged by a reader that finds triggers, decodes JSON and validates it."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.constrained import CompiledGrammar, GrammarError, StructuralTag, compile_constraint
from ramiform.constrained.schema.value_states import NUMBER_END
from ramiform.tests.constrained.walks import TOKENS, accepts, allowed, shared_vocabulary

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Bonn", "Rom"]}},
    "required": ["city"],
    "additionalProperties": False,
}
OBJECT = {"type": "object"}
CALLS: dict[str, Any] = {
    "structures": [
        {"begin": "<f=a>", "schema": WEATHER, "end": "</f>"},
        {"begin": "<f=ab>", "schema": {"type": "boolean"}, "end": "</f>"},
        {"begin": "<g>", "schema": {"type": "array", "items": {"type": "null"}}, "end": ""},
        {"begin": "<f!x", "schema": {"const": "é"}, "end": "!"},
    ],
    "triggers": ["<f=", "<g", "<f!"],
}
PIECES = [
    "<f=a>",
    '{"city":"Bonn"}',
    '{"city": "Rom"}',
    "</f>",
    "<f=ab>",
    "true",
    "<g>",
    "[null]",
    "[]",
    "<f!x",
    '"é"',
    "!",
    "<f",
    "<",
    "=",
    " x",
    "<<f",
]


def reads(text: str, spec: dict[str, Any]) -> bool:
    """Return True if a text is free text and valid tags."""
    while True:
        found = [(at, trigger) for trigger in spec["triggers"] if (at := text.find(trigger)) >= 0]
        if not found:
            return True
        at, _ = min(found)
        text = text[at:]
        tag = next((tag for tag in spec["structures"] if text.startswith(tag["begin"])), None)
        if tag is None:
            return False
        text = text[len(tag["begin"]) :]
        try:
            value, length = json.JSONDecoder().raw_decode(text)
            jsonschema.validate(value, tag["schema"])
        except (ValueError, jsonschema.ValidationError):
            return False
        if not text[length:].startswith(tag["end"]):
            return False
        text = text[length + len(tag["end"]) :]


@cache
def call_grammar() -> CompiledGrammar:
    return compile_constraint(StructuralTag(CALLS), shared_vocabulary())


@settings(max_examples=300, deadline=None, derandomize=True)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=8))
def test_triggers_begin_tags_in_free_text(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert accepts(call_grammar(), text.encode()) == reads(text, CALLS), text


@pytest.mark.slow
@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), prefix=st.sampled_from(["", "x<", "<f=", "<f=a>{", "<f=ab>true", "<g>[", "é<<f"]))
def test_masks_lead_to_valid_texts(seed: int, prefix: str) -> None:
    rng, eos_ids = random.Random(seed), shared_vocabulary().eos_ids
    matcher, output = call_grammar().matcher(), prefix.encode()
    assert all(matcher.accept(byte) for byte in output)
    for _ in range(30):
        tokens = allowed(matcher, shared_vocabulary())
        expected = []
        for number, token in enumerate(TOKENS):
            steps = 0
            while token and number not in eos_ids and steps < len(token) and matcher.accept(token[steps]):
                steps += 1
            matcher.rollback(steps)
            if token and steps == len(token):
                expected.append(number)
        ends = sorted(eos_ids) if matcher.is_accepting() else []
        assert tokens == sorted(expected + ends)
        # What begins a tag is rare among free tokens, so it is preferred.
        token = rng.choice([t for t in tokens if (TOKENS[t] or b"") in (b"<", b"f", b"=", b"a", b">")] or tokens)
        assert matcher.accept(token)
        if token in eos_ids:
            break
        output += TOKENS[token] or b""
    if matcher.is_accepting():
        assert reads(output.decode("latin-1").replace('"Ã©"', '"é"'), CALLS)


def format_of(**format: Any) -> StructuralTag:
    return StructuralTag(json.dumps({"type": "structural_tag", "format": format}))


def tag(begin: str, content: dict[str, Any], end: str | list[str]) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


YES = tag("<y>", {"type": "const_string", "value": "yes"}, "</y>")
NUMBER = tag("<n>", {"type": "regex", "pattern": r"^-?\d+(\.\d+)?$"}, ["</n>", "!"])
GREEDY = tag("<t>", {"type": "any_text", "excludes": ["no"]}, "</t>")
RULES = tag("<r>", {"type": "grammar", "grammar": 'root ::= "(" root ")" | "x"+'}, "x)")
SCHEMA = tag("<j>", {"type": "json_schema", "json_schema": {"type": "object", "required": ["a"]}}, "")
TAGS = [YES, NUMBER, GREEDY, RULES, SCHEMA]
BODY = (
    r"(?:<y>yes</y>|<n>-?\d+(?:\.\d+)?(?:</n>|!)|<t>(?:(?!no|</t>)[^\0])*</t>|<r>(?:xx+|\(xx?\)|x)x\)|<j>\{\"a\":1\})"
)
WORDS = "<y> yes </y> <n> -1 2.5 </n> ! <t> no n </t> <r> x ( ) x) <j> , < <y>yes</y> <n>1! end".split()
TEXTS = st.lists(st.sampled_from([*WORDS, '{"a":1}']), max_size=7).map("".join)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("format", "pattern"),
    [
        ({"type": "tags_with_separator", "tags": TAGS, "separator": ","}, rf"(?:{BODY}(?:,{BODY})*)?"),
        ({"type": "tags_with_separator", "tags": TAGS, "separator": ",", "at_least_one": True}, rf"{BODY}(?:,{BODY})*"),
        (
            {"type": "tags_with_separator", "tags": [YES, NUMBER], "separator": "", "stop_after_first": True},
            r"(?:<y>yes</y>|<n>-?\d+(?:\.\d+)?(?:</n>|!))?",
        ),
        (
            {"type": "triggered_tags", "triggers": ["<y", "<n>"], "tags": [YES, NUMBER]},
            r"(?:(?!<y|<n>)[^\0]|<y>yes</y>|<n>-?\d+(?:\.\d+)?(?:</n>|!))*",
        ),
        (
            {
                "type": "triggered_tags",
                "triggers": ["<y"],
                "tags": [YES],
                "at_least_one": True,
                "excludes": ["end", "n"],
            },
            r"(?:(?!<y|end|n)[^\0])*<y>yes</y>(?:(?!<y|end|n)[^\0]|<y>yes</y>)*",
        ),
        (
            {"type": "triggered_tags", "triggers": ["<y"], "tags": [YES], "stop_after_first": True},
            r"(?:(?!<y)[^\0])*(?:<y>yes</y>)?",
        ),
        (
            {"type": "sequence", "elements": [GREEDY, {"type": "const_string", "value": "end"}, YES]},
            r"<t>(?:(?!no|</t>)[^\0])*</t>end<y>yes</y>",
        ),
        (
            {"type": "or", "elements": [NUMBER, {"type": "sequence", "elements": [YES, {"type": "any_text"}]}]},
            r"<n>-?\d+(?:\.\d+)?(?:</n>|!)|<y>yes</y>[^\0]*",
        ),
        ({"type": "regex", "pattern": "x+|no"}, "x+|no"),
    ],
)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(text=TEXTS)
def test_formats_agree_with_an_equivalent_pattern(format: dict[str, Any], pattern: str, text: str) -> None:
    grammar = compile_constraint(format_of(**format), shared_vocabulary())
    assert accepts(grammar, text.encode()) == bool(re.fullmatch(pattern, text)), text


def test_thinking_then_calls() -> None:
    think = tag("<think>", {"type": "any_text"}, "</think>")
    calls = {"type": "triggered_tags", "triggers": ["<n>"], "tags": [NUMBER]}
    grammar = compile_constraint(format_of(type="sequence", elements=[think, calls]), shared_vocabulary())
    assert accepts(grammar, b"<think>a <n>x</think>so <n>1</n>.")
    assert not accepts(grammar, b"<think>a")
    assert not accepts(grammar, b"<think></think><n>x")
    matcher = grammar.matcher()
    assert matcher.forced() == b"<think>"


@pytest.mark.parametrize("end", ["</n>", "x", "!", "]", " ", "1", ""])
def test_a_number_ends_before_its_end_string_or_is_refused(end: str) -> None:
    spec = {"structures": [{"begin": "<n>", "schema": {"type": "number"}, "end": end}], "triggers": ["<n>"]}
    if end[:1].encode() and end.encode()[0] in NUMBER_END:
        grammar = compile_constraint(StructuralTag(spec), shared_vocabulary())
        assert accepts(grammar, f"<n>-1.5{end} and <n>2{end}".encode())
        assert not accepts(grammar, b"<n>1")
    else:
        with pytest.raises(GrammarError) as caught:
            compile_constraint(StructuralTag(spec), shared_vocabulary())
        assert caught.value.pointer == "/structures/0/end"


@pytest.mark.parametrize(
    ("spec", "pointer", "words"),
    [
        ("{", None, "no JSON"),
        ("[]", "", "object"),
        ({}, "", "missing"),
        ({"structures": [{"begin": "<a>", "schema": {}}], "triggers": ["<a"]}, "/structures/0", "'end'"),
        (
            {"structures": [{"begin": "<a>", "schema": OBJECT, "end": ""}], "triggers": ["<b"]},
            "/structures/0/begin",
            "no trigger",
        ),
        (
            {"structures": [{"begin": "<a>", "schema": OBJECT, "end": ""}], "triggers": ["<a", "x"]},
            "/triggers/1",
            "no tag",
        ),
        (
            {"structures": [{"begin": "<a>", "schema": {"type": 1}, "end": ""}], "triggers": ["<a"]},
            "/structures/0/schema/type",
            "",
        ),
        ({"structures": [{"begin": "<a", "schema": OBJECT, "end": ""}] * 2, "triggers": ["<"]}, "", "more than one"),
        ({"format": {"type": "token", "token": 3}}, "/format/type", "'token'"),
        ({"format": YES | {"content": {"type": "regex", "pattern": "a(b"}}}, "/format/content/pattern", "never closed"),
        ({"format": YES | {"content": {"type": "grammar", "grammar": "root = 1"}}}, "/format/content/grammar", "::="),
        (
            {"format": {"type": "sequence", "elements": [{"type": "any_text"}, YES]}},
            "/format/elements/0",
            "must come last",
        ),
        ({"format": {"type": "or", "elements": [{"type": "any_text"}, YES]}}, "/format/elements/0", "constant"),
        ({"format": {"type": "json_schema", "json_schema": True, "style": "qwen_xml"}}, "/format/style", "style"),
        (
            {"format": {"type": "triggered_tags", "triggers": ["<y"], "tags": [YES], "at_least_one": 1}},
            "/format/at_least_one",
            "true",
        ),
        ({"format": {"type": "triggered_tags", "triggers": [], "tags": [YES]}}, "/format/triggers", "empty"),
    ],
)
def test_errors_have_a_pointer(spec: Any, pointer: str | None, words: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_constraint(StructuralTag(spec), shared_vocabulary())
    assert caught.value.pointer == pointer, str(caught.value)
    assert words in str(caught.value)
