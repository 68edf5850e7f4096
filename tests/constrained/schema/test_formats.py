"""Formats accept what their RFCs allow.

Judges are `jsonschema`'s format checker, the standard library, `idna`, and examples from the RFCs.
"""

from __future__ import annotations

import calendar
import datetime
import ipaddress
import json
import random
import re
import warnings
from pathlib import Path
from typing import Any

import idna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import FormatChecker

import ramiform
from ramiform.constrained import JsonSchema, compile_constraint
from ramiform.constrained.budget import MAX_STATES, CachedPiece, CompileBudget
from ramiform.constrained.compile import warm_up
from ramiform.constrained.errors import GrammarError
from ramiform.constrained.regex.byte_dfa import byte_dfa
from ramiform.constrained.regex.char_dfa import CharDfa
from ramiform.constrained.regex.dfa import START
from ramiform.constrained.regex.subset import char_dfa
from ramiform.constrained.regex.syntax.parser import parse_regex
from ramiform.constrained.regex.word_boundaries import _BoundaryDeterminiser
from ramiform.constrained.schema.strings.formats import PATTERNS, possible_expression
from ramiform.constrained.schema.strings.string_dfas import (
    MAX_DEFERRED,
    format_chars,
    pattern_chars,
    string_content_dfa,
)
from ramiform.constrained.schema.strings.string_parts import _intersection
from ramiform.constrained.schema.strings.string_states import part_block
from ramiform.tests.constrained.walks import byte_vocabulary

JUDGED = sorted(set(PATTERNS) & set(FormatChecker.checkers) - {"time"})  # the time of draft 3 has no offset


def of(name: str) -> CharDfa:
    found = format_chars(name)
    assert found is not None
    return found


def sampled(chars: CharDfa, rng: random.Random) -> str:
    """Draw a text of the automaton: a random walk that after a while takes the shortest way to the end."""
    state, text = START, ""
    limit = rng.choice([3, 10, 30, 80])
    while not (chars.accepting[state] and (len(text) >= limit or rng.random() < 0.1)):
        ways = [(label, int(target)) for label, target in enumerate(chars.table[state]) if target]
        if not ways:
            break
        label, after = rng.choice(ways)
        if len(text) > limit:
            tail = CharDfa(chars.alphabet, chars.table, chars.accepting)
            label, after = min(ways, key=lambda way: (_distance(tail, way[1]), rng.random()))
        low, high = rng.choice(chars.alphabet.members(label))
        text += chr(rng.randint(low, min(high, low + 40)))
        state = after
    return text


def _distance(chars: CharDfa, state: int) -> int:
    seen, frontier, steps = {state}, {state}, 0
    while not any(chars.accepting[s] for s in frontier):
        frontier = {int(t) for s in frontier for t in chars.table[s] if t} - seen
        seen |= frontier
        steps += 1
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("name", JUDGED)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_accepted_texts_are_valid_to_jsonschema(name: str, seed: int) -> None:
    text = sampled(of(name), random.Random(seed))
    assert of(name).accepts(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of re, about doubled punctuation
        assert FormatChecker().conforms(text, name), text


@given(year=st.integers(0, 9999), month=st.integers(0, 13), day=st.integers(0, 32))
def test_dates_are_those_of_the_calendar(year: int, month: int, day: int) -> None:
    exists = year > 0 and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]
    text = f"{year:04}-{month:02}-{day:02}"
    assert of("date").accepts(text) == exists
    assert of("date-time").accepts(f"{text}T00:00:00Z") == exists


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("time", "08:30:06.{}Z"),
        ("date-time", "1999-12-31T08:30:06.{}+01:00"),
        ("duration", "P{}Y"),
        ("duration", "PT1H{}M"),
    ],
)
def test_digits_of_times_and_durations_do_not_run_on(name: str, text: str) -> None:
    assert of(name).accepts(text.format("123456789012"))
    assert not of(name).accepts(text.format("1234567890123"))


@pytest.mark.parametrize("name", ["date", "time", "date-time", "duration"])
def test_no_text_of_a_moment_or_duration_is_endless(name: str) -> None:
    table = of(name).table
    # The longest path of an automaton without a cycle is shorter than its number of states.
    longest = [0] * len(table)
    for _ in range(len(table)):
        longest = [max((1 + longest[target] for target in row if target), default=0) for row in table.tolist()]
    assert longest[START] <= 100


@given(
    moment=st.datetimes(
        timezones=st.just(datetime.UTC)
        | st.integers(-1439, 1439).map(lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes)))
    )
)
def test_every_datetime_is_accepted(moment: datetime.datetime) -> None:
    assert of("date-time").accepts(moment.isoformat())


@given(address=st.ip_addresses())
def test_every_ip_address_is_accepted(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    name = f"ipv{address.version}"
    assert of(name).accepts(str(address))
    assert of(name).accepts(address.exploded)


@pytest.mark.slow
@given(
    text=st.text("01259abcf:.", max_size=14) | st.lists(st.sampled_from(["1", "ab", "", "", "1.2.3.4"])).map(":".join)
)
def test_ip_addresses_agree_with_the_standard_library(text: str) -> None:
    for name, kind in (("ipv4", ipaddress.IPv4Address), ("ipv6", ipaddress.IPv6Address)):
        try:
            kind(text)
        except ValueError:
            assert not of(name).accepts(text)
        else:
            assert of(name).accepts(text)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_an_international_hostname_can_be_encoded(seed: int) -> None:
    text = sampled(of("idn-hostname"), random.Random(seed))
    assert len(idna.encode(text)) <= 253


@pytest.mark.parametrize(
    "pattern", [".*", "^[a-z]+$", r"^(foo|bar)\d{2,}$", "[A-Za-z0-9_-]+", "(?:a|(bc)*?)+?x", "é{3}"]
)
def test_common_patterns_are_of_the_format_regex(pattern: str) -> None:
    assert of("regex").accepts(pattern)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=st.text("ab0[]()-^$|*+?{},\\d.", max_size=8))
def test_a_regex_that_is_accepted_compiles(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        if of("regex").accepts(text):
            re.compile(text)


REGEX_PARTS = st.recursive(
    st.sampled_from([*"ab0é.", r"\d", r"\]", r"\x41", r"\u00e9", r"\b", "^", "$", "'", '"', "<", " "])
    | st.sampled_from(
        ["[a-z]", "[^\"']", r"[^\]]", r"[\w-]", "[ -~]", "[A-z]", "[+-]", "[b-a]", "[", "]", "a{", "[]", ")"]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, max_size=3).map("|".join),
        st.tuples(st.sampled_from(["(", "(?:", "(?=", "(?!", "(?<=", "(?"]), inner).map(
            lambda pair: f"{pair[0]}{pair[1]})"
        ),
        st.tuples(
            inner,
            st.sampled_from(["*", "+?", "??", "{2}", "{2,}", "{2,5}", "{5,2}", "{12,15}", "{12,9}", "{7,100}", "**"]),
        ).map("".join),
    ),
    max_leaves=5,
)


@pytest.mark.exhaustive
@settings(max_examples=400, deadline=None)
@given(text=REGEX_PARTS)
def test_a_text_of_the_format_regex_is_a_pattern_of_both_languages(text: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            re.compile(text)
        parse_regex(text, "ecma")
        valid = True
    except (re.error, GrammarError):
        valid = False
    if of("regex").accepts(text):
        assert valid


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "a{2,5}",
            "[\"']",
            r"[^\]]",
            "((a))",
            "(((a)))",
            "(?:a(b(c)?)*)+",
            "(?=.*a)b",
            "(?!(a))b",
            "((?=a))",
            "(?<=ab)c",
        ),
        *(
            r"\bfoo\B",
            "[ -~]",
            r"[\u4e00-\u9fa5]",
            r"[\x00-\x1F]",
            "[一-龥]",
            "[+-]",
            "[-a]",
            r"[\w.-]",
            "a{0,}",
            "()|^",
        ),
        *(
            "a{12,34}",
            "a{9,10}",
            "a{99,100}",
            r"^[^\s@]+@[^\s@]+\.[a-z]{2,}$",
            r"^(?=.*[A-Z])(?=.*\d).{8,}$",
            "<b>&amp;",
        ),
    ],
)
def test_patterns_of_users_are_of_the_format_regex(pattern: str) -> None:
    re.compile(pattern)
    parse_regex(pattern, "ecma")
    assert of("regex").accepts(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "a{5,2}",
        "a{34,12}",
        "(",
        "a)",
        "(a",
        "[",
        "[a",
        "[]",
        "[^]",
        "[b-a]",
        "a**",
        "*a",
        "a{,3}",
        "{2}",
        "(?=a)*",
        "^*",
        "(?a)",
        r"\a",
        r"\1",
        r"\u12",
        "(?<=a+)b",
        "(?P<n>a)",
        "x*+",
        "(?>a)",
        "a|*",
        "]",
        "}",
    ],
)
def test_what_is_no_pattern_is_not_of_the_format_regex(pattern: str) -> None:
    assert not of("regex").accepts(pattern)


EXAMPLES = {
    "date": (
        ["2024-02-29", "2000-02-29", "1999-12-31"],
        ["1900-02-29", "2023-02-29", "2024-04-31", "0000-01-01", "24-1-1"],
    ),
    "time": (["08:30:06Z", "08:30:06.283185z", "23:59:59+23:59"], ["24:00:00Z", "08:30:06", "23:59:60Z", "8:30:06Z"]),
    "date-time": (["1963-06-19t08:30:06.28z", "1990-12-31T15:59:59-08:00"], ["1963-06-19 08:30:06Z", "06/19/1963"]),
    "duration": (
        ["P4DT12H30M5S", "PT36H", "P1DT12H", "P2W", "P4Y", "PT0S", "P1Y2M3DT4H5M6S"],
        ["P", "PT", "P1", "PT1D", "P1D2H", "P2D1Y", "P2S", "P1Y2W", "4D", "P1YT", "P0.5D"],
    ),
    "email": (
        [
            "joe.bloggs@example.com",
            "te~st@example.com",
            '"joe..bloggs"@example.com',
            "a@[127.0.0.1]",
            "a@[IPv6:::1]",
            "a@b",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa@b.c",
        ],
        [
            "2962",
            ".a@b.c",
            "a.@b.c",
            "a..b@c.d",
            "a@-b.c",
            "a@b..c",
            "a b@c",
            "a@[127.0.0.300]",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa@b.c",
            '"a"b@c',
        ],
    ),
    "idn-email": (["실례@실례.테스트", "joe@example.com"], ["2962", "実例.@x"]),
    "hostname": (
        [
            "www.example.com",
            "a",
            "a-b.c",
            "1a",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "a.b.c.d.e.f.g",
        ],
        [
            "-a.b",
            "a-",
            "a_b",
            "a..b",
            ".a",
            "a.",
            "",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "xn--x",
            "ab--c",
            "a b",
        ],
    ),
    "idn-hostname": (
        ["실례.테스트", "bücher.example", "www.example.com"],
        ["〮실례", "-é", "é-", "bücher..de", "שלום1a"],
    ),
    "ipv4": (["192.168.0.1", "0.0.0.0"], ["127.0.0", "256.1.1.1", "01.1.1.1", "1.1.1.1.1", "0x7f000001"]),
    "ipv6": (
        ["::", "::1", "1::", "::ffff:192.168.0.1", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "fe80::a"],
        ["12345::", "1::2::3", ":2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8:9", "fe80::a%eth1", "::1/64", "1:2", ":::"],
    ),
    "uri": (
        [
            "http://foo.bar/?baz=qux#quux",
            "urn:oasis:names",
            "mailto:J.D@example.com",
            "http://[2001:db8::7]/c=GB?one",
            "tel:+1-816",
            "http://user:p%20w@h:80/",
            "file:///etc",
            "http://-.~_!$&'()*+,;=:%40:80%2f::::::@example.com",
            "a:",
        ],
        [
            "//foo.bar/",
            "/abc",
            "abc",
            "http:// x",
            ":// x",
            "bar,baz:foo",
            "http://a b",
            "\\\\W\\f",
            "http://[::1",
            "h:%2",
            "h:é",
            "http://a[b",
            "1a:b",
        ],
    ),
    "uri-reference": (
        ["//foo.bar/?baz#q", "/abc", "abc", "", "#frag", "a/b:c", "../x", "http://a"],
        ["\\\\WINDOWS\\f", "#a\\b", ":a", "1:b"],
    ),
    "iri": (
        ["http://ƒøø.ßår/?∂éœ=πîx#πîüx", "http://[2001::7]", "a:\U00050000\U000efffd", "a:?\U00100000"],
        ["/abc", "bar,baz:é", "a:\U00100000", "a:\U000e0fff", "a:\U0005fffe"],
    ),
    "iri-reference": (["//ƒøø.ßår/", "#ƒrägmênt", "âππ"], ["\\\\WINDOWS\\", "#ƒ\\"]),
    "uuid": (
        ["2EB8AA08-aa98-11EA-B4AA-73B441D16380", "00000000-0000-0000-0000-000000000000"],
        [
            "2eb8aa08-aa98-11ea-b4aa-73b441d1638",
            "2eb8aa08aa9811eab4aa73b441d16380",
            "2eb8-aa08-aa98-11ea-b4aa73b44-1d16380",
        ],
    ),
    "uri-template": (
        ["http://example.com/d/{term:1}/{term}", "{?x,y*}", "", "{+a.b}", "é"],
        ["{term:1", "}", "{}", "{a:0}", "{=a}"],
    ),
    "json-pointer": (["", "/", "/foo/0", "/a~1b", "/m~0n", "/é", "/ "], ["a", "/~", "/~2", "#/a", "/foo/bar~"]),
    "relative-json-pointer": (
        ["1", "0/foo/bar", "2/0/baz", "0#", "120/a"],
        ["/foo", "-1/a", "0##", "01/a", "", "+1/a"],
    ),
    "regex": (["([abc])+\\s+$", "a|b"], ["^(abc]", "a**", "(", "[b-a]", "\\", "*"]),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_the_examples_of_the_rfcs(name: str) -> None:
    accepted, refused = EXAMPLES[name]
    dfa = byte_dfa(of(name), "json_string")
    assert [text for text in accepted if not of(name).accepts(text)] == []
    assert [text for text in refused if of(name).accepts(text)] == []
    assert [text for text in accepted if not dfa.accepts(json.dumps(text)[1:-1].encode())] == []
    assert [text for text in refused if dfa.accepts(json.dumps(text)[1:-1].encode())] == []


def formats_in(documentation: str, opening: str) -> set[str]:
    """Return the names in backquotes between an opening text and the next full stop that ends a sentence or bracket."""
    [listed] = re.findall(re.escape(opening) + r"(.*?)(?:\.\s|\))", documentation, re.DOTALL)
    return set(re.findall("`([^`]+)`", listed))


def test_the_documentation_lists_what_is_enforced_what_is_not_and_what_is_known_in_part() -> None:
    documentation = (Path(ramiform.__file__).parent / "docs/use/constrained.md").read_text(encoding="utf-8")
    assert formats_in(documentation, "Formats that are enforced:") == set(PATTERNS)
    annotations = formats_in(documentation, "Formats that are annotations only:")
    assert set(FormatChecker.checkers) - set(PATTERNS) <= annotations
    assert [name for name in annotations if format_chars(name) is not None] == []
    assert formats_in(documentation, "Some formats are known in part only (") == {
        name for name in PATTERNS if possible_expression(name) is not None
    }


@pytest.mark.slow
def test_a_format_alone_and_with_a_pattern_is_made_before_the_first_mask() -> None:
    """Masks find the automata that compiling made: none of their pieces is made later."""
    alone: tuple[CachedPiece[..., Any], ...] = (format_chars, string_content_dfa, part_block)
    joined: tuple[CachedPiece[..., Any], ...] = (format_chars, pattern_chars, _intersection)
    for more, pieces in (({}, alone), ({"pattern": "^[(].*[)]$"}, joined)):
        for piece in pieces:
            piece.cache_clear()
        schema = {"type": "object", "properties": {"a": {"type": "string", "format": "regex", **more}}}
        matcher = compile_constraint(JsonSchema(schema), byte_vocabulary(), whitespace="compact").matcher()
        before = [piece.num_made for piece in pieces]
        assert all(matcher.accept(byte) for byte in b'{"a":"(')
        assert [piece.num_made for piece in pieces] == before


def test_the_bytes_of_a_small_pattern_are_left_to_its_first_use() -> None:
    warm_up()  # which makes those of the formats
    for pattern, is_small in (("^small[0-9]{3}$", True), ("^(large[a-z]{9}|[0-9]{40}!|[A-Z]{40})[?]$", False)):
        num_before = string_content_dfa.num_made
        schema = {"type": "object", "properties": {"a": {"pattern": pattern}}}
        compile_constraint(JsonSchema(schema), byte_vocabulary())
        assert (string_content_dfa.num_made == num_before) is is_small, pattern


@pytest.mark.parametrize("first", [0x80, 0x800, 0xE000, 0x10000])
@pytest.mark.parametrize("length", [1, 3, 12])
def test_bytes_that_are_left_to_their_first_use_need_few_states(first: int, length: int) -> None:
    """Characters far apart take the most states: they share no first bytes."""
    chars = pattern_chars("^" + "".join(f"[{chr(first + 61 * n)}{chr(first + 997 * n)}]" for n in range(length)) + "$")
    size = chars.num_states * len(chars.alphabet.starts)
    assert string_content_dfa(chars).num_states <= size * MAX_STATES // MAX_DEFERRED // 10


def test_word_boundaries_work_out_each_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes of characters that every look-behind judges alike share their steps, here of (aa|bb|...|tt) thrice."""
    united = _BoundaryDeterminiser._united
    calls = []
    monkeypatch.setattr(_BoundaryDeterminiser, "_united", lambda self, found: calls.append(0) or united(self, found))
    words = "|".join(2 * letter for letter in "abcdefghijklmnopqrst")
    chars = char_dfa(parse_regex(rf"(?:(?:{words})\b[ ]){{3}}", "ecma"), CompileBudget())
    assert chars.accepts("aa bb tt ")
    assert not chars.accepts("aa bbtt ")
    assert len(calls) < 4 * chars.num_states
