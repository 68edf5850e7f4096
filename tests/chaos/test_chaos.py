"""A short walk through chaos. `make chaos` walks for an hour; CONTRIBUTING.md says how to replay what it finds."""

from __future__ import annotations

import msgspec
import pytest

from .run import Figures, Judge, live
from .walk import Ask, Fault, Flags, Life, Step, bodies, make_life

pytestmark = pytest.mark.chaos


def _some(*conducts: str) -> list[Ask]:
    """Make short and long requests, conducted in these ways."""
    some = [bodies()[-1], *bodies()[24:30], bodies()[0]]
    return [
        msgspec.structs.replace(ask, conduct="reads" if ask.route == "program" else conduct)
        for ask, conduct in zip(some, conducts, strict=False)
    ]


SHORT = Life(
    Flags(
        frontends=2, speculative="suffix", num_pages=256, prefill_budget=64, clock=True, log_plans=True, descriptors=128
    ),
    [
        Step(_some("leaves", "reads", "half body", "garbage", "reads"), Fault("stop", "core", 0.1, 0.5)),
        Step(_some("slow", "half head", "reads", "resets"), Fault("clock", "main", 0.1, 86400)),
        Step(_some("aborts", "streams", "half open", "reads", "streams"), Fault("burst", "main", 0.5, 200)),
        Step(_some("streams", "reads", "reads", "reads"), Fault("kill", "template", 0.0)),
        Step(_some("streams", "streams", "reads"), Fault("disk", "core", 0.0)),
        Step(_some("streams", "streams", "streams"), Fault("kill", "core", 0.3)),
    ],
)


@pytest.mark.exhaustive
def test_nothing_is_lost_on_a_short_walk() -> None:
    figures = Figures()
    live(SHORT, Judge(), figures)
    assert figures.steps == len(SHORT.steps)
    assert figures.compared >= 10
    assert figures.tokens > 100


def test_a_life_follows_from_its_seed_and_can_be_kept_as_json() -> None:
    life = make_life(24, 3)
    assert make_life(24, 3) == msgspec.json.decode(msgspec.json.encode(life), type=Life)
    assert life != make_life(24, 4)
