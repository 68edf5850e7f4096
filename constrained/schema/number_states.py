"""The states that read the numbers of which a schema's formulas hold, and which truths they can have together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import lru_cache

import numpy as np

from ..automaton.automaton import Automaton
from ..automaton.blocks import Block
from ..errors import GrammarError
from ..regex.decimal_ranges import FRACTION, NATURAL, NumberBound, at_least
from ..regex.dfa import START, Dfa
from ..regex.expression import Bytes, alternation, optional, sequence
from .formula import And, ExactlyOne, Formula, Not, Or, atoms, evaluate
from .number_parts import NumberPart, candidates, number_dfa
from .string_dfas import combinations, expression_dfa, labelled_product

AFTER = b",]} \t\n\r"  # what may come after a number
_Result = Callable[[tuple[bool, ...]], int]


def number_start(automaton: Automaton, formulas: tuple[Formula, ...], result: _Result) -> int | None:
    """The number of the state before a number for which the first formula holds; it ends with the result of the truth
    of the others. None when there is no such number."""
    need, tracked = formulas[0], formulas[1:]
    if need is False:
        return None
    values = candidates(need)
    if values is not None and not tracked:
        kept = frozenset(v for v in values if evaluate(need, lambda part: part.holds(v)))  # noqa: B023
        whole = any(part.whole for part in atoms(need))
        need = NumberPart(whole=whole, values=kept) if kept else False
        if need is False:
            return None
    if not isinstance(need, And | Or | ExactlyOne | Not) and all(f == need or isinstance(f, bool) for f in tracked):
        number = result(tuple(True if f == need else bool(f) for f in tracked))
        part = NumberPart() if need is True else need
        try:
            dfa = number_dfa(part)
        except GrammarError as error:
            automaton.refused.append(error)
            return None  # refusing all is safe, where what is asked together cannot be worked out
        if dfa.is_empty:
            return None
        return START + automaton.block(("number", part, number), lambda: _block(part, number))
    return _product_start(automaton, (need, *tracked), result)


@lru_cache(maxsize=256)
def _block(part: NumberPart, result: int) -> Block:
    dfa = number_dfa(part)
    results = np.where(dfa.accepting, result, -1).astype(np.int32)
    return Block(dfa.table, dfa.class_of, results, before=AFTER)


def _product_start(automaton: Automaton, formulas: tuple[Formula, ...], result: _Result) -> int | None:
    key = ("numbers", formulas, id(result))
    if key in automaton.memory:
        return automaton.memory[key]  # type: ignore[no-any-return]
    parts = list(dict.fromkeys(atom for formula in formulas for atom in atoms(formula)))

    def label(accepted: tuple[bool, ...]) -> int:
        truth = dict(zip(parts, accepted, strict=True))
        truths = [bool(evaluate(f, truth.__getitem__)) for f in formulas]
        return result(tuple(truths[1:])) if truths[0] else -1

    start: int | None = None
    try:
        made = labelled_product(_universe(parts), [number_dfa(part) for part in parts], label)
    except GrammarError as error:
        made = None  # refusing all is safe, where what is asked cannot be worked out
        automaton.refused.append(error)
    if made is not None:
        table, class_of, labels = made
        start = START + automaton.block(key, lambda: Block(table, class_of, labels, before=AFTER))
    automaton.memory[key] = start
    return start


def number_combinations(parts: Sequence[NumberPart]) -> Iterable[tuple[bool, ...]]:
    """The truths that the parts can have of one number. Raises GrammarError when that is too complex."""
    if len(parts) == 1:
        return [(True,), (False,)]  # that there are such numbers has been found out when it was made
    if all(part.values is not None for part in parts):
        listed = frozenset[Decimal]().union(*(part.values or () for part in parts))
        found = {tuple(value in (part.values or ()) for part in parts): None for value in listed}
        return found | {tuple(False for _ in parts): None}
    return combinations(_universe(parts), [number_dfa(part) for part in parts])


def _universe(parts: Iterable[NumberPart]) -> Dfa:
    # An automaton of a bounded part reads no exponents, so its complement would hold numbers that are within.
    return number_dfa(NumberPart()) if all(_reads_exponents(part) for part in parts) else _plain_numbers()


def _reads_exponents(part: NumberPart) -> bool:
    return part == NumberPart()


@lru_cache(maxsize=1)
def _plain_numbers() -> Dfa:
    """Without exponents; and without negative zeros, of which there are several spellings that not all parts read."""
    negative = sequence(Bytes(b"-"), at_least(NumberBound(Decimal(0), strict=True)))
    return expression_dfa(alternation([sequence(NATURAL, optional(FRACTION)), negative]))
