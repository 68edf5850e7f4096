"""Parameters of rules: functions of a number of 64 bits, and conditions on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BITS = 64
MAX_VALUE = (1 << BITS) - 1
WHOLE = (0, BITS)  # `_` as a range of bits

Function = Callable[[int], int]
Condition = Callable[[int], bool]


def bits_of(value: int, bits: tuple[int, int]) -> int:
    """Return some bits of a number, from the first to before the second, as a number."""
    low, high = bits
    return (value >> low) & ((1 << (high - low)) - 1)


def _ones(bits: tuple[int, int]) -> int:
    return (1 << (bits[1] - bits[0])) - 1


# The arguments of functions and conditions: "bit", "range", "value", "count", "condition".
FUNCTIONS: dict[str, tuple[tuple[str, ...], Callable[..., Function]]] = {
    "set_bit": (("bit",), lambda bit: lambda p: p | 1 << bit),
    "clear_bit": (("bit",), lambda bit: lambda p: p & ~(1 << bit)),
    "bit_and": (("value",), lambda value: lambda p: p & value),
    "bit_or": (("value",), lambda value: lambda p: p | value),
    "incr": (("range",), lambda bits: lambda p: p if bits_of(p, bits) == _ones(bits) else p + (1 << bits[0])),
    "decr": (("range",), lambda bits: lambda p: p - (1 << bits[0]) if bits_of(p, bits) else p),
}

_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def _compared(compare: Callable[[int, int], bool]) -> Callable[..., Condition]:
    return lambda bits, value: lambda p: compare(bits_of(p, bits), value)


def _counted(compare: Callable[[int, int], bool]) -> Callable[..., Condition]:
    return lambda bits, number: lambda p: compare(bits_of(p, bits).bit_count(), number)


CONDITIONS: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "true": ((), lambda: lambda p: True),
    "bit_clear": (("bit",), lambda bit: lambda p: not p >> bit & 1),
    "bit_set": (("bit",), lambda bit: lambda p: bool(p >> bit & 1)),
    "is_ones": (("range",), lambda bits: lambda p: bits_of(p, bits) == _ones(bits)),
    "is_zeros": (("range",), lambda bits: lambda p: bits_of(p, bits) == 0),
    **{name: (("range", "value"), _compared(compare)) for name, compare in _COMPARISONS.items()},
    **{f"bit_count_{name}": (("range", "count"), _counted(compare)) for name, compare in _COMPARISONS.items()},
    "and": (("condition", "condition"), lambda a, b: lambda p: a(p) and b(p)),
    "or": (("condition", "condition"), lambda a, b: lambda p: a(p) or b(p)),
    "not": (("condition",), lambda a: lambda p: not a(p)),
}
