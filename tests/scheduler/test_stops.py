"""Stop strings, patterns and tokens. Judge for stop strings: a search in the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.protocol.core import Finish
from ramiform.runtime.protocol.sampling import Constraint, SamplingParams
from ramiform.runtime.scheduler.stops import StopRules, StopStrings

from .fake_model import EOS, VOCABULARY


@pytest.mark.slow
@given(
    st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=4, unique=True),
    st.lists(
        st.binary(max_size=1) | st.sampled_from([b"a", b"ab", b"ba", b"aba", b"\xc3", b"\xa9a", b"bbbbb"]), max_size=20
    ),
)
def test_a_stop_string_is_found_in_the_piece_in_which_it_ends_however_the_bytes_are_cut(
    stops: list[str], pieces: list[bytes]
) -> None:
    found = StopStrings(stops)
    text = b""
    for piece in pieces:
        before, text = len(text), text + piece
        ends = [
            (end, stop)
            for end in range(before + 1, len(text) + 1)
            for stop in stops
            if text[:end].endswith(stop.encode())
        ]
        first = min((end for end, _ in ends), default=None)
        longest = max((stop for end, stop in ends if end == first), key=lambda stop: len(stop.encode()), default=None)
        match = found.feed(piece)
        assert (match and match.text.decode()) == longest
        assert match is None or match.end == (first or 0) - before


def feed(ids: list[int], **params: object) -> list[Finish | None]:
    rules = StopRules(SamplingParams(**params), VOCABULARY)  # type: ignore[arg-type]
    return [rules.feed(token, n) for n, token in enumerate(ids)]


def test_a_stop_string_may_begin_before_min_new_tokens_but_not_end_there() -> None:
    assert feed([2, 3, 2, 3], stop=("ab",), min_new_tokens=2) == [None, None, None, Finish("stop", "ab")]
    assert feed([2, 3], stop=("ab",), min_new_tokens=1) == [None, Finish("stop", "ab")]


def test_the_stop_that_is_complete_first_ends_the_output_and_of_those_the_longest() -> None:
    assert feed([2, 3], stop=("b",), stop_regex=("a+b",)) == [None, Finish("stop", "ab")]
    assert feed([4], stop=("ab",), stop_regex=("a",)) == [Finish("stop", "a")]
    assert feed([2, 2, 2], stop_regex=("a+",), min_new_tokens=2) == [None, None, Finish("stop", "aaa")]


def test_asking_whether_a_token_would_end_the_output_changes_nothing() -> None:
    rules = StopRules(SamplingParams(stop_regex=("ab+a",)), VOCABULARY)
    for place, token in enumerate([2, 3, 3]):
        assert not rules.would_end(token, place)
        assert rules.would_end(2, place) == (place > 1)
        assert rules.feed(token, place) is None
    assert rules.would_end(2, 3)
    assert rules.feed(2, 3) == Finish("stop", "abba")


def test_a_special_token_parts_a_stop_string_only_where_it_is_shown() -> None:
    assert feed([2, 1, 3], stop=("ab",)) == [None, None, Finish("stop", "ab")]
    assert feed([2, 1, 3], stop=("ab",), skip_special_tokens=False) == [None, None, None]


def test_eos_ends_a_constrained_output_even_where_it_is_ignored() -> None:
    constraint = Constraint("regex", "x")
    assert feed([EOS], ignore_eos=True) == [None]
    assert feed([EOS], ignore_eos=True, constraint=constraint) == [Finish("stop", EOS)]
    assert feed([EOS], min_new_tokens=3, constraint=constraint) == [Finish("stop", EOS)]


def test_before_min_new_tokens_whatever_would_end_the_output_is_avoided() -> None:
    rules = StopRules(SamplingParams(min_new_tokens=2, stop_token_ids=(5,)), VOCABULARY)
    assert rules.suppressed(1) == {EOS, 5}
    assert rules.suppressed(2) == set()
    ignoring = StopRules(SamplingParams(min_new_tokens=2, stop_token_ids=(5,), ignore_eos=True), VOCABULARY)
    assert ignoring.suppressed(1) == {5}
