"""Earley's algorithm (1970) as a lazy automaton: its states are numbered sets of items.

An item is a place in an alternative, with the set in which its nonterminal began. So equal histories give equal sets,
and the automaton of a regular grammar is finite. Nullable nonterminals are skipped when they are predicted (Aycock and
Horspool 2002). If the only item that waits for a nonterminal does so at its own end, the nonterminal returns to where
that item would, so right recursion takes constant space (after Leo 1991). Terminals are known by number.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import GrammarError
from .cfg import Rules

_MAX_WORK = 30_000  # items advanced from one set to the next: an unambiguous text takes some dozens
HERE = -1  # origin of an item that began in its own set
NOWHERE = -2  # origin of the start item


class EarleyItem(NamedTuple):
    """A place in an alternative. `origin` is a set, HERE or NOWHERE, in which `completes` is complete with the item."""

    nonterminal: int
    alternative: int
    place: int
    origin: int
    completes: int


class EarleySets:
    """The item sets of a grammar, numbered in the order in which they are first reached."""

    def __init__(self, alternatives: Rules, nullable: frozenset[int]) -> None:
        """`alternatives` are those of each nonterminal, of which 0 is the start (`Cfg`)."""
        whole = len(alternatives)
        self._alternatives = (*alternatives, ((0,),))
        self._nullable = nullable
        self._numbers: dict[tuple[frozenset[EarleyItem], bool], int] = {}
        self._waiting: list[dict[int, list[EarleyItem]]] = []  # for each set, its items by the next symbol
        self._accepting: list[bool] = []
        self._after: dict[frozenset[tuple[int, int]], int] = {}
        self.caches = (self._numbers, self._waiting, self._after)  # what grows with the texts
        self.start = self._add({EarleyItem(whole, 0, 0, NOWHERE, whole)}, accepting=0 in nullable)

    @property
    def rules(self) -> tuple[Rules, frozenset[int]]:
        """The alternatives of each nonterminal, and the nonterminals that derive the empty text."""
        return self._alternatives, self._nullable

    def expected(self, number: int) -> list[int]:
        """Return the terminals that may come next."""
        return [-1 - symbol for symbol in self._waiting[number] if symbol < 0]

    def accepts(self, number: int) -> bool:
        """Return True if the text may end here."""
        return self._accepting[number]

    def after(self, scans: frozenset[tuple[int, int]]) -> int:
        """Return the set at a place where expected terminals end, given as pairs of a set and a terminal."""
        number = self._after.get(scans)
        if number is None:
            number = self._after[scans] = self._scan(scans)
        return number

    def _scan(self, scans: frozenset[tuple[int, int]]) -> int:
        items: set[EarleyItem] = set()
        accepting = False
        todo: list[tuple[int, int]] = [(number, -1 - terminal) for number, terminal in scans]
        done = set(todo)
        work = 0
        while todo:
            number, symbol = todo.pop()
            waiting = self._waiting[number].get(symbol, ())
            work += 1 + len(waiting)
            if work > _MAX_WORK:
                raise GrammarError("the grammar is too ambiguous: a text can be read in too many ways")
            for item in waiting:
                origin = number if item.origin == HERE else item.origin
                for advanced in self._advanced(item._replace(origin=origin)):
                    if advanced in items:
                        continue
                    items.add(advanced)
                    rule = self._alternatives[advanced.nonterminal][advanced.alternative]
                    if advanced.place < len(rule):
                        continue
                    complete = (advanced.origin, advanced.completes)
                    if advanced.origin == NOWHERE:
                        accepting = True
                    elif complete not in done:
                        done.add(complete)
                        todo.append(complete)
        return self._add(items, accepting)

    def _advanced(self, item: EarleyItem) -> list[EarleyItem]:
        """Return the item one symbol further, and beyond each nullable symbol that follows."""
        rule = self._alternatives[item.nonterminal][item.alternative]
        found = [item._replace(place=item.place + 1)]
        while found[-1].place < len(rule) and rule[found[-1].place] in self._nullable:
            found.append(found[-1]._replace(place=found[-1].place + 1))
        return found

    def _add(self, items: set[EarleyItem], accepting: bool) -> int:
        """Return the number of the closure of some items."""
        closed = frozenset(self._closed(items))
        number = self._numbers.get((closed, accepting))
        if number is None:
            number = self._numbers[closed, accepting] = len(self._waiting)
            waiting: dict[int, list[EarleyItem]] = {}
            for item in closed:
                waiting.setdefault(self._alternatives[item.nonterminal][item.alternative][item.place], []).append(item)
            self._waiting.append(waiting)
            self._accepting.append(accepting)
        return number

    def _closed(self, items: set[EarleyItem]) -> set[EarleyItem]:
        """Return the items that are not complete, with those that they predict."""
        rules = self._alternatives
        kept = {item for item in items if item.place < len(rules[item.nonterminal][item.alternative])}
        waiting: dict[int, list[EarleyItem]] = {}
        predicted: dict[int, list[EarleyItem]] = {}
        todo = list(kept)
        while todo:
            item = todo.pop()
            symbol = rules[item.nonterminal][item.alternative][item.place]
            if symbol < 0:
                continue
            waiting.setdefault(symbol, []).append(item)
            if symbol not in predicted:
                predicted[symbol] = self._first_items(symbol)
                todo += predicted[symbol]
        returns: dict[int, tuple[int, int]] = {}
        for nonterminal in predicted:
            self._return(nonterminal, waiting, returns)
        for nonterminal, begun in predicted.items():
            origin, completes = returns[nonterminal]
            kept.update(item._replace(origin=origin, completes=completes) for item in begun)
        return kept

    def _first_items(self, nonterminal: int) -> list[EarleyItem]:
        begun = []
        for number, rule in enumerate(self._alternatives[nonterminal]):
            first = EarleyItem(nonterminal, number, -1, HERE, nonterminal)
            begun += [item for item in self._advanced(first) if item.place < len(rule)]
        return begun

    def _return(
        self, nonterminal: int, waiting: dict[int, list[EarleyItem]], returns: dict[int, tuple[int, int]]
    ) -> tuple[int, int]:
        """Return where a predicted nonterminal continues: here, or where the only item that waits for it would."""
        path: list[int] = []
        found = HERE, nonterminal
        while True:
            if nonterminal in returns:
                found = returns[nonterminal]
                break
            first, *others = waiting[nonterminal]
            is_last = first.place == len(self._alternatives[first.nonterminal][first.alternative]) - 1
            path.append(nonterminal)
            if not others and is_last and first.origin != HERE:
                found = first.origin, first.completes
                break
            if others or not is_last or first.nonterminal in path:
                found = HERE, nonterminal
                break
            nonterminal = first.nonterminal
        returns.update(dict.fromkeys(path, found))
        return found
