"""Decimals within bounds and multiples, compared with exact arithmetic."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from decimal import Context, Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ramiform.constrained.regex.decimal_ranges import (
    CLASS_OF,
    NumberBound,
    NumberRange,
    Positions,
    covered,
    decimal_positions,
    in_ranges,
    number_positions,
)
from ramiform.constrained.regex.dfa import Dfa
from ramiform.constrained.regex.exponents import MAX_PLACES
from ramiform.constrained.schema.formula import Formula, bits_of, bits_reader, conj, disj, evaluate, neg, one
from ramiform.constrained.schema.multiples import multiples_universe, reads_exponents
from ramiform.constrained.schema.number_parts import (
    NumberPart,
    join_numbers,
    number_dfa,
    number_product,
    number_universe,
)

EXACT = Context(prec=2000)  # of the test alone: what it tests computes in the context of the caller
VALUES_NEAR = [*map(Decimal, ("0.5", "-0.05", "12", "12.25", "120", "-12", "-1e30", "1e30")), Decimal(10**30 + 1)]
LONG = st.integers(-(10**90), 10**90)
VALUES = (
    st.integers(-1100, 1100).map(Decimal)
    | st.decimals(-20, 20, places=2)
    | st.integers(-(10**30), 10**30).map(Decimal)
    | st.builds(lambda digits, places: Decimal(digits).scaleb(-places, EXACT), LONG, st.integers(0, 60))
    | st.floats(allow_nan=False, allow_infinity=False).map(repr).map(Decimal)
)


def at_least(bound: NumberBound) -> Dfa:
    return in_ranges([NumberRange(bound, None)], decimal_positions)


def at_most(bound: NumberBound) -> Dfa:
    return in_ranges([NumberRange(None, bound)], decimal_positions)


def spellings(value: Decimal) -> list[str]:
    plain = format(value.copy_abs(), "f")
    sign = "-" if value < 0 else ""
    return [sign + plain, sign + plain + ("0" if "." in plain else ".00")]


def scientific(value: Decimal) -> list[str]:
    """Return spellings with one digit before the point, as `repr` writes floats."""
    sign, digits, _ = value.as_tuple()
    words = "".join(map(str, digits)).rstrip("0") or "0"
    if len(words) > 16:
        return []
    written = ("-" if sign else "") + words[0] + ("." + words[1:] if words[1:] else "")
    exponent = value.adjusted() if value else 0
    return [f"{written}e{exponent}", f"{written}E{exponent:+03d}"] if -300 < exponent < 300 else []


_WHOLES = ("0", "1", "9", "10", "12", "100", "105", "999", "1000000", "602200")
_FRACTIONS = ("", ".0", ".5", ".05", ".00", ".220", ".000000001", ".999", ".022")
_EXPONENTS = ("", *"e0 e1 E+2 e03 e-1 E-02 e-3 e5 e-7 e22 e023 e-20 E+299 e299 e-300 e-999".split())
# Numbers as they are written, not by their values.
NUMBER_TEXTS = [
    "".join(parts) for parts in itertools.product(("", "-"), _WHOLES, _FRACTIONS, _EXPONENTS) if len(parts[1]) < 8
]
FEW_VALUES = ["", "0", "0 1", "-1 100", "0.5", "-0.001 2.25", "1 1.05 12 105", "1e3", "6.022e23", "-1e22 0 1e-300"]


@pytest.mark.parametrize("listed", FEW_VALUES)
def test_numbers_with_exponents_are_compared_by_value(listed: str) -> None:
    values = sorted(map(Decimal, listed.split()))
    all_numbers, integers = number_positions(values), number_positions(values, integers=True)
    for text in NUMBER_TEXTS:
        exact = Decimal(text)
        expected = 2 * sum(value < exact for value in values) + (exact in values)
        digits, letter, exponent = text.lower().partition("e")
        whole, _, fraction = digits.lstrip("-").partition(".")
        is_long = len(whole) > MAX_PLACES or (whole == "0" and len(fraction) - len(fraction.lstrip("0")) > MAX_PLACES)
        if listed and is_long and letter:
            continue
        assert position_of(all_numbers, text) == expected, text
        is_read = not fraction.strip("0") and not exponent.startswith("-")
        assert position_of(integers, text) == (expected if is_read else -1), text


def position_of(compared: Positions, text: str) -> int:
    table, positions = compared
    return int(positions[Dfa(table, CLASS_OF, positions >= 0).walk(1, text.encode())])


@pytest.mark.parametrize("divisor", "1 2 5 0.01 0.05 0.25 3 10 1.5 30 1e15 7e-10 1e-20 60".split())
def test_multiples_with_exponents_are_those_of_exact_arithmetic(divisor: str) -> None:
    dfa, universe = number_dfa(NumberPart(multiples=frozenset([Decimal(divisor)]))), multiples_universe()
    has_all = reads_exponents(Decimal(divisor))
    for text in NUMBER_TEXTS:
        accepted, is_multiple = dfa.accepts(text.encode()), Fraction(text) % Fraction(divisor) == 0
        knows = has_all and universe.accepts(text.encode())
        assert accepted == is_multiple if knows or "e" not in text.lower() else accepted <= is_multiple, text


@pytest.mark.exhaustive
@given(bound=VALUES, value=VALUES, strict=st.booleans())
@example(bound=Decimal(0), value=Decimal(0), strict=True)
@example(bound=Decimal("-0.5"), value=Decimal(0), strict=False)
@example(bound=Decimal("1e308"), value=Decimal("1e308"), strict=False)
@example(bound=Decimal(10**28 + 1), value=Decimal(10**28), strict=False)
@example(bound=Decimal("5e-324"), value=Decimal(0), strict=False)
@example(bound=Decimal(10**30 + 1), value=Decimal(10**30), strict=False)
def test_numbers_are_compared_by_value(bound: Decimal, value: Decimal, strict: bool) -> None:
    limit = NumberBound(bound, strict)
    with localcontext(EXACT):
        close = [value, bound, bound + 1, bound - 1, bound * 10, bound / 10]
    for near in close:
        for text in spellings(near):
            exact = Decimal(text)
            assert at_least(limit).accepts(text.encode()) == (exact > bound if strict else exact >= bound), text
            assert at_most(limit).accepts(text.encode()) == (exact < bound if strict else exact <= bound), text


BOUNDS = st.none() | st.builds(NumberBound, st.sampled_from([*map(Decimal, range(-3, 4)), *VALUES_NEAR]), st.booleans())


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    ranges=st.lists(st.builds(NumberRange, BOUNDS, BOUNDS), max_size=6),
    least=st.integers(1, 2),
    most=st.none() | st.integers(2, 3),
    others=st.lists(VALUES, max_size=3),
)
def test_numbers_are_in_ranges_as_often_as_they_are_counted(
    ranges: list[NumberRange], least: int, most: int | None, others: list[Decimal]
) -> None:
    joined = covered(ranges, least, most)
    some, some_joined = in_ranges(ranges, number_positions), in_ranges(joined, number_positions)
    part = NumberPart(integer=True, ranges=joined)
    integers, digits = number_dfa(part), number_dfa(replace(part, digits=True))
    cuts = [bound.value for each in ranges for bound in each if bound is not None]
    with localcontext(EXACT):
        near = {value + step for value in cuts for step in map(Decimal, ("0", "1", "-1", "0.001", "-0.001", "10"))}
    for value in {*near, *others, Decimal(0)}:
        count = sum(holds(each, value) for each in ranges)
        wanted = count >= least and (most is None or count <= most)
        assert sum(holds(each, value) for each in joined) == wanted, value
        for text in spellings(value):
            assert some.accepts(text.encode()) == (count > 0), text
            assert some_joined.accepts(text.encode()) == wanted, text
            _, _, fraction = text.partition(".")
            is_integer = not fraction.strip("0")
            if joined and joined != (NumberRange(None, None),):
                assert integers.accepts(text.encode()) == (wanted and is_integer), text
                assert digits.accepts(text.encode()) == (wanted and is_integer and not fraction), text


def holds(each: NumberRange, value: Decimal) -> bool:
    lower, upper = each
    return (lower is None or value > lower.value or (value == lower.value and not lower.strict)) and (
        upper is None or value < upper.value or (value == upper.value and not upper.strict)
    )


@pytest.mark.exhaustive
def test_states_of_many_ranges_are_linear_in_their_digits() -> None:
    ranges = [NumberRange(*(NumberBound(Decimal(10 * n + more), False) for more in (0, 3))) for n in range(3000)]
    assert in_ranges(ranges, number_positions).num_states < 12 * len(ranges)
    dfa = number_dfa(NumberPart(integer=True, ranges=tuple(ranges)))
    assert dfa.num_states < 12 * len(ranges)
    for number in range(-20, 30_020):
        assert dfa.accepts(str(number).encode()) == (0 <= number < 30_000 and number % 10 < 4)


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


@pytest.mark.slow
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


@pytest.mark.exhaustive
@settings(deadline=None)
@given(parts=st.lists(PARTS, min_size=1, max_size=6, unique=True), value=VALUES)
def test_a_product_tells_which_parts_hold(parts: list[NumberPart], value: Decimal) -> None:
    product = number_product(number_universe(parts), tuple(parts))
    dfa = Dfa(product.table, product.class_of, product.combination >= 0)
    limits = [limit.value for part in parts for limit in (part.lower, part.upper) if limit is not None]
    for number in (value, *limits, *(limit + 1 for limit in limits), Decimal(0), Decimal("0.5"), Decimal(30)):
        text = spellings(number)[0]
        bits = product.accepted[product.combination[dfa.walk(1, text.encode())]]
        assert [bool(bits >> n & 1) for n in range(len(parts))] == [part.holds(Decimal(text)) for part in parts], text


def test_many_bounds_need_no_automaton_each() -> None:
    parts = tuple(NumberPart(True, lower=NumberBound(Decimal(n), False)) for n in range(700))
    made = number_dfa.num_made
    product = number_product(number_universe(parts), parts)
    assert number_dfa.num_made - made <= 1
    assert {bits.bit_count() for bits in product.accepted} == set(range(701))


@pytest.mark.slow
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
    for text in (*spellings(value), *(scientific(value) if reads_exponents(step) else [])):
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
