from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.scheduler.sampling_inputs import token_mask


class SetMatcher:
    """Allows a fixed set."""

    def __init__(self, allowed: set[int]) -> None:
        self.allowed = allowed

    def mask(self, out: np.ndarray) -> None:
        bits = np.zeros(len(out) * 32, np.uint8)
        bits[sorted(self.allowed)] = 1
        out[:] = np.packbits(bits, bitorder="little").view("<i4")

    def accept(self, token: int) -> bool:
        return token in self.allowed

    def rollback(self, num_tokens: int) -> None: ...

    def is_accepting(self) -> bool:
        return False

    def forced(self) -> bytes:
        return b""


def tokens_of(mask: bytes) -> set[int]:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


@given(st.integers(1, 100), st.data())
def test_a_mask_is_what_the_grammar_allows_less_what_is_avoided_unless_nothing_is_left(
    size: int, data: st.DataObject
) -> None:
    token = st.integers(0, size - 1)
    grammar = data.draw(st.none() | st.sets(token, min_size=1))
    avoided = data.draw(st.sets(token))
    mask = token_mask(None if grammar is None else SetMatcher(grammar), avoided, size)
    everything = set(range(size)) if grammar is None else grammar
    if mask is None:
        assert grammar is None
        assert not avoided
    else:
        assert len(mask) == -(-size // 32) * 4
        assert tokens_of(mask) == (everything - avoided or everything)


def test_a_grammar_that_allows_no_token_is_the_clients_error() -> None:
    with pytest.raises(RequestError, match="no token") as caught:
        token_mask(SetMatcher(set()), (), 40)
    assert caught.value.param == "constraint"
