"""States that read given numbers, beside other constraints on numbers."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from ...automaton.automaton import Automaton
from ...automaton.blocks import Block
from ...regex.dfa import DEAD, START
from ...regex.pair_product import pair_product
from ..formula import Formula, ResultCodes, atoms, truths_of
from ..number_parts import (
    NUMBER_END,
    NumberPart,
    listed_numbers_dfa,
    number_product,
    number_universe,
    with_digits,
)
from ..strings.string_dfas import LabelledDfa, live_part, product_check
from .evaluation import SparseTruths


def given_numbers(automaton: Automaton, codes: Mapping[Decimal, int], in_digits: bool, digits: int | None) -> int:
    """Return the number of the state before one of these numbers, which ends with its result code.

    `in_digits`: integers are written in digits only. `digits` are those of `SchemaOptions`.
    """

    def block() -> Block:
        dfa, labels = listed_numbers_dfa(codes, in_digits)
        part = NumberPart(values=frozenset(codes))
        return Block(*with_digits((dfa.table, dfa.class_of, labels), [part], digits), before=NUMBER_END)

    return START + automaton.block(("given numbers", tuple(codes.items()), in_digits, digits), block)


def _truths(formulas: tuple[Formula, ...]) -> SparseTruths[Decimal]:
    return SparseTruths(formulas, lambda part: part.values, lambda part, value: part.holds(value))


def listed_numbers(
    automaton: Automaton,
    values: frozenset[Decimal],
    formulas: tuple[Formula, ...],
    result: ResultCodes,
    digits: int | None,
) -> int | None:
    """Return the number of the state before one of these numbers, if the first formula holds for it."""
    truths = _truths(formulas)
    bits = {value: truths.bits(value) for value in sorted(values)}
    codes = {value: result.of_bits(each >> 1) for value, each in bits.items() if each & 1}
    in_digits = any(part.digits for part in atoms(formulas[0]))
    return given_numbers(automaton, codes, in_digits, digits) if codes else None


def product_with_listed(formulas: tuple[Formula, ...], result: ResultCodes) -> LabelledDfa | None:
    """Label the numbers for which the first formula holds with the result codes of the others.

    All given numbers are one automaton, so there may be many. No part is one of integers in digits only. Returns
    None if every number is refused. Raises GrammarError beyond the limits.
    """

    def code(bits: int) -> int:
        return result.of_bits(bits >> 1) if bits & 1 else -1

    parts: list[Any] = list(dict.fromkeys(atom for formula in formulas for atom in atoms(formula)))
    open_parts = tuple(part for part in parts if part.values is None)
    product = number_product(number_universe(parts), open_parts)
    table, class_of, found = product.table, product.class_of, product.combination
    truths = _truths(formulas)
    values = sorted(truths.values)
    listed, value_of = listed_numbers_dfa({value: number for number, value in enumerate(values)}, False)
    columns, classes = np.unique(np.stack([class_of, listed.class_of]), axis=1, return_inverse=True)
    table, pairs = pair_product(table[:, columns[0]], listed.table[:, columns[1]], "first", product_check())

    by_value = [code(truths.bits(value)) for value in values]
    elsewhere: list[int] = []
    for bits in product.accepted:
        truth = dict(zip(open_parts, truths_of(bits, len(open_parts)), strict=True))
        elsewhere.append(code(truths.bits_elsewhere(truth.__getitem__)))
    at, value = found[pairs[:, 0]], value_of[pairs[:, 1]]
    labels = np.where(at < 0, -1, np.where(value < 0, np.array([*elsewhere, -1])[at], np.array([*by_value, -1])[value]))
    labels[DEAD] = -1
    return live_part(table, classes.reshape(-1).astype(np.uint8), labels.astype(np.int32))
