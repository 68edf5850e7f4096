"""Finds the captured parts of an output by a grammar in llguidance's dialect of Lark: one reading of its text.

The readings are those of `TagState`. Behind them stand not sets of a lazy automaton but those of Earley's own
algorithm, one for each place where terminals end, in which each item knows the item and the part before it. Where a
text has several readings, earlier parts take as much as they can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from ..automaton.automaton import Automaton
from ..automaton.generation import HasNamedParts
from ..errors import GrammarError
from ..grammar.earley import EarleySets
from ..grammar.extended_lark.rules import LarkCapture
from .states import Scan, TagReading, TagRules, TagState, ends_of, groups_of, is_open

_MAX_ITEMS = 200_000  # of one output, some 40 MB; the terminals of an ordinary text take a dozen each


class ChartItem(NamedTuple):
    """A place in an alternative, which began in the set `origin`."""

    nonterminal: int
    alternative: int
    place: int
    origin: int


class Link(NamedTuple):
    """How an item came to its place: its last part begins in the set `begun`.

    The part is alternative `alternative` of a nonterminal; None: a terminal, or a nonterminal without text.
    """

    begun: int
    alternative: int | None


@dataclass
class ChartSet:
    """An Earley set, at a place in the text."""

    place: int
    items: dict[ChartItem, Link | None]  # None: at its beginning
    waiting: dict[int, list[ChartItem]]  # by the next symbol
    is_end: bool = False


class Chart(EarleySets):
    """The item sets of one text. Sets are made at `place`, a number of bytes."""

    def __init__(self, sets: EarleySets) -> None:
        self._alternatives, self._nullable = sets.rules
        self._sets: list[ChartSet] = []
        self._known: dict[frozenset[Scan], int] = {}  # sets at this place
        self._num_items = 0
        self.place = 0
        begun = ChartSet(0, {}, {}, 0 in self._nullable)
        self._sets.append(begun)
        self._predict(begun, 0, 0)
        self.start = 0

    def move(self, place: int) -> None:
        """Go on to another place in the text."""
        if place != self.place:
            self.place = place
            self._known.clear()

    def expected(self, number: int) -> list[int]:
        return [-1 - symbol for symbol in self._sets[number].waiting if symbol < 0]

    def accepts(self, number: int) -> bool:
        return self._sets[number].is_end

    def after(self, scans: frozenset[Scan]) -> int:
        number = self._known.get(scans)
        if number is None:
            number = self._known[scans] = len(self._sets)
            self._sets.append(ChartSet(self.place, {}, {}))
            self._fill(number, scans)
        return number

    def _fill(self, number: int, scans: Iterable[Scan]) -> None:
        found = self._sets[number]
        complete: list[tuple[int, int, ChartItem]] = []  # those that began last first: earlier parts are then longest
        for begun, terminal in sorted(scans):
            for item in self._sets[begun].waiting.get(-1 - terminal, ()):
                self._advance(found, number, item, Link(begun, None), complete)
        while complete:
            _, _, item = heappop(complete)
            if item.nonterminal == 0 and item.origin == 0:
                found.is_end = True
            for waiting in self._sets[item.origin].waiting.get(item.nonterminal, ()):
                self._advance(found, number, waiting, Link(item.origin, item.alternative), complete)

    def _advance(
        self, found: ChartSet, number: int, item: ChartItem, link: Link, complete: list[tuple[int, int, ChartItem]]
    ) -> None:
        """Add an item one symbol further, and beyond each symbol without text that may follow."""
        rule = self._alternatives[item.nonterminal][item.alternative]
        while True:
            item = item._replace(place=item.place + 1)
            if item in found.items:
                return
            self._put(found, item, link)
            if item.place == len(rule):
                if item.origin != number:
                    heappush(complete, (-item.origin, len(found.items), item))
                return
            symbol = rule[item.place]
            found.waiting.setdefault(symbol, []).append(item)
            if symbol >= 0:
                self._predict(found, number, symbol)
            if symbol not in self._nullable:
                return
            link = Link(number, None)

    def _predict(self, found: ChartSet, number: int, nonterminal: int) -> None:
        todo = [nonterminal]
        for symbol in todo:
            for alternative, rule in enumerate(self._alternatives[symbol]):
                link = None
                for place in range(len(rule)):
                    item = ChartItem(symbol, alternative, place, number)
                    if item in found.items:
                        break
                    self._put(found, item, link)
                    found.waiting.setdefault(rule[place], []).append(item)
                    if rule[place] >= 0:
                        todo.append(rule[place])
                    if rule[place] not in self._nullable:
                        break
                    link = Link(number, None)

    def _put(self, found: ChartSet, item: ChartItem, link: Link | None) -> None:
        self._num_items += 1
        if self._num_items > _MAX_ITEMS:
            raise GrammarError(f"the parts that the grammar captures are too many: more than {_MAX_ITEMS} items")
        found.items[item] = link

    def parts(self, number: int) -> list[tuple[int, int, int]]:
        """Return the nonterminals of a reading that ends in a set, with their places in the text, inner ones first."""
        rules = self._alternatives[0]
        ends = [ChartItem(0, alternative, len(rule), 0) for alternative, rule in enumerate(rules)]
        return self._parts_of([(item, number) for item in ends if item in self._sets[number].items][:1])

    def open_parts(self, number: int, terminal: int) -> list[tuple[int, int, int]]:
        """Return the nonterminals that have ended in a reading that goes on with a terminal, as `parts`."""
        item = self._sets[number].waiting[-1 - terminal][0]
        path = [(item, number)]
        seen = {(item.nonterminal, item.origin)}
        while item.nonterminal != 0:
            # Of those that wait for it one leads on to the start: all were predicted from there.
            around = self._sets[item.origin].waiting[item.nonterminal]
            path_to = next((each for each in around if (each.nonterminal, each.origin) not in seen), None)
            if path_to is None:
                break
            seen.add((path_to.nonterminal, path_to.origin))
            path.append((path_to, item.origin))
            item = path_to
        return self._parts_of(path[::-1])

    def _parts_of(self, items: list[tuple[ChartItem, int]]) -> list[tuple[int, int, int]]:
        """Return the nonterminals before the places of items, each given with the set that it is in."""
        found: list[tuple[int, int, int]] = []  # from the last one backwards, outer ones first
        todo = items
        while todo:
            item, number = todo.pop()
            rule = self._alternatives[item.nonterminal][item.alternative]
            end = self._sets[number].place
            if item.place == len(rule):
                found.append((item.nonterminal, self._sets[item.origin].place, end))
            if item.place == 0:
                continue
            link = self._sets[number].items[item]
            assert link is not None
            symbol = rule[item.place - 1]
            todo.append((item._replace(place=item.place - 1), link.begun))
            if symbol < 0:
                continue
            if link.alternative is None:
                found += [(each, end, end) for each in reversed(self._without_text(symbol))]
            else:
                last = ChartItem(
                    symbol, link.alternative, len(self._alternatives[symbol][link.alternative]), link.begun
                )
                todo.append((last, number))
        return found[::-1]

    def _without_text(self, nonterminal: int) -> list[int]:
        """Return the nonterminals in a nonterminal that has no text, which is the last of them."""
        found: dict[int, None] = {}
        todo = [(nonterminal, False)]
        open_now: set[int] = set()
        while todo:
            symbol, is_done = todo.pop()
            if is_done:
                found[symbol] = None
            elif symbol not in open_now:
                open_now.add(symbol)
                todo.append((symbol, True))
                inner = next(
                    rule for rule in self._alternatives[symbol] if all(each in self._nullable for each in rule)
                )
                todo += [(each, False) for each in reversed(inner)]
        return [*found]


@dataclass(frozen=True, eq=False)
class ChartRules(TagRules):
    """Rules whose sets are those of one text."""

    def state(self, scans: Iterable[Scan], others: Iterable[TagReading] = ()) -> ChartState:
        scans, readings = frozenset(scans), set(others)
        numbers, before = self.after(scans), frozenset(terminal for _, terminal in scans)
        for number in numbers:
            readings |= self.first_readings(number, before)
        return ChartState(self, frozenset(readings), True, frozenset(numbers))


@dataclass(frozen=True)
class ChartState(TagState):
    """The readings of a text, which may always end. `ended` are the sets where terminals have ended just now."""

    ended: frozenset[int] = frozenset()


@dataclass(frozen=True)
class CapturedStart(TagState, HasNamedParts):
    """State before a text of which parts are captured: those of some nonterminals."""

    captures: Mapping[int, LarkCapture] = field(default_factory=dict, compare=False)

    def reader(self, automaton: Automaton) -> CaptureReader:
        """Begin to read an output."""
        return CaptureReader(automaton, self.rules, self.captures)


class CaptureReader:
    """Follows an output for what it captures."""

    def __init__(self, automaton: Automaton, rules: TagRules, captures: Mapping[int, LarkCapture]) -> None:
        self._automaton = automaton
        self._captures = captures
        self._chart = Chart(rules.sets)
        self._rules = ChartRules(self._chart, rules.leaves, rules.join, rules.lexer)
        self._state: TagState = ChartState(self._rules, self._rules.first_readings(0), True, frozenset({0}))
        self._text = bytearray()

    def read(self, token: int, data: bytes) -> None:
        """Follow a token, which the matcher has accepted, and its text. Raises GrammarError beyond a bound."""
        whole = self._after_whole(token, len(data))
        state: TagState | None = self._state if data else None
        for byte in data:
            readings = state.before(byte) if state else frozenset[TagReading]()
            self._text.append(byte)
            self._chart.move(len(self._text))
            state = state and state.moved(self._automaton, readings, byte)
        state = _united(state, whole)
        if state is not None and state.is_gate:
            state = state.at_boundary()
        assert state is not None, "a token that the matcher has accepted"
        self._state = state

    def _after_whole(self, token: int, num_bytes: int) -> TagState | None:
        """Return the state where a terminal of whole tokens has read a token."""
        if not self._rules.has_tokens:
            return None
        ended, following = self._state.whole_tokens(token)
        if not ended:
            return None
        place = self._chart.place
        self._chart.move(place + num_bytes)
        found = self._rules.state(ended, following)
        self._chart.move(place)
        return found

    def captures(self) -> list[tuple[str, bytes]]:
        """Return names and texts of what is captured, in the order of their ends, inner ones first.

        Of an output that ends before its grammar does, these are the parts that have ended in one of its readings.
        """
        ended = frozenset(scan for group in groups_of(self._state.readings) for scan in ends_of(group))
        numbers = {*self._rules.after(ended), *(self._state.ended if isinstance(self._state, ChartState) else ())}
        at_end = [number for number in sorted(numbers) if self._chart.accepts(number)]
        if at_end:
            parts = self._chart.parts(at_end[0])
        else:
            inside = [scan for reading in filter(is_open, self._state.readings) for scan in self._terminals(reading)]
            behind = [(number, terminal) for number in sorted(numbers) for terminal in self._chart.expected(number)]
            scans = sorted(inside) or behind
            parts = self._chart.open_parts(*scans[0]) if scans else []
        found = []
        for nonterminal, begin, end in parts:
            if (capture := self._captures.get(nonterminal)) is not None:
                found += capture.values(bytes(self._text[begin:end]))
        return found

    def _terminals(self, reading: TagReading) -> list[Scan]:
        """Return the terminals that a reading is inside, where its sets expect them."""
        if reading.text is None:
            numbers = {reading.number}
        else:
            numbers = {number for label in reading.text.leaf.labels for number in label}
        return [(reading.begun, number) for number in numbers if number in self._chart.expected(reading.begun)]


def _united(first: TagState | None, second: TagState | None) -> TagState | None:
    """Return the readings of both states."""
    if first is None or second is None:
        return first or second
    assert isinstance(first, ChartState)
    assert isinstance(second, ChartState)
    return ChartState(first.rules, first.readings | second.readings, True, first.ended | second.ended)
