"""Regular expressions as values: what every front end produces, and the automata are built from.

`Chars` are written in the encoding that the automaton is built with; `Bytes` stand as they are. Build sequences and
choices with the functions: they keep what matches nothing in one form, `NOTHING`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .charset import CharSet, charset


@dataclass(frozen=True)
class Bytes:
    data: bytes


@dataclass(frozen=True)
class Chars:
    """One character of the set."""

    ranges: CharSet


@dataclass(frozen=True)
class Seq:
    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Alt:
    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Repeat:
    """`lazy` matters only to who asks for the first match instead of all."""

    part: Expression
    least: int
    most: int | None
    lazy: bool = False


@dataclass(frozen=True)
class TextStart:
    """Matches nothing but the place before the first character of the whole text."""


@dataclass(frozen=True)
class TextEnd:
    """Matches nothing but the place after the last character of the whole text."""


@dataclass(frozen=True)
class Look:
    """Matches nothing but a place before which (or, `ahead`, after which) `part` matches; if `negated`, does not."""

    part: Expression
    ahead: bool
    negated: bool


Expression = Bytes | Chars | Seq | Alt | Repeat | TextStart | TextEnd | Look

EMPTY = Seq(())
NOTHING = Alt(())


def literal(text: str) -> Expression:
    return sequence(*(Chars(((ord(character), ord(character)),)) for character in text))


def sequence(*parts: Expression) -> Expression:
    kept = tuple(part for part in parts if part != EMPTY)
    if NOTHING in kept:
        return NOTHING
    return kept[0] if len(kept) == 1 else Seq(kept)


def alternation(parts: Iterable[Expression]) -> Expression:
    kept = [part for part in parts if part is not NOTHING and part != NOTHING]
    if len(kept) > 1 and all(isinstance(part, Chars) for part in kept):
        return Chars(charset(r for part in kept if isinstance(part, Chars) for r in part.ranges))
    return kept[0] if len(kept) == 1 else Alt(tuple(kept))


def optional(part: Expression) -> Expression:
    return repeat(part, 0, 1)


def repeat(part: Expression, least: int, most: int | None, lazy: bool = False) -> Expression:
    if most is not None and most < least:
        return NOTHING
    if part == NOTHING:
        return EMPTY if least == 0 else NOTHING
    if most == 0 or part == EMPTY:
        return EMPTY
    if (
        isinstance(part, Repeat)
        and part.most is None
        and part.lazy == lazy
        and (part.least == 0 or (part.least == 1 and least <= 1))
    ):
        # (x*){2,5} is x*, (x+)+ is x+, (x+)* is x*: each copy would begin wherever another does.
        return Repeat(part.part, min(part.least, least), None, lazy)
    return part if least == most == 1 else Repeat(part, least, most, lazy)
