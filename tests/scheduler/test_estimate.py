"""What is expected of outputs. Judge: the mean over those that were observed."""

from __future__ import annotations

import random

from ramify.runtime.scheduler.estimate import MOST_CAREFUL, RECENT, OutputLengths


def test_expectations_approach_the_mean_residual_length_of_what_was_seen() -> None:
    draw = random.Random(1)
    lengths = OutputLengths()
    seen = [draw.randrange(1, 100) for _ in range(3 * RECENT)]
    for length in seen:
        lengths.ended(length)
    recent = seen[-RECENT:]
    for num_tokens in (0, 20, 60):
        longer = [length - num_tokens for length in recent if length > num_tokens]
        mean = sum(longer) / len(longer)
        assert abs(lengths.remaining(num_tokens, 150) - mean) < 0.2 * mean + 150 * 8 / 2 / len(longer)


def test_nobody_is_expected_to_exceed_its_limit() -> None:
    lengths = OutputLengths()
    for _ in range(20):
        lengths.ended(500)
        lengths.retracted()
    assert lengths.remaining(3, 10) == 10
    assert lengths.remaining(3, 0) == 0


def test_retractions_make_it_careful_and_endings_relax_it() -> None:
    lengths = OutputLengths()
    for _ in range(RECENT):
        lengths.ended(10)
    calm = lengths.remaining(0, 1000)
    lengths.retracted()
    careful = lengths.remaining(0, 1000)
    assert calm < careful <= MOST_CAREFUL * calm + 1
    for _ in range(100):
        lengths.ended(10)
    assert lengths.remaining(0, 1000) == calm
