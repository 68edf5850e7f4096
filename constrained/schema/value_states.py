"""States before a JSON value, of its words and of its numbers. The first byte decides the type of the value."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from ..automaton.actions import FILLED, QUOTE
from ..automaton.automaton import Automaton, Nested, TransitionRow
from ..automaton.blocks import Block
from ..errors import GrammarError
from ..record import record
from ..regex.dfa import START
from .formula import And, ExactlyOne, Formula, Not, Or, ResultCodes, atoms, bits_reader, conj, evaluate
from .interface import ONE_SPACE, SchemaCompiler, located
from .listed.numbers import listed_numbers, product_with_listed
from .number_parts import (
    NUMBER_END,
    NumberPart,
    candidates,
    number_dfa,
    number_product,
    number_universe,
    with_digits,
)
from .strings.string_states import string_start

SPACES = b" \n\t\r"
WORDS = {"null": b"null", "true": b"true", "false": b"false"}


def result_codes(compiler: SchemaCompiler, tracked: tuple[Formula, ...]) -> ResultCodes:
    """Return the result codes that all values with these tracked goals share."""
    key = ("result codes", tracked)
    found = compiler.cache.get(key)
    if found is None:
        found = compiler.cache[key] = ResultCodes(len(tracked))
    assert isinstance(found, ResultCodes)
    return found


@record()
class ValueStart(Nested):
    """State before a value that must satisfy the goal `need`, and whose result code says which `tracked` goals hold.

    `spaces` is the number of spaces that may come first; 2 means any whitespace, ONE_SPACE that one has to come.
    `unlike` are canonical forms of objects and arrays that the value must not equal; other values that it must not
    equal are part of its goal.
    """

    compiler: SchemaCompiler
    need: Formula
    tracked: tuple[Formula, ...] = ()
    spaces: int = 0
    unlike: frozenset[Any] = frozenset()

    @property
    def limited_level(self) -> int:  # type: ignore[override]
        return self.compiler.limited_level

    def within(self, depth: int) -> ValueStart:
        return replace(self, need=conj([self.need, self.compiler.within(depth)]))

    def expand(self, automaton: Automaton) -> TransitionRow:
        with located(self.need, *self.tracked):
            return self._expand(automaton)

    def _expand(self, automaton: Automaton) -> TransitionRow:
        if self.spaces == ONE_SPACE:
            return TransitionRow({0x20: automaton.goto(replace(self, spaces=0))})
        compiler, result = self.compiler, result_codes(self.compiler, self.tracked)
        edges: dict[int, int] = {}
        for kind, word in WORDS.items():
            formulas = self._typed(kind)
            if formulas[0] is True and (number := result(tuple(map(bool, formulas[1:])))) >= 0:
                edges[word[0]] = automaton.goto(_word(automaton, word[1:], number))
        start = string_start(automaton, self._typed("string"), result)
        if start is not None:
            edges[QUOTE] = automaton.goto(start)
        for kind, byte in (("object", 0x7B), ("array", 0x5B)):
            formulas = self._typed(kind)
            if formulas[0] is not False:
                state = compiler.structure_start(kind, formulas, result, self.unlike)
                if state is not None:
                    edges[byte] = automaton.goto(state)
        number_state = number_start(automaton, self._typed("number"), result, compiler.number_digits)
        if self.spaces == 2:
            edges |= dict.fromkeys(SPACES, automaton.goto(self))
        elif self.spaces == 1:
            edges[0x20] = automaton.goto(ValueStart(compiler, self.need, self.tracked, 0, self.unlike))
        return TransitionRow(edges, rest=number_state or 0)

    def _typed(self, kind: str) -> tuple[Any, ...]:
        compiler = self.compiler
        need = compiler.typed(self.need, kind)
        if need is False or not self.tracked:
            return (need,)  # truths of values that are not allowed do not matter
        return (need, *(compiler.typed(goal, kind) for goal in self.tracked))


def _word(automaton: Automaton, rest: bytes, result: int) -> int:
    """Return the number of the state before the rest of a word."""
    key = ("word", rest, result)
    if key not in automaton.memory:
        code, tables = automaton.pop(result), automaton.tables
        for byte in reversed(rest):
            number = tables.new_states(1)
            tables.set_edges(number, {byte: code})
            tables.states[number, FILLED] = 1
            code = automaton.goto(number)
        automaton.memory[key] = number
    return automaton.memory[key]  # type: ignore[no-any-return]


# Numbers.


def number_start(
    automaton: Automaton, formulas: tuple[Formula, ...], result: ResultCodes, digits: int | None
) -> int | None:
    """Return the number of the state before a number for which the first formula holds, or None if there is none.

    The number ends with the result code of the truths of the other formulas. `digits` are those of `SchemaOptions`.
    """
    need, tracked = formulas[0], formulas[1:]
    if need is False:
        return None
    values = candidates(need)
    if values is not None and not tracked:
        kept = frozenset(v for v in values if evaluate(need, lambda part: part.holds(v)))  # noqa: B023
        in_digits = any(part.digits for part in atoms(need))
        need = NumberPart(digits=in_digits, values=kept) if kept else False
        if need is False:
            return None
    if not isinstance(need, And | Or | ExactlyOne | Not) and all(f == need or isinstance(f, bool) for f in tracked):
        number = result(tuple(True if f == need else bool(f) for f in tracked))
        part = NumberPart() if need is True else need
        try:
            dfa = number_dfa(part)
        except GrammarError as error:
            automaton.refused.add(error)
            return None  # too complex to work out: allowing no number is safe
        if dfa.is_empty:
            return None
        return START + automaton.block(("number", part, number, digits), lambda: _number_block(part, number, digits))
    is_alike = len({part.digits for formula in formulas for part in atoms(formula)}) == 1
    if values is not None and is_alike:
        return listed_numbers(automaton, values, formulas, result, digits)
    return _number_product(automaton, (need, *tracked), result, digits)


@lru_cache(maxsize=256)
def _number_block(part: NumberPart, result: int, digits: int | None) -> Block:
    dfa = number_dfa(part)
    results = np.where(dfa.accepting, result, -1).astype(np.int32)
    return Block(*with_digits((dfa.table, dfa.class_of, results), [part], digits), before=NUMBER_END)


def _number_product(
    automaton: Automaton, formulas: tuple[Formula, ...], result: ResultCodes, digits: int | None
) -> int | None:
    key = ("numbers", formulas, id(result), digits)
    if key in automaton.memory:
        return automaton.memory[key]  # type: ignore[no-any-return]
    need, *tracked = formulas
    # The tracked parts come first and in their order, so that their truths are read at once.
    parts = tuple(dict.fromkeys(atom for formula in (*tracked, need) for atom in atoms(formula)))
    read = bits_reader((*tracked, need), parts)

    def label(truths: int) -> int:
        found = read(truths)
        return result.of_bits(found & (1 << len(tracked)) - 1) if found >> len(tracked) else -1

    start: int | None = None
    try:
        if any(part.values is not None for part in parts) and not any(part.digits for part in parts):
            product = product_with_listed(formulas, result)
        else:
            product = number_product(number_universe(parts), parts).labelled(label)
    except GrammarError as error:
        product = None  # too complex to work out: allowing no number is safe
        automaton.refused.add(error)
    if product is not None:
        table, class_of, labels = with_digits(product, parts, digits)
        start = START + automaton.block(key, lambda: Block(table, class_of, labels, before=NUMBER_END))
    automaton.memory[key] = start
    return start
