"""States of the byte automaton for structural tags: the readings of a text by a grammar of texts and JSON values.

The rules are read by Earley's algorithm. A reading is a terminal that began after an Earley set: a text with the state
of its automaton, or a JSON value with a configuration of the pushdown automaton. All readings are followed. Where a
value is the only one, it is pushed on the stack instead. Values that begin at one place are read as one value whose
result says which of them it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..automaton.automaton import Automaton, ControlState, Frame, TokenGate, TransitionRow, class_row
from ..budget import cached_property
from ..errors import GrammarError
from ..grammar.earley import EarleySets
from ..regex.dfa import DEAD, START
from ..schema.formula import ResultCodes
from .leaves import OneOfValues, TextLeaf, TextPlace, TokensLeaf, TokensPlace, ValueLeaf
from .value_threads import ENDED, ValueThread, byte_codes, byte_kinds, may_end, stepped

MAX_READINGS = 2_000  # of one text
_DIGITS = b"-0123456789"
_CONTINUES = range(0x80, 0xC0)  # bytes inside a character of UTF-8
_NUM_LIKELY = 8  # results for which a frame makes room at first

Scan = tuple[int, int]  # an Earley set, and a terminal that began there


class TagReading(NamedTuple):
    """A terminal that began after the Earley set `begun`: a text, or the value or tokens of terminal `number`.

    `thread` is None before the first byte of a value.
    """

    begun: int
    text: TextPlace | None
    number: int = -1
    thread: ValueThread | None = None
    tokens: TokensPlace | None = None


@dataclass(frozen=True, eq=False)
class Lexer:
    """Reads the texts that begin at one place together, up to the longest match of any of them or a lazy one's end.

    `scopes[t]` is the grammar that terminal t belongs to, `around[s]` are grammar s and those around it, from inside
    outwards. `skips[s]` is the terminal that may stand between those of grammar s. `temperatures[t]` is that of
    tokens inside the value or whole token t.
    """

    scopes: tuple[int, ...]
    around: Mapping[int, tuple[int, ...]]
    skips: Mapping[int, int]
    skips_at_start: bool
    temperatures: Mapping[int, float]

    def between(self, before: Iterable[int], after: Iterable[int]) -> set[int]:
        """Return what may stand between terminals: nothing where a grammar begins, else what the innermost skips."""
        seconds = {self.scopes[terminal] for terminal in after}
        found = set()
        for first in {self.scopes[terminal] for terminal in before} if self.skips else ():
            scope = next((scope for scope in self.around[first] if scope in seconds), None)
            if scope is not None and scope in self.skips:
                found.add(self.skips[scope])
        return found


@dataclass(frozen=True, eq=False)
class TagRules:
    """Compiled rules of a structural tag. `leaves[t]` reads terminal t.

    Without a `lexer` a text may end wherever its automaton accepts.
    """

    sets: EarleySets
    leaves: list[TextLeaf | ValueLeaf | TokensLeaf]
    join: Callable[[tuple[ValueLeaf, ...]], OneOfValues | None]  # None: they have to be read side by side
    lexer: Lexer | None = None
    columns: dict[tuple[int, ...], tuple[NDArray[np.uint8], list[int]]] = field(default_factory=dict)
    starts: dict[tuple[int, frozenset[int]], frozenset[TagReading]] = field(default_factory=dict)

    @cached_property
    def has_tokens(self) -> bool:
        """True if some state knows of tokens."""
        return any(
            isinstance(leaf, TokensLeaf) or getattr(leaf, "max_tokens", None) is not None for leaf in self.leaves
        )

    @cached_property
    def has_temperatures(self) -> bool:
        """True if tokens inside some terminals have a temperature of their own."""
        if self.lexer is None:
            return False
        return bool(self.lexer.temperatures) or any(
            isinstance(leaf, TextLeaf) and leaf.temperature is not None for leaf in self.leaves
        )

    def first_readings(self, number: int, before: frozenset[int] = frozenset()) -> frozenset[TagReading]:
        """Return the readings that begin after an Earley set, where the terminals `before` end."""
        key = number, before if self.lexer and self.lexer.skips else frozenset[int]()
        if key not in self.starts:
            found = set()
            terminals = self.sets.expected(number)
            if self.lexer:
                is_start = number == self.sets.start and self.lexer.skips_at_start
                terminals += self.lexer.between(terminals if is_start else before, terminals)
            for terminal in terminals:
                leaf = self.leaves[terminal]
                if isinstance(leaf, TextLeaf):
                    found.add(TagReading(number, leaf.first))
                elif isinstance(leaf, TokensLeaf):
                    found.add(TagReading(number, None, terminal, tokens=TokensPlace(leaf, leaf.max_tokens)))
                else:
                    found.add(TagReading(number, None, terminal))
            self.starts[key] = frozenset(found)
        return self.starts[key]

    def state(self, scans: Iterable[Scan], others: Iterable[TagReading] = ()) -> TagState:
        """Return the state where terminals end, beside readings that go on."""
        others = frozenset(others)
        readings = set(others)
        scans = frozenset(scans)
        numbers, before = self.after(scans), frozenset(terminal for _, terminal in scans)
        for number in numbers:
            readings |= self.first_readings(number, before)
        if self.lexer:  # the text may end behind what is read
            numbers |= self.after(scan for group in groups_of(others) for scan in ends_of(group))
        accepts = any(map(self.sets.accepts, numbers))
        if len(readings) > MAX_READINGS:
            raise GrammarError(f"the structural tag is too ambiguous: a text has more than {MAX_READINGS} readings")
        return TagState(self, frozenset(readings), accepts)

    def after(self, scans: Iterable[Scan]) -> set[int]:
        """Return the Earley sets where terminals end. Behind what is skipped it is the one before it."""
        ended = frozenset(scans)
        skipped = {scan for scan in ended if self.lexer and scan[1] not in self.sets.expected(scan[0])}
        found = {number for number, _ in skipped}
        if ended - skipped:
            found.add(self.sets.after(ended - skipped))
        return found

    @property
    def start(self) -> TagState:
        number = self.sets.start
        return TagState(self, self.first_readings(number), self.sets.accepts(number))


@dataclass(frozen=True)
class TagState(TokenGate):
    """The readings of the text so far. `accepts`: the text may end here."""

    rules: TagRules
    readings: frozenset[TagReading]
    accepts: bool

    @property
    def is_gate(self) -> bool:  # type: ignore[override]
        return self.rules.has_tokens and any(
            reading.tokens is not None or (reading.text is not None and reading.text.tokens_left is not None)
            for reading in self.reachable()
        )

    @property
    def temperature(self) -> float | None:  # type: ignore[override]
        """The highest of the terminals that the next byte may go on with, or begin where none may go on."""
        if not self.rules.has_temperatures:
            return None
        open_readings = [*filter(is_open, self.readings)] or [*filter(is_open, self.reachable())]
        assert self.rules.lexer is not None
        of_values = self.rules.lexer.temperatures
        found = [
            reading.text.leaf.temperature if reading.text else of_values.get(reading.number)
            for reading in open_readings
        ]
        return max((each for each in found if each is not None), default=None)

    def allowed_tokens(self) -> NDArray[np.int32]:
        masks = {reading.tokens.leaf: reading.tokens.leaf.mask for reading in self.reachable() if reading.tokens}
        return np.bitwise_or.reduce([*masks.values()]) if masks else np.zeros(1, np.int32)

    def whole_tokens(self, token: int) -> tuple[set[Scan], set[TagReading]]:
        """Return the terminals that a whole token may end, and those that may go on after it."""
        ended, following = set(), set()
        for reading in self.reachable():
            if reading.tokens is None or not reading.tokens.leaf.allows(token):
                continue
            ended.add((reading.begun, reading.number))
            leaf, left = reading.tokens
            if left is None or left > 1:
                following.add(reading._replace(tokens=TokensPlace(leaf, None if left is None else left - 1)))
        return ended, following

    def after_token(self, automaton: Automaton, token: int, data: bytes) -> TagState | None:
        ended, following = self.whole_tokens(token)
        if not ended:
            return None
        whole = self.rules.state(ended, following)
        by_bytes: TagState | None = self if data else None
        for byte in data:
            by_bytes = by_bytes and by_bytes._after_byte(automaton, byte)
        if by_bytes is None:
            return whole
        return TagState(self.rules, whole.readings | by_bytes.readings, whole.accepts or by_bytes.accepts)

    def reachable(self) -> frozenset[TagReading]:
        """Return the readings, and with a lexer those that begin where terminals may end."""
        if not self.rules.lexer:
            return self.readings
        ended = [scan for group in groups_of(self.readings) for scan in ends_of(group)]
        return self.readings | self.rules.state(ended).readings

    def before(self, byte: int) -> frozenset[TagReading]:
        """Return the readings that read a byte. With a lexer, new ones instead of those that end before it."""
        if not self.rules.lexer:
            return self.readings
        kept, ended = {reading for reading in self.readings if reading.text is None}, set[Scan]()
        for group in groups_of(self.readings):
            if any(text.leaf.dfa.table[text.state, text.leaf.dfa.class_of[byte]] for _, text in group):
                kept.update(reading for reading, _ in group)
            else:
                ended |= ends_of(group)
        return frozenset(kept) | (self.rules.state(ended).readings if ended else frozenset())

    def at_boundary(self) -> TagState | None:
        kept: list[TagReading] = []
        ended: set[Scan] = set()
        for reading in self.readings:
            text = reading.text
            if text is None or not text.is_in_token or text.tokens_left is None:
                kept.append(reading)
                continue
            left = text.tokens_left - 1
            # Each byte may need a token, so a text that runs out of tokens inside a character could not end.
            if left and left >= text.leaf.distances[text.state]:
                kept.append(reading._replace(text=text._replace(tokens_left=left, is_in_token=False)))
            elif self.rules.lexer:
                ended |= ends_of([(reading, text)])
        if ended:
            return self.rules.state(ended, kept)
        return replace(self, readings=frozenset(kept)) if kept or self.accepts else None

    def alike(self) -> TagState:
        return TagState(self.rules, frozenset(map(_alike, self.readings)), self.accepts)

    def _after_byte(self, automaton: Automaton, byte: int) -> TagState | None:
        """Return the state after a byte of a token, with values side by side."""
        return self.moved(automaton, self.before(byte), byte)

    def moved(self, automaton: Automaton, readings: Iterable[TagReading], byte: int) -> TagState | None:
        """Return the state after a byte that some readings read, which are those of `before`."""
        following: set[TagReading] = set()
        ended: set[Scan] = set()
        self._advance_texts(readings, byte, following, ended)
        for reading in readings:
            if reading.text is None and reading.tokens is None:
                self._advance_value(automaton, reading, byte, following, ended)
        return self.rules.state(ended, following) if following or ended else None

    def expand(self, automaton: Automaton) -> TransitionRow:
        reachable = self.reachable()
        texts = [reading for reading in reachable if reading.text is not None]
        values = [reading for reading in reachable if reading.text is None and reading.tokens is None]
        codes = {reading: byte_codes(automaton, self._place(automaton, reading)) for reading in values}
        kinds = [byte_kinds(automaton, self._place(automaton, reading)) for reading in values]
        class_of, examples = _columns(texts, kinds)
        actions = []
        for byte in examples:
            readings = self.before(byte)
            alive = [reading for reading in readings if reading in codes and codes[reading][byte]]
            actions.append(self._action(automaton, readings, alive, byte))
        return TransitionRow({}, rest=class_row(automaton, actions, class_of), accepts=self.accepts)

    def _place(self, automaton: Automaton, reading: TagReading) -> int:
        """Return the number of the state that a value is in."""
        if reading.thread is not None:
            return reading.thread.state
        leaf = self.rules.leaves[reading.number]
        assert isinstance(leaf, ValueLeaf)
        return automaton.number(leaf.start)

    def _advance_texts(
        self, readings: Iterable[TagReading], byte: int, following: set[TagReading], ended: set[Scan]
    ) -> None:
        is_lexed = self.rules.lexer is not None
        for group in groups_of(readings):
            moved, ends = set[TagReading](), set[Scan]()
            lazy_ends = set[Scan]()
            for reading, text in group:
                _advance_text(reading, text, byte, moved, lazy_ends if text.leaf.lazy else ends, is_lexed)
            if not is_lexed:
                ended |= ends
            ended |= lazy_ends
            if not lazy_ends:
                following |= moved

    def _action(self, automaton: Automaton, readings: Iterable[TagReading], values: list[TagReading], byte: int) -> int:
        """Return the action of a byte that leads on in these values, and perhaps in texts."""
        following: set[TagReading] = set()
        ended: set[Scan] = set()
        self._advance_texts(readings, byte, following, ended)
        is_alone = values and not following and not ended and byte not in _DIGITS
        is_alone = is_alone and not self.rules.has_temperatures  # which only the state itself knows
        if is_alone and all(reading.thread is None for reading in values):
            pushed = self._push(automaton, values)
            if pushed is not None:
                return pushed
        for reading in values:
            self._advance_value(automaton, reading, byte, following, ended)
        if not following and not ended:
            return 0
        return automaton.goto(self.rules.state(ended, following))

    def _advance_value(
        self, automaton: Automaton, reading: TagReading, byte: int, following: set[TagReading], ended: set[Scan]
    ) -> None:
        thread = reading.thread or ValueThread(self._place(automaton, reading), 0, None)
        after = stepped(automaton, thread, byte)
        if after is None:
            return
        if after is not ENDED:
            following.add(reading._replace(thread=after))
        if after is ENDED or may_end(automaton, after):
            ended.add((reading.begun, reading.number))

    def _push(self, automaton: Automaton, values: list[TagReading]) -> int | None:
        """Return the action that reads the one value that may come, or those that begin here as one.

        Returns None if they have to be read side by side.
        """
        scans = tuple(sorted((reading.begun, reading.number) for reading in values))
        leaves = tuple(leaf for _, n in scans if isinstance(leaf := self.rules.leaves[n], ValueLeaf))
        if len(set(leaves)) == 1:
            return automaton.push_before(leaves[0].start, self.rules.state(scans))
        joined = self.rules.join(leaves)
        if joined is None:
            return None
        return automaton.push_before(joined.start, ValuesFrame(self.rules, scans, joined.codes))


@dataclass(frozen=True)
class ValuesFrame(Frame):
    """Stack frame below a value that one of several terminals reads."""

    rules: TagRules
    scans: tuple[Scan, ...]
    codes: ResultCodes

    @property
    def num_results(self) -> int:  # type: ignore[override]
        return self.codes.likely

    def after(self, automaton: Automaton, result: int, text: bytes) -> ControlState | None:
        truths = self.codes.truths(result)
        ended = [scan for scan, holds in zip(self.scans, truths, strict=True) if holds]
        return self.rules.state(ended) if ended else None


TextGroup = list[tuple[TagReading, TextPlace]]


def groups_of(readings: Iterable[TagReading]) -> Iterable[TextGroup]:
    """Return the texts among some readings, those that begin at one place together."""
    groups: dict[int, TextGroup] = {}
    for reading in readings:
        if reading.text is not None:
            groups.setdefault(reading.begun, []).append((reading, reading.text))
    return groups.values()


def ends_of(group: TextGroup) -> set[Scan]:
    """Return the terminals that may end where their texts are."""
    return {(reading.begun, terminal) for reading, text in group for terminal in text.leaf.labels[text.state]}


def _advance_text(
    reading: TagReading,
    text: TextPlace,
    byte: int,
    following: set[TagReading],
    ended: set[Scan],
    is_lexed: bool,
) -> None:
    leaf, state, left, tokens_left, _ = text
    now = int(leaf.dfa.table[state, leaf.dfa.class_of[byte]])
    if now == DEAD:
        return
    if left is not None and byte not in _CONTINUES:
        if left == 0:
            return
        left -= 1
    ended.update((reading.begun, terminal) for terminal in leaf.labels[now])
    if leaf.dfa.table[now].any() or is_lexed:
        following.add(TagReading(reading.begun, TextPlace(leaf, now, left, tokens_left, tokens_left is not None)))


def is_open(reading: TagReading) -> bool:
    """Return True if the reading may go on by a byte or token."""
    return reading.text is None or bool(reading.text.leaf.dfa.table[reading.text.state].any())


def _alike(reading: TagReading) -> TagReading:
    """Return the reading with as few tokens left as allow the same next token."""
    if reading.tokens is not None:
        return reading._replace(tokens=TokensPlace(reading.tokens.leaf, 1))
    text = reading.text
    if text is None or text.tokens_left is None:
        return reading
    return reading._replace(text=text._replace(tokens_left=min(text.tokens_left, 1 + max(text.leaf.distances[START:]))))


def _columns(texts: list[TagReading], kinds: list[NDArray[np.int32]]) -> tuple[NDArray[np.uint8], list[int]]:
    """Return classes of bytes [256] that no reading distinguishes, and an example of each class."""
    rows = [reading.text.leaf.dfa.class_of for reading in texts if reading.text is not None]
    if any(reading.text is not None and reading.text.left is not None for reading in texts):
        rows.append(_CONTINUING)
    if not rows and not kinds:
        return np.zeros(256, np.uint8), [0]
    stacked = np.stack([*(row.astype(np.int32) for row in rows), *kinds])
    _, examples, class_of = np.unique(stacked, axis=1, return_index=True, return_inverse=True)
    return class_of.reshape(-1).astype(np.uint8), examples.tolist()


_CONTINUING = np.zeros(256, np.uint8)
_CONTINUING[list(_CONTINUES)] = 1
