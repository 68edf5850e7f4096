"""Strings of a schema: length, pattern and format, together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from .budget import Budget
from .charset import ALL
from .determinise import determinise
from .dfa import intersect
from .encodings import json_string
from .errors import GrammarError
from .expression import NOTHING, Chars, Expression, Machine, Rest, repeat, sequence
from .json_text import QUOTE
from .nfa import build_nfa
from .regex import parse_regex
from .schema_formats import PATTERNS, format_expression
from .schema_keywords import child, count


def string_expression(schema: Mapping[str, Any], pointer: str, budget: Budget) -> Expression:
    """A JSON string, quotes included, whose characters obey minLength, maxLength, pattern and format.

    Lengths count code points. A pattern is searched for, as JSON Schema says, unless it has anchors. Raises
    GrammarError; nothing is left unenforced.
    """
    least, most = count(schema, "minLength", pointer) or 0, count(schema, "maxLength", pointer)
    if most is not None and most < least:
        return NOTHING
    contents = []
    if "pattern" in schema:
        contents.append(_search(schema["pattern"], child(pointer, "pattern")))
    if "format" in schema:
        if schema["format"] not in PATTERNS:
            known = ", ".join(PATTERNS)
            raise GrammarError(
                f"the format {schema['format']!r} is not supported; {known} are", pointer=child(pointer, "format")
            )
        contents.append(format_expression(schema["format"]))
    if least or most is not None or not contents:
        contents.append(repeat(Chars(ALL), least, most))
    content = contents[0]
    if len(contents) > 1 or "pattern" in schema:
        # A pattern's anchors mean the string's ends, so it is an automaton by itself before it is a part.
        machines = [determinise(build_nfa(part, json_string, budget), budget) for part in contents]
        dfa = reduce(lambda a, b: intersect(a, b, budget), machines)
        content = NOTHING if dfa.is_empty else Machine(dfa)
    return sequence(QUOTE, content, QUOTE)


def _search(pattern: Any, pointer: str) -> Expression:
    if not isinstance(pattern, str):
        raise GrammarError(f"'pattern' must be a string, not {pattern!r}", pointer=pointer)
    try:
        found = parse_regex(pattern, "ecma")
    except GrammarError as error:
        raise GrammarError(str(error), pointer=pointer, position=error.position) from None
    return sequence(repeat(Chars(ALL), 0, None), found, Rest(ALL))
