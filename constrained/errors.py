"""The error of a constraint that is refused, with the position in the user's text."""

from __future__ import annotations

_CONTEXT = 30  # characters of a pattern shown on either side of the caret


class GrammarError(ValueError):
    """The constraint cannot be enforced: malformed, not supported, unsatisfiable or too complex.

    `pointer` is the JSON pointer of the schema's keyword at fault, `position` an index into the pattern. Each is None
    where it does not apply. The message contains both.
    """

    def __init__(self, message: str, *, pointer: str | None = None, position: int | None = None) -> None:
        super().__init__(message if pointer is None else f"{message} (at {pointer or 'the root'} of the schema)")
        self.reason = message
        self.pointer = pointer
        self.position = position
        self.patterns: frozenset[str] = frozenset()  # patterns of a schema that are too complex together

    @classmethod
    def in_pattern(cls, message: str, pattern: str, position: int) -> GrammarError:
        """Build an error whose message shows the pattern, with a caret under the position."""
        first = max(0, position - _CONTEXT)
        shown = "".join(c if c.isprintable() else " " for c in pattern[first : position + _CONTEXT])
        caret = " " * (position - first) + "^"
        return cls(f"{message}, at position {position}\n    {shown}\n    {caret}", position=position)


class Refusals(list[GrammarError]):
    """Errors of alternatives that are too complex to be worked out.

    While a grammar is compiled they are collected, and the grammar is refused. Afterwards each is raised
    (`are_raised`), because a state without the alternative would silently lose values.
    """

    are_raised = False

    def add(self, error: GrammarError) -> None:
        """Collect an error, or raise it."""
        if self.are_raised:
            raise error
        self.append(error)


class StatesExhaustedError(GrammarError):
    """An automaton has as many states as it may have."""
