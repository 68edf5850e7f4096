"""Masks of allowed tokens (judge: sets) and random bits of a position."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.scheduler.rows.sampling_inputs import random_bits, splitmix64, token_mask


class SetMatcher:
    """Allows a fixed set of tokens."""

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


@pytest.mark.slow
@given(st.integers(1, 100), st.data())
def test_a_mask_is_the_grammar_s_less_suppressed_tokens_unless_nothing_is_left(size: int, data: st.DataObject) -> None:
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


def test_splitmix64_gives_its_published_outputs() -> None:
    assert [splitmix64(1234567, n) for n in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_draws_are_64_signed_bits_uniform_over_seeds_and_over_positions() -> None:
    for draws in (
        [random_bits(3, position) for position in range(20_000)],
        [random_bits(seed, 17) for seed in range(-10_000, 10_000)],
        [random_bits(seed, 1000 - seed) for seed in range(20_000)],
    ):
        assert all(-(1 << 63) <= word < 1 << 63 for word in draws)
        counts = Counter((word + (1 << 63)) * 100 >> 64 for word in draws)
        chi_squared = sum((counts[bin] - 200) ** 2 / 200 for bin in range(100))
        assert 50 < chi_squared < 160  # 99 degrees of freedom: outside once in ten thousand


def test_neighbouring_seeds_are_not_each_other_shifted() -> None:
    streams = [{random_bits(seed, position) for position in range(200)} for seed in range(100)]
    assert len(set.union(*streams)) == 100 * 200
