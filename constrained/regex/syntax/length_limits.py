r"""Takes the limit of a text's length out of a pattern: `^(?=.{1,255}$)(.{1,63}\.){1,127}[a-z]+$`.

Lengths are counted elsewhere, without states. Under the limit the count of `{1,127}` decides nothing: 128 repetitions
have 256 characters. Without it, repetitions need no states of their own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ...errors import GrammarError
from .expression import Alt, Chars, Expression, Look, Repeat, Seq, TextEnd, TextStart, least_length, repeat, sequence
from .parser import parse_regex


class LengthLimits(NamedTuple):
    """Texts that match `pattern`, of `least` to `most` characters."""

    least: int
    most: int | None
    pattern: str


@lru_cache(maxsize=256)
def length_limits(pattern: str) -> LengthLimits:
    """Split an ECMA-262 pattern whose first look-aheads limit the length, so that counts of repeats can be dropped.

    Returns any other pattern as it is, without limits.
    """
    whole = LengthLimits(0, None, pattern)
    if "(?=" not in pattern:
        return whole
    try:
        expression = parse_regex(pattern, "ecma")
    except GrammarError:
        return whole
    if not isinstance(expression, Seq) or expression.parts[:1] != (TextStart(),):
        return whole
    least, most, parts = 0, None, list(expression.parts)
    for at in range(1, len(parts)):
        look = parts[at]
        if not isinstance(look, Look):
            break
        match look:
            case Look(part=Seq(parts=(Repeat(part=Chars() as every) as counted, TextEnd())), ahead=True, negated=False):
                least = max(least, counted.least)
                if counted.most is not None:
                    most = counted.most if most is None else min(most, counted.most)
                parts[at] = Look(Seq((repeat(every, 0, None), TextEnd())), ahead=True, negated=False)
    limited = sequence(*parts)
    if most is None or (lifted := _lifted(limited, most)) == limited:
        return whole
    try:
        text = _written(lifted)
        return LengthLimits(least, most, text) if parse_regex(text, "ecma") == lifted else whole
    except GrammarError:  # it is longer, and groups that captured are nested deeper
        return whole


def _lifted(expression: Expression, room: int) -> Expression:
    """Drop the counts that matches of at most `room` characters never exceed."""
    match expression:
        case Seq(parts=parts):
            lengths = [*map(least_length, parts)]
            left = [room - sum(lengths) + length for length in lengths]
            return Seq(tuple(_lifted(part, inner) for part, inner in zip(parts, left, strict=True)))
        case Alt(parts=parts):
            return Alt(tuple(_lifted(part, room) for part in parts))
        case Repeat(part=part, least=least, most=most, lazy=lazy):
            length = least_length(part)
            if most is not None and (most + 1) * length > room:
                most = None
            return Repeat(_lifted(part, room - max(least - 1, 0) * length), least, most, lazy)
    return expression


def _written(expression: Expression) -> str:
    """Return an ECMA-262 pattern of an expression."""
    match expression:
        case Chars(ranges=ranges):
            return "[" + "".join(rf"\u{{{low:x}}}-\u{{{high:x}}}" for low, high in ranges) + "]"
        case Seq(parts=parts):
            return "".join(f"(?:{_written(part)})" if isinstance(part, Seq | Alt) else _written(part) for part in parts)
        case Alt(parts=parts):
            return "|".join(map(_written, parts))
        case Repeat(part=part, least=least, most=most, lazy=lazy):
            inner = _written(part) if isinstance(part, Chars) else f"(?:{_written(part)})"
            return f"{inner}{{{least},{'' if most is None else most}}}{'?' if lazy else ''}"
        case TextStart():
            return "^"
        case TextEnd():
            return "$"
        case Look(part=part, ahead=ahead, negated=negated):
            return f"(?{'' if ahead else '<'}{'!' if negated else '='}{_written(part)})"
    raise AssertionError(f"{type(expression).__name__} is not an expression of a pattern")
