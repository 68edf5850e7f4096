"""Hypothesis strategies of schemas that several tests share, and settings of tests with many examples."""

from __future__ import annotations

import os
import random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

SEEDS = st.integers(0, 2**32)


def many(max_examples: int) -> settings:
    """Return settings of a test that takes this number of examples, the same in each run, however slow they are.

    HYPOTHESIS_PROFILE=explore takes ten times as many, and others in each run.
    """
    explores = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
    return settings(
        deadline=None,
        derandomize=not explores,
        max_examples=max_examples * (10 if explores else 1),
        suppress_health_check=list(HealthCheck),
    )


def some(keywords: dict[str, st.SearchStrategy[Any]], least: int, most: int) -> st.SearchStrategy[dict[str, Any]]:
    """Return schemas with some of these keywords."""
    names = st.lists(st.sampled_from(sorted(keywords)), min_size=least, max_size=most, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: keywords[name] for name in chosen}))


def combined(leaves: st.SearchStrategy[Any], max_leaves: int) -> st.SearchStrategy[Any]:
    """Return schemas that combine leaves by `not`, `allOf`, `anyOf`, `oneOf`, and `if`; also beside other keywords."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            inner.map(lambda part: {"not": part}),
            st.tuples(st.sampled_from(["allOf", "anyOf", "oneOf"]), st.lists(inner, min_size=2, max_size=3)).map(
                lambda pair: {pair[0]: pair[1]}
            ),
            st.tuples(inner, inner, inner).map(lambda p: dict(zip(("if", "then", "else"), p, strict=True))),
            st.tuples(leaves, inner).map(lambda p: {**p[0], "allOf": [p[1]]} if isinstance(p[0], dict) else p[1]),
        ),
        max_leaves=max_leaves,
    )


def shuffled(value: Any, rng: random.Random) -> Any:
    """Return an equal value whose objects have their members in any order."""
    if isinstance(value, list):
        return [shuffled(inner, rng) for inner in value]
    if isinstance(value, dict):
        names = rng.sample(list(value), len(value))
        return {name: shuffled(value[name], rng) for name in names}
    return value
