r"""Parser of regular expressions: the syntax that Python and ECMA-262 share, with the semantics of either dialect.

Both: greedy and lazy repeats, groups that group, `^` and `$` for the text's start and end, `\b` and
`\B`, look-ahead and look-behind of any width, `\p{...}`, `(?imsx)` at the start and `(?i:...)`. Python: `.` is all but
newline, `\A` and `\Z`; `\d`, `\w`, `\s` are ASCII unless `(?u)`; `(?i)` ignores case beyond ASCII too, but only `(?iu)`
lets a letter of ASCII match one beyond it, such as the Kelvin sign. ECMA-262 (JSON Schema): `.` is all but line
terminators, `\d` and `\w` are ASCII, `\s` is Unicode's, `\u{...}`, `\cX`, `[]` and `[^]`. Back-references, possessive
repeats, atomic and conditional groups are not regular, or not in both dialects. They are refused with their position.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from ...errors import GrammarError
from ..charset import ALL, chars
from .char_classes import CharacterReader, Dialect, Flags, cased, named_classes
from .expression import Chars, Expression, Look, Seq, TextEnd, TextStart, alternation, repeat, sequence

_MAX_NESTING = 60
MAX_PATTERN = 1 << 16  # characters
_QUANTIFIER = re.compile(r"\{(\d{0,7})(,?)(\d{0,7})\}")
_GROUP = re.compile(r"\?(?::|P?<[A-Za-z_$][\w$]*>)")
_LOOK = re.compile(r"\?(<?)([=!])")
_GLOBAL_FLAGS = re.compile(r"\(\?([imsxau]+)\)")
_SCOPED_FLAGS = re.compile(r"\?([imsxau]*)(?:-([imsx]+))?:")
_FLAG_NAMES = {"i": "ignore_case", "m": "multiline", "s": "dotall", "x": "verbose", "a": "ascii"}
_ANYTHING = repeat(Chars(ALL), 0, None)
_NEWLINE = Chars(chars("\n"))


@lru_cache(maxsize=16)  # a pattern's bound and its automaton are made one after the other
def parse_regex(pattern: str, dialect: Dialect = "python", flags: str = "") -> Expression:
    """Parse a pattern; `flags` are letters as in `(?flags)`.

    Raises GrammarError, with a position in the pattern, for syntax that is wrong or not supported.
    """
    if len(pattern) > MAX_PATTERN:
        raise GrammarError(f"the pattern is longer than {MAX_PATTERN} characters")
    return _PatternParser(pattern, dialect, _with_flags(Flags(), flags, "")).parse()


def _with_flags(flags: Flags, on: str, off: str) -> Flags:
    changes = {_FLAG_NAMES[letter]: True for letter in on if letter != "u"}
    changes |= {_FLAG_NAMES[letter]: False for letter in off}
    return replace(flags, **changes | ({"ascii": False} if "u" in on else {}))


class _PatternParser(CharacterReader):
    """Recursive-descent parser of one pattern."""

    def __init__(self, pattern: str, dialect: Dialect, flags: Flags) -> None:
        super().__init__(pattern, dialect)
        self._flags = flags
        self._depth = 0
        self._lookbehind_depth = 0

    def parse(self) -> Expression:
        """Parse the whole pattern."""
        if match := _GLOBAL_FLAGS.match(self.pattern):
            self._flags = _with_flags(self._flags, match[1], "")
            self.at = match.end()
        expression = self._alternatives()
        if self.at < len(self.pattern):
            self.fail("an unmatched )")
        return expression

    def _alternatives(self) -> Expression:
        branches = [self._branch()]
        while self.take("|"):
            branches.append(self._branch())
        return alternation(branches)

    def _branch(self) -> Expression:
        parts = []
        self._skip()
        while self.peek() not in ("", "|", ")"):
            parts.append(self._repeated())
            self._skip()
        return sequence(*parts)

    def _skip(self) -> None:
        while self._flags.verbose and (match := re.compile(r"\s|#[^\n]*").match(self.pattern, self.at)):
            self.at = match.end()

    def _repeated(self) -> Expression:
        start = self.at
        part = self._atom()
        self._skip()
        bounds = self._quantifier()
        if bounds is None:
            return part
        if isinstance(part, TextStart | TextEnd | Look):
            self.fail("an anchor or look-around cannot be repeated", start)
        least, most = bounds
        if most is not None and most < least:
            self.fail("a repeat whose minimum exceeds its maximum", start)
        if self.take("+"):
            self.fail("a possessive repeat is not supported", self.at - 1)
        lazy = self.take("?")
        if (again := self.at) < len(self.pattern) and self._quantifier() is not None:
            self.fail("a repeat directly after a repeat", again)
        return repeat(part, least, most, lazy)

    def _quantifier(self) -> tuple[int, int | None] | None:
        if self.peek() not in ("*", "+", "?", "{"):
            return None
        for mark, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(mark):
                return bounds
        match = _QUANTIFIER.match(self.pattern, self.at)
        # As in Python, braces that form no repeat are literal characters; ECMA-262 has no {,n}.
        if match is None or not (match[1] or (self.python and match[2])):
            return None
        self.at = match.end()
        least = int(match[1] or 0)
        return least, (int(match[3]) if match[3] else None) if match[2] else least

    def _atom(self) -> Expression:
        start = self.at
        character = self.peek()
        self.at += 1
        match character:
            case "(":
                return self._group(start)
            case "[":
                return Chars(self.character_class(start, self._flags))
            case ".":
                return Chars(ALL if self._flags.dotall else named_classes(self.dialect, self._flags.ascii)["."])
            case "^":
                return _line_start() if self._flags.multiline else TextStart()
            case "$":
                if self._lookbehind_depth:
                    self.fail("a $ inside look-behind is not supported", start)
                return _line_end() if self._flags.multiline else TextEnd()
            case "*" | "+" | "?":
                self.fail("a repeat without anything to repeat", start)
            case "\\":
                return self._escaped(start)
            case _:
                return Chars(cased(chars(character), self._flags, self.dialect))

    def _escaped(self, start: int) -> Expression:
        if self.python and self.take("A"):
            return TextStart()
        if self.python and not self._lookbehind_depth and self.take("Z"):
            return TextEnd()
        if self.peek() in ("b", "B"):
            self.at += 1
            return _boundary(Chars(named_classes(self.dialect, self._flags.ascii)["w"]), self.pattern[start + 1] == "b")
        return Chars(cased(self.escape(self._flags, in_class=False), self._flags, self.dialect))

    def _group(self, start: int) -> Expression:
        outer = self._flags
        look = None
        if self.peek() == "?":
            if look := _LOOK.match(self.pattern, self.at):
                self.at = look.end()
            elif match := _GROUP.match(self.pattern, self.at):
                self.at = match.end()
            elif match := _SCOPED_FLAGS.match(self.pattern, self.at):
                self._flags = _with_flags(outer, match[1], match[2] or "")
                self.at = match.end()
            else:
                self.fail("this kind of group is not supported", start)
        self._depth += 1
        self._lookbehind_depth += bool(look and look[1])
        if self._depth > _MAX_NESTING:
            self.fail(f"groups are nested deeper than {_MAX_NESTING}", start)
        expression = self._alternatives()
        self._depth -= 1
        self._lookbehind_depth -= bool(look and look[1])
        self._flags = outer
        if not self.take(")"):
            self.fail("a ( that is never closed", start)
        return Look(expression, ahead=not look[1], negated=look[2] == "!") if look else expression


def _line_start() -> Expression:
    """`^` with the flag `m`."""
    return alternation([TextStart(), Look(_NEWLINE, ahead=False, negated=False)])


def _line_end() -> Expression:
    """`$` with the flag `m`."""
    return alternation([TextEnd(), Look(_NEWLINE, ahead=True, negated=False)])


def _boundary(word: Chars, is_boundary: bool) -> Expression:
    r"""`\b`, or `\B` unless `is_boundary`, for a class of word characters."""
    negations = [(False, is_boundary), (True, not is_boundary)]  # of the look-behind and of the look-ahead
    return alternation(
        sequence(Look(word, ahead=False, negated=behind), Look(word, ahead=True, negated=ahead))
        for behind, ahead in negations
    )


def containing(expression: Expression) -> Expression:
    """Match every text that contains a match of `expression`, as `re.search` finds it."""
    parts = expression.parts if isinstance(expression, Seq) else (expression,)
    before = () if parts[:1] == (TextStart(),) else (_ANYTHING,)
    after = () if parts[-1:] == (TextEnd(),) else (_ANYTHING,)
    return sequence(*before, *parts, *after)
