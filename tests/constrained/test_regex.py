"""Patterns mean what the standard library's `re` says, in both directions, or are refused where they go wrong."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ramify.constrained import GrammarError, Regex, compile_constraint

from .walks import VOCABULARY, accepts, compiled_or_none, sample

ESCAPES = [r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", r"\.", r"\n", r"\x41", r"\u00e9", r"\\", r"\-"]
CLASSES = ["[abc]", "[^a]", "[a-c]", "[a-cé]", r"[\d_]", r"[^\w]", "[]a]", "[a-]", r"[\]\\^]", "[^\n]", "[東-鿿]"]
ATOMS = st.sampled_from([*"abc.é東🙂-{", "a{", *ESCAPES, *CLASSES])
QUANTIFIERS = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "*?", "+?", "??", "{1,2}?", "{0}"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        inner.map(lambda part: f"({part})"),
        st.tuples(inner, QUANTIFIERS).map(lambda pair: f"(?P<g{abs(hash(pair)) % 10**9}>{pair[0]}){pair[1]}"),
        st.tuples(st.sampled_from(["^", r"\A", ""]), inner, st.sampled_from([r"\Z", ""])).map("".join),
    ),
    max_leaves=6,
)
TEXTS = st.text(st.sampled_from("aabbcA_1 .-\n\\é東🙂{]^") | st.characters(exclude_categories=["Cs"]), max_size=6)


@given(pattern=PATTERNS, texts=st.lists(TEXTS, min_size=3, max_size=8), seed=st.integers(0, 2**32))
@example(pattern="a|ab", texts=["a", "ab", "abb"], seed=0)
@example(pattern="(?:a|^)(?:b|c)*", texts=["b", "ab", "", "aa"], seed=0)
def test_a_text_matches_when_re_says_so(pattern: str, texts: list[str], seed: int) -> None:
    try:
        judge = re.compile(pattern, re.ASCII)
    except re.error:
        assume(False)
    grammar = compiled_or_none(Regex(pattern), VOCABULARY)
    if grammar is None:
        assert not any(judge.fullmatch(text) for text in texts)
        return
    for text in texts:
        assert accepts(grammar, text.encode()) == bool(judge.fullmatch(text)), text
    output = sample(grammar, random.Random(seed)).decode()
    assert judge.fullmatch(output)


@pytest.mark.parametrize(
    ("pattern", "position", "reason"),
    [
        ("ab(?=c)", 2, "look-around"),
        ("(?<!a)b", 0, "look-around"),
        (r"(a)\1", 3, r"\1"),
        (r"a\bb", 1, r"\b"),
        (r"\p{L}", 0, r"\p"),
        ("(?i)a", 0, "group"),
        ("a)", 1, "closes nothing"),
        ("a(b", 1, "never closed"),
        ("[ab", 0, "never closed"),
        ("[b-a]", 1, "wrong way round"),
        (r"[\d-z]", 1, "range between"),
        ("a{3,2}", 0, "wrong way round"),
        ("*a", 0, "repeat of nothing"),
        ("a**", 2, "repeat of a repeat"),
        ("a++", 2, "possessive"),
        ("^*", 0, "anchor"),
        ("a\\", 1, "escapes nothing"),
        (r"\x4", 0, "code point"),
        ("(" * 70 + ")" * 70, 60, "nested"),
    ],
)
def test_what_is_not_supported_is_refused_with_a_caret(pattern: str, position: int, reason: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_constraint(Regex(pattern), VOCABULARY)
    assert caught.value.position == position
    assert reason in str(caught.value)
    _, shown, caret = str(caught.value).split("\n")
    assert shown[caret.index("^") :][:1] == pattern[position]


@pytest.mark.parametrize(
    "pattern", ["(a|b)*a(a|b){24}", "((a{1,999}){1,999}){1,999}", "(a{1,100}){1,100}", "a{9999999}"]
)
def test_a_hostile_pattern_ends_in_an_error(pattern: str) -> None:
    with pytest.raises(GrammarError, match="too complex"):
        compile_constraint(Regex(pattern), VOCABULARY)


@pytest.mark.parametrize("pattern", ["(x+x+)+y", "(((a*)*)*)*b", "(a|aa)+$", "(x|" * 40 + "y" + ")" * 40])
def test_what_is_slow_for_others_is_a_small_automaton(pattern: str) -> None:
    assert compile_constraint(Regex(pattern), VOCABULARY).dfa.num_states < 10


def test_a_pattern_that_nothing_matches_is_refused() -> None:
    for pattern in ("a^b", "a$b", "[^\\s\\S]"):
        with pytest.raises(GrammarError, match="no text at all"):
            compile_constraint(Regex(pattern), VOCABULARY)
