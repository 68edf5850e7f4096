"""Structural tags, judged by a reader that finds triggers, decodes JSON and validates it."""

from __future__ import annotations

import json
import random
import re
import sys
from functools import cache
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.constrained import CompiledGrammar, GrammarError, SchemaOptions, StructuralTag, compile_constraint
from ramiform.constrained.automaton.automaton import Automaton
from ramiform.constrained.schema.compile import checked_document, schema_start
from ramiform.constrained.schema.quick_checks import is_plain_object
from ramiform.constrained.schema.value_states import ValueStart
from ramiform.tests.constrained.strategies import many
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


@pytest.mark.slow
@many(300)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=8))
def test_triggers_begin_tags_in_free_text(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert accepts(call_grammar(), text.encode()) == reads(text, CALLS), text


@pytest.mark.exhaustive
@many(20)
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
            r"<y>yes</y>(?:(?!<y|end|n)[^\0]|<y>yes</y>)*",
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
@many(80)
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


@pytest.mark.parametrize("end", ["</n>", "x", "!", "]", " ", "1", "e5", ".5", ""])
@pytest.mark.parametrize("schema", [{"type": "number"}, {}, {"anyOf": [{"type": "integer"}, {"type": "null"}]}])
def test_a_number_ends_before_whatever_follows(schema: Any, end: str) -> None:
    """The text of a tag is read in every way: after `<n>1` the end "1" may come, and a further digit."""
    spec = {"structures": [{"begin": "<n>", "schema": schema, "end": end}], "triggers": ["<n>"]}
    grammar = compile_constraint(StructuralTag(spec), shared_vocabulary())
    assert accepts(grammar, f"<n>15{end} and <n>2{end}".encode())
    assert accepts(grammar, b"<n>1") == (not end)


@pytest.mark.parametrize("elements", [["(", {"type": "integer"}, ")"], [{"type": "number"}, " kg"], [{}, {}]])
def test_a_number_in_a_sequence_ends(elements: list[Any]) -> None:
    parts = [
        {"type": "const_string", "value": part}
        if isinstance(part, str)
        else {"type": "json_schema", "json_schema": part}
        for part in elements
    ]
    grammar = compile_constraint(format_of(type="sequence", elements=parts), shared_vocabulary())
    text = "".join(part if isinstance(part, str) else "12" for part in elements)
    assert accepts(grammar, text.encode())
    assert not accepts(grammar, text[: -len(elements[-1])].encode() or b"1") or elements == [{}, {}]


@pytest.mark.parametrize(
    ("field", "pointer"),
    [
        ({"structures": [], "triggers": ["<"], "at_least_one": True}, "/at_least_one"),
        ({"structures": [{"begin": "<", "schema": {}, "end": "", "max": 1}], "triggers": ["<"]}, "/structures/0/max"),
        ({"format": {"type": "any_text", "maxChars": 1}}, "/format/maxChars"),
        ({"format": {"type": "json_schema", "json_schema": {}, "strict": True}}, "/format/strict"),
        (
            {"format": {"type": "star", "content": {"type": "regex", "pattern": "a", "flags": "i"}}},
            "/format/content/flags",
        ),
        (
            {"format": {"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": "", "a/b": 1}},
            "/format/a~1b",
        ),
        ({"type": "structural_tag", "format": {"type": "any_text"}, "triggers": []}, "/triggers"),
        ({"type": "json_schema", "format": {"type": "any_text"}}, "/type"),
        ({"format": {"type": "any_text", "max_chars": -1}}, "/format/max_chars"),
        ({"format": {"type": "any_text", "excludes": ["a", ""]}}, "/format/excludes/1"),
        ({"format": {"type": "repeat", "min": 2, "max": 1, "content": {"type": "any_text"}}}, "/format/max"),
        ({"format": {"type": "repeat", "min": 10**9, "max": -1, "content": {"type": "any_text"}}}, "/format/min"),
        ({"format": {"type": "dispatch", "rules": [["a"]]}}, "/format/rules/0"),
        ({"format": {"type": "dispatch", "rules": [["", {"type": "any_text"}]]}}, "/format/rules/0/0"),
        ({"format": {"type": "json_schema", "json_schema": {}, "excludes": ["n"]}}, "/format/excludes/0"),
    ],
)
def test_what_a_tag_does_not_know_is_refused_with_its_pointer(field: dict[str, Any], pointer: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_constraint(StructuralTag(field), shared_vocabulary())
    assert caught.value.pointer == pointer, str(caught.value)


@pytest.mark.parametrize(
    ("excludes", "good", "bad"),
    [(["</t"], ['{"a":"<t"}', "[1]", '"</"'], ['{"a":"</t>"}', '{"</t":1}', '["x</t"]', '[{"b":["</t"]}]'])],
)
def test_excluded_texts_are_in_no_string_or_name(excludes: list[str], good: list[str], bad: list[str]) -> None:
    grammar = compile_constraint(format_of(type="json_schema", json_schema={}, excludes=excludes), shared_vocabulary())
    assert all(accepts(grammar, text.encode()) for text in good)
    assert not any(accepts(grammar, text.encode()) for text in bad)


def test_white_space_and_order_are_those_of_the_format() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"]}
    spaced, turned = b'{"a": 1, "b": 2}', b'{"b":1,"a":2}'

    def grammar(**fields: Any) -> CompiledGrammar:
        return compile_constraint(format_of(type="json_schema", json_schema=schema, **fields), shared_vocabulary())

    whole = format_of(type="json_schema", json_schema=schema, max_whitespace_cnt=0).spec
    asked = StructuralTag(whole, SchemaOptions(whitespace="bounded"))
    assert not accepts(compile_constraint(asked, shared_vocabulary()), spaced)  # a format's own wins
    assert accepts(grammar(), spaced)
    assert accepts(grammar(max_whitespace_cnt=1), spaced)
    assert not accepts(grammar(max_whitespace_cnt=0), spaced)
    assert accepts(grammar(any_order=True), turned)
    assert not accepts(grammar(any_order=False), turned)
    assert accepts(grammar(any_order=False), b'{"a":1,"b":2}')


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
        ({"format": {"type": "tokens"}}, "/format/type", "'tokens'"),
        ({"format": YES | {"content": {"type": "regex", "pattern": "a(b"}}}, "/format/content/pattern", "never closed"),
        ({"format": YES | {"content": {"type": "grammar", "grammar": "root = 1"}}}, "/format/content/grammar", "::="),
        ({"format": {"type": "json_schema", "json_schema": True, "style": "xml"}}, "/format/style", "style"),
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


@pytest.mark.parametrize(
    "member",
    [
        False,
        {"enum": []},
        {"type": "integer", "minimum": 2, "maximum": 1},
        {"type": "string", "pattern": "^aa$", "maxLength": 1},
        {"type": "object", "required": ["b"], "additionalProperties": False},
        {"type": "object", "minProperties": 1, "additionalProperties": False},
        {"type": "array", "items": False, "minItems": 1},
        {"$ref": "#"},
        {"not": {}},
    ],
)
def test_a_schema_without_values_is_refused_in_one_tag_of_many(member: Any) -> None:
    schema = {"type": "object", "properties": {"a": member}, "required": ["a"]}
    tags = [{"begin": "<f>", "schema": WEATHER, "end": "</f>"}, {"begin": "<g>", "schema": schema, "end": "</g>"}]
    with pytest.raises(GrammarError, match="no text at all") as caught:
        compile_constraint(StructuralTag({"structures": tags, "triggers": ["<"]}), shared_vocabulary())
    assert (caught.value.pointer or "").startswith("/structures/1/schema")


def test_schemas_of_members_are_expanded_where_a_text_reaches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    expanded: list[ValueStart] = []

    def noted(start: ValueStart, automaton: Any, expand: Any = ValueStart.expand) -> Any:
        expanded.append(start)
        return expand(start, automaton)

    monkeypatch.setattr(ValueStart, "expand", noted)
    structures = [
        {
            "begin": f"<f={n}>",
            "schema": {"properties": {f"x{n}": {"type": "null"}}, "required": [f"x{n}"]},
            "end": "</f>",
        }
        for n in range(20)
    ]
    grammar = compile_constraint(StructuralTag({"structures": structures, "triggers": ["<f="]}), shared_vocabulary())
    assert not expanded
    assert accepts(grammar, b'<f=7>{"x7": null}</f>')
    assert not accepts(grammar, b'<f=7>{"x8": null}</f>')
    assert len(expanded) < 10  # those of two tags and of their members


@pytest.mark.parametrize("options", [SchemaOptions(), SchemaOptions("closed", "digits", 3)], ids=["schema", "closed"])
def test_a_plain_schema_has_texts(options: SchemaOptions) -> None:
    """Random schemas, judged by the expansion of the state before their values."""
    rng, num_plain = random.Random(5), 0

    def schema_of(depth: int) -> Any:
        if not depth or rng.random() < 0.3:
            scalars = [
                True,
                False,
                {},
                {"type": "null"},
                {"type": "integer", "minimum": rng.randint(0, 9)},
                {"enum": [1]},
            ]
            return rng.choice([*scalars, {"type": "string", "pattern": rng.choice(["a", "a$^b"])}, {"maxLength": 2}])
        names = rng.sample("abc", rng.randint(0, 3))
        found: dict[str, Any] = {"properties": {name: schema_of(depth - 1) for name in names}}
        found |= {"type": "object"} if rng.random() < 0.7 else {}
        found |= {"required": rng.sample("abcd", rng.randint(0, 2))} if rng.random() < 0.7 else {}
        return found | ({"additionalProperties": schema_of(0)} if rng.random() < 0.4 else {})

    for _ in range(200):
        document = checked_document(schema_of(3))
        if is_plain_object(document, document.start):
            num_plain += 1
            schema_start(document, "bounded", "any", options, Automaton())  # raises GrammarError without any text
    assert num_plain > 50


@pytest.mark.exhaustive
def test_compiling_takes_work_in_proportion_to_the_tags() -> None:
    """Counts the calls of functions, with a schema of its own in each tag."""

    def num_calls(number: int) -> int:
        found = 0

        def note(frame: Any, event: str, argument: Any) -> None:
            nonlocal found
            found += 1

        structures = [
            {"begin": f"<f={n}>", "schema": {"properties": {f"a{number}_{n}": {"type": "integer"}}}, "end": "</f>"}
            for n in range(number)
        ]
        spec = {"structures": structures, "triggers": ["<f="]}
        sys.setprofile(note)
        try:
            compile_constraint(StructuralTag(spec), shared_vocabulary())
        finally:
            sys.setprofile(None)
        return found

    num_calls(10)
    assert num_calls(600) < 2.3 * num_calls(300)
