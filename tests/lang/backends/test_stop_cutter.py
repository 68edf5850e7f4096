"""Judge: a search in the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.lang.backends.stop_cutter import StopCutter


@pytest.mark.slow
@given(
    st.lists(st.text("abé", min_size=1, max_size=4), max_size=4, unique=True),
    st.lists(st.text("abé🙂\ud800", max_size=4), max_size=12),
)
def test_the_text_ends_before_the_first_stop_however_it_is_cut(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    matches = [(end, -len(stop), stop) for stop in stops for end in range(len(text) + 1) if text[:end].endswith(stop)]
    cutter = StopCutter(stops)
    given_out = ""
    for piece in pieces:
        given_out += cutter.take(piece)
        assert text.startswith(given_out)
    given_out += cutter.end()
    if not matches:
        assert (given_out, cutter.found) == (text, None)
        return
    end, length, stop = min(matches)
    assert (given_out, cutter.found) == (text[: end + length], stop)


def test_white_space_at_the_beginning_is_left_out() -> None:
    cutter = StopCutter(["x"], skips_space=True)
    assert [cutter.take(piece) for piece in (" ", "\n a", " b", "x c")] == ["", "a", " b", ""]
    assert cutter.found == "x"
