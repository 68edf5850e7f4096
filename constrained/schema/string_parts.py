"""Parts for strings: conjunctions of string keywords, their automata, and the truths that several can have together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np
from numpy.typing import NDArray

from ..budget import CompileBudget
from ..errors import GrammarError
from ..regex.alphabet import Alphabet, common_alphabet
from ..regex.byte_dfa import byte_dfa
from ..regex.char_dfa import CharDfa, length_char_dfa, trimmed_char_dfa
from ..regex.charset import has_surrogates
from ..regex.dfa import DEAD, START, Dfa
from ..regex.expression import alternation, literal
from ..regex.pair_product import Factor, multiplied
from ..regex.subset import char_dfa
from . import formula as formulas
from .formula import And, ExactlyOne, Formula, Not, Or, Truths
from .string_dfas import format_chars, length_dfa, pattern_chars, undecided_chars

MAX_UNROLLED_STATES = 4000
MAX_PRODUCT_STATES = 20_000
MAX_TEXTS = 64  # of a part, if they are to be listed
UNREACHABLE = 1 << 30


@dataclass(frozen=True)
class StringPart:
    """Conjunction of string keywords: a length in characters, patterns, formats, and one of `texts` unless None."""

    least: int = 0
    most: int | None = None
    patterns: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    texts: frozenset[str] | None = None

    def holds(self, text: str) -> bool:
        """Return True if a text surely satisfies the part."""
        if self.texts is not None and text not in self.texts:
            return False
        if len(text) < self.least or (self.most is not None and len(text) > self.most):
            return False
        chars = self.chars()
        return chars is None or chars.accepts(text)

    def is_undecided(self, text: str) -> bool:
        """Return True if a text may satisfy the part although `holds` is False: some formats are known in part only."""
        found = (undecided_chars(name) for name in self.formats)
        return any(chars is not None and chars.accepts(text) for chars in found)

    def undecided_dfas(self) -> list[Dfa]:
        """Return the automata of the texts that are undecided, one for each format that is known in part."""
        found = (undecided_chars(name) for name in sorted(self.formats))
        return [string_content_dfa(chars) for chars in found if chars is not None]

    def chars(self) -> CharDfa | None:
        """Return the automaton of the patterns and formats, or None if there are none. Raises GrammarError."""
        return _intersection(self.patterns, self.formats)

    def _dfa(self) -> Dfa:
        chars = self.chars()
        if chars is None:
            return length_dfa(self.least, self.most)
        budget = CompileBudget()
        if self.least or self.most is not None:
            chars = chars.intersect(length_char_dfa(self.least, self.most, budget), budget)
        return byte_dfa(chars, "json_string", budget)


@lru_cache(maxsize=1024)
def _intersection(patterns: frozenset[str], formats: frozenset[str]) -> CharDfa | None:
    found = [chars for name in sorted(formats) if (chars := format_chars(name)) is not None]
    found += [pattern_chars(pattern) for pattern in sorted(patterns)]
    budget = CompileBudget()
    return reduce(lambda a, b: a.intersect(b, budget), found) if found else None


@dataclass(frozen=True, eq=False)
class CountedChars:
    """Automaton of patterns and formats, with the minimum length that is counted beside it.

    `shortest[q]` is the number of characters from state q to the nearest end.
    """

    chars: CharDfa
    least: int
    shortest: np.ndarray


@lru_cache(maxsize=1024)
def counted_chars(patterns: frozenset[str], formats: frozenset[str], least: int) -> CountedChars | None:
    """Return the automaton of patterns and formats for strings of at least `least` characters, or None without any."""
    chars = _intersection(patterns, formats)
    if chars is None:
        return None
    shortest = _distances(chars)
    if least > shortest[START] and chars.num_states * least <= MAX_UNROLLED_STATES:
        # Unrolled by length, the automaton has no way to an end that comes too early.
        chars = chars.intersect(length_char_dfa(least, None))
        return CountedChars(chars, 0, _distances(chars))
    return CountedChars(chars, least if least > shortest[START] else 0, shortest)


def _distances(chars: CharDfa) -> np.ndarray:
    """Return the number of characters from each state to the nearest accepting one."""
    distance = np.where(chars.accepting, 0, UNREACHABLE)
    while True:
        closer = np.minimum(distance, 1 + distance[chars.table].min(axis=1))
        closer[DEAD] = UNREACHABLE
        if (closer == distance).all():
            return distance
        distance = closer


def join_strings(parts: Iterable[StringPart]) -> StringPart | bool:
    """Return the conjunction of parts; True or False if it allows every string or none. Raises GrammarError."""
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
        if shortest >= UNREACHABLE or (joined.most is not None and shortest > joined.most):
            return False
    return joined


def candidates(formula: Formula) -> frozenset[str] | None:
    """Return the only texts that can satisfy a formula, or None if they are not listed."""
    return formulas.candidates(formula, lambda atom: atom.texts if isinstance(atom, StringPart) else None)


def spellings(text: str) -> list[bytes]:
    """Return the JSON spellings of a text after the opening quote: itself, and with all but ASCII escaped."""
    if has_surrogates(text):
        return []
    plain = json.dumps(text, ensure_ascii=False).encode()[1:]
    if plain.isascii():
        return [plain]
    escaped = [c if c.isascii() else json.dumps(c)[1:-1] for c in json.dumps(text, ensure_ascii=False)[1:]]
    upper = [c if len(c) < 6 else c.upper().replace("\\U", "\\u") for c in escaped]
    return sorted({plain, "".join(escaped).encode(), "".join(upper).encode()})


@lru_cache(maxsize=1024)
def string_content_dfa(chars: CharDfa) -> Dfa:
    """Return the bytes between the quotes of the JSON strings of an automaton's texts."""
    return byte_dfa(chars, "json_string", CompileBudget())


@lru_cache(maxsize=1024)
def string_dfa(part: StringPart) -> Dfa:
    """Return all spellings of the strings that satisfy a part. Raises GrammarError beyond the budget."""
    if part.texts is None:
        return part._dfa()
    budget = CompileBudget()
    texts = char_dfa(alternation(literal(text) for text in sorted(part.texts)), budget)
    return byte_dfa(texts, "json_string", budget)


# Several parts together, by products of their character automata.


@dataclass(frozen=True, eq=False)
class CharProduct:
    """Product of character automata, over all texts. S states, the dead one first.

    `passed[q]` says which of the automata accept in state q; it is None for the dead one.
    """

    alphabet: Alphabet
    rows: NDArray[np.int32]  # [S, classes]
    passed: list[Truths | None]  # [S]

    @property
    def truths(self) -> list[Truths]:
        """The distinct combinations of automata that accept a text."""
        return list(dict.fromkeys(truths for truths in self.passed if truths is not None))

    def chars(self, truths: Truths) -> CharDfa:
        """Return the automaton of the texts that exactly these automata accept."""
        return trimmed_char_dfa(self.alphabet, self.rows, [passed == truths for passed in self.passed])


def char_product(tests: Sequence[CharDfa], budget: CompileBudget) -> CharProduct:
    """Build the product of character automata. Raises GrammarError beyond the budget or `MAX_PRODUCT_STATES`."""

    def check(num_states: int) -> None:
        budget.check(num_states)
        if num_states > MAX_PRODUCT_STATES + 1:
            raise GrammarError("the constraints on one value are too complex in combination")

    # In pairs, and these in pairs again, so that the work does not grow with the square of their number.
    factors = [_factor(length_char_dfa(0, None), [(), ()]), *(_factor(test, [(False,), (True,)]) for test in tests)]
    while len(factors) > 1:
        pairs = [_multiplied(factors[at], factors[at + 1], check) for at in range(0, len(factors) - 1, 2)]
        factors = pairs + factors[2 * len(pairs) :]
    ((alphabet, (rows, ends, truths)),) = factors
    return CharProduct(alphabet, rows, [None, *(truths[number] for number in ends[1:].tolist())])


def _factor(chars: CharDfa, truths: list[Truths]) -> tuple[Alphabet, Factor]:
    return chars.alphabet, (chars.table, chars.accepting.astype(np.int64), truths)


def _multiplied(
    a: tuple[Alphabet, Factor], b: tuple[Alphabet, Factor], check: Callable[[int], None]
) -> tuple[Alphabet, Factor]:
    alphabet, in_a, in_b = common_alphabet(a[0], b[0])
    return alphabet, multiplied((a[1][0][:, in_a], *a[1][1:]), (b[1][0][:, in_b], *b[1][1:]), check)


@lru_cache(maxsize=512)
def chars_of(part: StringPart) -> CharDfa:
    """Return the character automaton of a part. Raises GrammarError beyond the budget."""
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
    """Return the combinations of truths that the parts have of some string. Raises GrammarError beyond the budget."""
    if all(part.texts is not None for part in parts):
        listed = sorted(frozenset[str]().union(*(part.texts or () for part in parts)))
        return {tuple(text in (part.texts or ()) for part in parts): None for text in listed} | {
            tuple(False for _ in parts): None
        }
    if len(parts) == 1:
        # A part is made only if some string satisfies it. Lengths always exclude some.
        chars = parts[0].chars()
        excludes_some = parts[0].least or parts[0].most is not None or chars is None or not chars.complement().is_empty
        return [(True,), (False,)] if excludes_some else [(True,)]
    return char_product([chars_of(part) for part in parts], CompileBudget()).truths


@lru_cache(maxsize=1024)
def has_many_texts(part: StringPart) -> bool:
    """Return True if more than `MAX_TEXTS` texts satisfy a part. Raises GrammarError beyond the budget."""
    return few_texts(chars_of(part), MAX_TEXTS) is None


def likely_texts(parts: Sequence[StringPart]) -> Iterator[str]:
    """Yield texts that are likely to satisfy combinations of parts: each one's shortest, and a few others."""
    yield from ("", "a", "~", "0")
    for part in parts:
        if part.texts is not None:
            yield from part.texts
        elif (chars := part.chars()) is None:
            yield "a" * max(part.least, 1)
        elif (text := chars.witness()) is not None:
            yield text


def few_texts(chars: CharDfa, most: int) -> list[str] | None:
    """Return all texts of an automaton, shortest first, or None if they are more than `most`."""
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
    return None  # a text longer than the number of states means a cycle


def _letters(chars: CharDfa, label: int, most: int) -> list[str] | None:
    """Return the characters of a class, or None if they are more than `most`."""
    ranges = chars.alphabet.members(label)
    if sum(last - first + 1 for first, last in ranges) > most:
        return None
    return [chr(code) for first, last in ranges for code in range(first, last + 1)]


def leaves_some(formula: Formula) -> bool:
    """Return True if a formula is one part with many texts, without a few listed ones: so some texts are left."""
    if not isinstance(formula, And):
        return False
    excluded = [part.part for part in formula.parts if isinstance(part, Not)]
    (*more, wanted) = [part for part in formula.parts if not isinstance(part, Not)] or [None]
    if more or not isinstance(wanted, StringPart):
        return False
    listed = [part.texts for part in excluded if isinstance(part, StringPart) and part.texts is not None]
    return len(listed) == len(excluded) and sum(map(len, listed)) <= MAX_TEXTS and has_many_texts(wanted)


def merged_texts(formula: Or | ExactlyOne) -> Iterable[Formula]:
    """Return the alternatives of a formula, with those of an `Or` that list texts merged into one."""
    if isinstance(formula, ExactlyOne):
        return formula.parts
    listed: list[StringPart] = []
    others: list[Formula] = []
    for part in formula.parts:
        (listed if isinstance(part, StringPart) and part.texts is not None else others).append(part)
    if len(listed) < 2:
        return formula.parts
    return [StringPart(texts=frozenset().union(*(part.texts or () for part in listed))), *others]
