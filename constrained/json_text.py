"""JSON values as text: the punctuation under a whitespace policy, generic values, given values."""

from __future__ import annotations

import json
from typing import Any

from .charset import ALL
from .expression import EMPTY, Bytes, Chars, Expression, Joined, choice, literal, optional, repeat, sequence

MAX_ANY_DEPTH = 3  # how deep arrays and objects nest where a schema allows any value

_DIGIT, _DIGITS = Chars(((0x30, 0x39),)), repeat(Chars(((0x30, 0x39),)), 1, None)
NATURAL = choice([Bytes(b"0"), sequence(Chars(((0x31, 0x39),)), repeat(_DIGIT, 0, None))])
FRACTION = sequence(Bytes(b"."), _DIGITS)
INTEGER = sequence(optional(Bytes(b"-")), NATURAL)
NUMBER = sequence(
    INTEGER,
    optional(FRACTION),
    optional(sequence(Chars(((0x45, 0x45), (0x65, 0x65))), optional(Chars(((0x2B, 0x2B), (0x2D, 0x2D)))), _DIGITS)),
)
QUOTE = Bytes(b'"')
STRING = sequence(QUOTE, repeat(Chars(ALL), 0, None), QUOTE)
BOOLEAN = choice([Bytes(b"true"), Bytes(b"false")])
NULL = Bytes(b"null")


class JsonText:
    """Writes structures with the whitespace of one policy: "compact", "bounded" or "any"."""

    def __init__(self, whitespace: str) -> None:
        # Bytes, not characters: those would be written as inside a string.
        space = repeat(choice([Bytes(b" "), Bytes(b"\n"), Bytes(b"\t"), Bytes(b"\r")]), 0, None)
        self.inside = space if whitespace == "any" else EMPTY  # at every seam but those:
        after = {"compact": EMPTY, "bounded": optional(Bytes(b" ")), "any": space}[whitespace]
        self.comma = sequence(self.inside, Bytes(b","), after)
        self._colon = sequence(self.inside, Bytes(b":"), after)
        self._any: dict[int, Expression] = {}

    def array(self, items: Expression) -> Expression:
        return sequence(Bytes(b"["), self.inside, items, self.inside, Bytes(b"]"))

    def object(self, members: Expression) -> Expression:
        return sequence(Bytes(b"{"), self.inside, members, self.inside, Bytes(b"}"))

    def member(self, name: Expression, value: Expression) -> Expression:
        return sequence(name, self._colon, value)

    def map_of(self, value: Expression) -> Expression:
        """An object of any names."""
        return self.object(optional(Joined(self.member(STRING, value), self.comma)))

    def any_value(self, depth: int = MAX_ANY_DEPTH) -> Expression:
        if depth not in self._any:
            values = [STRING, NUMBER, BOOLEAN, NULL]
            if depth > 0:
                inner = self.any_value(depth - 1)
                values += [self.map_of(inner), self.array(optional(Joined(inner, self.comma)))]
            self._any[depth] = choice(values)
        return self._any[depth]

    def value(self, value: Any) -> Expression:
        """Exactly this value; numbers as `json.dumps` writes them."""
        match value:
            case str():
                return string(value)
            case dict():
                members = [self.member(string(name), self.value(inner)) for name, inner in value.items()]
                return self.object(_between(members, self.comma))
            case list():
                return self.array(_between([self.value(inner) for inner in value], self.comma))
            case _:
                return Bytes(json.dumps(value, allow_nan=False).encode())


def string(text: str) -> Expression:
    return sequence(QUOTE, literal(text), QUOTE)


def _between(parts: list[Expression], separator: Expression) -> Expression:
    return sequence(*parts[:1], *(sequence(separator, part) for part in parts[1:]))
