"""What a schema asks of strings, as values that can be joined, and the automata of what they accept.

Knows no states.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np

from ..budget import CompileBudget
from ..regex.byte_dfa import byte_dfa
from ..regex.char_dfa import CharDfa, length_char_dfa
from ..regex.dfa import DEAD, START, Dfa
from ..regex.expression import alternation, literal
from ..regex.subset import char_dfa
from . import formula as formulas
from .formula import Formula
from .string_dfas import doubtful_chars, format_chars, length_dfa, pattern_chars

MAX_UNROLLED = 4000  # states
FAR = 1 << 30


@dataclass(frozen=True)
class StringPart:
    """All of it holds: so many characters, each pattern found, each format, and one of `texts` if they are given."""

    least: int = 0
    most: int | None = None
    patterns: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    texts: frozenset[str] | None = None

    def holds(self, text: str) -> bool:
        if self.texts is not None and text not in self.texts:
            return False
        if len(text) < self.least or (self.most is not None and len(text) > self.most):
            return False
        chars = self.chars()
        return chars is None or chars.accepts(text)

    def is_doubtful(self, text: str) -> bool:
        """Whether it may hold although `holds` says no: some formats are not known as a whole."""
        found = (doubtful_chars(name) for name in self.formats)
        return any(chars is not None and chars.accepts(text) for chars in found)

    def doubts(self) -> list[Dfa]:
        """The texts that are doubtful."""
        found = (doubtful_chars(name) for name in sorted(self.formats))
        return [encoded_chars(chars) for chars in found if chars is not None]

    def chars(self) -> CharDfa | None:
        """The patterns and formats together; None when there are none. Raises GrammarError when that is too complex."""
        return _joined_chars(self.patterns, self.formats)

    def whole_dfa(self) -> Dfa:
        """Of everything that is asked; texts are not. Raises GrammarError when it is too complex."""
        chars = self.chars()
        if chars is None:
            return length_dfa(self.least, self.most)
        budget = CompileBudget()
        if self.least or self.most is not None:
            chars = chars.intersect(length_char_dfa(self.least, self.most, budget), budget)
        return byte_dfa(chars, "json_string", budget)

    def without_lengths(self) -> StringPart:
        return StringPart(0, None, self.patterns, self.formats, self.texts)


@lru_cache(maxsize=1024)
def _joined_chars(patterns: frozenset[str], formats: frozenset[str]) -> CharDfa | None:
    found = [chars for name in sorted(formats) if (chars := format_chars(name)) is not None]
    found += [pattern_chars(pattern) for pattern in sorted(patterns)]
    budget = CompileBudget()
    return reduce(lambda a, b: a.intersect(b, budget), found) if found else None


@dataclass(frozen=True, eq=False)
class CountedChars:
    """What a part reads, with its lengths beside: at least `least` characters at the end. `shortest[q]` is how many
    characters the end is away from q."""

    chars: CharDfa
    least: int
    shortest: np.ndarray


@lru_cache(maxsize=1024)
def counted_chars(patterns: frozenset[str], formats: frozenset[str], least: int) -> CountedChars | None:
    chars = _joined_chars(patterns, formats)
    if chars is None:
        return None
    shortest = _distances(chars)
    if least > shortest[START] and chars.num_states * least <= MAX_UNROLLED:
        # Too short an end must not be come to; unrolled, nothing leads there.
        chars = chars.intersect(length_char_dfa(least, None))
        return CountedChars(chars, 0, _distances(chars))
    return CountedChars(chars, least if least > shortest[START] else 0, shortest)


def _distances(chars: CharDfa) -> np.ndarray:
    """Characters from each state to the nearest accepting one."""
    distance = np.where(chars.accepting, 0, FAR)
    while True:
        closer = np.minimum(distance, 1 + distance[chars.table].min(axis=1))
        closer[DEAD] = FAR
        if (closer == distance).all():
            return distance
        distance = closer


def join_strings(parts: Iterable[StringPart]) -> StringPart | bool:
    """All of them at once. Raises GrammarError when that is too complex."""
    parts = list(parts)
    mosts = [part.most for part in parts if part.most is not None]
    given = [part.texts for part in parts if part.texts is not None]
    joined = StringPart(
        max(part.least for part in parts),
        min(mosts, default=None),
        frozenset().union(*(part.patterns for part in parts)),
        frozenset().union(*(part.formats for part in parts)),
    )
    if given:
        texts = frozenset.intersection(*given)
        kept = frozenset(text for text in texts if joined.holds(text)) if joined != StringPart() else texts
        return StringPart(texts=kept) if kept else False
    if joined == StringPart():
        return True
    if joined.most is not None and joined.most < joined.least:
        return False
    counted = counted_chars(joined.patterns, joined.formats, joined.least)
    if counted is not None:
        shortest = counted.shortest[START]
        if shortest >= FAR or (joined.most is not None and shortest > joined.most):
            return False
    return joined


def candidates(formula: Formula) -> frozenset[str] | None:
    """The only texts that can make it true; None when they are not listed."""
    return formulas.candidates(formula, lambda atom: atom.texts if isinstance(atom, StringPart) else None)


def spellings(text: str) -> list[bytes]:
    """As JSON writes it between quotes, the closing one included: as itself, and with all that is not ASCII escaped."""
    try:
        plain = json.dumps(text, ensure_ascii=False).encode()[1:]
    except UnicodeEncodeError:
        return []  # half a surrogate pair is no character
    if plain.isascii():
        return [plain]
    escaped = [c if c.isascii() else json.dumps(c)[1:-1] for c in json.dumps(text, ensure_ascii=False)[1:]]
    upper = [c if len(c) < 6 else c.upper().replace("\\U", "\\u") for c in escaped]
    return sorted({plain, "".join(escaped).encode(), "".join(upper).encode()})


@lru_cache(maxsize=1024)
def encoded_chars(chars: CharDfa) -> Dfa:
    return byte_dfa(chars, "json_string", CompileBudget())


@lru_cache(maxsize=1024)
def string_dfa(part: StringPart) -> Dfa:
    """All spellings of the strings of which a part holds. Raises GrammarError."""
    if part.texts is None:
        return part.whole_dfa()
    budget = CompileBudget()
    return byte_dfa(char_dfa(alternation(literal(text) for text in sorted(part.texts)), budget), "json_string", budget)
