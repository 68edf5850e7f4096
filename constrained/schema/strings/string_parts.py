"""Parts for strings: conjunctions of string keywords, their automata, and the truths that several can have together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from json.encoder import encode_basestring, encode_basestring_ascii

import numpy as np

from ...budget import CompileBudget, cached_piece, cached_property
from ...errors import GrammarError
from ...record import record
from ...regex.alphabet import NO_CLASS
from ...regex.byte_dfa import byte_dfa
from ...regex.char_dfa import CharDfa, choice, length_char_dfa
from ...regex.charset import has_surrogates
from ...regex.counted_chars import MAX_COUNT, NEVER, CountedProduct, LabelledTexts, counted_product, text_lengths
from ...regex.dfa import DEAD, START, Dfa
from ...regex.listed import listed_chars
from .. import formula as formulas
from ..formula import And, ExactlyOne, Formula, Not, Or, Truths
from .string_dfas import any_pattern_chars, format_chars, length_dfa, pattern_chars, string_content_dfa, undecided_chars

MAX_UNROLLED_LENGTH = 1000  # of a minimum or maximum length that states may stand for, where it cannot be counted
MAX_TEXTS = 64  # of a part, if they are to be listed
MANY_TEXTS = 1_000_000  # more than the items of any array that is written
MAX_LENGTH_TO_MANY = 24  # characters within which many texts are looked for
MAX_COUNTED_TABLE = 100_000  # transitions of an automaton whose texts are counted


@dataclass(frozen=True)
class TextAlternatives:
    """Alternatives of which a text satisfies one or more, or exactly one. They have no bounds of the length."""

    alternatives: frozenset[StringPart]
    exactly_one: bool


@record()
class StringPart:
    """Conjunction of string keywords: a length in characters, patterns, formats, and one of `texts` unless None.

    `choices` are alternatives that are joined in one automaton, because the product of many has too many states.
    """

    least: int = 0
    most: int | None = None
    patterns: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    texts: frozenset[str] | None = None
    choices: frozenset[TextAlternatives] = frozenset()

    @property
    def all_patterns(self) -> frozenset[str]:
        """The patterns, with those of the choices."""
        inner = (part.all_patterns for each in self.choices for part in each.alternatives)
        return self.patterns.union(*inner)

    def num_states(self) -> int:
        """Return how many states the part brings to a product, where given texts are apart. Raises GrammarError."""
        chars = self.chars()
        return 1 if chars is None else chars.num_states

    def holds(self, text: str) -> bool:
        """Return True if a text surely satisfies the part."""
        if self.texts is not None and text not in self.texts:
            return False
        if len(text) < self.least or (self.most is not None and len(text) > self.most):
            return False
        chars = self.chars()
        return chars is None or chars.accepts(text)

    def among(self, texts: frozenset[str]) -> frozenset[str]:
        """Return the texts that surely satisfy the part, which lists none itself."""
        most, chars = math.inf if self.most is None else self.most, self.chars()
        possible: Iterable[str] = texts
        if chars is not None and len(texts) > 1:  # most patterns refuse most texts at their first characters
            following = chars.table[START].tolist()
            possible = []
            for first, alike in _by_first(texts).items():
                label = chars.alphabet.class_of(ord(first)) if first else NO_CLASS
                if not first or (label != NO_CLASS and following[label] != DEAD):
                    possible += alike
        fitting = (text for text in possible if self.least <= len(text) <= most)
        return frozenset(fitting if chars is None else filter(chars.accepts, fitting))

    def is_undecided(self, text: str) -> bool:
        """Return True if a text may satisfy the part although `holds` is False: some formats are known in part only."""
        found = (undecided_chars(name) for name in self.formats)
        return any(chars is not None and chars.accepts(text) for chars in found)

    def undecided(self) -> list[CharDfa]:
        """Return the automata of the texts that are undecided, one for each format that is known in part."""
        found = (undecided_chars(name) for name in sorted(self.formats))
        return [chars for chars in found if chars is not None]

    def chars(self) -> CharDfa | None:
        """Return the automaton of the patterns and formats, or None if there are none. Raises GrammarError."""
        return _intersection(self.patterns, self.formats, self.choices)

    def content(self) -> CharDfa | None:
        """Return the automaton of everything but the length, or None if any text will do. Raises GrammarError."""
        return self.chars() if self.texts is None else _text_chars(self.texts)

    def _dfa(self) -> Dfa:
        chars = self.chars()
        if chars is None:
            return length_dfa(self.least, self.most)
        budget = CompileBudget()
        if self.least or self.most is not None:
            chars = chars.intersect(length_char_dfa(self.least, self.most, budget), budget)
        return byte_dfa(chars, "json_string", budget)


@lru_cache(maxsize=64)
def _by_first(texts: frozenset[str]) -> dict[str, list[str]]:
    """Return the texts by their first character, which the empty text has not."""
    found: dict[str, list[str]] = {}
    for text in texts:
        found.setdefault(text[:1], []).append(text)
    return found


@cached_piece(maxsize=8192)
def _intersection(
    patterns: frozenset[str], formats: frozenset[str], choices: frozenset[TextAlternatives] = frozenset()
) -> CharDfa | None:
    found = [chars for name in sorted(formats) if (chars := format_chars(name)) is not None]
    found += [pattern_chars(pattern) for pattern in sorted(patterns)]
    found += [_choice_chars(each) for each in sorted(choices, key=lambda each: min(map(_order, each.alternatives)))]
    budget = CompileBudget()
    return reduce(lambda a, b: a.intersect(b, budget), found) if found else None


@cached_piece(maxsize=256)
def _choice_chars(given: TextAlternatives) -> CharDfa:
    """Return the texts that satisfy one of several alternatives, or exactly one. Raises GrammarError."""
    parts = given.alternatives
    single = (
        set()
        if given.exactly_one
        else {part for part in parts if len(part.patterns) == 1 and part == StringPart(patterns=part.patterns)}
    )
    machines = [chars_of(part) for part in parts if part not in single]
    if single:
        machines.append(any_pattern_chars(frozenset().union(*(part.patterns for part in single))))
    return choice(machines, given.exactly_one, CompileBudget())


def _order(part: StringPart) -> tuple[list[str], list[str]]:
    return sorted(part.all_patterns), sorted(part.formats)


_lengths = cached_piece(maxsize=8192)(text_lengths)


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
        choices=frozenset().union(*(part.choices for part in parts)),
    )
    if given:
        texts = frozenset.intersection(*given)
        kept = joined.among(texts) if joined != StringPart() else texts
        return StringPart(texts=kept) if kept else False
    if joined == StringPart():
        return True
    if joined.most is not None and joined.most < joined.least:
        return False
    chars = joined.chars()
    if chars is None:
        return joined
    shortest, longest = _lengths(chars)
    if chars.is_empty or longest < joined.least or (joined.most is not None and shortest > joined.most):
        return False
    # Bounds that the patterns imply need no counting.
    least = 0 if shortest >= joined.least else joined.least
    most = None if joined.most is None or longest <= joined.most else joined.most
    joined = replace(joined, least=least, most=most)
    if least and most is not None and (True,) not in part_combinations((joined,)):
        return False
    return joined


def candidates(formula: Formula) -> frozenset[str] | None:
    """Return the only texts that can satisfy a formula, or None if they are not listed."""
    return formulas.candidates(formula, lambda atom: atom.texts if isinstance(atom, StringPart) else None)


def spellings(text: str) -> list[bytes]:
    """Return the JSON spellings of a text after the opening quote: itself, and with all but ASCII escaped."""
    if text.isascii():
        return [encode_basestring(text).encode()[1:]]
    if has_surrogates(text):
        return []
    escaped = [c if c.isascii() else encode_basestring_ascii(c)[1:-1] for c in encode_basestring(text)[1:]]
    upper = [c if len(c) < 6 else c.upper().replace("\\U", "\\u") for c in escaped]
    return sorted({encode_basestring(text).encode()[1:], "".join(escaped).encode(), "".join(upper).encode()})


@cached_piece(maxsize=1024)
def string_dfa(part: StringPart) -> Dfa:
    """Return all spellings of the strings that satisfy a part. Raises GrammarError beyond the budget."""
    if part.texts is None:
        return part._dfa()
    return string_content_dfa(_text_chars(part.texts))


# Several parts together, by products of their character automata and the lengths between their bounds.


class PartsProduct:
    """Product of the automata of several parts, and of further automata, over all strings.

    Lengths are counted, or `unrolled`: states stand for them. Raises GrammarError beyond the limits.
    """

    def __init__(
        self, parts: tuple[StringPart, ...], further: tuple[CharDfa, ...] = (), unrolled: bool = False
    ) -> None:
        self._further = further
        machine_of = [chars_of(part) if unrolled else part.content() for part in parts]
        machines = list(dict.fromkeys([*further, *(each for each in machine_of if each is not None)]))
        self._index = {machine: number for number, machine in enumerate(machines)}
        bounds = [] if unrolled else [part.least for part in parts]
        bounds += [] if unrolled else [part.most + 1 for part in parts if part.most is not None]
        self._product: CountedProduct = counted_product(machines, bounds, CompileBudget())
        always = len(machines)  # the number of an automaton that accepts everything
        self._machines = np.array([always if m is None else self._index[m] for m in machine_of], np.int64)
        self._least = np.array([0 if unrolled else min(part.least, MAX_COUNT) for part in parts], np.int64)
        self._most = np.array([NEVER if unrolled or p.most is None else min(p.most, NEVER) for p in parts], np.int64)

    def _truths(self, passed: Truths, interval: int) -> Truths:
        """Return which parts hold for a text in this interval of lengths that these automata accept."""
        first, last = self._product.interval(interval)
        holds = np.array((*passed, True), np.bool_)[self._machines] & (self._least <= first) & (last <= self._most)
        return tuple(holds.tolist())

    @cached_property
    def combinations(self) -> dict[Truths, None]:
        """The combinations of truths that the parts have of some string."""
        return {self._truths(passed, interval): None for passed, interval in self._product.combinations}

    def labelled(self, label: Callable[[Truths], int]) -> LabelledTexts | None:
        """Label the texts by the parts that hold; -1 refuses a text, as do the further automata.

        Returns None if every text is refused.
        """
        refusing = [self._index[machine] for machine in self._further]

        def label_of(passed: Truths, interval: int) -> int:
            return -1 if any(passed[number] for number in refusing) else label(self._truths(passed, interval))

        return self._product.labelled(label_of)


@cached_piece(maxsize=256)
def _parts_product(
    parts: tuple[StringPart, ...], further: tuple[CharDfa, ...] = (), unrolled: bool = False
) -> PartsProduct:
    return PartsProduct(parts, further, unrolled)


def part_combinations(parts: tuple[StringPart, ...]) -> Iterable[Truths]:
    """Return the combinations of truths that parts have of some string. Raises GrammarError beyond the limits."""
    try:
        return _parts_product(parts).combinations
    except GrammarError:
        if not _can_be_unrolled(parts):
            raise
        return _parts_product(parts, unrolled=True).combinations


def labelled_strings(
    parts: tuple[StringPart, ...], label: Callable[[Truths], int], further: tuple[CharDfa, ...] = ()
) -> LabelledTexts | None:
    """Label all strings by the parts that hold; -1 refuses a string, as do the `further` automata.

    Returns None if every string is refused. Raises GrammarError beyond the limits.
    """
    try:
        return _parts_product(parts, further).labelled(label)
    except GrammarError:
        if not _can_be_unrolled(parts):
            raise
        return _parts_product(parts, further, unrolled=True).labelled(label)


def _can_be_unrolled(parts: tuple[StringPart, ...]) -> bool:
    bounds = [bound for part in parts for bound in (part.least, part.most or 0)]
    return 0 < max(bounds, default=0) <= MAX_UNROLLED_LENGTH


def char_product(tests: Sequence[CharDfa], budget: CompileBudget) -> CountedProduct:
    """Build the product of character automata. Raises GrammarError beyond the limits."""
    return counted_product(tests, (), budget)


_text_chars = cached_piece(maxsize=512)(listed_chars)


@cached_piece(maxsize=512)
def chars_of(part: StringPart) -> CharDfa:
    """Return the character automaton of a part, lengths unrolled. Raises GrammarError beyond the budget."""
    budget = CompileBudget()
    if part.texts is not None:
        return _text_chars(part.texts)
    chars = part.chars()
    if part.least or part.most is not None or chars is None:
        lengths = length_char_dfa(part.least, part.most, budget)
        chars = lengths if chars is None else chars.intersect(lengths, budget)
    return chars


@cached_piece(maxsize=1024)
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
    return part_combinations(parts)


@cached_piece(maxsize=1024)
def has_many_texts(part: StringPart) -> bool:
    """Return True if more than `MAX_TEXTS` texts satisfy a part, False if not or if that takes long to decide."""
    if _begins_many(part, ""):
        return True
    if part.least > MAX_UNROLLED_LENGTH:
        return False
    if part.most is None or part.most > 2 * MAX_UNROLLED_LENGTH:
        part = replace(part, most=2 * MAX_UNROLLED_LENGTH)
    try:
        return few_texts(chars_of(part), MAX_TEXTS) is None
    except GrammarError:
        return False


def likely_texts(parts: Sequence[StringPart]) -> Iterator[str]:
    """Yield texts that are likely to satisfy combinations of parts: each one's shortest, and a few others."""
    yield from ("", "a", "~", "0")
    for part in parts:
        if part.texts is not None:
            yield from part.texts
        elif (chars := part.chars()) is None:
            yield "a" * min(max(part.least, 1), MAX_UNROLLED_LENGTH)
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


def ends_soon(formula: Formula, text: str) -> bool:
    """Return False only if a text does not satisfy a formula, or more than `MANY_TEXTS` texts that do begin with it."""
    if isinstance(formula, bool):
        return False
    if isinstance(formula, Or):
        return any(ends_soon(part, text) for part in formula.parts) and not any(
            _begins_many(part, text) for part in formula.parts
        )
    if isinstance(formula, And):  # some of the texts may be excluded
        wanted = [part for part in formula.parts if not (isinstance(part, Not) and _lists_texts(part.part))]
        formula = wanted[0] if len(wanted) == 1 else formula
    if not isinstance(formula, StringPart):
        return True
    return formula.holds(text) and not _begins_many(formula, text)


def _lists_texts(part: Formula) -> bool:
    return isinstance(part, StringPart) and part.texts is not None


def _begins_many(part: Formula, text: str) -> bool:
    """Return True only if more than `MANY_TEXTS` texts that begin with this one satisfy a part."""
    if not isinstance(part, StringPart) or part.texts is not None or len(text) < part.least:
        return False
    left, chars = NEVER if part.most is None else part.most - len(text), part.chars()
    if chars is None:
        return left >= 1  # any character may come
    return left >= _lengths_to_many(chars)[chars.state_after(text)]


@cached_piece(maxsize=256)
def _lengths_to_many(chars: CharDfa) -> list[int]:
    """Return how many characters it takes from each state to more than `MANY_TEXTS` texts, beyond `NEVER` if far."""
    sizes = np.zeros(chars.alphabet.num_classes)
    for first, last, label in chars.alphabet.intervals():
        if label != NO_CLASS:
            sizes[label] += last - first + 1
    found = np.full(chars.num_states, NEVER + 1)
    counts = chars.accepting.astype(np.float64)
    for length in range(1, 1 + MAX_LENGTH_TO_MANY if chars.table.size <= MAX_COUNTED_TABLE else 0):
        counts = chars.accepting + np.minimum(counts, MANY_TEXTS + 1)[chars.table] @ sizes
        found[(counts > MANY_TEXTS) & (found > NEVER)] = length
        if (found[START:] <= NEVER).all():
            break
    return found.tolist()


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
