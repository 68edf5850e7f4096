r"""Reader of the parts of a pattern that match one character: escapes and bracketed classes."""

from __future__ import annotations

import re
from functools import cache
from typing import Literal, NoReturn

from ...errors import GrammarError
from ...record import record
from ..charset import ASCII_SPACE, DIGITS, ECMA_SPACE, MAX_CODE_POINT, WORD, CharSet, chars, charset, complement
from .unicode_sets import case_variants, property_set, python_class

Dialect = Literal["python", "ecma"]

_CONTROL = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
_HEX_WIDTH = {"x": 2, "u": 4, "U": 8}
_OCTAL = re.compile("0[0-7]{0,2}|[0-7]{3}")  # three digits are no reference to a group
_OCTAL_IN_CLASS = re.compile("[0-7]{1,3}")
_BRACED = re.compile(r"\{([0-9A-Fa-f]{1,8})\}")
_LOW_SURROGATE = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")
_PROPERTY = re.compile(r"\{([A-Za-z_=]{1,60})\}")


@record()
class Flags:
    """Flags of a pattern, named as in the standard library's `re`."""

    ignore_case: bool = False
    multiline: bool = False
    dotall: bool = False
    verbose: bool = False
    ascii: bool = True


@cache
def named_classes(dialect: Dialect, ascii_only: bool) -> dict[str, CharSet]:
    r"""Return the sets of `\d \w \s \D \W \S` and `.`, keyed by their letter."""
    if dialect == "ecma":
        named = {"d": DIGITS, "w": WORD, "s": ECMA_SPACE}
    elif ascii_only:
        named = {"d": DIGITS, "w": WORD, "s": ASCII_SPACE}
    else:
        named = {letter: python_class(letter) for letter in "dws"}
    line_ends = "\n" if dialect == "python" else "\n\r\u2028\u2029"
    return (
        named | {name.upper(): complement(found) for name, found in named.items()} | {".": complement(chars(line_ends))}
    )


class CharacterReader:
    """Cursor over a pattern, which reads escapes and classes."""

    def __init__(self, pattern: str, dialect: Dialect) -> None:
        self.pattern = pattern
        self.dialect = dialect
        self.python = dialect == "python"
        self.at = 0

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        """Raise GrammarError at `position`, or where the reader is."""
        raise GrammarError.in_pattern(message, self.pattern, self.at if position is None else position)

    def peek(self) -> str:
        """Return the next character, the empty string at the end."""
        return self.pattern[self.at : self.at + 1]

    def take(self, text: str) -> bool:
        """Skip `text` if it comes next; return True if it did."""
        if self.pattern.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def character_class(self, start: int, flags: Flags) -> CharSet:
        """Read a bracketed class, from after its `[` at `start`."""
        negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        first = self.at
        while self.peek() != "]" or (self.python and self.at == first):
            low_at = self.at
            low = self._class_item(start, flags)
            if not (self.peek() == "-" and self.pattern[self.at + 1 : self.at + 2] not in ("]", "")):
                ranges += low
                continue
            self.at += 1
            high = self._class_item(start, flags)
            if not (_single(low) and _single(high)):
                if self.python:
                    self.fail("a range between character classes", low_at)
                ranges += (*low, *chars("-"), *high)  # as ECMA-262's Annex B reads it
            elif high[0][0] < low[0][0]:
                self.fail("a range whose first character is after its last", low_at)
            else:
                ranges.append((low[0][0], high[0][0]))
        self.at += 1
        found = cased(charset(ranges), flags, self.dialect)
        return complement(found) if negated else found

    def _class_item(self, start: int, flags: Flags) -> CharSet:
        character = self.peek()
        if not character:
            self.fail("a [ that is never closed", start)
        self.at += 1
        return self.escape(flags, in_class=True) if character == "\\" else chars(character)

    def escape(self, flags: Flags, *, in_class: bool) -> CharSet:
        r"""Read an escape, from after its `\`; return the characters it matches."""
        start = self.at - 1
        letter = self.peek()
        self.at += 1
        if letter == "":
            self.fail("a \\ at the end of the pattern", start)
        if letter in "dwsDWS":
            return named_classes(self.dialect, flags.ascii)[letter]
        if letter in "pP":
            return self._property(letter, start)
        if letter in _CONTROL:
            return _one(_CONTROL[letter])
        if letter == "b" and in_class:
            return chars("\b")
        if letter == "a" and self.python:
            return chars("\a")
        if letter in _HEX_WIDTH and (letter != "U" or self.python):
            return _one(self._code_point(letter, start))
        if letter == "c" and not self.python and self.peek().isascii() and self.peek().isalpha():
            self.at += 1
            return _one(ord(self.pattern[self.at - 1]) % 32)
        if letter == "0" and not self.peek().isdigit():
            return chars("\0")
        if self.python and (octal := (_OCTAL_IN_CLASS if in_class else _OCTAL).match(self.pattern, self.at - 1)):
            self.at = octal.end()
            if (code := int(octal[0], 8)) > 0xFF:
                self.fail(f"\\{octal[0]}: an octal escape is at most \\377", start)
            return _one(code)
        if letter == "0":
            self.fail(f"\\0{self.peek()}: octal escapes are not supported; write \\x..", start)
        if letter.isdigit() and not in_class:
            self.fail(f"\\{letter}: a reference to a group is not supported", start)
        if letter.isascii() and letter.isalnum():
            self.fail(f"\\{letter} is not supported", start)
        return chars(letter)

    def _property(self, letter: str, start: int) -> CharSet:
        match = _PROPERTY.match(self.pattern, self.at)
        found = property_set(match[1]) if match else None
        if match is None or found is None:
            self.fail(f"\\{letter} without a known property name", start)
        self.at = match.end()
        return found if letter == "p" else complement(found)

    def _code_point(self, letter: str, start: int) -> int:
        if letter == "u" and not self.python and self.peek() == "{":
            match = _BRACED.match(self.pattern, self.at)
        else:
            match = re.compile(f"([0-9A-Fa-f]{{{_HEX_WIDTH[letter]}}})").match(self.pattern, self.at)
        if match is None or int(match[1], 16) > MAX_CODE_POINT:
            self.fail(f"\\{letter} without a valid code point", start)
        self.at = match.end()
        code = int(match[1], 16)
        if not self.python and 0xD800 <= code <= 0xDBFF:
            second = _LOW_SURROGATE.match(self.pattern, self.at)
            if second is not None:
                self.at = second.end()
                return 0x10000 + ((code - 0xD800) << 10) + int(second[1], 16) - 0xDC00
        return code


def cased(found: CharSet, flags: Flags, dialect: Dialect) -> CharSet:
    """Return the set with the case variants of its members if the flags ignore case."""
    if not flags.ignore_case:
        return found
    return case_variants(found, "ecma" if dialect == "ecma" else "separate" if flags.ascii else "python")


def _one(code: int) -> CharSet:
    return ((code, code),)


def _single(found: CharSet) -> bool:
    return len(found) == 1 and found[0][0] == found[0][1]
