"""Judge: a search in the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.protocol.stop_strings import StopStrings


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
        pending = [num for num in range(len(text) + 1) if _may_begin(text[len(text) - num :], stops)]
        assert found.num_pending == max(num for num in pending if num <= found.num_kept)


def _may_begin(data: bytes, stops: list[str]) -> bool:
    return any(stop.encode().startswith(data) for stop in stops)
