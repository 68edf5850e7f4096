"""Regular expressions as values: what every front end produces, and the automata are built from.

`Chars` are written in the encoding that the automaton is built with; `Bytes` stand as they are. Build sequences and
choices with the functions: they keep what matches nothing in one form, `NOTHING`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .charset import CharSet, charset

if TYPE_CHECKING:
    from .dfa import Dfa


@dataclass(frozen=True)
class Bytes:
    data: bytes


@dataclass(frozen=True)
class Chars:
    """One character of the set."""

    ranges: CharSet


@dataclass(frozen=True)
class Sequence:
    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Choice:
    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Repeat:
    part: Expression
    least: int
    most: int | None


@dataclass(frozen=True)
class Joined:
    """One or more `part`s with `separator`s in between."""

    part: Expression
    separator: Expression


@dataclass(frozen=True)
class Members:
    """Some of `parts`, in order, with `separator`s in between; those marked required always."""

    parts: tuple[tuple[Expression, bool], ...]
    separator: Expression


@dataclass(frozen=True)
class Prefix:
    """The first n of `parts`, for any n >= `least`."""

    parts: tuple[Expression, ...]
    least: int


@dataclass(frozen=True)
class Rest:
    """Any further characters, after which nothing else matters: whatever else could match is given up."""

    ranges: CharSet


@dataclass(frozen=True)
class TextStart:
    """Matches nothing but the place before the first character of the whole text."""


@dataclass(frozen=True)
class TextEnd:
    """Matches nothing but the place after the last character of the whole text."""


@dataclass(frozen=True)
class Machine:
    """What an automaton accepts."""

    dfa: Dfa


Expression = (
    Bytes | Chars | Sequence | Choice | Repeat | Joined | Members | Prefix | Rest | TextStart | TextEnd | Machine
)

EMPTY = Sequence(())
NOTHING = Choice(())


def literal(text: str) -> Expression:
    return sequence(*(Chars(((ord(character), ord(character)),)) for character in text))


def sequence(*parts: Expression) -> Expression:
    kept = tuple(part for part in parts if part != EMPTY)
    if NOTHING in kept:
        return NOTHING
    return kept[0] if len(kept) == 1 else Sequence(kept)


def choice(parts: Iterable[Expression]) -> Expression:
    kept = [part for part in parts if part is not NOTHING and part != NOTHING]
    if len(kept) > 1 and all(isinstance(part, Chars) for part in kept):
        return Chars(charset(r for part in kept if isinstance(part, Chars) for r in part.ranges))
    return kept[0] if len(kept) == 1 else Choice(tuple(kept))


def optional(part: Expression) -> Expression:
    return repeat(part, 0, 1)


def repeat(part: Expression, least: int, most: int | None) -> Expression:
    if most is not None and most < least:
        return NOTHING
    if part == NOTHING:
        return EMPTY if least == 0 else NOTHING
    if most == 0 or part == EMPTY:
        return EMPTY
    return part if least == most == 1 else Repeat(part, least, most)
