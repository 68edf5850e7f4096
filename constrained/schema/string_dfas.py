"""The automata of strings: what a pattern or a format allows between the quotes of a JSON string, and what a regular
expression allows as a whole text. Each is made once a process and shared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from ..budget import CompileBudget
from ..errors import GrammarError
from ..regex.byte_dfa import byte_dfa
from ..regex.char_dfa import CharDfa
from ..regex.charset import ALL
from ..regex.dfa import DEAD, START, Dfa
from ..regex.expression import Chars, Expression, repeat
from ..regex.pair_product import pair_product
from ..regex.parser import containing, parse_regex
from ..regex.subset import char_dfa
from .formats import format_expression, possible_expression

MAX_LENGTH_STATES = 60_000
MAX_PRODUCT_STATES = 20_000
_PLAIN = np.array([b for b in range(0x20, 0x80) if b not in (0x22, 0x5C)], np.uint8)
# Characters of several bytes: first and last first byte, first and last second byte, how many more come after that.
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


@cache
def any_string() -> Dfa:
    """The content of any JSON string. It accepts between characters, and nowhere else."""
    return byte_dfa(char_dfa(repeat(Chars(ALL), 0, None), CompileBudget()), "json_string")


@lru_cache(maxsize=2048)
def plain_states(dfa: Dfa) -> NDArray[np.bool_]:
    """From which states every text of plain characters leads on, to states of which the same is true: bool[S]."""
    from ..regex import dfa_kernel as plain_kernel  # here, for it imports numba

    return plain_kernel.plain_states(np.ascontiguousarray(dfa.table), dfa.class_of, _PLAIN, _UTF8)


@lru_cache(maxsize=2048)
def looping_states(dfa: Dfa) -> NDArray[np.bool_]:
    """From which states every plain character leads back to the very state: bool[S]."""
    from ..regex import dfa_kernel as plain_kernel  # here, for it imports numba

    plain = plain_states(dfa)
    return plain_kernel.looping_states(np.ascontiguousarray(dfa.table), dfa.class_of, _PLAIN, _UTF8, plain)


@lru_cache(maxsize=64)
def length_dfa(least: int, most: int | None) -> Dfa:
    """Strings of `least` to `most` characters. Raises GrammarError when they are too many."""
    base = any_string()
    num_counts = (least if most is None else most) + 1
    if num_counts * base.num_states > MAX_LENGTH_STATES:
        raise GrammarError("lengths this large cannot be combined with what else is asked of the string")
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


@dataclass(frozen=True, eq=False)
class DfaProduct:
    """Several automata side by side: S states, the dead one first, in which the universe goes on."""

    table: NDArray[np.int32]  # [S, C]
    class_of: NDArray[np.uint8]  # [256]
    ends: NDArray[np.int64]  # [S] the number of the combination of what the automata accept there; -1: no end at all
    accepted: tuple[tuple[bool, ...], ...]  # by that number


@lru_cache(maxsize=256)
def _product(machines: tuple[Dfa, ...]) -> DfaProduct:
    columns, inverse = np.unique(np.stack([m.class_of for m in machines]), axis=1, return_inverse=True)
    tables = [m.table[:, column] for m, column in zip(machines, columns, strict=True)]
    # One after another beside the universe, without which nothing lives; states[n] are those of the automata.
    table, states = tables[0], np.arange(len(tables[0]))[:, None]
    for other in tables[1:]:
        table, pairs = pair_product(table, other, "first", _check_product)
        states = np.concatenate([states[pairs[:, 0]], pairs[:, 1:]], axis=1)
    ends = np.full(len(table), -1, np.int64)
    combinations: dict[tuple[bool, ...], int] = {}
    accepting = [machine.accepting[states[:, number]].tolist() for number, machine in enumerate(machines)]
    for number, (ended, *accepted) in enumerate(zip(*accepting, strict=True)):
        if ended:
            ends[number] = combinations.setdefault(tuple(accepted), len(combinations))
    return DfaProduct(table, inverse.reshape(-1).astype(np.uint8), ends, tuple(combinations))


def _check_product(number: int) -> None:
    if number > MAX_PRODUCT_STATES + 1:
        raise GrammarError("what is asked of a value is too complex in combination")


def combinations(universe: Dfa, dfas: Sequence[Dfa]) -> tuple[tuple[bool, ...], ...]:
    """Which of the automata can accept a text of the universe together, and the others not."""
    return _product((universe, *dfas)).accepted


def labelled_product(
    universe: Dfa, dfas: Sequence[Dfa], label: Callable[[tuple[bool, ...]], int]
) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int32]] | None:
    """What the universe accepts, with a label by which of the automata accept it too; label -1 is for what is not
    accepted after all. The table, the classes of bytes, the label of each state; None when nothing is left.

    Raises GrammarError when there are too many states.
    """
    product = _product((universe, *dfas))
    by_number = np.array([*(label(accepted) for accepted in product.accepted), -1], np.int32)
    labels = by_number[product.ends]
    table = product.table
    alive = labels >= 0
    while True:
        now = alive | alive[table].any(axis=1)
        now[DEAD] = False
        if (now == alive).all():
            break
        alive = now
    if not alive[START]:
        return None
    return np.where(alive[table], table, DEAD), product.class_of, labels


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
