from __future__ import annotations

from collections import Counter

from ramiform.runtime.scheduler.sampling_inputs import random_bits, splitmix64


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
