"""Decimals within bounds and multiples, compared with exact arithmetic."""

from __future__ import annotations

import random
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ramiform.constrained.regex.decimal_ranges import CLASS_OF, NumberBound, at_least, at_most, decimal_positions
from ramiform.constrained.regex.dfa import Dfa
from ramiform.constrained.schema.formula import Formula, bits_of, bits_reader, conj, disj, evaluate, neg, one
from ramiform.constrained.schema.number_parts import (
    NumberPart,
    join_numbers,
    number_dfa,
    number_product,
    number_universe,
)

VALUES = (
    st.integers(-1100, 1100).map(Decimal)
    | st.decimals(-20, 20, places=2)
    | st.integers(-(10**30), 10**30).map(Decimal)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr).map(Decimal)
)


def spellings(value: Decimal) -> list[str]:
    plain = format(value.copy_abs(), "f")  # `abs` would round
    sign = "-" if value < 0 else ""
    return [sign + plain, sign + plain + ("0" if "." in plain else ".00")]


@given(bound=VALUES, value=VALUES, strict=st.booleans())
@example(bound=Decimal(0), value=Decimal(0), strict=True)
@example(bound=Decimal("-0.5"), value=Decimal(0), strict=False)
@example(bound=Decimal("1e308"), value=Decimal("1e308"), strict=False)
@example(bound=Decimal("5e-324"), value=Decimal(0), strict=False)
@example(bound=Decimal(10**30 + 1), value=Decimal(10**30), strict=False)
def test_numbers_are_compared_by_value(bound: Decimal, value: Decimal, strict: bool) -> None:
    limit = NumberBound(bound, strict)
    for near in (value, bound, bound + 1, bound - 1, bound * 10, bound / 10):
        for text in spellings(near):
            exact = Decimal(text)
            assert at_least(limit).accepts(text.encode()) == (exact > bound if strict else exact >= bound), text
            assert at_most(limit).accepts(text.encode()) == (exact < bound if strict else exact <= bound), text


@pytest.mark.parametrize("text", ["", "-", ".", "1.", "01", "-01", "00", "1.5.", "--1", "1-", ".5", "1e3", "-.0", "+1"])
@pytest.mark.parametrize("bound", ["0", "-3.25", "17", "0.5"])
def test_only_numbers_are_read(text: str, bound: str) -> None:
    limit = NumberBound(Decimal(bound), False)
    assert not at_least(limit).accepts(text.encode())
    assert not at_most(limit).accepts(text.encode())


def test_states_are_linear_in_the_digits_of_a_bound() -> None:
    assert at_least(NumberBound(Decimal("1.7976931348623157e308"), False)).num_states < 1000
    values = [Decimal(n) for n in range(-3000, 3000, 3)]
    assert len(decimal_positions(values)[0]) < 12 * len(values)


@settings(deadline=None)
@given(values=st.lists(VALUES, min_size=1, max_size=8, unique=True), more=st.lists(VALUES, max_size=4))
@example(values=[Decimal(0)], more=[])
@example(values=list(map(Decimal, ("1", "1.001", "1.05", "1.1", "10"))), more=[Decimal("1.005")])
def test_numbers_are_compared_with_many_values_at_once(values: list[Decimal], more: list[Decimal]) -> None:
    values.sort()
    table, positions = decimal_positions(values)
    dfa = Dfa(table, CLASS_OF, positions >= 0)
    near = [
        number
        for value in values
        for number in (value, value + 1, value - 1, value * 10, value / 10, value.copy_negate())
    ]
    for text in (text for number in (*near, *more) for text in spellings(number)):
        exact = Decimal(text)
        expected = 2 * sum(value < exact for value in values) + (exact in values)
        assert positions[dfa.walk(1, text.encode())] == expected, text
    for text in ("", "-", "1.", "01", "-01", "1..5", "1-"):
        assert not dfa.accepts(text.encode()), text


BOUNDS = st.none() | st.builds(
    NumberBound, st.integers(-12, 12).map(Decimal) | st.decimals(-3, 3, places=1), st.booleans()
)
PARTS = st.builds(
    lambda low, high, integer, steps: join_numbers([NumberPart(integer, False, low, high, frozenset(steps))]),
    BOUNDS,
    BOUNDS,
    st.booleans(),
    st.lists(st.sampled_from(list(map(Decimal, ("2", "3", "0.5", "10")))), max_size=1),
).filter(lambda part: isinstance(part, NumberPart))


@settings(deadline=None)
@given(parts=st.lists(PARTS, min_size=1, max_size=6, unique=True), value=VALUES)
def test_a_product_tells_which_parts_hold(parts: list[NumberPart], value: Decimal) -> None:
    product = number_product(number_universe(parts), tuple(parts))
    dfa = Dfa(product.table, product.class_of, product.combination >= 0)
    limits = [limit.value for part in parts for limit in (part.lower, part.upper) if limit is not None]
    for number in (value, *limits, *(limit + 1 for limit in limits), Decimal(0), Decimal("0.5"), Decimal(30)):
        text = spellings(number)[0]
        if text.startswith("-") and not number:
            continue  # the universe has no -0
        bits = product.accepted[product.combination[dfa.walk(1, text.encode())]]
        assert [bool(bits >> n & 1) for n in range(len(parts))] == [part.holds(Decimal(text)) for part in parts], text


def test_many_bounds_need_no_automaton_each() -> None:
    parts = tuple(NumberPart(True, lower=NumberBound(Decimal(n), False)) for n in range(700))
    made = number_dfa.num_made
    product = number_product(number_universe(parts), parts)
    assert number_dfa.num_made - made <= 1
    assert {bits.bit_count() for bits in product.accepted} == set(range(701))


@settings(max_examples=30, deadline=None)
@given(
    divisor=st.integers(1, 40),
    power=st.integers(-3, 6),
    factor=st.integers(-500, 500),
    more=st.sampled_from([0, 1, 10]),
)
def test_multiples_are_those_of_exact_arithmetic(divisor: int, power: int, factor: int, more: int) -> None:
    step = Decimal(divisor).scaleb(power)
    dfa = number_dfa(NumberPart(multiples=frozenset([step])))
    value = factor * step + more
    for text in spellings(value):
        assert dfa.accepts(text.encode()) == (Fraction(text) % Fraction(step) == 0), text


def test_a_multiple_of_a_large_power_of_ten() -> None:
    dfa = number_dfa(NumberPart(multiples=frozenset([Decimal("3e308")])))
    assert dfa.accepts(b"-6" + b"0" * 308)
    assert dfa.accepts(b"0")
    assert dfa.accepts(b"12" + b"0" * 308 + b".0")
    assert not dfa.accepts(b"7" + b"0" * 308)
    assert not dfa.accepts(b"6" + b"0" * 307)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_truths_of_formulas_are_read_from_bits(seed: int) -> None:
    rng = random.Random(seed)
    parts = [NumberPart(lower=NumberBound(Decimal(n), False)) for n in range(4)]

    def formula(depth: int) -> Formula:
        if depth == 0 or rng.random() < 0.3:
            return rng.choice([*parts, True, False])
        inner = [formula(depth - 1) for _ in range(rng.randint(1, 3))]
        return rng.choice([conj, disj, one, lambda some: neg(some[0])])(inner)

    formulas = [formula(2) for _ in range(6)]
    read = bits_reader(formulas, parts)
    for bits in range(1 << len(parts)):
        held = [part for n, part in enumerate(parts) if bits >> n & 1]
        assert read(bits) == bits_of(tuple(bool(evaluate(each, held.__contains__)) for each in formulas))
