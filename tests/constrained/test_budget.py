"""Limits of a compilation: work is counted, and cached results count as if they were made again."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress

import numpy as np
import pytest

from ramiform.constrained import Grammar, GrammarError, JsonSchema, Regex, compile_constraint
from ramiform.constrained import budget as budgets
from ramiform.constrained.budget import EACH_PATTERN, CachedPiece, CompileBudget, cached_piece, compilation
from ramiform.constrained.schema import number_parts
from ramiform.constrained.schema.strings import string_dfas, string_parts
from ramiform.tests.constrained.walks import byte_vocabulary


def forget_all() -> None:
    for module in (number_parts, string_dfas, string_parts):
        for value in vars(module).values():
            if isinstance(value, CachedPiece):
                value.cache_clear()


def steps_of(constraint: Regex | JsonSchema | Grammar, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the steps that a compilation is charged: the least limit at which it is allowed, by bisection."""
    low, high = 0, budgets.COMPILATION_STEPS
    while low < high:
        middle = (low + high) // 2
        with monkeypatch.context() as patch:
            patch.setattr(budgets, "COMPILATION_STEPS", middle)
            try:
                compile_constraint(constraint, byte_vocabulary())
                high = middle
            except GrammarError:
                low = middle + 1
    return low


def test_a_construction_beyond_its_steps_is_refused() -> None:
    budget = CompileBudget(max_steps=100)
    for _ in range(10):
        budget.check(1, 10)
    with pytest.raises(GrammarError, match="too complex: it needs more than 100 steps"):
        budget.check(1, 1)


def test_too_many_states_are_refused_at_once() -> None:
    budget = CompileBudget(max_states=10)
    budget.check(10, 0)
    with pytest.raises(GrammarError, match="more than 10 states"):
        budget.check(11, 0)


@cached_piece(8)
def inner(steps: int) -> int:
    CompileBudget().check(0, steps)
    return steps


@cached_piece(8)
def outer(steps: int) -> int:
    CompileBudget().check(0, 1)
    return inner(steps) + inner(steps) + inner(steps + 1)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(("limit", "allowed"), [(2001, False), (2002, True)])
def test_a_cached_piece_is_charged_once_with_all_that_it_uses(
    warm: bool, limit: int, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner.cache_clear()
    outer.cache_clear()
    if warm:
        outer(1000)
    monkeypatch.setattr(budgets, "COMPILATION_STEPS", limit)
    try:
        with compilation():
            assert outer(1000) == outer(1000) == 3001
            inner(1000)
        assert allowed
    except GrammarError:
        assert not allowed


CONSTRAINTS = [
    Regex(r"(?=.*\d)(?:a|b)*a(?:a|b){6}\b.*"),
    JsonSchema({"type": "string", "pattern": "^[a-z]+@[a-z]{2,9}$", "minLength": 5, "format": "email"}),
    JsonSchema({"oneOf": [{"pattern": "^a.*b$"}, {"pattern": "c{3,9}$"}, {"type": "number", "multipleOf": 0.25}]}),
    JsonSchema(
        {"patternProperties": {"^x-": {"minimum": 3.5, "maximum": 99}, "y$": {"enum": [1, 2]}}, "minProperties": 1}
    ),
]


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_the_charge_does_not_depend_on_the_caches(
    constraint: Regex | JsonSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_constraint(constraint, byte_vocabulary())
    warm = steps_of(constraint, monkeypatch)
    assert warm > 100
    for limit, allowed in ((warm, True), (warm - 1, False)):
        forget_all()
        with monkeypatch.context() as patch:
            patch.setattr(budgets, "COMPILATION_STEPS", limit)
            if allowed:
                compile_constraint(constraint, byte_vocabulary())
            else:
                with pytest.raises(GrammarError, match="steps"):
                    compile_constraint(constraint, byte_vocabulary())


@pytest.mark.exhaustive
def test_many_patterns_share_one_limit() -> None:
    patterns = [{"pattern": f"(?:a|b)*a(?:a|b){{12}}{number}"} for number in range(200)]
    with pytest.raises(GrammarError, match=f"more than {budgets.COMPILATION_STEPS:,} steps"):
        compile_constraint(JsonSchema({"items": {"anyOf": patterns}}), byte_vocabulary())


@pytest.mark.exhaustive
def test_small_patterns_are_charged_though_their_automata_are_left_to_the_first_use() -> None:
    schema = {"$defs": {str(n): {"pattern": f"^{n}$"} for n in range(budgets.COMPILATION_STEPS // EACH_PATTERN + 1)}}
    with pytest.raises(GrammarError, match=f"more than {budgets.COMPILATION_STEPS:,} steps"):
        compile_constraint(JsonSchema(schema), byte_vocabulary())


HOSTILE = [
    Regex("(a|b)*a(a|b){19}"),
    Regex("(?=.*a.{12}b)(?=.*c.{12}d).*"),
    Regex("x(?=.*a.{12}b)(?=.*c.{12}d).*"),
    Regex("(?:(?=.*a.{9})(?=.*b.{8}).)*"),
    Regex("(a{1,100}){1,100}"),
    Regex("".join(rf"(?:[{chr(0x4E00 + 2 * n)}{chr(0x4E00 + 3 * n)}]|\b)" for n in range(4000))),
    JsonSchema({"type": "string", "pattern": "".join(chr(0x4E00 + 2 * n) for n in range(20_000))}),
    Grammar("root ::= " + " ".join(f'"k{n}"' for n in range(15_000)) + ' root2\nroot2 ::= root2 root2 | "x"', "gbnf"),
    Grammar("start: T0\n" + "".join(f"T{n}: T{n + 1} T{n + 1}\n" for n in range(40)) + "T40: /a/", "lark"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("constraint", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_constraint_is_refused_or_small(constraint: Regex | JsonSchema | Grammar) -> None:
    with suppress(GrammarError):
        assert compile_constraint(constraint, byte_vocabulary()).generation.automaton.tables.num_states < 200_000


def test_a_piece_that_was_dropped_is_not_charged_twice() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        CompileBudget().check(1, budgets.COMPILATION_STEPS // 3)
        return number

    piece = cached_piece(maxsize=1)(make)
    with compilation():
        assert [piece(number) for number in (1, 2, 1)] == [1, 2, 1]
    assert made == [1, 2, 1]


def test_results_that_took_many_steps_are_not_kept_in_number() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        CompileBudget().check(1, budgets.MAX_CACHED_STEPS // 2)
        return number

    piece = cached_piece(maxsize=100)(make)
    for number in (1, 2, 3, 3, 2, 1):
        piece(number)
    assert made == [1, 2, 3, 1]


@cached_piece(100)
def zeros(num_bytes: int) -> np.ndarray:
    return np.zeros(num_bytes, np.uint8)


@cached_piece(100)
def pairs(num_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)


def test_results_of_all_functions_share_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_all()
    monkeypatch.setattr(budgets, "MAX_CACHED_BYTES", 1 << 20)
    first = zeros(400_000)
    pairs(100_000)
    assert zeros(400_000) is first
    zeros(500_000)  # more than fits: the pair was used least recently
    assert zeros(400_000) is first
    before = pairs.num_made
    pairs(100_000)
    assert pairs.num_made == before + 1
    assert budgets._kept_bytes.num_bytes <= 1 << 20
    for piece in (zeros, pairs):
        piece.cache_clear()


@pytest.mark.slow
def test_an_automaton_is_freed_with_what_is_known_of_its_states() -> None:
    dfa = string_dfas.regex_dfa("[a-c]{1,3}")
    string_dfas.looping_states(dfa)
    known = weakref.ref(dfa)
    del dfa
    forget_all()
    gc.collect()
    assert known() is None
