"""Patterns match exactly what `re` matches, or are refused with the position of the error."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Literal

import interegular
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ramiform.constrained.budget import CompileBudget
from ramiform.constrained.errors import GrammarError
from ramiform.constrained.regex.alphabet import alphabet_of
from ramiform.constrained.regex.byte_dfa import byte_dfa
from ramiform.constrained.regex.char_dfa import CharDfa, trimmed_char_dfa
from ramiform.constrained.regex.charset import charset, complement
from ramiform.constrained.regex.subset import char_dfa
from ramiform.constrained.regex.syntax.parser import parse_regex
from ramiform.constrained.schema.strings.string_dfas import pattern_chars, pattern_dfa, regex_dfa

ESCAPES = [r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", r"\.", r"\n", r"\x41", r"\u00e9", r"\\", r"\-"]
CLASSES = ["[abc]", "[^a]", "[a-c]", "[a-cé]", r"[\d_]", r"[^\w]", "[]a]", "[a-]", r"[\]\\^]", "[^\n]", "[東-鿿]"]
ATOMS = st.sampled_from([*"abc.é東🙂-{", "a{", r"\b", *ESCAPES, *CLASSES])
QUANTIFIERS = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "*?", "+?", "??", "{1,2}?", "{0}"])
AHEAD = st.sampled_from(["(?=", "(?!"])
BEHIND = st.sampled_from(
    ["(?<=a)", "(?<!a)", r"(?<=\w)", r"(?<![ab])", "(?<=ab)", "(?<!bb)", "(?<=(?<!a)b)", r"(?<=\bb)"]
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        inner.map(lambda part: f"({part})"),
        st.tuples(inner, QUANTIFIERS).map(lambda pair: f"(?P<g{abs(hash(pair)) % 10**9}>{pair[0]}){pair[1]}"),
        st.tuples(st.sampled_from(["^", r"\A", ""]), inner, st.sampled_from([r"\Z", ""])).map("".join),
        st.tuples(inner, AHEAD, inner, st.sampled_from(["", "", r"\Z"]), inner).map(
            lambda p: f"{p[0]}{p[1]}{p[2]}{p[3]}){p[4]}"
        ),
        st.tuples(inner, BEHIND, inner).map("".join),
    ),
    max_leaves=6,
)
TEXTS = st.text(st.sampled_from("aabbcA_1 .-\n\\é東🙂{]^") | st.characters(exclude_categories=["Cs"]), max_size=6)


@pytest.mark.slow
@given(pattern=PATTERNS, texts=st.lists(TEXTS, min_size=3, max_size=8))
@example(pattern="a|ab", texts=["a", "ab", "abb"])
@example(pattern="(?:a|^)(?:b|c)*", texts=["b", "ab", "", "aa"])
@example(pattern=r"(?:(?=.*b)a|(?!ab)a)*b?", texts=["ab", "aab", "a", "aa", "aaab"])
@example(pattern=r"(?!.*\bb\b).*(?<!a)", texts=["ab b", "ab", "abb", "b", ""])
def test_a_text_matches_exactly_if_re_matches_it(pattern: str, texts: list[str]) -> None:
    try:
        judge = re.compile(pattern, re.ASCII)
    except re.error:
        assume(False)
    found = char_dfa(parse_regex(pattern), CompileBudget())
    utf8, escaped = byte_dfa(found, "utf8"), byte_dfa(found, "json_string")
    for text in texts:
        expected = bool(judge.fullmatch(text))
        assert found.accepts(text) == expected, text
        assert utf8.accepts(text.encode()) == expected, text
        for ascii_only in (True, False):
            assert escaped.accepts(json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode()) == expected, text
    witness = found.witness()
    assert witness is None or judge.fullmatch(witness), witness


@pytest.mark.slow
@given(pattern=PATTERNS, texts=st.lists(TEXTS, min_size=3, max_size=8))
@example(pattern="^(?!a$)", texts=["a", "aa", ""])
def test_a_schemas_pattern_is_searched_for(pattern: str, texts: list[str]) -> None:
    # Where the dialects agree: no \s, \A, \Z, {,n}, []...] nor dot (a carriage return is a line end for ECMA-262 only).
    assume(not re.search(r"\\[sSAZ]|\{,|\[\]|\.|\\B|\^", pattern.replace("^(?!", "")) or pattern.startswith("^(?!a"))
    try:
        judge = re.compile(pattern.replace("?P<", "?P<"), re.ASCII)
    except re.error:
        assume(False)
    found = pattern_dfa(pattern)
    for text in texts:
        if not text.endswith("\n"):  # where Python's $ matches before it
            assert found.accepts(json.dumps(text)[1:-1].encode()) == bool(judge.search(text)), text


@pytest.mark.parametrize(
    ("pattern", "accepted", "refused"),
    [
        (r"^[\w-.]+$", ["a-.", "_"], ["", "a b"]),
        (r"^\cJ\u{1F642}[\b]$", ["\n🙂\b"], ["J🙂b"]),
        (r"^\ud83d\ude42$", ["🙂"], [""]),
        (r"^[^]$", ["\n", "a"], ["", "ab"]),
        (r"^.$", ["\x85", "a"], ["\n", "\r", "\u2028"]),
        (r"^\s$", ["\ufeff", "\xa0", " "], ["a", "\x1c"]),
        (r"a{,2}", ["a{,2}"], ["a", "aa"]),
        (r"^(?<name>x)$", ["x"], ["X"]),
        (r"^(?i)é[a-c]$", ["éA", "ÉB"], ["e"]),
        (r"^(?i:K)k$", ["kk", "Kk", "\u212ak"], ["kK"]),
        (r"^\p{Lu}\P{L}$", ["É1"], ["é1", "Éa"]),
        (r"^\p{Script=Greek}+\p{General_Category=Decimal_Number}$", ["αβ3", "Ω٣"], ["a3"]),
        ("^[\\p{L}\\d]+$", ["é1"], ["-"]),
    ],
)
def test_syntax_of_ecma_262_alone(pattern: str, accepted: list[str], refused: list[str]) -> None:
    # An inline flag stands first: `^(?i)` is a group for neither dialect, so it is moved here.
    found = pattern_chars("(?i)" + pattern.replace("(?i)", "") if "(?i)" in pattern else pattern)
    assert all(found.accepts(text) for text in accepted)
    assert not any(found.accepts(text) for text in refused)


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["i", "s", "m", "u", "iu", "x", "imsxu"])
@pytest.mark.parametrize(
    "pattern", [r"a.b", r"(?m:^)b(?m:$)", r"^b$|\n^a", r"\w+ \d #x", "[a-zé]+", r"(?-i:A)b", "ſ|k"]
)
@settings(max_examples=25, deadline=None)
@given(text=st.text(st.sampled_from("abAB\nKkſsÉé٣ #x0"), max_size=4))
@example(text="a\nb")
@example(text="\u212a")
def test_flags_are_those_of_re(pattern: str, flags: str, text: str) -> None:
    judge = re.compile(f"(?{flags.replace('u', '')}{'' if 'u' in flags else 'a'}){pattern}".replace("(?)", ""))
    # Unlike with re.ASCII, the case of letters beyond ASCII is ignored too.
    judged = text.replace("É", "é") if "i" in flags else text
    expected = bool(judge.fullmatch(judged)) and not ("$" in pattern and text.endswith("\n"))
    assert char_dfa(parse_regex(pattern, flags=flags), CompileBudget()).accepts(text) == expected


@given(text=st.text(max_size=3), category=st.sampled_from(["L", "Lu", "N", "Nd", "P", "S", "Zs", "C", "Cn", "M"]))
def test_a_category_is_that_of_unicodedata(text: str, category: str) -> None:
    found = char_dfa(parse_regex(rf"\p{{{category}}}*"), CompileBudget())
    assert found.accepts(text) == all(unicodedata.category(character).startswith(category) for character in text)


@pytest.mark.slow
@given(a=PATTERNS, b=PATTERNS, texts=st.lists(TEXTS, min_size=3, max_size=8))
def test_languages_form_a_boolean_algebra(a: str, b: str, texts: list[str]) -> None:
    first, second = (char_dfa(parse_regex(pattern), CompileBudget()) for pattern in (a, b))
    both, either = first.intersect(second), first.union(second)
    neither, only = either.complement(), first.minus(second)
    for text in texts:
        in_a, in_b = first.accepts(text), second.accepts(text)
        assert both.accepts(text) == (in_a and in_b)
        assert either.accepts(text) == (in_a or in_b)
        assert neither.accepts(text) == (not in_a and not in_b)
        assert only.accepts(text) == (in_a and not in_b)


SIMPLE = st.recursive(
    st.sampled_from([*"abc", "[ab]", "[^a]", "(?:ab)"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=5,
)


def by_interegular(pattern: str) -> CharDfa:
    """Compile a pattern with interegular, and convert its automaton to a CharDfa."""
    fsm = interegular.parse_pattern(pattern).to_fsm().reduce()
    keys = sorted(fsm.alphabet.by_transition)
    letters = {key: [c for c in fsm.alphabet.by_transition[key] if isinstance(c, str)] for key in keys}
    named = charset((ord(c), ord(c)) for group in letters.values() for c in group)
    others = next((key for key in keys if len(letters[key]) < len(fsm.alphabet.by_transition[key])), None)
    sets = {key: charset((ord(c), ord(c)) for c in letters[key]) for key in keys}
    if others is not None:
        sets[others] = charset((*sets[others], *complement(named)))
    alphabet, classes = alphabet_of(tuple(sets.values()))
    number = {state: position for position, state in enumerate([fsm.initial, *(fsm.states - {fsm.initial})], 1)}
    rows = [[0] * alphabet.num_classes for _ in range(len(number) + 1)]
    for state, moves in fsm.map.items():
        for key, target in moves.items():
            for label in classes[keys.index(key)]:
                rows[number[state]][label] = number[target]
    return trimmed_char_dfa(alphabet, rows, [False, *(state in fsm.finals for state in number)])


@pytest.mark.slow
@settings(deadline=None)
@given(pattern=SIMPLE)
@example(pattern="a{2,4}(?:bc|[x-z0-9]+)*")
@example(pattern=r"(?:\d{1,3}\.){3}\d{1,3}")
@example(pattern="[A-Z]{2}(?:-?[^a-c]){0,3}|é.")
def test_interegular_makes_the_same_language(pattern: str) -> None:
    """A proof, not a sample: both differences of the languages are empty."""
    ours, theirs = char_dfa(parse_regex(pattern), CompileBudget()), by_interegular(pattern)
    assert ours.minus(theirs).witness() is None
    assert theirs.minus(ours).witness() is None


@pytest.mark.parametrize(
    ("pattern", "position", "reason"),
    [
        ("(?<=a$)b", 5, "inside look-behind"),
        (r"(a)\1", 3, r"\1"),
        (r"(?P=a)", 0, "group"),
        (r"\p{Nonsense}", 0, "property"),
        (r"\p{Script=Nonsense}", 0, "property"),
        ("a(?i)b", 1, "group"),
        ("(?>a)", 0, "group"),
        ("(?(1)a)", 0, "group"),
        ("a)", 1, "unmatched )"),
        ("a(b", 1, "never closed"),
        ("[ab", 0, "never closed"),
        ("[b-a]", 1, "first character is after"),
        (r"[\d-z]", 1, "range between"),
        ("a{3,2}", 0, "minimum exceeds"),
        ("*a", 0, "without anything to repeat"),
        ("a**", 2, "directly after a repeat"),
        ("a++", 2, "possessive"),
        ("^*", 0, "anchor"),
        ("(?=a)*", 0, "anchor"),
        ("a\\", 1, "end of the pattern"),
        (r"\x4", 0, "code point"),
        (r"\y", 0, "not supported"),
        ("(" * 70 + ")" * 70, 60, "nested"),
    ],
)
def test_unsupported_syntax_is_refused_with_a_caret(pattern: str, position: int, reason: str) -> None:
    with pytest.raises(GrammarError) as caught:
        regex_dfa(pattern)
    assert caught.value.position == position
    assert reason in str(caught.value)
    _, shown, caret = str(caught.value).split("\n")
    assert shown[caret.index("^") :][:1] == pattern[position]


HOSTILE = ["(a|b)*a(a|b){24}", "((a{1,999}){1,999}){1,999}", "(a{1,100}){1,100}", "a{9999999}", "((a|ab)?){3000}"]
HOSTILE += ["(?:.*a){40}" + "(?=(?:.?a){30}b)" * 12 + ".*", r"(?:(?=.*a.{9})(?=.*b.{8}).)*", r"(.*\b){300}"]
HOSTILE += ["(?:" + "|".join(f".{{{n}}}a.*" for n in range(40)) + ")"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("pattern", HOSTILE)
def test_a_hostile_pattern_ends_in_an_error_or_a_small_automaton(pattern: str) -> None:
    try:
        num_states = char_dfa(parse_regex(pattern), CompileBudget(max_states=20_000, max_steps=60_000_000)).num_states
    except GrammarError as error:
        num_states = 0 if "too complex" in error.reason else 1 << 30
    assert num_states < 20_000


@pytest.mark.parametrize(
    "pattern", [r"^(?:\w*\b)*$", "(x+x+)+y", "(((a*)*)*)*b", "(a|aa)+$", "(x|" * 40 + "y" + ")" * 40]
)
def test_a_pattern_that_backtracks_in_other_engines_is_a_small_automaton(pattern: str) -> None:
    assert regex_dfa(pattern).num_states < 10


def test_a_pattern_that_nothing_matches_is_empty() -> None:
    for pattern in ("a^b", "a$b", "[^\\s\\S]", r"(?=a)b", r"a\bb", "[\ud800]"):
        found: CharDfa = char_dfa(parse_regex(pattern), CompileBudget())
        assert found.is_empty
        assert found.witness() is None
        assert found.num_states == 2


BMP = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x10000)]))
CASED = "".join(c for c in BMP if c.lower() != c or c.upper() != c)


def matched(pattern: str) -> str:
    """Return the characters of the BMP that match a pattern of one character."""
    chars = char_dfa(parse_regex(pattern), CompileBudget())
    return "".join(filter(chars.accepts, BMP))


@pytest.mark.parametrize(
    "letters", ["kKsSiI", "éÉß", "ςσΣ", "ǅ", "İıſ\u212aÅ", "ᾳẞ", "Ꭰꭰ", "ж", "[à-ž]", "[Α-Ω]", "[^Ѐ-ӿ]"]
)
def test_case_is_ignored_as_by_re(letters: str) -> None:
    for part in [letters] if letters.startswith("[") else letters:
        judge = re.compile(f"(?i){part}")
        assert matched(f"(?iu){part}") == "".join(filter(judge.match, BMP))


@pytest.mark.exhaustive
@settings(max_examples=20, deadline=None)
@given(letter=st.sampled_from(CASED))
def test_every_letter_has_the_variants_of_re(letter: str) -> None:
    variants = "".join(re.findall(f"(?i){letter}", BMP))
    assert matched(f"(?iu){letter}") == variants
    # By default a letter of ASCII matches only letters of ASCII, as with re.ASCII, and others match only others.
    assert matched(f"(?i){letter}") == "".join(c for c in variants if c.isascii() == letter.isascii()) or any(
        map(str.isascii, variants)
    )
    if letter.isascii():
        assert matched(f"(?i){letter}") == "".join(re.findall(f"(?ai){letter}", BMP))


SCRIPTS = {
    "Greek": "GREEK",
    "Cyrillic": "CYRILLIC",
    "Han": "CJK UNIFIED IDEOGRAPH",
    "Hebrew": "HEBREW",
    "Latin": "LATIN",
}


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["python", "ecma"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_may_stand_for_itself(script: str, dialect: Literal["python", "ecma"]) -> None:
    found = {
        name: char_dfa(parse_regex(rf"\p{{{name}}}", dialect), CompileBudget())
        for name in (script, f"Script={script}", f"sc={script}")
    }
    letters = [c for c in BMP if unicodedata.category(c) in ("Lu", "Ll", "Lo")]
    for name, chars in found.items():
        for letter in letters:
            begins = unicodedata.name(letter, "")
            if any(f"{prefix} " in f"{begins} " and begins.startswith(prefix) for prefix in SCRIPTS.values()):
                assert chars.accepts(letter) == begins.startswith(SCRIPTS[script]), (name, letter)


@pytest.mark.parametrize("name", ["Klingon", "greek", "Script=Klingon", "IsGreek", "InGreek", "Greek="])
def test_a_property_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(GrammarError, match="without a known property name"):
        parse_regex(rf"\p{{{name}}}")


@pytest.mark.parametrize("pattern", [r"\0", r"\012", r"\07x", r"[\7\101]", r"\101\x42", r"\08", r"\377"])
def test_octal_escapes_are_pythons(pattern: str) -> None:
    dfa = regex_dfa(pattern)
    for text in [*map(chr, range(256)), *(chr(code) + after for code in range(66) for after in "x8B")]:
        assert dfa.accepts(text.encode()) == bool(re.fullmatch(pattern, text)), text


def test_ascii_hex_digits_are_those_of_ecma() -> None:
    dfa = regex_dfa(r"\p{ASCII_Hex_Digit}")
    assert {chr(code) for code in range(128) if dfa.accepts(chr(code).encode())} == set("0123456789abcdefABCDEF")
