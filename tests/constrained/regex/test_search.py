"""Streaming search, compared with `re.fullmatch` of every part of the whole text.

Classes such as `\\w` are ASCII, as in constraints.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.constrained import GrammarError, Match, search

ATOMS = st.sampled_from(
    [*"abcé東", "[ab]", "[^a]", ".", "ab", "(?:a|bc)", "(?:aa|b.)", r"\w", r"\n", "(?s:.)", "(?i:B)"]
)
QUANTIFIERS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "*?", "+?"])
BRANCHES = st.lists(st.tuples(ATOMS, QUANTIFIERS).map("".join), min_size=1, max_size=4).map("".join)
PATTERNS = st.lists(BRANCHES, min_size=1, max_size=2).map("|".join).filter(lambda text: not re.fullmatch(text, ""))
PIECES = st.lists(
    st.text("abcé東\n", max_size=4).map(str.encode)
    | st.sampled_from([b"\xc3", b"\xa9", b"\xe6\x9d", b"\xb1a", b"\xff"]),
    max_size=10,
)


def matches_of(patterns: list[str], text: bytes, first: int) -> list[tuple[int, int]]:
    """Return (end, start) of all matches that lie in `text` from `first` on."""
    found = []
    for start in range(first, len(text)):
        for end in range(start + 1, len(text) + 1):
            try:
                part = text[start:end].decode()
            except UnicodeDecodeError:
                continue
            if any(re.fullmatch(pattern, part, re.ASCII) for pattern in patterns):
                found.append((end, start))
    return sorted(found)


@pytest.mark.exhaustive
@settings(max_examples=200, deadline=None, derandomize=True)
@given(patterns=st.lists(PATTERNS, min_size=1, max_size=3), pieces=PIECES, data=st.data())
def test_the_first_match_is_found_in_the_chunk_in_which_it_ends(
    patterns: list[str], pieces: list[bytes], data: st.DataObject
) -> None:
    scan = search(tuple(patterns)).scan()
    text = b""
    begin = 0  # after the last interruption
    for piece in pieces:
        if data.draw(st.integers(0, 9)) == 0:
            scan.reset()
            begin = len(text)
        before, text = len(text), text + piece
        # A match that ended in an earlier piece does not count, but may go on.
        matches = [match for match in matches_of(patterns, text, begin) if match[0] > before]
        expected = None
        if matches:
            end, start = matches[0]
            expected = Match(end - before, start - before, text[start:end])
        assert scan.find(piece) == expected
        assert scan.feed(piece) == expected


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(patterns=st.lists(PATTERNS, min_size=1, max_size=2), pieces=PIECES, rest=st.text("abcé東\n", max_size=4))
def test_bytes_that_are_not_pending_belong_to_no_later_match(
    patterns: list[str], pieces: list[bytes], rest: str
) -> None:
    scan = search(tuple(patterns)).scan()
    for piece in pieces:
        scan.feed(piece)
    text = b"".join(pieces)
    for end, start in matches_of(patterns, text + rest.encode(), 0):
        if end > len(text):
            assert start >= len(text) - scan.num_pending


def test_text_that_can_begin_no_match_is_not_pending() -> None:
    scan = search(("END[0-9]+x",)).scan()
    scan.feed(b"an END12")
    assert scan.num_pending == len(b"END12")
    scan.feed(b" or so. ")
    assert scan.num_pending == 0


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a*", "empty text"),
        ("(b|c?)*", "empty text"),
        ("^a", "anchor"),
        ("(x|a$)b", "anchor"),
        (r"a(\b|c)d", "anchor"),
        ("(?<=a)b", "anchor"),
        (r"(a)\1", "position 3"),
        ("a(b", "position 1"),
        (r"[^\s\S]", "matches no text"),
    ],
)
def test_a_pattern_without_meaning_in_a_stream_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        search(("fine", pattern))
    assert repr(pattern) in str(caught.value)


@pytest.mark.parametrize(
    "pattern",
    [
        "a{1000000}",
        "(a|b)*a(a|b){30}",
        "((a{0,60}){0,60}){0,60}b",
        "(a?){2000}a{2000}",
        "(?s).*a.{12}b",
        r"(?u)(\w|\p{Lu}.){1,300}",
        "(x+x+)+y" * 500,
    ],
    ids=["long", "subsets", "nested", "optional", "dots", "letters", "many"],
)
def test_a_hostile_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="too complex"):
        search((pattern,))


def test_patterns_share_one_limit_of_states() -> None:
    search(("[a-z]{1,600}X",))
    with pytest.raises(GrammarError, match="patterns need more than 1000 states"):
        search(("[a-z]{1,600}X", "[a-z]{1,600}Y"))


def test_a_pattern_that_backtracks_exponentially_in_re_is_found_at_once() -> None:
    text = b"x" * 20_000
    scan = search(("(x+x+)+y",)).scan()
    assert scan.feed(text) is None
    assert scan.feed(b"y") == Match(1, -20_000, text + b"y")
