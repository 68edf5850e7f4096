"""Captures of composed constraints, judged by the standard library's `re` and by the runtime's own grammar engine."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ramiform import gen, one_or_more, optional, repeat, rx, select, seq, zero_or_more
from ramiform.constrained import Grammar, Regex, Vocabulary, compile_constraint
from ramiform.lang.constraints.matcher import CaptureSearch
from ramiform.lang.expressions.captures import ConstraintExpr, compiled

BYTES = [*(bytes([byte]) for byte in range(256)), None]
VOCABULARY = Vocabulary.from_tokens(BYTES, [256])


def captured(expr: ConstraintExpr, text: str) -> dict[str, Any] | None:
    try:
        return compiled(expr).matcher.match(text)
    except ValueError:
        return None


def accepts(constraint: Any, text: str) -> bool:
    matcher = compile_constraint(constraint, VOCABULARY).matcher()
    for byte in text.encode():
        if not matcher.accept(byte):
            return False
    return matcher.is_accepting()


def generates(expr: ConstraintExpr, text: str) -> bool:
    return accepts(Grammar(compiled(expr).grammar, "gbnf"), text)


@dataclass
class Pair:
    """A constraint and the pattern with the same meaning."""

    expr: Any
    pattern: str


PATTERNS = ["a", "b+", "a|ab", "a*?", "(?:ab)*", "[ab]", "a{1,2}", "(?:b|ba)?", "", "b{0,2}?", "[^a]", "(?i:B)", "a|"]


@st.composite
def pairs(draw: st.DrawFn, depth: int = 3, prefix: str = "n") -> Pair:
    kind = draw(st.sampled_from(["text", "rx", "gen"] if not depth else ["rx", "gen", "seq", "optional", "or", "loop"]))
    inner = [draw(pairs(depth - 1, f"{prefix}{at}")) for at in range(2)] if kind in ("seq", "or") else []
    match kind:
        case "text":
            text = draw(st.sampled_from(["a", "b", "ab", "", "."]))
            return Pair(text, re.escape(text))
        case "rx":
            pattern = draw(st.sampled_from(PATTERNS))
            return Pair(rx(pattern), f"(?:{pattern})")
        case "gen":
            pattern = draw(st.sampled_from(PATTERNS))
            return Pair(gen(prefix, regex=pattern), f"(?P<{prefix}>{pattern})")
        case "seq":
            parts = [one.expr for one in inner]
            return Pair(seq(rx("(?:)"), *parts, "", name=prefix), f"(?P<{prefix}>{inner[0].pattern}{inner[1].pattern})")
        case "or":
            assume(all(not isinstance(one.expr, str) or one.expr for one in inner))
            choice = select(f"{prefix}k", [inner[0].expr, seq(inner[1].expr, rx("c?"))])
            return Pair(choice, f"(?P<{prefix}k>{inner[0].pattern}|{inner[1].pattern}c?)")
        case "optional":
            one = draw(pairs(depth - 1, f"{prefix}o"))
            return Pair(optional(one.expr), f"(?:{one.pattern})?")
    # A repetition without captures: `re` keeps only the last text of each.
    pattern = draw(st.sampled_from(["a", "ab", "a|b", "[ab]c?", "ba?"]))
    least, most = draw(st.sampled_from([(0, None), (1, None), (0, 2), (2, 3)]))
    part = repeat(rx(pattern), least=least, most=most)
    return Pair(part, f"(?:{pattern}){{{least},{'' if most is None else most}}}")


@pytest.mark.slow
@given(pairs(), st.lists(st.text("abcB.", max_size=8), min_size=1, max_size=8))
def test_captures_are_those_of_re(pair: Pair, texts: list[str]) -> None:
    expr = seq("^", pair.expr, "$")
    for text in texts:
        found = re.fullmatch(rf"\^{pair.pattern}\$", f"^{text}$", re.ASCII)
        expected = None if found is None else found.groupdict()
        assert captured(expr, f"^{text}$") == expected, (pair.pattern, text)


@pytest.mark.slow
@given(pairs(), st.lists(st.text("abcB.", max_size=8), min_size=1, max_size=8), st.integers(1, 3))
def test_captures_come_once_they_are_certain(pair: Pair, texts: list[str], size: int) -> None:
    """Judge: the captures of the whole text, which those told before must begin."""
    matcher = compiled(seq("^", repeat(pair.expr, 0, 3), "$")).matcher
    for text in texts:
        try:
            whole = matcher.match(f"^{text}$")
        except ValueError:
            continue
        for name, value in whole.items():
            expected = flat(value)
            search = CaptureSearch(matcher, name)
            found: list[str] = []
            for at in range(0, len(text) + 2, size):
                found += search.feed(f"^{text}$"[at : at + size])
                assert expected[: len(found)] == found
            assert [*found, *search.rest()] == expected


def flat(value: Any) -> list[str]:
    if isinstance(value, list):
        return [text for one in value for text in flat(one)]
    return [] if value is None else [value]


def test_a_repetitions_captures_come_with_the_end_of_each() -> None:
    expr = seq(one_or_more("- ", gen("item", stop="\n"), "\n"), "end")
    search = CaptureSearch(compiled(expr).matcher, "item")
    assert [search.feed(piece) for piece in ("- ap", "ple", "\n", "- pear\n- f", "ig\nen", "d")] == [
        [], [], ["apple"], ["pear"], ["fig"], [],
    ]  # fmt: skip


@pytest.mark.slow
@given(pairs())
def test_the_grammar_generates_exactly_what_is_matched(pair: Pair) -> None:
    expr = seq("^", pair.expr, "$")
    grammar = compile_constraint(Grammar(compiled(expr).grammar, "gbnf"), VOCABULARY)
    matcher, judge = grammar.matcher(), re.compile(rf"\^{pair.pattern}\$", re.ASCII)
    assert matcher.accept(ord("^"))

    def check(letters: str, may_go_on: bool) -> None:
        """Check the text of these letters and those that begin so; `may_go_on` if the matcher has accepted them."""
        accepted = may_go_on and matcher.accept(ord("$"))
        if accepted:
            accepted = matcher.is_accepting()
            matcher.rollback(1)
        assert accepted == (judge.fullmatch(f"^{letters}$") is not None), (pair.pattern, letters)
        for letter in "abc." if len(letters) < 3 else "":
            further = may_go_on and matcher.accept(ord(letter))
            check(letters + letter, further)
            if further:
                matcher.rollback(1)

    check("", True)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "pattern",
    [
        r"\d+(?:\.\d+)?", r"[\w-]+@\w+\.(?:com|org)", r"\s*[^\s,;]+\s*", r"(?s:.)+", r".+", r"[^\W\d_]+", r"é|ü+",
        r"\x41\u00e9", r"[\]\\^-]", r"(?i)straße", "😀{2}", r"\S\D\W", r'["\'`]+', "\t|\n", r"(?:(?:a|b)(?:c|d)){2,}",
        "[α-ω]+", "(?i)[k-m]+",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "text",
    ["12", "1.5", "a-b@c.org", " x ", "a\nb", "éü", "ü", "üü", "αω", "Aé", "]\\^-", "STRASSE", "straße", "STRAßE",
     "😀😀",
     "a-b",
     "\"'`", "\t", "acbd", "acad", "_", "K", "\u212a", "klM", "", "x,y"],
)  # fmt: skip
def test_a_pattern_has_the_meaning_of_the_runtime_and_of_re(pattern: str, text: str) -> None:
    expr = seq("<", gen("x", regex=pattern), ">")
    expected = accepts(Regex(pattern), text)
    assert generates(expr, f"<{text}>") == expected
    assert captured(expr, f"<{text}>") == ({"x": text} if expected else None)
    if text != "\u212a" and "(?i)stra" not in pattern:
        assert expected == (re.fullmatch(pattern, text, re.ASCII) is not None)


def test_captures_in_repetitions_are_lists_and_in_options_none() -> None:
    line = seq("- ", gen("item", regex="[a-z]+"), optional("=", gen("value", dtype=int)), "\n")
    expr = seq(
        "List:\n",
        one_or_more(line),
        optional("end ", gen("end", regex=".")),
        zero_or_more("!", gen("mark", regex="x?")),
    )
    assert captured(expr, "List:\n- a\n- bc= 12\n") == {
        "item": ["a", "bc"], "value": [None, " 12"], "end": None, "mark": [],
    }  # fmt: skip
    assert captured(expr, "List:\n- a=1\nend z!!x") == {"item": ["a"], "value": ["1"], "end": "z", "mark": ["", "x"]}


def test_repetitions_inside_repetitions_are_lists_of_lists() -> None:
    row = seq("[", repeat(gen("cell", regex=r"\d"), 1, 3), "]")
    expr = one_or_more(gen("head", choices=["a", "b"]), row)
    assert captured(expr, "a[12]b[3]a[456]") == {"head": ["a", "b", "a"], "cell": [["1", "2"], ["3"], ["4", "5", "6"]]}


def test_alternatives_that_were_not_chosen_are_none() -> None:
    expr = select("kind", [seq("call ", gen("f", regex="[a-z]+")), seq("say ", gen("t", stop="\n")), "stop"])
    assert isinstance(expr, ConstraintExpr)
    assert captured(expr, "call abc") == {"kind": "call abc", "f": "abc", "t": None}
    assert captured(expr, "stop") == {"kind": "stop", "f": None, "t": None}


@pytest.mark.parametrize(
    ("expr", "text", "expected"),
    [
        (seq(gen("x", regex="a*"), gen("y", regex="a*")), "aaa", {"x": "aaa", "y": ""}),
        (seq(gen("x", regex="a*?"), gen("y", regex="a*")), "aaa", {"x": "", "y": "aaa"}),
        (seq(gen("x", regex="a|ab"), gen("y", regex="b?")), "ab", {"x": "a", "y": "b"}),
        (seq(gen("x"), ".", gen("y", stop=".")), "a.b.c", {"x": "a.b", "y": "c"}),
        (seq(optional(gen("x", regex="a")), gen("y", regex="a*")), "aa", {"x": "a", "y": "a"}),
        (seq(one_or_more(gen("x", regex="a|aa")), gen("y", regex="a?")), "aaa", {"x": ["a", "a", "a"], "y": ""}),
    ],
)  # fmt: skip
def test_the_documented_order_decides_between_readings(expr: Any, text: str, expected: dict[str, Any]) -> None:
    assert captured(expr, text) == expected


def test_hostile_patterns_and_texts_are_read_in_bounded_time() -> None:
    expr = seq(gen("x", regex="(?:(?:a|aa)+)+"), gen("y", regex="(?:a*)*b"))
    assert captured(expr, "a" * 3000 + "b") == {"x": "a" * 3000, "y": "b"}
    assert captured(expr, "a" * 3000 + "c") is None


@pytest.mark.parametrize(
    "stops", [["a"], ["a", "b"], ["ab"], ["aa"], ["aaa"], ["abc"], ["abb"], ["ab", "c"], ["aa", "b"]]
)
def test_a_text_goes_up_to_its_first_stop(stops: list[str]) -> None:
    expr = seq("^", gen("x", stop=stops), rx("(?s:.*)"), gen("end", choices=["$"]))
    grammar = compile_constraint(Grammar(compiled(seq(gen("x", stop=stops), "$")).grammar, "gbnf"), VOCABULARY)
    for length in range(7):
        for letters in itertools.product("abcd", repeat=length):
            text = "".join(letters)
            ends = [(text + stop).find(stop) == len(text) for stop in stops]
            matcher = grammar.matcher()
            accepted = all(matcher.accept(byte) for byte in f"{text}$".encode()) and matcher.is_accepting()
            expected = all(ends) if length else True
            assert accepted == expected, (text, stops)
    assert captured(expr, f"^d{stops[0]}d$") is not None
