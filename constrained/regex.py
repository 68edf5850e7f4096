r"""Patterns to expressions: the syntax that Python and ECMA-262 share, in the meaning of either.

Both: ASCII `\d` and `\w`, greedy and lazy repeats (the same language), groups of any kind that only group, `^` and `$`
for the text's start and end. Python: `.` is all but newline, `\s` is ASCII, `\A` and `\Z`. ECMA-262 (JSON Schema): `.`
is all but line terminators, `\s` is Unicode's, `\u{...}`, `\cX`, `[]` and `[^]`. Everything else is refused at its
position.
"""

from __future__ import annotations

import re
from typing import Literal

from .charset import ASCII_SPACE, DIGITS, ECMA_SPACE, MAX_CODE_POINT, WORD, CharSet, chars, charset, complement
from .errors import GrammarError
from .expression import Chars, Expression, TextEnd, TextStart, choice, repeat, sequence

Dialect = Literal["python", "ecma"]

MAX_NESTING = 60
MAX_PATTERN = 1 << 16  # characters
_QUANTIFIER = re.compile(r"\{(\d{0,7})(,?)(\d{0,7})\}")
_GROUP = re.compile(r"\?(?::|P?<[A-Za-z_]\w*>)")
_CONTROL = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
_HEX_WIDTH = {"x": 2, "u": 4, "U": 8}


def parse_regex(pattern: str, dialect: Dialect = "python") -> Expression:
    """Raises GrammarError with the position of what is wrong or not supported."""
    if len(pattern) > MAX_PATTERN:
        raise GrammarError(f"the pattern is longer than {MAX_PATTERN} characters")
    return _Parser(pattern, dialect).parse()


class _Parser:
    def __init__(self, pattern: str, dialect: Dialect) -> None:
        self._pattern = pattern
        self._python = dialect == "python"
        self._at = 0
        self._depth = 0
        space = ASCII_SPACE if self._python else ECMA_SPACE
        self._named = {"d": DIGITS, "w": WORD, "s": space}
        self._named |= {name.upper(): complement(ranges) for name, ranges in self._named.items()}
        self._dot = complement(chars("\n") if self._python else chars("\n\r\u2028\u2029"))

    def parse(self) -> Expression:
        expression = self._alternatives()
        if self._at < len(self._pattern):
            raise self._error("a ) that closes nothing")
        return expression

    def _error(self, message: str, position: int | None = None) -> GrammarError:
        return GrammarError.in_pattern(message, self._pattern, self._at if position is None else position)

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if self._pattern.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _alternatives(self) -> Expression:
        branches = [self._branch()]
        while self._take("|"):
            branches.append(self._branch())
        return choice(branches)

    def _branch(self) -> Expression:
        parts = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated())
        return sequence(*parts)

    def _repeated(self) -> Expression:
        start = self._at
        part = self._atom()
        bounds = self._quantifier()
        if bounds is None:
            return part
        if isinstance(part, TextStart | TextEnd):
            raise self._error("an anchor that is repeated", start)
        least, most = bounds
        if most is not None and most < least:
            raise self._error("a repeat whose bounds are the wrong way round", start)
        if self._take("+"):
            raise self._error("a possessive repeat is not supported", self._at - 1)
        self._take("?")
        if (again := self._at) < len(self._pattern) and self._quantifier() is not None:
            raise self._error("a repeat of a repeat", again)
        return repeat(part, least, most)

    def _quantifier(self) -> tuple[int, int | None] | None:
        for mark, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(mark):
                return bounds
        match = _QUANTIFIER.match(self._pattern, self._at)
        # As in Python, braces that are no repeat are characters; ECMA-262 has no {,n}.
        if match is None or not (match[1] or (self._python and match[2])):
            return None
        self._at = match.end()
        least = int(match[1] or 0)
        return least, (int(match[3]) if match[3] else None) if match[2] else least

    def _atom(self) -> Expression:
        start = self._at
        character = self._peek()
        self._at += 1
        match character:
            case "(":
                return self._group(start)
            case "[":
                return Chars(self._class(start))
            case ".":
                return Chars(self._dot)
            case "^":
                return TextStart()
            case "$":
                return TextEnd()
            case "*" | "+" | "?":
                raise self._error("a repeat of nothing", start)
            case "\\":
                if self._python and self._take("A"):
                    return TextStart()
                if self._python and self._take("Z"):
                    return TextEnd()
                return Chars(self._escape(in_class=False))
            case _:
                return Chars(chars(character))

    def _group(self, start: int) -> Expression:
        if self._peek() == "?":
            match = _GROUP.match(self._pattern, self._at)
            if match is None:
                what = "look-around" if re.compile(r"\?<?[=!]").match(self._pattern, self._at) else "this kind of group"
                raise self._error(f"{what} is not supported", start)
            self._at = match.end()
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._error(f"groups nested deeper than {MAX_NESTING}", start)
        expression = self._alternatives()
        self._depth -= 1
        if not self._take(")"):
            raise self._error("a ( that is never closed", start)
        return expression

    def _class(self, start: int) -> CharSet:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        first = self._at
        while self._peek() != "]" or (self._python and self._at == first):
            low_at = self._at
            low = self._class_item(start)
            if not (self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("]", "")):
                ranges += low
                continue
            self._at += 1
            high = self._class_item(start)
            if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1]:
                raise self._error("a range between classes of characters", low_at)
            if high[0][0] < low[0][0]:
                raise self._error("a range the wrong way round", low_at)
            ranges.append((low[0][0], high[0][0]))
        self._at += 1
        result = charset(ranges)
        return complement(result) if negated else result

    def _class_item(self, start: int) -> CharSet:
        character = self._peek()
        if not character:
            raise self._error("a [ that is never closed", start)
        self._at += 1
        return self._escape(in_class=True) if character == "\\" else chars(character)

    def _escape(self, in_class: bool) -> CharSet:
        start = self._at - 1
        letter = self._peek()
        self._at += 1
        if letter in self._named and letter:
            return self._named[letter]
        if letter in _CONTROL and letter:
            return charset([(_CONTROL[letter],) * 2])
        if letter == "b" and in_class:
            return chars("\b")
        if letter == "a" and self._python:
            return chars("\a")
        if letter in _HEX_WIDTH and letter and (letter != "U" or self._python):
            return charset([(self._code_point(letter, start),) * 2])
        if letter == "c" and not self._python and self._peek().isascii() and self._peek().isalpha():
            self._at += 1
            return charset([(ord(self._pattern[self._at - 1]) % 32,) * 2])
        if letter == "0" and not self._peek().isdigit():
            return chars("\0")
        if letter == "":
            raise self._error("a \\ that escapes nothing", start)
        if letter.isascii() and letter.isalnum():
            raise self._error(f"\\{letter} is not supported", start)
        return chars(letter)

    def _code_point(self, letter: str, start: int) -> int:
        if letter == "u" and not self._python and self._peek() == "{":
            match = re.compile(r"\{([0-9A-Fa-f]{1,8})\}").match(self._pattern, self._at)
        else:
            match = re.compile(f"([0-9A-Fa-f]{{{_HEX_WIDTH[letter]}}})").match(self._pattern, self._at)
        if match is None or int(match[1], 16) > MAX_CODE_POINT:
            raise self._error(f"\\{letter} without a code point", start)
        self._at = match.end()
        code = int(match[1], 16)
        if not self._python and 0xD800 <= code <= 0xDBFF:
            second = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})").match(self._pattern, self._at)
            if second is not None:
                self._at = second.end()
                return 0x10000 + ((code - 0xD800) << 10) + int(second[1], 16) - 0xDC00
        return code
