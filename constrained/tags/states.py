"""States of the byte automaton for structural tags: the readings of a text by a grammar of texts and JSON values.

The rules are read by Earley's algorithm. A reading is a terminal that began after an Earley set: a text with the state
of its automaton, or a JSON value with a configuration of the pushdown automaton. All readings are followed. Where a
value is the only one, it is pushed on the stack instead. Values that begin at one place are read as one value whose
result says which of them it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..automaton.automaton import Automaton, ControlState, Frame, TokenGate, TransitionRow, class_row
from ..budget import cached_property
from ..constraint import PropertyOrder, WhitespacePolicy
from ..errors import GrammarError
from ..grammar.earley import EarleySets
from ..regex.dfa import DEAD, START, Dfa
from ..schema.document import Document
from ..schema.formula import ResultCodes
from ..schema.value_states import ValueStart
from .value_threads import ENDED, ValueThread, byte_codes, byte_kinds, may_end, stepped

MAX_READINGS = 2_000  # of one text
_DIGITS = b"-0123456789"
_CONTINUES = range(0x80, 0xC0)  # bytes inside a character of UTF-8
_NUM_LIKELY = 8  # results for which a frame makes room at first

Scan = tuple[int, int]  # an Earley set, and a terminal that began there


@dataclass(frozen=True, eq=False)
class TextLeaf:
    """Terminals that one automaton reads: `labels[q]` are those that may end in its state q.

    `max_chars` and `max_tokens` are the numbers of characters and tokens that its texts may have, None for any number.
    A token of which it has a part counts as one.
    """

    dfa: Dfa
    labels: list[tuple[int, ...]]
    max_chars: int | None = None
    max_tokens: int | None = None

    @property
    def first(self) -> TextPlace:
        return TextPlace(self, START, self.max_chars, self.max_tokens, False)

    @cached_property
    def distances(self) -> list[int]:
        """The number of bytes from each state to the next one in which a terminal may end."""
        found = np.where([bool(label) for label in self.labels], 0, len(self.labels))
        while True:
            nearer = np.minimum(found, 1 + found[self.dfa.table].min(axis=1))
            if (nearer == found).all():
                distances: list[int] = found.tolist()
                return distances
            found = nearer


@dataclass(frozen=True, eq=False)
class TokensLeaf:
    """A terminal of one to `max_tokens` whole tokens (None: any number), each of them in `mask`: int32[V / 32]."""

    mask: NDArray[np.int32]
    max_tokens: int | None

    def allows(self, token: int) -> bool:
        return bool(self.mask.item(token >> 5) >> (token & 31) & 1)


@dataclass(frozen=True, eq=False)
class ValueLeaf:
    """A terminal that is a JSON value."""

    start: ValueStart
    document: Document
    whitespace: WhitespacePolicy
    order: PropertyOrder


class OneOfValues(NamedTuple):
    """State before a value that one of several leaves reads, whose result says which of them do."""

    start: ValueStart
    codes: ResultCodes


class TextPlace(NamedTuple):
    """State of a text: that of its automaton, and the numbers of characters and tokens that may follow.

    `is_in_token`: it has a part of the token that is read, which is among those that may follow.
    """

    leaf: TextLeaf
    state: int
    left: int | None
    tokens_left: int | None
    is_in_token: bool


class TokensPlace(NamedTuple):
    """Place before whole tokens, of which `left` may follow."""

    leaf: TokensLeaf
    left: int | None


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
class TagRules:
    """Compiled rules of a structural tag. `leaves[t]` reads terminal t."""

    sets: EarleySets
    leaves: list[TextLeaf | ValueLeaf | TokensLeaf]
    join: Callable[[tuple[ValueLeaf, ...]], OneOfValues | None]  # None: they have to be read side by side
    columns: dict[tuple[int, ...], tuple[NDArray[np.uint8], list[int]]] = field(default_factory=dict)
    starts: dict[int, frozenset[TagReading]] = field(default_factory=dict)

    @cached_property
    def has_tokens(self) -> bool:
        """True if some state knows of tokens."""
        return any(
            isinstance(leaf, TokensLeaf) or getattr(leaf, "max_tokens", None) is not None for leaf in self.leaves
        )

    def first_readings(self, number: int) -> frozenset[TagReading]:
        """Return the readings that begin after an Earley set."""
        if number not in self.starts:
            found = set()
            for terminal in self.sets.expected(number):
                leaf = self.leaves[terminal]
                if isinstance(leaf, TextLeaf):
                    found.add(TagReading(number, leaf.first))
                elif isinstance(leaf, TokensLeaf):
                    found.add(TagReading(number, None, terminal, tokens=TokensPlace(leaf, leaf.max_tokens)))
                else:
                    found.add(TagReading(number, None, terminal))
            self.starts[number] = frozenset(found)
        return self.starts[number]

    def state(self, scans: Iterable[Scan], others: Iterable[TagReading] = ()) -> TagState:
        """Return the state where terminals end, beside readings that go on."""
        readings, accepts, ended = set(others), False, frozenset(scans)
        if ended:
            number = self.sets.after(ended)
            readings |= self.first_readings(number)
            accepts = self.sets.accepts(number)
        if len(readings) > MAX_READINGS:
            raise GrammarError(f"the structural tag is too ambiguous: a text has more than {MAX_READINGS} readings")
        return TagState(self, frozenset(readings), accepts)

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
            for reading in self.readings
        )

    def allowed_tokens(self) -> NDArray[np.int32]:
        masks = {reading.tokens.leaf: reading.tokens.leaf.mask for reading in self.readings if reading.tokens}
        return np.bitwise_or.reduce([*masks.values()]) if masks else np.zeros(1, np.int32)

    def after_token(self, automaton: Automaton, token: int, data: bytes) -> TagState | None:
        ended, following = set(), set()
        for reading in self.readings:
            if reading.tokens is None or not reading.tokens.leaf.allows(token):
                continue
            ended.add((reading.begun, reading.number))
            leaf, left = reading.tokens
            if left is None or left > 1:
                following.add(reading._replace(tokens=TokensPlace(leaf, None if left is None else left - 1)))
        if not ended:
            return None
        whole = self.rules.state(ended, following)
        by_bytes: TagState | None = self if data else None
        for byte in data:
            by_bytes = by_bytes and by_bytes._after_byte(automaton, byte)
        if by_bytes is None:
            return whole
        return TagState(self.rules, whole.readings | by_bytes.readings, whole.accepts or by_bytes.accepts)

    def at_boundary(self) -> TagState | None:
        kept = []
        for reading in self.readings:
            text = reading.text
            if text is None or not text.is_in_token or text.tokens_left is None:
                kept.append(reading)
                continue
            left = text.tokens_left - 1
            # Each byte may need a token, so a text that runs out of tokens inside a character could not end.
            if left and left >= text.leaf.distances[text.state]:
                kept.append(reading._replace(text=text._replace(tokens_left=left, is_in_token=False)))
        return TagState(self.rules, frozenset(kept), self.accepts) if kept or self.accepts else None

    def alike(self) -> TagState:
        return TagState(self.rules, frozenset(map(_alike, self.readings)), self.accepts)

    def _after_byte(self, automaton: Automaton, byte: int) -> TagState | None:
        """Return the state after a byte of a token, with values side by side."""
        following: set[TagReading] = set()
        ended: set[Scan] = set()
        for reading in self.readings:
            if reading.text is not None:
                _advance_text(reading, byte, following, ended)
            elif reading.tokens is None:
                self._advance_value(automaton, reading, byte, following, ended)
        return self.rules.state(ended, following) if following or ended else None

    def expand(self, automaton: Automaton) -> TransitionRow:
        texts = [reading for reading in self.readings if reading.text is not None]
        values = [reading for reading in self.readings if reading.text is None and reading.tokens is None]
        places = [self._place(automaton, reading) for reading in values]
        codes = [byte_codes(automaton, place) for place in places]
        class_of, examples = _columns(texts, [byte_kinds(automaton, place) for place in places])
        actions = []
        for byte in examples:
            alive = [reading for reading, code in zip(values, codes, strict=True) if code[byte]]
            actions.append(self._action(automaton, texts, alive, byte))
        return TransitionRow({}, rest=class_row(automaton, actions, class_of), accepts=self.accepts)

    def _place(self, automaton: Automaton, reading: TagReading) -> int:
        """Return the number of the state that a value is in."""
        if reading.thread is not None:
            return reading.thread.state
        leaf = self.rules.leaves[reading.number]
        assert isinstance(leaf, ValueLeaf)
        return automaton.number(leaf.start)

    def _action(self, automaton: Automaton, texts: list[TagReading], values: list[TagReading], byte: int) -> int:
        """Return the action of a byte that leads on in these values, and perhaps in texts."""
        following: set[TagReading] = set()
        ended: set[Scan] = set()
        for reading in texts:
            _advance_text(reading, byte, following, ended)
        is_alone = values and not following and not ended and byte not in _DIGITS
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


def _advance_text(reading: TagReading, byte: int, following: set[TagReading], ended: set[Scan]) -> None:
    assert reading.text is not None
    leaf, state, left, tokens_left, _ = reading.text
    now = int(leaf.dfa.table[state, leaf.dfa.class_of[byte]])
    if now == DEAD:
        return
    if left is not None and byte not in _CONTINUES:
        if left == 0:
            return
        left -= 1
    ended.update((reading.begun, terminal) for terminal in leaf.labels[now])
    if leaf.dfa.table[now].any():
        following.add(TagReading(reading.begun, TextPlace(leaf, now, left, tokens_left, tokens_left is not None)))


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
