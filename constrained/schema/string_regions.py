"""Which of several demands on a string can hold together, and the texts of which that is true where they are few.

Character automata are walked side by side. Knows automata; no states and no bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..budget import CompileBudget
from ..errors import GrammarError
from ..regex.alphabet import Alphabet, common_alphabet
from ..regex.char_dfa import CharDfa, length_char_dfa, trimmed_char_dfa
from ..regex.dfa import DEAD, START
from ..regex.expression import alternation, literal
from ..regex.pair_product import pair_product
from ..regex.subset import char_dfa
from .formula import And, ExactlyOne, Formula, Not, Or
from .string_parts import StringPart

Truths = tuple[bool, ...]
MAX_STATES = 20_000
MANY = 64  # texts


@dataclass(frozen=True, eq=False)
class CharProduct:
    """Several automata side by side: S states, the dead one first, in which any text goes on, and by state what of
    them accept there."""

    alphabet: Alphabet
    rows: NDArray[np.int32]  # [S, classes]
    passed: list[Truths | None]  # [S]

    @property
    def truths(self) -> list[Truths]:
        """What a text can pass together, and the others not."""
        return list(dict.fromkeys(truths for truths in self.passed if truths is not None))

    def chars(self, truths: Truths) -> CharDfa:
        """The texts that pass just these."""
        return trimmed_char_dfa(self.alphabet, self.rows, [passed == truths for passed in self.passed])


def char_product(tests: Sequence[CharDfa], budget: CompileBudget) -> CharProduct:
    """Raises GrammarError beyond the budget, or when there are too many states."""
    universe = length_char_dfa(0, None)
    alphabet, rows = universe.alphabet, universe.table
    states = np.arange(len(rows))[:, None]  # of each automaton: [S, 1 + tests]

    def check(number: int) -> None:
        budget.check(number)
        if number > MAX_STATES + 1:
            raise GrammarError("what is asked of a value is too complex in combination")

    for test in tests:
        alphabet, old, new = common_alphabet(alphabet, test.alphabet)
        rows, pairs = pair_product(rows[:, old], test.table[:, new], "first", check)
        states = np.concatenate([states[pairs[:, 0]], pairs[:, 1:]], axis=1)
    ends = [test.accepting[states[1:, 1 + number]].tolist() for number, test in enumerate(tests)]
    return CharProduct(alphabet, rows, [None, *(zip(*ends, strict=True) if tests else [()] * (len(rows) - 1))])


@lru_cache(maxsize=512)
def chars_of(part: StringPart) -> CharDfa:
    """Everything that is asked. Raises GrammarError when it is too complex."""
    budget = CompileBudget()
    if part.texts is not None:
        return char_dfa(alternation(literal(text) for text in sorted(part.texts)), budget)
    chars = part.chars()
    if part.least or part.most is not None or chars is None:
        lengths = length_char_dfa(part.least, part.most, budget)
        chars = lengths if chars is None else chars.intersect(lengths, budget)
    return chars


@lru_cache(maxsize=1024)
def string_combinations(parts: tuple[StringPart, ...]) -> Iterable[Truths]:
    """The truths that the parts can have of one string. Raises GrammarError when that is too complex."""
    if all(part.texts is not None for part in parts):
        listed = sorted(frozenset[str]().union(*(part.texts or () for part in parts)))
        return {tuple(text in (part.texts or ()) for part in parts): None for text in listed} | {
            tuple(False for _ in parts): None
        }
    if len(parts) == 1:
        # That there are such strings has been found out when it was made. Lengths alone always leave some out.
        chars = parts[0].chars()
        leaves_some = parts[0].least or parts[0].most is not None or chars is None or not chars.complement().is_empty
        return [(True,), (False,)] if leaves_some else [(True,)]
    budget = CompileBudget()
    return char_product([chars_of(part) for part in parts], budget).truths


@lru_cache(maxsize=1024)
def has_many_texts(part: StringPart) -> bool:
    """More than MANY of them, so that some are left when so many are taken away. Raises GrammarError when it is too
    complex."""
    return few_texts(chars_of(part), MANY) is None


def likely_texts(parts: Sequence[StringPart]) -> Iterator[str]:
    """Texts of which some combination of the parts is likely to hold: each one's shortest, and a few beside."""
    yield from ("", "a", "~", "0")
    for part in parts:
        if part.texts is not None:
            yield from part.texts
        elif (chars := part.chars()) is None:
            yield "a" * max(part.least, 1)
        elif (text := chars.witness()) is not None:
            yield text


def few_texts(chars: CharDfa, most: int) -> list[str] | None:
    """All that are accepted, shortest first; None when they are more than `most`."""
    table, accepting = chars.table, chars.accepting
    found: list[str] = []
    frontier = [("", START)]
    members = [_letters(chars, label, most) for label in range(chars.alphabet.num_classes)]
    for _ in range(chars.num_states):
        found += [text for text, state in frontier if accepting[state]]
        longer: list[tuple[str, int]] = []
        for text, state in frontier:
            for label in np.flatnonzero(table[state] != DEAD).tolist():
                letters = members[label]
                if letters is None or len(longer) + len(letters) > most:
                    return None
                longer += [(text + letter, int(table[state, label])) for letter in letters]
        if not longer:
            return found if len(found) <= most else None
        frontier = longer
    return None  # longer than there are states, so there is a circle


def _letters(chars: CharDfa, label: int, most: int) -> list[str] | None:
    """A class's characters, but for halves of surrogate pairs; None when they are too many."""
    ranges = chars.alphabet.members(label)
    if sum(last - first + 1 for first, last in ranges) > most + 0x800:
        return None
    letters = [chr(c) for first, last in ranges for c in range(first, last + 1) if not 0xD800 <= c <= 0xDFFF]
    return letters if len(letters) <= most else None


def leaves_some(formula: Formula) -> bool:
    """Whether it asks for one part that many strings satisfy, and leaves out a few texts, as where items differ."""
    if not isinstance(formula, And):
        return False
    out = [part.part for part in formula.parts if isinstance(part, Not)]
    (*more, asked) = [part for part in formula.parts if not isinstance(part, Not)] or [None]
    if more or not isinstance(asked, StringPart):
        return False
    listed = [part.texts for part in out if isinstance(part, StringPart) and part.texts is not None]
    return len(listed) == len(out) and sum(map(len, listed)) <= MANY and has_many_texts(asked)


def texts_together(formula: Or | ExactlyOne) -> Iterable[Formula]:
    """The alternatives, those of an Or that list texts as one: enums written as many constants are long."""
    if isinstance(formula, ExactlyOne):
        return formula.parts
    listed: list[StringPart] = []
    others: list[Formula] = []
    for part in formula.parts:
        (listed if isinstance(part, StringPart) and part.texts is not None else others).append(part)
    if len(listed) < 2:
        return formula.parts
    return [StringPart(texts=frozenset().union(*(part.texts or () for part in listed))), *others]
