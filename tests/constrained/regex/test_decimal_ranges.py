"""Decimals within bounds and multiples, compared with exact arithmetic."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ramiform.constrained.regex.decimal_ranges import NumberBound, at_least, at_most
from ramiform.constrained.schema.number_parts import NumberPart, number_dfa

EXACT = Context(prec=2000)  # of the test alone: what it tests computes in the context of the caller
LONG = st.integers(-(10**90), 10**90)
VALUES = (
    st.integers(-1100, 1100).map(Decimal)
    | st.decimals(-20, 20, places=2)
    | st.integers(-(10**30), 10**30).map(Decimal)
    | st.builds(lambda digits, places: Decimal(digits).scaleb(-places, EXACT), LONG, st.integers(0, 60))
    | st.floats(allow_nan=False, allow_infinity=False).map(repr).map(Decimal)
)


def spellings(value: Decimal) -> list[str]:
    plain = format(value.copy_abs(), "f")
    sign = "-" if value < 0 else ""
    return [sign + plain, sign + plain + ("0" if "." in plain else ".00")]


@given(bound=VALUES, value=VALUES, strict=st.booleans())
@example(bound=Decimal(0), value=Decimal(0), strict=True)
@example(bound=Decimal("-0.5"), value=Decimal(0), strict=False)
@example(bound=Decimal("1e308"), value=Decimal("1e308"), strict=False)
@example(bound=Decimal(10**28 + 1), value=Decimal(10**28), strict=False)
@example(bound=Decimal("5e-324"), value=Decimal(0), strict=False)
def test_numbers_are_compared_by_value(bound: Decimal, value: Decimal, strict: bool) -> None:
    limit = NumberBound(bound, strict)
    with localcontext(EXACT):
        close = [value, bound, bound + 1, bound - 1, bound * 10, bound / 10]
    for near in close:
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
