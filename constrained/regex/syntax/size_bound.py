"""Bounds of the automaton of a pattern, read off its expression without making the automaton.

Most patterns of schemas are small: deterministic in the sense of Brüggemann-Klein and Wood 1998 (the next character
alone tells which part of the expression matches it), or of very few characters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..charset import CharSet, has_characters, intersection
from .expression import Alt, Chars, Expression, Repeat, Seq, TextEnd, TextStart

_MAX_AMBIGUOUS = 8  # characters of an expression whose automaton may have a state for each set of them
_MAX_SIZE = 1000  # states times intervals; beyond it nothing is called small


class SizeBound(NamedTuple):
    """Upper bounds of the automaton of `parser.containing`."""

    states: int
    intervals: int  # of code points, of the alphabet


class _Shape(NamedTuple):
    """Characters that begin and go on a deterministic expression's matches, and its size."""

    is_nullable: bool
    first: CharSet
    after: CharSet  # that may follow a whole match and still belong to it
    positions: int  # characters, with repetitions written out
    ranges: int


class _MayBeLarge(Exception):
    """Two parts of the expression may match the same character, or it has assertions inside, or is large itself."""


_EMPTY = _Shape(True, (), (), 0, 0)


def size_bound(expression: Expression) -> SizeBound | None:
    """Return a bound of the automaton of the texts that contain a match; None for an expression that may be large.

    An expression with a bound matches some text.
    """
    parts = expression.parts if isinstance(expression, Seq) else (expression,)
    is_anchored = parts[:1] == (TextStart(),)
    parts = parts[is_anchored:]
    if parts[-1:] == (TextEnd(),):
        parts = parts[:-1]
    try:
        if is_anchored:
            return _bound(_sequence(parts))
    except _MayBeLarge:
        pass
    try:
        positions, ranges = _count(parts)
    except _MayBeLarge:
        return None
    return SizeBound(2**positions + 2, 2 * ranges + 4)


def _shape(expression: Expression) -> _Shape:
    match expression:
        case Chars(ranges=ranges) if has_characters(ranges):
            return _limited(_Shape(False, ranges, (), 1, len(ranges)))
        case Seq(parts=parts):
            return _sequence(parts)
        case Alt(parts=parts) if parts:
            return _alternatives(parts)
        case Repeat(part=part, least=least, most=most):
            inner = _shape(part)
            if inner.is_nullable or intersection(inner.after, inner.first):
                raise _MayBeLarge
            after = inner.after if least == most else inner.after + inner.first
            return _limited(
                _Shape(least == 0, inner.first, after, _copies(least, most) * inner.positions, inner.ranges)
            )
    raise _MayBeLarge


def _sequence(parts: Iterable[Expression]) -> _Shape:
    whole = _EMPTY
    for part in parts:
        inner = _shape(part)
        if intersection(whole.after, inner.first) or (whole.is_nullable and intersection(whole.first, inner.first)):
            raise _MayBeLarge
        whole = _limited(
            _Shape(
                whole.is_nullable and inner.is_nullable,
                whole.first + inner.first if whole.is_nullable else whole.first,
                whole.after + inner.first + inner.after if inner.is_nullable else inner.after,
                whole.positions + inner.positions,
                whole.ranges + inner.ranges,
            )
        )
    return whole


def _alternatives(parts: Iterable[Expression]) -> _Shape:
    whole = _Shape(False, (), (), 0, 0)
    for part in parts:
        inner = _shape(part)
        if intersection(whole.first, inner.first):
            raise _MayBeLarge
        whole = _limited(
            _Shape(
                whole.is_nullable or inner.is_nullable,
                whole.first + inner.first,
                whole.after + inner.after,
                whole.positions + inner.positions,
                whole.ranges + inner.ranges,
            )
        )
    return whole


def _limited(shape: _Shape) -> _Shape:
    """Return a shape that is small, so that comparing its characters with another's takes little time."""
    bound = _bound(shape)
    if bound.states * bound.intervals > _MAX_SIZE:
        raise _MayBeLarge
    return shape


def _bound(shape: _Shape) -> SizeBound:
    """Return the bound of the texts that begin with a match."""
    return SizeBound(shape.positions + 2, 2 * shape.ranges + 4)


def _copies(least: int, most: int | None) -> int:
    """Return how often a repeated part is in the automaton: without an end the last one is a loop."""
    return least + 1 if most is None else most


def _count(parts: Iterable[Expression]) -> tuple[int, int]:
    """Return the number of characters, with repetitions written out, and of their ranges."""
    positions = ranges = 0
    for part in parts:
        match part:
            case Chars(ranges=found) if has_characters(found):
                inner, copies = (1, len(found)), 1
            case Seq(parts=inside):
                inner, copies = _count(inside), 1
            case Alt(parts=inside) if inside:
                inner, copies = _count(inside), 1
            case Repeat(part=repeated, least=least, most=most):
                inner, copies = _count((repeated,)), _copies(least, most)
            case _:
                raise _MayBeLarge
        positions, ranges = positions + copies * inner[0], ranges + inner[1]
        if positions > _MAX_AMBIGUOUS:
            raise _MayBeLarge
    return positions, ranges
