"""What is wrong with a constraint, and where in the user's text."""

from __future__ import annotations

_AROUND = 30  # characters of a pattern shown on either side of the caret


class GrammarError(ValueError):
    """The constraint cannot be enforced: malformed, not supported, unsatisfiable or too complex.

    `pointer` is the JSON pointer of the schema's keyword at fault, `position` the index into the pattern's text; each
    is None where it does not apply. The message contains both.
    """

    def __init__(self, message: str, *, pointer: str | None = None, position: int | None = None) -> None:
        super().__init__(message if pointer is None else f"{message} (at {pointer or 'the root'} of the schema)")
        self.reason = message
        self.pointer = pointer
        self.position = position
        self.patterns: frozenset[str] = frozenset()  # of a schema, that are too complex together

    @classmethod
    def in_pattern(cls, message: str, pattern: str, position: int) -> GrammarError:
        """With the pattern, and a caret under the position."""
        first = max(0, position - _AROUND)
        shown = "".join(c if c.isprintable() else " " for c in pattern[first : position + _AROUND])
        caret = " " * (position - first) + "^"
        return cls(f"{message}, at position {position}\n    {shown}\n    {caret}", position=position)
