"""The items of an array, between its brackets. Knows expressions; no schema."""

from __future__ import annotations

from collections.abc import Sequence

from .expression import EMPTY, NOTHING, Expression, Joined, Prefix, optional, repeat, sequence


def items_expression(
    given: Sequence[Expression], item: Expression, least: int, most: int | None, comma: Expression
) -> Expression:
    """`least` to `most` items: the first of them `given`, in order, any further ones `item`."""
    if most is not None and most < least:
        return NOTHING
    if not given:
        return _alike(item, least, most, comma)
    further = repeat(
        sequence(comma, item), max(least - len(given), 0), None if most is None else max(most - len(given), 0)
    )
    if further == NOTHING:
        return NOTHING
    parts = (given[0], *(sequence(comma, part) for part in given[1:]), further)
    return Prefix(parts, min(least, len(parts)))


def _alike(item: Expression, least: int, most: int | None, comma: Expression) -> Expression:
    if most == 0 or item == NOTHING:
        return EMPTY if least == 0 else NOTHING
    if most is None and least <= 1:
        some: Expression = Joined(item, comma)  # the item's automaton only once
    else:
        some = sequence(item, repeat(sequence(comma, item), max(least - 1, 0), None if most is None else most - 1))
    return some if least else optional(some)
