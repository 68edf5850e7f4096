"""Abstract syntax of regular expressions: every front end produces it, and automata are compiled from it.

`Chars` are encoded when the automaton is built; `Bytes` are matched verbatim. Build sequences and alternations with the
functions: they reduce every expression that matches nothing to `NO_TEXT`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...record import record
from ..charset import CharSet, charset


@record()
class Bytes:
    """A literal byte string."""

    data: bytes


@record()
class Chars:
    """One character of the set."""

    ranges: CharSet


@record()
class Seq:
    """A concatenation. Without parts it matches the empty text."""

    parts: tuple[Expression, ...]


@record()
class Alt:
    """An alternation, the preferred part first. Without parts it matches nothing."""

    parts: tuple[Expression, ...]


@record()
class Repeat:
    """`least` to `most` repetitions, unbounded if `most` is None. `lazy` affects only the leftmost-first automaton."""

    part: Expression
    least: int
    most: int | None
    lazy: bool = False


@record()
class TextStart:
    """The anchor before the first character of the whole text."""


@record()
class TextEnd:
    """The anchor after the last character of the whole text."""


@record()
class Look:
    """A look-behind (or, if `ahead`, a look-ahead) for `part`; if `negated`, `part` must not match there."""

    part: Expression
    ahead: bool
    negated: bool


Expression = Bytes | Chars | Seq | Alt | Repeat | TextStart | TextEnd | Look

EMPTY = Seq(())
NO_TEXT = Alt(())


def has_look(expression: Expression) -> bool:
    """Return True if an expression holds a look-around."""
    todo = [expression]
    for part in todo:
        if isinstance(part, Seq | Alt):
            todo += part.parts
        elif isinstance(part, Repeat):
            todo.append(part.part)
    return any(isinstance(part, Look) for part in todo)


def least_length(expression: Expression) -> int:
    """Return a number of characters that every match has at least."""
    match expression:
        case Chars():
            return 1
        case Bytes(data=data):
            return len(data)
        case Seq(parts=parts):
            return sum(map(least_length, parts))
        case Alt(parts=parts):
            return min(map(least_length, parts), default=0)
        case Repeat(part=part, least=least):
            return least * least_length(part)
    return 0


def literal(text: str) -> Expression:
    """Return the expression that matches exactly `text`."""
    return sequence(*(Chars(((ord(character), ord(character)),)) for character in text))


def sequence(*parts: Expression) -> Expression:
    """Concatenate expressions; empty ones are dropped."""
    kept = tuple(part for part in parts if part != EMPTY)
    if NO_TEXT in kept:
        return NO_TEXT
    return kept[0] if len(kept) == 1 else Seq(kept)


def alternation(parts: Iterable[Expression]) -> Expression:
    """Join alternatives; sets of characters become one set, and `NO_TEXT` is dropped."""
    kept = [part for part in parts if part is not NO_TEXT and part != NO_TEXT]
    if len(kept) > 1 and all(isinstance(part, Chars) for part in kept):
        return Chars(charset(r for part in kept if isinstance(part, Chars) for r in part.ranges))
    return kept[0] if len(kept) == 1 else Alt(tuple(kept))


def optional(part: Expression) -> Expression:
    """Match `part` or the empty text."""
    return repeat(part, 0, 1)


def repeat(part: Expression, least: int, most: int | None, lazy: bool = False) -> Expression:
    """Repeat `part` from `least` to `most` times (None: unbounded), and simplify nested repeats."""
    if most is not None and most < least:
        return NO_TEXT
    if part == NO_TEXT:
        return EMPTY if least == 0 else NO_TEXT
    if most == 0 or part == EMPTY:
        return EMPTY
    if (
        isinstance(part, Repeat)
        and part.most is None
        and part.lazy == lazy
        and (part.least == 0 or (part.least == 1 and least <= 1))
    ):
        # (x*){2,5} is x*, (x+)+ is x+, (x+)* is x*. Expanded, the copies would be loops that start at the same places.
        return Repeat(part.part, min(part.least, least), None, lazy)
    return part if least == most == 1 else Repeat(part, least, most, lazy)
