"""Products of automata, and live states, compared with naive constructions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from ramiform.constrained.budget import CompileBudget
from ramiform.constrained.errors import GrammarError
from ramiform.constrained.regex import dfa_kernel
from ramiform.constrained.regex.dfa import Dfa, trimmed_dfa
from ramiform.constrained.regex.pair_product import Lives, intersect, pair_product
from ramiform.constrained.schema.strings.string_parts import MAX_TEXTS, StringPart, has_many_texts

Table = NDArray[np.int32]  # [S, C]


@st.composite
def tables(draw: st.DrawFn, num_classes: int) -> Table:
    """Draw the table of an automaton whose state 0 is dead."""
    size = draw(st.integers(2, 9))
    table = draw(arrays(np.int32, (size, num_classes), elements=st.integers(0, size - 1)))
    table[0] = 0
    return table


def naive_product(a: Table, b: Table, lives: Lives) -> dict[tuple[int, int], list[tuple[int, int] | None]]:
    """Return the successors of each reachable pair."""
    found: dict[tuple[int, int], list[tuple[int, int] | None]] = {}
    todo = [(1, 1)]
    while todo:
        pair = todo.pop()
        if pair in found:
            continue
        found[pair] = []
        for target in zip(a[pair[0]].tolist(), b[pair[1]].tolist(), strict=True):
            alive = {"both": all(target), "first": target[0] > 0, "either": any(target)}[lives]
            found[pair].append(target if alive else None)
            todo += [target] if alive else []
    return found


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(data=st.data(), lives=st.sampled_from(["both", "first", "either"]))
def test_a_product_has_the_reachable_pairs_and_their_successors(data: st.DataObject, lives: Lives) -> None:
    num_classes = data.draw(st.integers(1, 4))
    a, b = data.draw(tables(num_classes)), data.draw(tables(num_classes))
    table, pairs = pair_product(a, b, lives, lambda _states, _steps: None)
    names: list[tuple[int, int] | None] = [None, *map(tuple, pairs[1:].tolist())]
    assert names[1] == (1, 1)
    assert len(set(names)) == len(names)
    got = {name: [names[target] for target in row] for name, row in zip(names[1:], table[1:].tolist(), strict=True)}
    assert got == naive_product(a, b, lives)


def test_a_product_that_outgrows_its_arrays_is_complete() -> None:
    a = np.array([[0]] + [[1 + state % 97] for state in range(1, 98)], np.int32)
    b = np.array([[0]] + [[1 + state % 101] for state in range(1, 102)], np.int32)
    table, pairs = pair_product(a, b, "both", lambda _states, _steps: None)
    assert len(table) == len(pairs) == 1 + 97 * 101


def test_the_check_can_stop_a_product() -> None:
    chain = np.array([[0]] + [[1 + state % 5003] for state in range(1, 5004)], np.int32)
    other = np.array([[0]] + [[1 + state % 4999] for state in range(1, 5000)], np.int32)

    def check(number: int, steps: int) -> None:
        if number > 20_000:
            raise GrammarError("too many")

    with pytest.raises(GrammarError, match="too many"):
        pair_product(chain, other, "both", check)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_live_states_are_those_that_reach_an_accepting_one(data: st.DataObject) -> None:
    table = data.draw(tables(3))
    ends = data.draw(arrays(np.bool_, len(table)))
    reach = np.eye(len(table), dtype=np.bool_)
    for _ in table:
        reach |= reach[table].any(axis=1)
    assert dfa_kernel.alive(table, ends).tolist() == (reach @ ends).tolist()


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_an_intersection_accepts_what_both_accept_without_a_state_too_many(data: st.DataObject) -> None:
    machines, given_ones = [], []
    for _ in range(2):
        table = data.draw(tables(4))
        ends = data.draw(arrays(np.bool_, len(table)))
        ends[0] = False
        class_of = np.zeros(256, np.uint8)
        class_of[list(b"abc")] = data.draw(st.permutations([1, 2, 3]))
        given_ones.append(Dfa(table, class_of, ends))
        machines.append(trimmed_dfa(table, class_of, ends))
    found = intersect(*machines, CompileBudget())
    for text in map(bytes, product(b"abcd", repeat=5)):
        for last in range(6):
            expected = [machine.accepts(text[:last]) for machine in given_ones]
            assert [machine.accepts(text[:last]) for machine in machines] == expected
            assert found.accepts(text[:last]) == all(expected)
    for machine in (*machines, found):
        assert len(np.unique(machine.table, axis=1).T) == machine.table.shape[1], "classes differ"
        leads_to = np.eye(machine.num_states, dtype=np.bool_)
        for _ in machine.table:
            leads_to |= leads_to[machine.table].any(axis=1)
        assert leads_to[1, 2:].all()
        assert (leads_to[2:] & machine.accepting).any(axis=1).all()


def test_loops_are_compiled_once_for_any_memory_layout() -> None:
    table = np.asfortranarray(np.array([[0, 0], [2, 1], [1, 0]], np.int32))
    pair_product(table, table[:, ::-1], "first", lambda _states, _steps: None)
    assert len(dfa_kernel.extend.signatures) == 1
    assert len(dfa_kernel.enter.signatures) == 1


@pytest.mark.parametrize(("pattern", "many"), [("^[ab]{6}$", False), ("^[ab]{7}$", True), ("^x*$", True)])
def test_more_than_64_texts_are_many(pattern: str, many: bool) -> None:
    assert MAX_TEXTS == 64
    assert has_many_texts(StringPart(patterns=frozenset([pattern]))) is many
