"""Where patterns first match in a stream of bytes, wherever it is cut: the earliest end, and of the matches that end
there the one that begins first.

A pattern's automaton is run from every place at once. Of two runs in one state only the one that began first matters,
so a byte costs at most one step for each place in a pattern (Thompson 1968), whatever the text. Knows no tokens.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..budget import CompileBudget
from ..errors import GrammarError
from .byte_dfa import byte_dfa
from .dfa import DEAD, START, Dfa
from .expression import Alt, Expression, Look, Repeat, TextEnd, TextStart
from .expression import Seq as Parts
from .parser import parse_regex
from .subset import char_dfa

MAX_PLACES = 1000  # of all patterns together: states between characters, hence steps a byte
MAX_STATES = 4000  # of each automaton over characters on the way
MAX_BYTE_STATES = 10_000  # of a pattern
MAX_CPU_SECONDS = 0.5  # of a pattern
_SHOWN = 80  # characters of a pattern in a message


class Match(NamedTuple):
    """`start` and `end` count bytes from the beginning of the data with which it was found, so `start` may be
    negative. The smallest of several is the one that counts."""

    end: int
    start: int
    text: bytes


@dataclass(frozen=True, eq=False)
class _SearchDfa:
    table: array[int]  # [states * classes]
    class_of: list[int]  # [256]
    num_classes: int
    accepting: frozenset[int]
    begins: list[int]  # [256]: the state after a match's first byte


@dataclass(frozen=True, eq=False)
class Search:
    """Patterns ready to be looked for. Immutable, shared."""

    automata: tuple[_SearchDfa, ...]

    def scan(self) -> Scan:
        return Scan(self)


@lru_cache(maxsize=32)
def search(patterns: tuple[str, ...]) -> Search:
    """Python patterns, each one's match ending the search. Raises GrammarError with the pattern that is malformed or
    too complex, or has no meaning in the middle of a stream: it matches the empty text, or asks what stands around."""
    automata = []
    num_places = 0
    for pattern in patterns:
        try:
            dfa, num_own = _compiled(pattern)
            num_places += num_own
            if num_places > MAX_PLACES:
                raise GrammarError(f"too complex: the patterns need more than {MAX_PLACES} states")
        except GrammarError as error:
            raise GrammarError(f"pattern {_shown(pattern)}: {error}", position=error.position) from None
        automata.append(_automaton(dfa))
    return Search(tuple(automata))


class Scan:
    """One stream being searched."""

    def __init__(self, search: Search) -> None:
        self._automata = search.automata
        self._runs: list[dict[int, int]] = [{} for _ in self._automata]  # state -> where in `_open` its run began
        self._open = b""  # from the beginning of the earliest run on

    @property
    def num_pending(self) -> int:
        """How many of the last bytes may be part of a match that is not complete."""
        return len(self._open)

    def feed(self, data: bytes) -> Match | None:
        """Go on by `data`, all of it. Returns as `find`."""
        match, runs = self._run(data)
        window = self._open + data
        first = min((start for run in runs for start in run.values()), default=len(window))
        self._runs = [{state: start - first for state, start in run.items()} for run in runs] if first else runs
        self._open = window[first:]
        return match

    def find(self, data: bytes) -> Match | None:
        """The match whose end comes first within `data`, if that came next; of several, the one that begins first."""
        return self._run(data)[0]

    def reset(self) -> None:
        """What comes next is not adjacent to what came before."""
        self._runs = [{} for _ in self._automata]
        self._open = b""

    def _run(self, data: bytes) -> tuple[Match | None, list[dict[int, int]]]:
        num_before = len(self._open)
        found: list[tuple[int, int]] = []
        runs = []
        for automaton, run in zip(self._automata, self._runs, strict=True):
            match, run = _advanced(automaton, run, data, num_before)
            runs.append(run)
            if match is not None:
                found.append(match)
        if not found:
            return None, runs
        end, start = min(found)
        return Match(end - num_before, start - num_before, (self._open + data)[start:end]), runs


def _advanced(
    automaton: _SearchDfa, run: dict[int, int], data: bytes, begin: int
) -> tuple[tuple[int, int] | None, dict[int, int]]:
    """(end, start) of the first match that ends in `data`, which begins at `begin`; and the runs after all of it."""
    table, class_of, num_classes = automaton.table, automaton.class_of, automaton.num_classes
    found: tuple[int, int] | None = None
    for at, byte in enumerate(data, begin):
        begun = automaton.begins[byte]
        if not run and not begun:
            continue
        label = class_of[byte]
        moved: dict[int, int] = {}
        for state, start in run.items():
            target = table[state * num_classes + label]
            if target != DEAD and start < moved.get(target, at):
                moved[target] = start
        if begun:
            moved.setdefault(begun, at)  # who is there already began earlier
        run = moved
        if found is None:
            starts = [start for state, start in run.items() if state in automaton.accepting]
            if starts:
                found = at + 1, min(starts)
    return found, run


def _compiled(pattern: str) -> tuple[Dfa, int]:
    """The automaton, and how many places between characters it has."""
    expression = parse_regex(pattern, "python")
    if _looks_around(expression):
        raise GrammarError("an anchor or look-around, which has no meaning in the middle of a stream")
    budget = CompileBudget(MAX_STATES, MAX_CPU_SECONDS)
    chars = char_dfa(expression, budget)
    if chars.is_empty:
        raise GrammarError("it matches no text at all")
    if chars.accepting[START]:
        raise GrammarError("it matches the empty text, which is everywhere")
    if chars.num_states > MAX_PLACES:
        raise GrammarError(f"too complex: it needs more than {MAX_PLACES} states")
    return byte_dfa(chars, "utf8", CompileBudget(MAX_BYTE_STATES, MAX_CPU_SECONDS)), chars.num_states


def _automaton(dfa: Dfa) -> _SearchDfa:
    num_classes = dfa.table.shape[1]
    class_of = dfa.class_of.tolist()
    begins = dfa.table[START].tolist()
    return _SearchDfa(
        table=array("H", dfa.table.astype("H").tobytes()),
        class_of=class_of,
        num_classes=num_classes,
        accepting=frozenset(dfa.accepting.nonzero()[0].tolist()),
        begins=[begins[label] for label in class_of],
    )


def _looks_around(expression: Expression) -> bool:
    todo = [expression]
    while todo:
        match todo.pop():
            case TextStart() | TextEnd() | Look():
                return True
            case Parts(parts=parts) | Alt(parts=parts):
                todo += parts
            case Repeat(part=part):
                todo.append(part)
    return False


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= _SHOWN else pattern[:_SHOWN] + "...")
