"""Which of several demands on a string can hold together, and the texts of which that is true where they are few.

Character automata are taken apart by each other; what is empty is dropped. Knows automata; no states and no bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from .budget import Budget
from .char_dfa import DEAD, START, CharDfa, length_chars
from .errors import GrammarError
from .expression import choice, literal
from .schema_strings import StringPart
from .subset import char_dfa

Truths = tuple[bool, ...]
MAX_REGIONS = 256
MANY = 64  # texts


def regions(tests: Sequence[CharDfa], budget: Budget) -> dict[Truths, CharDfa]:
    """Which tests a text can pass, and the texts that pass these and no others. Raises GrammarError when
    they are too many, or too complex."""
    found: dict[Truths, CharDfa] = {(): length_chars(0, None)}
    for test in tests:
        split: dict[Truths, CharDfa] = {}
        for truths, chars in found.items():
            for passed, part in ((True, chars.intersect(test, budget)), (False, chars.minus(test, budget))):
                if not part.is_empty:
                    split[*truths, passed] = part
        if len(split) > MAX_REGIONS:
            raise GrammarError("what is asked of a string has too many combinations")
        found = split
    return found


@lru_cache(maxsize=512)
def chars_of(part: StringPart) -> CharDfa:
    """Everything that is asked. Raises GrammarError when it is too complex."""
    budget = Budget()
    if part.texts is not None:
        return char_dfa(choice(literal(text) for text in sorted(part.texts)), budget)
    chars = part.chars()
    if part.least or part.most is not None or chars is None:
        lengths = length_chars(part.least, part.most, budget)
        chars = lengths if chars is None else chars.intersect(lengths, budget)
    return chars


@lru_cache(maxsize=1024)
def string_combinations(parts: tuple[StringPart, ...]) -> Iterable[Truths]:
    """The truths that the parts can have of one string. Raises GrammarError when that is too complex."""
    if all(part.texts is not None for part in parts):
        listed = frozenset[str]().union(*(part.texts or () for part in parts))
        return {tuple(text in (part.texts or ()) for part in parts): None for text in listed} | {
            tuple(False for _ in parts): None
        }
    if len(parts) == 1:
        # That there are such strings has been found out when it was made. Lengths alone always leave some out.
        chars = parts[0].chars()
        leaves_some = parts[0].least or parts[0].most is not None or chars is None or not chars.complement().is_empty
        return [(True,), (False,)] if leaves_some else [(True,)]
    budget = Budget()
    return regions([chars_of(part) for part in parts], budget)


@lru_cache(maxsize=1024)
def has_many_texts(part: StringPart) -> bool:
    """More than MANY of them, so that some are left when so many are taken away. Raises GrammarError when it is too
    complex."""
    return few_texts(chars_of(part), MANY) is None


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
