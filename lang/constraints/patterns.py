r"""Reads regular expressions as nodes, with the standard library's parser and the meaning of `gen(regex=...)`.

`\d`, `\w` and `\s` are ASCII. Back-references, anchors, word boundaries and look-around are refused: inside a larger
text they would look beyond their part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from re import _constants as codes
from re import _parser as parser
from typing import Any

from ...runtime.protocol.errors import RequestError
from .nodes import (
    ANY_CHARACTER,
    CharNode,
    LiteralNode,
    Node,
    Ranges,
    characters,
    complement,
    either,
    join,
    loop,
    ranges_of,
)

MAX_PATTERN = 1 << 16  # characters
MAX_CASED = 2_000  # characters of a set whose other cases are listed
_UNICODE_FLAG = re.compile(r"(?<!\\)\(\?[aimsxL]*u")
_DIGITS = ranges_of([(48, 57)])
_WORD = ranges_of([(48, 57), (65, 90), (95, 95), (97, 122)])
_SPACE = characters(" \t\n\r\f\v")
_CATEGORIES: dict[Any, Ranges] = {
    codes.CATEGORY_DIGIT: _DIGITS,
    codes.CATEGORY_WORD: _WORD,
    codes.CATEGORY_SPACE: _SPACE,
    codes.CATEGORY_NOT_DIGIT: complement(_DIGITS),
    codes.CATEGORY_NOT_WORD: complement(_WORD),
    codes.CATEGORY_NOT_SPACE: complement(_SPACE),
}
_REFUSED = {
    codes.AT: "an anchor or a word boundary",
    codes.ASSERT: "look-around",
    codes.ASSERT_NOT: "look-around",
    codes.GROUPREF: "a back-reference",
    codes.GROUPREF_EXISTS: "a conditional group",
    codes.ATOMIC_GROUP: "an atomic group",
    codes.POSSESSIVE_REPEAT: "a possessive repeat",
}


def pattern_node(pattern: Any, param: str = "regex") -> Node:
    """Return the node of a pattern. Raises RequestError for one that is invalid or refused."""
    if not isinstance(pattern, str):
        raise RequestError(f"{param} must be a string, got {pattern!r}", param=param)
    if len(pattern) > MAX_PATTERN:
        raise RequestError(f"{param} is longer than {MAX_PATTERN} characters", param=param)
    if _UNICODE_FLAG.search(pattern):
        raise RequestError(f"{param} {pattern!r} has the flag u, which is not supported inside seq", param=param)
    try:
        re.compile(pattern)
        parsed = parser.parse(pattern)
        return _PatternReader(pattern, param).sequence(parsed, parsed.state.flags)
    except (re.error, OverflowError) as error:
        raise RequestError(f"{param} {pattern!r}: {error}", param=param) from None
    except RecursionError:
        raise RequestError(f"{param} {pattern[:80]!r}... is nested too deeply", param=param) from None


def text_before(stops: Sequence[str]) -> Node | None:
    """Return the node of the texts that go up to the first of the stops, which is not part of them.

    None if there is no simple one: of several characters one stop may be, and its first character may not come in it
    again, unless it has no other.
    """
    single = "".join(stop for stop in stops if len(stop) == 1)
    longer = [stop for stop in stops if len(stop) > 1]
    if "" in stops:
        return None
    if not longer:
        return loop(CharNode(complement(characters(single))), 0, None)
    stop, *others = longer
    first = stop[0]
    is_one_letter = set(stop) == {first}
    if others or set(single) & set(stop) or (first in stop[1:] and not is_one_letter):
        return None

    def but(text: str) -> Node:
        return CharNode(complement(characters(text + single)))

    if is_one_letter:
        begun = loop(LiteralNode(first), 0, len(stop) - 1)
        return loop(join([begun, but(first)]), 0, None)
    # The stop may begin and be given up for a new beginning any number of times, until another character follows.
    beginnings = range(len(stop) - 1, 0, -1)
    again = loop(either(LiteralNode(stop[:at]) for at in beginnings), 0, None)
    given_up = either(join([LiteralNode(stop[:at]), but(first + stop[at])]) for at in beginnings)
    return join([loop(either([but(first), join([again, given_up])]), 0, None), again])


class _PatternReader:
    def __init__(self, pattern: str, param: str) -> None:
        self._pattern = pattern
        self._param = param

    def sequence(self, parsed: Iterable[Any], flags: int) -> Node:
        return join(self._node(code, argument, flags) for code, argument in parsed)

    def _node(self, code: Any, argument: Any, flags: int) -> Node:
        if code is codes.LITERAL and not flags & re.IGNORECASE:
            return LiteralNode(chr(argument))
        if code in (codes.LITERAL, codes.NOT_LITERAL, codes.IN, codes.ANY):
            return CharNode(self._characters(code, argument, flags))
        if code is codes.BRANCH:
            return either(self.sequence(branch, flags) for branch in argument[1])
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            least, most, inner = argument
            part = self.sequence(inner, flags)
            return loop(part, least, None if most is codes.MAXREPEAT else most, lazy=code is codes.MIN_REPEAT)
        if code is codes.SUBPATTERN:
            _, added, removed, inner = argument
            return self.sequence(inner, (flags | added) & ~removed)
        what = _REFUSED.get(code, f"{code}")
        raise RequestError(
            f"{self._param} {self._pattern!r} has {what}, which is not supported inside seq", param=self._param
        )

    def _characters(self, code: Any, argument: Any, flags: int) -> Ranges:
        if code is codes.ANY:
            return ANY_CHARACTER if flags & re.DOTALL else complement(characters("\n"))
        if code is codes.IN:
            negated = argument[0][0] is codes.NEGATE
            found = self._cased(self._set(argument[negated:]), flags)
            return complement(found) if negated else found
        found = self._cased(ranges_of([(argument, argument)]), flags)
        return complement(found) if code is codes.NOT_LITERAL else found

    def _set(self, items: Iterable[Any]) -> Ranges:
        pairs: list[tuple[int, int]] = []
        for code, argument in items:
            if code is codes.LITERAL:
                pairs.append((argument, argument))
            elif code is codes.RANGE:
                pairs.append(argument)
            else:
                pairs += _CATEGORIES[argument]
        return ranges_of(pairs)

    def _cased(self, ranges: Ranges, flags: int) -> Ranges:
        if not flags & re.IGNORECASE:
            return ranges
        if sum(high - low + 1 for low, high in ranges) > MAX_CASED:
            raise RequestError(
                f"{self._param} {self._pattern!r} ignores the case of a set of more than {MAX_CASED} characters, which "
                "is not supported inside seq",
                param=self._param,
            )
        listed = [chr(point) for low, high in ranges for point in range(low, high + 1)]
        # A letter of ASCII stands for letters of ASCII only, as everywhere in the runtime.
        cases = {case for one in listed for case in (one, one.lower(), one.upper()) if len(case) == 1}
        return characters("".join(case for case in cases if case.isascii() or not _only_ascii(case, listed)))


def _only_ascii(case: str, listed: list[str]) -> bool:
    """Return True if a character beyond ASCII is in the set only as another case of letters of ASCII."""
    return case not in listed and all(one.isascii() for one in listed if case in (one.lower(), one.upper()))
