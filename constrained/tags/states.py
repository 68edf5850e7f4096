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

from ..automaton.automaton import Automaton, ControlState, Frame, TransitionRow, class_row
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

    `max_chars` is the number of characters that its texts may have, None for any number.
    """

    dfa: Dfa
    labels: list[tuple[int, ...]]
    max_chars: int | None = None

    @property
    def first(self) -> TextPlace:
        return TextPlace(self, START, self.max_chars)


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
    """State of a text: that of its automaton, and the number of characters that may follow."""

    leaf: TextLeaf
    state: int
    left: int | None


class TagReading(NamedTuple):
    """A terminal that began after the Earley set `begun`: a text, or the value of terminal `number`.

    `thread` is None before the first byte of a value.
    """

    begun: int
    text: TextPlace | None
    number: int = -1
    thread: ValueThread | None = None


@dataclass(frozen=True, eq=False)
class TagRules:
    """Compiled rules of a structural tag. `leaves[t]` reads terminal t."""

    sets: EarleySets
    leaves: list[TextLeaf | ValueLeaf]
    join: Callable[[tuple[ValueLeaf, ...]], OneOfValues | None]  # None: they have to be read side by side
    columns: dict[tuple[int, ...], tuple[NDArray[np.uint8], list[int]]] = field(default_factory=dict)
    starts: dict[int, frozenset[TagReading]] = field(default_factory=dict)

    def first_readings(self, number: int) -> frozenset[TagReading]:
        """Return the readings that begin after an Earley set."""
        if number not in self.starts:
            found = set()
            for terminal in self.sets.expected(number):
                leaf = self.leaves[terminal]
                if isinstance(leaf, TextLeaf):
                    found.add(TagReading(number, leaf.first))
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
class TagState:
    """The readings of the text so far. `accepts`: the text may end here."""

    rules: TagRules
    readings: frozenset[TagReading]
    accepts: bool

    def expand(self, automaton: Automaton) -> TransitionRow:
        texts = [reading for reading in self.readings if reading.text is not None]
        values = [reading for reading in self.readings if reading.text is None]
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
            thread = reading.thread or ValueThread(self._place(automaton, reading), 0, None)
            after = stepped(automaton, thread, byte)
            if after is None:
                continue
            if after is ENDED:
                ended.add((reading.begun, reading.number))
                continue
            following.add(reading._replace(thread=after))
            if may_end(automaton, after):
                ended.add((reading.begun, reading.number))
        if not following and not ended:
            return 0
        return automaton.goto(self.rules.state(ended, following))

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
    leaf, state, left = reading.text
    now = int(leaf.dfa.table[state, leaf.dfa.class_of[byte]])
    if now == DEAD:
        return
    if left is not None and byte not in _CONTINUES:
        if left == 0:
            return
        left -= 1
    ended.update((reading.begun, terminal) for terminal in leaf.labels[now])
    if leaf.dfa.table[now].any():
        following.add(TagReading(reading.begun, TextPlace(leaf, now, left)))


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
