"""The automata of strings: what a pattern or a format allows between the quotes of a JSON string, and what a regular
expression allows as a whole text. Each is made once a process and shared."""

from __future__ import annotations

import math
from functools import lru_cache

from ..budget import CompileBudget
from ..regex.byte_dfa import byte_dfa
from ..regex.char_dfa import CharDfa
from ..regex.dfa import Dfa
from ..regex.expression import Expression
from ..regex.parser import containing, parse_regex
from ..regex.subset import char_dfa
from .formats import format_expression, possible_expression

MAX_CPU_SECONDS = 0.5  # of one pattern


def pattern_dfa(pattern: str) -> Dfa:
    """The contents of the JSON strings that contain a match of an ECMA-262 pattern. Raises GrammarError with the
    position of what is not supported."""
    return _encoded(pattern_chars(pattern))


@lru_cache(maxsize=256)
def regex_dfa(pattern: str) -> Dfa:
    """The UTF-8 texts that a Python pattern matches as a whole."""
    return byte_dfa(char_dfa(parse_regex(pattern, "python"), _budget()), "utf8", _budget())


def expression_dfa(expression: Expression) -> Dfa:
    """The UTF-8 texts of an expression."""
    return byte_dfa(char_dfa(expression, _budget()), "utf8", _budget())


@lru_cache(maxsize=2048)
def pattern_chars(pattern: str) -> CharDfa:
    return char_dfa(containing(parse_regex(pattern, "ecma")), _budget())


@lru_cache(maxsize=64)
def format_chars(name: str) -> CharDfa | None:
    expression = format_expression(name)
    return None if expression is None else char_dfa(expression, _unhurried())


@lru_cache(maxsize=64)
def doubtful_chars(name: str) -> CharDfa | None:
    """The texts of which is not known whether they are of a format; None when it is known of all."""
    possible, known = possible_expression(name), format_chars(name)
    if possible is None or known is None:
        return None
    return char_dfa(possible, _unhurried()).minus(known, _unhurried())


@lru_cache(maxsize=1024)
def _encoded(chars: CharDfa) -> Dfa:
    return byte_dfa(chars, "json_string", _budget())


def _budget() -> CompileBudget:
    return CompileBudget(max_cpu_seconds=MAX_CPU_SECONDS)


def _unhurried() -> CompileBudget:
    """Of a format: its pattern is ours and known to be small."""
    return CompileBudget(max_cpu_seconds=math.inf)
