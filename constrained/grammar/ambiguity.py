"""Finds terminals of a Lark grammar that can match the same text at the same place, with examples.

Lark's Earley parser and our engine follow every reading. A parser with a lexer (Lark's `parser="lalr"`) takes one: the
terminal of higher priority, else a literal before a pattern, else one that no rule names. It may then refuse a text
that the engine allows. `interegular` decides whether two terminals are disjoint, as in Lark's strict mode. It is given
our automata instead of patterns, so that Unicode classes and lazy repeats count too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import combinations

import interegular
from interegular.fsm import TransitionKey

from ..budget import INTERPRETED, CompileBudget
from ..regex.alphabet import Alphabet, common_alphabet
from ..regex.char_dfa import CharDfa
from ..regex.dfa import DEAD, START
from .cfg import Cfg
from .lark import LarkTerminal, lark_terminals

_MAX_STEPS = 2_000_000  # for one pair: states times states times classes of characters
MAX_ALL_STEPS = 200_000_000  # for all pairs
MAX_POSITION_SETS = 20_000


@dataclass(frozen=True)
class Overlap:
    """Two terminals that may stand at the same place and both match `example`, a shortest such text.

    `chosen` is the terminal that Lark's lexer takes, by priority or for being a literal. None: they are ambiguous.
    """

    first: str
    second: str
    example: str
    chosen: str | None


@dataclass(frozen=True)
class TerminalReport:
    """Overlapping pairs of terminals, and the pairs that were too large to compare, or one too many."""

    overlaps: tuple[Overlap, ...]
    unchecked: tuple[tuple[str, str], ...]

    @property
    def ambiguous(self) -> tuple[Overlap, ...]:
        """The overlaps that no rule of Lark's lexer decides."""
        return tuple(overlap for overlap in self.overlaps if overlap.chosen is None)


def ambiguous_terminals(text: str, start: str = "start") -> TerminalReport:
    """Compare the terminals of a grammar in Lark's syntax. Takes some seconds at most.

    Raises GrammarError for a grammar that the engine refuses.
    """
    cfg, terminals = lark_terminals(text, start)
    pairs = sorted({pair for together in _expected_together(cfg) for pair in combinations(sorted(together), 2)})
    alphabet = reduce(
        lambda found, terminal: common_alphabet(found, terminal.chars.alphabet)[0], terminals, _NO_CLASSES
    )
    machines: dict[int, interegular.FSM] = {}
    overlaps, unchecked = [], []
    left = MAX_ALL_STEPS
    for pair in pairs:
        first, second = (terminals[number] for number in pair)
        steps = first.chars.num_states * second.chars.num_states * alphabet.num_classes
        if steps > min(_MAX_STEPS, left):
            unchecked.append((first.name, second.name))
            continue
        left -= steps
        for number in pair:
            if number not in machines:
                machines[number] = _machine(terminals[number].chars, alphabet)
        if not machines[pair[0]].isdisjoint(machines[pair[1]]):
            example = first.chars.intersect(second.chars).witness()
            assert example is not None, f"interegular and we differ about {first.name} and {second.name}"
            overlaps.append(Overlap(first.name, second.name, example, _chosen(first, second)))
    return TerminalReport(tuple(overlaps), tuple(unchecked))


_NO_CLASSES = Alphabet((0, 0xD800, 0xE000), (0, -1, 0))


def _chosen(first: LarkTerminal, second: LarkTerminal) -> str | None:
    if first.priority != second.priority:
        return max(first, second, key=lambda terminal: terminal.priority).name
    if first.is_literal != second.is_literal:
        return first.name if first.is_literal else second.name
    return None


def _machine(dfa: CharDfa, alphabet: Alphabet) -> interegular.FSM:
    """Convert an automaton to interegular's, with the classes of `alphabet` as symbols.

    State 0 is left out, because interegular 0.3.3 treats a return to it as a dead end.
    """
    _, own, theirs = common_alphabet(dfa.alphabet, alphabet)
    table = dfa.table.tolist()
    steps = {
        state: {
            label: table[state][mine] for mine, label in zip(own, theirs, strict=True) if table[state][mine] != DEAD
        }
        for state in range(START, dfa.num_states)
    }
    symbols = interegular.fsm.Alphabet({chr(label): TransitionKey(label) for label in range(alphabet.num_classes)})
    finals = {state for state in steps if dfa.accepting[state]}
    return interegular.FSM(alphabet=symbols, states=set(steps), initial=START, finals=finals, map=steps)


def _expected_together(cfg: Cfg) -> Iterable[frozenset[int]]:
    """Yield the sets of terminals that may come next at some place, as a lexer with the parser's state sees them.

    What follows a rule is taken to be what follows it anywhere, as in an SLR parser, so a set may be too large.

    A position is a place in an alternative. Positions before a terminal are bits of a number; the sets of them that can
    be reached are found as by the subset construction.
    """
    positions = _Positions(cfg)
    todo, known = [positions.start], {positions.start}
    budget = CompileBudget(MAX_POSITION_SETS)
    for before in todo:
        budget.check(len(todo), len(positions.terminals) * INTERPRETED)
        expected = {terminal: found for terminal, mask in positions.terminals.items() if (found := before & mask)}
        yield frozenset((*expected, *cfg.ignored))
        for found in expected.values():
            after = positions.after(found)
            if after not in known:
                known.add(after)
                todo.append(after)


class _Positions:
    """Positions of a grammar before terminals, as bits."""

    def __init__(self, cfg: Cfg) -> None:
        self._alternatives = cfg.alternatives
        self._budget = CompileBudget()
        self._callers: dict[int, list[tuple[int, int, int]]] = {}  # of nonterminals: the positions after their uses
        self._bits: dict[tuple[int, int, int], int] = {}
        self._after: dict[int, int] = {}  # of a position's bit: the positions before terminals that come next
        self._positions: list[tuple[int, int, int]] = []
        self.terminals: dict[int, int] = {}
        for nonterminal, alternatives in enumerate(cfg.alternatives):
            for number, symbols in enumerate(alternatives):
                for place, symbol in enumerate(symbols):
                    position = (nonterminal, number, place)
                    if symbol >= 0:
                        self._callers.setdefault(symbol, []).append((nonterminal, number, place + 1))
                        continue
                    self._bits[position] = 1 << len(self._positions)
                    self._positions.append(position)
                    self.terminals[-1 - symbol] = self.terminals.get(-1 - symbol, 0) | self._bits[position]
        self.start = self._closure((0, number, 0) for number in range(len(cfg.alternatives[0])))

    def after(self, positions: int) -> int:
        """Return the positions that may come next after the terminals at `positions`."""
        found = 0
        for bit in _bits(positions):
            if bit not in self._after:
                nonterminal, number, place = self._positions[bit]
                self._after[bit] = self._closure([(nonterminal, number, place + 1)])
            found |= self._after[bit]
        return found

    def _closure(self, positions: Iterable[tuple[int, int, int]]) -> int:
        todo = list(positions)
        seen = set(todo)
        found = 0
        while todo:
            position = todo.pop()
            nonterminal, number, place = position
            symbols = self._alternatives[nonterminal][number]
            if place == len(symbols):
                further = self._callers.get(nonterminal, [])
            elif symbols[place] >= 0:
                inner = symbols[place]
                further = [(inner, each, 0) for each in range(len(self._alternatives[inner]))]
            else:
                found |= self._bits[position]
                continue
            self._budget.check(0, (1 + len(further)) * INTERPRETED)
            new = [each for each in further if each not in seen]
            seen.update(new)
            todo += new
        return found


def _bits(number: int) -> Iterator[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
