"""Automata over the contents of JSON strings: patterns, formats, lengths, any string, and labelled products of them.

Automata of patterns and formats are made once a process and shared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ...budget import EACH_PATTERN, PATTERN_STEPS, CompileBudget, cached_piece, charge
from ...errors import GrammarError
from ...regex.byte_dfa import byte_dfa
from ...regex.char_dfa import CharDfa, choice
from ...regex.charset import ALL
from ...regex.counted_chars import MAX_PRODUCT_STATES
from ...regex.dfa import DEAD, START, Dfa
from ...regex.pair_product import product
from ...regex.subset import char_dfa
from ...regex.syntax.expression import Chars, Expression, alternation, has_look, repeat
from ...regex.syntax.parser import containing, parse_regex
from ...regex.syntax.size_bound import SizeBound, size_bound
from ..formula import Truths
from .formats import format_expression, possible_expression, regex_chars

MAX_JOINED = 100  # patterns whose union is made at once
MAX_PATTERNS = 8192  # whose automata are kept
MAX_LENGTH_STATES = 60_000
MAX_DEFERRED = 1000  # states times intervals of characters; each boundary takes some tens of states inside characters
_PLAIN = np.array([b for b in range(0x20, 0x80) if b not in (0x22, 0x5C)], np.uint8)
# Multi-byte characters: range of the first byte, range of the second byte, number of bytes after it.
_UTF8 = np.array(
    [
        (0xC2, 0xDF, 0x80, 0xBF, 0),
        (0xE0, 0xE0, 0xA0, 0xBF, 1),
        (0xE1, 0xEC, 0x80, 0xBF, 1),
        (0xED, 0xED, 0x80, 0x9F, 1),
        (0xEE, 0xEF, 0x80, 0xBF, 1),
        (0xF0, 0xF0, 0x90, 0xBF, 2),
        (0xF1, 0xF3, 0x80, 0xBF, 2),
        (0xF4, 0xF4, 0x80, 0x8F, 2),
    ],
    np.int32,
)


# Patterns and formats.


def pattern_dfa(pattern: str) -> Dfa:
    """Return the contents of the JSON strings that contain a match of an ECMA-262 pattern.

    Raises GrammarError with the position of what is not supported.
    """
    return string_content_dfa(pattern_chars(pattern))


def check_pattern(pattern: str) -> None:
    """Raise GrammarError if `pattern_dfa` does. If it surely does not, the bytes are left to the first use."""
    has_texts(pattern)  # which stays known when the automaton has been dropped
    if _small_bound(pattern) is not None:
        return
    chars = pattern_chars(pattern)
    if chars.num_states * len(chars.alphabet.starts) > MAX_DEFERRED:
        string_content_dfa(chars)


@cached_piece(maxsize=1024)
def string_content_dfa(chars: CharDfa) -> Dfa:
    """Return the bytes between the quotes of the JSON strings of an automaton's texts."""
    return byte_dfa(chars, "json_string", _pattern_budget())


@cached_piece(maxsize=256)
def regex_dfa(pattern: str) -> Dfa:
    """Return the UTF-8 texts that a Python pattern matches as a whole."""
    return byte_dfa(char_dfa(parse_regex(pattern, "python"), _pattern_budget()), "utf8", _pattern_budget())


def expression_dfa(expression: Expression) -> Dfa:
    """Return the UTF-8 texts of an expression."""
    return byte_dfa(char_dfa(expression, _pattern_budget()), "utf8", _pattern_budget())


@cached_piece(MAX_PATTERNS)
def pattern_chars(pattern: str) -> CharDfa:
    """Return the texts that contain a match of an ECMA-262 pattern."""
    _small_bound(pattern)  # is charged for reading it
    return char_dfa(containing(parse_regex(pattern, "ecma")), _pattern_budget())


@cached_piece(maxsize=256)
def any_pattern_chars(patterns: frozenset[str]) -> CharDfa:
    """Return the texts that contain a match of one of several ECMA-262 patterns."""
    found = {pattern: parse_regex(pattern, "ecma") for pattern in sorted(patterns)}
    # Look-arounds would be worked out together, so that one of many patterns with them would take as long as all.
    apart = [pattern for pattern, expression in found.items() if len(found) > 1 and has_look(expression)]
    rest = [expression for pattern, expression in found.items() if pattern not in apart]
    budget = _pattern_budget()
    machines = list(map(pattern_chars, apart))
    # The states of patterns that begin anywhere grow with the square of their number before they are minimised.
    for first in range(0, len(rest), MAX_JOINED):
        joined = containing(alternation(rest[first : first + MAX_JOINED]))
        machines.append(char_dfa(joined, budget).minimal())
    return choice(machines, False, budget)


@cached_piece(maxsize=16_384)
def has_texts(pattern: str) -> bool:
    """Return True if some text contains a match of an ECMA-262 pattern."""
    return _small_bound(pattern) is not None or not pattern_chars(pattern).is_empty


def most_states(pattern: str) -> int:
    """Return a bound of the states of `pattern_chars`."""
    bound = _small_bound(pattern)
    return pattern_chars(pattern).num_states if bound is None else bound.states


@cached_piece(16_384, 16_384 * EACH_PATTERN)
def _small_bound(pattern: str) -> SizeBound | None:
    """Return the bound of a pattern that surely has texts and an automaton within all limits, which then is left to the
    first use."""
    charge(EACH_PATTERN)
    bound = size_bound(parse_regex(pattern, "ecma"))
    return None if bound is None or bound.states * bound.intervals > MAX_DEFERRED else bound


@cached_piece(maxsize=64)
def format_chars(name: str) -> CharDfa | None:
    """Return the texts of a format, or None if it is not enforced."""
    if name == "regex":
        return regex_chars(_format_budget())
    expression = format_expression(name)
    return None if expression is None else char_dfa(expression, _format_budget())


@cached_piece(maxsize=64)
def undecided_chars(name: str) -> CharDfa | None:
    """Return the texts that may or may not be of a format that is known in part, or None for other formats."""
    possible, known = possible_expression(name), format_chars(name)
    if possible is None or known is None:
        return None
    return char_dfa(possible, _format_budget()).minus(known, _format_budget())


def _pattern_budget() -> CompileBudget:
    return CompileBudget(max_steps=PATTERN_STEPS)


def _format_budget() -> CompileBudget:
    """Return a budget without a limit of steps, because the patterns of formats are known to be small."""
    return CompileBudget(max_steps=math.inf)


# Any string, and lengths.


@cache
def any_string() -> Dfa:
    """Return the contents of all JSON strings. The automaton accepts exactly between characters."""
    return byte_dfa(char_dfa(repeat(Chars(ALL), 0, None), CompileBudget()), "json_string")


# By automaton, as long as something else keeps it.
_plain_states: WeakKeyDictionary[Dfa, NDArray[np.bool_]] = WeakKeyDictionary()
_looping_states: WeakKeyDictionary[Dfa, NDArray[np.bool_]] = WeakKeyDictionary()


def plain_states(dfa: Dfa) -> NDArray[np.bool_]:
    """Return the states from which every text of plain characters leads to such a state again: bool[S]."""
    found = _plain_states.get(dfa)
    if found is None:
        from ...regex import dfa_kernel  # here, because it imports numba

        found = dfa_kernel.plain_states(np.ascontiguousarray(dfa.table), dfa.class_of, _PLAIN, _UTF8)
        _plain_states[dfa] = found
    return found


def looping_states(dfa: Dfa) -> NDArray[np.bool_]:
    """Return the states from which every plain character leads back to the same state: bool[S]."""
    found = _looping_states.get(dfa)
    if found is None:
        from ...regex import dfa_kernel  # here, because it imports numba

        plain = plain_states(dfa)
        found = dfa_kernel.looping_states(np.ascontiguousarray(dfa.table), dfa.class_of, _PLAIN, _UTF8, plain)
        _looping_states[dfa] = found
    return found


@cached_piece(maxsize=64)
def length_dfa(least: int, most: int | None) -> Dfa:
    """Return the strings of `least` to `most` characters. Raises GrammarError beyond `MAX_LENGTH_STATES`."""
    base = any_string()
    num_counts = (least if most is None else most) + 1
    if num_counts * base.num_states > MAX_LENGTH_STATES:
        raise GrammarError("lengths this large cannot be combined with other constraints on the string")
    num_inner = base.num_states - 1
    counts = np.arange(num_counts)[:, None, None]
    inner = base.table[1:][None]
    after = counts + base.accepting[1:][None, :, None]
    if most is None:
        after = np.minimum(after, least)
    targets = np.where((inner == DEAD) | (after >= num_counts), DEAD, inner + after * num_inner)
    table = np.concatenate([np.zeros((1, targets.shape[2]), np.int32), targets.reshape(-1, targets.shape[2])])
    accepting = (base.accepting[1:][None] & (np.arange(num_counts) >= least)[:, None]).reshape(-1)
    return Dfa(table.astype(np.int32), base.class_of, np.concatenate([[False], accepting]))


# Products.


@dataclass(frozen=True, eq=False)
class DfaProduct:
    """Product of automata over the texts of a universe. S states, the dead one first; C classes of bytes.

    `combination[q]` is the index in `accepted` of the automata that accept in state q, or -1 if the universe does not.
    """

    table: NDArray[np.int32]  # [S, C]
    class_of: NDArray[np.uint8]  # [256]
    combination: NDArray[np.int64]  # [S]
    accepted: tuple[Truths, ...]


@cached_piece(maxsize=256)
def dfa_product(machines: tuple[Dfa, ...]) -> DfaProduct:
    """Return the product of a universe and automata. Raises GrammarError beyond `MAX_PRODUCT_STATES`."""
    columns, inverse = np.unique(np.stack([m.class_of for m in machines]), axis=1, return_inverse=True)
    tables = [m.table[:, column] for m, column in zip(machines, columns, strict=True)]
    table, combination, accepted = product(tables, [machine.accepting for machine in machines], product_check())
    return DfaProduct(table, inverse.reshape(-1).astype(np.uint8), combination, tuple(accepted))


def product_check() -> Callable[[int, int], None]:
    """Return the check of one product's states and steps, which raises GrammarError beyond the limits."""
    budget = CompileBudget()

    def check(num_states: int, steps: int) -> None:
        budget.check(num_states, steps)
        if num_states > MAX_PRODUCT_STATES + 1:
            raise GrammarError("the constraints on one value are too complex in combination")

    return check


def combinations(universe: Dfa, dfas: Sequence[Dfa]) -> tuple[Truths, ...]:
    """Return the combinations of automata that accept a text of the universe while the others do not."""
    return dfa_product((universe, *dfas)).accepted


LabelledDfa = tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int32]]  # table [S, C], classes [256], labels [S]


def labelled_product(universe: Dfa, dfas: Sequence[Dfa], label: Callable[[Truths], int]) -> LabelledDfa | None:
    """Label the texts of the universe by which automata accept them; the label -1 refuses a text.

    Returns None if every text is refused. Raises GrammarError beyond `MAX_PRODUCT_STATES`.
    """
    found = dfa_product((universe, *dfas))
    by_combination = np.array([*(label(accepted) for accepted in found.accepted), -1], np.int32)
    return live_part(found.table, found.class_of, by_combination[found.combination])


def live_part(table: NDArray[np.int32], class_of: NDArray[np.uint8], labels: NDArray[np.int32]) -> LabelledDfa | None:
    """Lead to the dead state wherever no text with a label of at least 0 goes on. None if there is no such text."""
    alive = live_states(table, labels >= 0)
    return (np.where(alive[table], table, DEAD), class_of, labels) if alive[START] else None


def live_states(table: NDArray[np.int32], ends: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the states of a table [S, C] from which one that `ends` is reached: bool[S]."""
    from ...regex import dfa_kernel  # here, because it imports numba

    alive = dfa_kernel.alive(np.ascontiguousarray(table), ends)
    alive[DEAD] = False
    return alive
