"""Truths that several goals can have of one value: those of the formulas, without a look at each pair."""

from __future__ import annotations

import random

import pytest
from hypothesis import given

from ramiform.constrained.schema.formula import evaluate
from ramiform.constrained.schema.joint_truths import joint_truths
from ramiform.constrained.schema.listed.evaluation import SparseTruths
from ramiform.constrained.schema.strings.string_parts import StringPart
from ramiform.tests.constrained.strategies import SEEDS

from .listed.given_values import MANY, compiler_of


class CountedPart:
    """A part that lists one value, and counts how often it is asked for."""

    asked = 0

    def __init__(self, value: int) -> None:
        self._values = frozenset([value])

    @property
    def values(self) -> frozenset[int]:
        CountedPart.asked += 1
        return self._values


def test_truths_of_listed_values_do_not_look_at_parts_that_list_others() -> None:
    parts = [CountedPart(n % 500) for n in range(1000)]
    truths = SparseTruths[int](parts, lambda part: part.values, lambda *_: None)
    found = [truths.bits(value) for value in range(501)]
    assert found == [(1 << n | 1 << (n + 500)) if n < 500 else 0 for n in range(501)]
    assert CountedPart.asked <= 5 * len(parts)


@pytest.mark.slow
@MANY
@given(seed=SEEDS)
def test_sparse_truths_are_those_of_the_formulas(seed: int) -> None:
    rng = random.Random(seed)
    compiler = compiler_of(True)
    goals = []
    for _ in range(5):
        texts = [{"enum": rng.sample(["a", "b", "ab", "c"], 2)}, {"pattern": "^a"}, {"maxLength": 1}]
        chosen = rng.sample(texts, rng.randint(1, 2))
        goals.append(compiler.goal_of({"type": "string", rng.choice(["allOf", "anyOf", "oneOf"]): chosen}))
    goals = list(dict.fromkeys(goals))
    typed = [compiler.typed(goal, "string") for goal in goals]
    known = joint_truths(compiler, tuple(goals)).known
    for text in ("", "a", "b", "ab", "c", "aa", "zz"):
        truths = tuple(bool(evaluate(formula, lambda part: part.holds(text))) for formula in typed)  # noqa: B023
        assert truths in known, text


@pytest.mark.slow
def test_joint_truths_of_many_texts_have_one_combination_for_each() -> None:
    compiler = compiler_of(True)
    goals = tuple(compiler.goal_of({"const": f"tool_{n}"}) for n in range(1000))
    known = joint_truths(compiler, goals).known
    assert sorted(map(sum, known)) == [0] + [1] * 1000
    assert all(isinstance(compiler.typed(goal, "string"), StringPart) for goal in goals)
