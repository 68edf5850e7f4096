"""Streaming search for patterns in chunks of bytes: the match that ends first; of several, the one that begins first.

Each pattern's automaton runs from every position at once. Of two runs in the same state only the earlier one counts, so
a byte costs at most one step per state of the pattern (Thompson 1968), whatever the text.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..budget import PATTERN_STEPS, CompileBudget
from ..errors import GrammarError
from .byte_dfa import byte_dfa
from .dfa import DEAD, START, Dfa
from .subset import char_dfa
from .syntax.expression import Alt, Expression, Look, Repeat, Seq, TextEnd, TextStart
from .syntax.parser import parse_regex

MAX_CHAR_STATES = 1000  # states between characters, hence steps per byte, of all patterns together
_MAX_STATES = 4000  # of each intermediate automaton over characters
MAX_BYTE_STATES = 10_000  # of a pattern
_MAX_STEPS = PATTERN_STEPS  # of a pattern
_MAX_SHOWN = 80  # characters of a pattern in an error message


class Match(NamedTuple):
    """A match; the smallest of several counts.

    `start` and `end` are byte offsets from the start of the chunk in which the match ended, so `start` may be negative.
    """

    end: int
    start: int
    text: bytes


@dataclass(frozen=True, eq=False)
class _SearchDfa:
    """A pattern's byte automaton, in Python lists for fast access to single entries."""

    table: array[int]  # [states * classes]
    class_of: list[int]  # [256]
    num_classes: int
    accepting: frozenset[int]
    begins: list[int]  # [256]: state after the first byte of a match


@dataclass(frozen=True, eq=False)
class Search:
    """Compiled patterns. Immutable; may be shared."""

    automata: tuple[_SearchDfa, ...]

    def scan(self) -> Scan:
        """Begin to search a new stream."""
        return Scan(self)


@lru_cache(maxsize=32)
def search(patterns: tuple[str, ...]) -> Search:
    """Compile Python patterns to search for, any of them.

    Raises GrammarError, with the pattern, if one is malformed, too complex, matches the empty text, or uses anchors or
    look-around, which have no meaning inside a stream.
    """
    automata = []
    num_states = 0
    for pattern in patterns:
        try:
            dfa, num_own = _compiled(pattern)
            num_states += num_own
            if num_states > MAX_CHAR_STATES:
                raise GrammarError(f"too complex: the patterns need more than {MAX_CHAR_STATES} states")
        except GrammarError as error:
            raise GrammarError(f"pattern {_shown(pattern)}: {error}", position=error.position) from None
        automata.append(_automaton(dfa))
    return Search(tuple(automata))


class Scan:
    """Search state of one stream."""

    def __init__(self, search: Search) -> None:
        self._automata = search.automata
        self._runs: list[dict[int, int]] = [
            {} for _ in self._automata
        ]  # state -> index in `_pending` where its run began
        self._pending = b""  # the bytes since the earliest run began

    @property
    def num_pending(self) -> int:
        """Number of trailing bytes that may belong to an incomplete match."""
        return len(self._pending)

    def feed(self, data: bytes) -> Match | None:
        """Consume all of `data`. Returns as `find`."""
        match, runs = self._run(data)
        window = self._pending + data
        first = min((start for run in runs for start in run.values()), default=len(window))
        self._runs = [{state: start - first for state, start in run.items()} for run in runs] if first else runs
        self._pending = window[first:]
        return match

    def find(self, data: bytes) -> Match | None:
        """Return the first match that would end in `data`, without consuming it; None without one."""
        return self._run(data)[0]

    def reset(self) -> None:
        """Forget pending bytes: the next chunk is not adjacent to the last one."""
        self._runs = [{} for _ in self._automata]
        self._pending = b""

    def _run(self, data: bytes) -> tuple[Match | None, list[dict[int, int]]]:
        num_before = len(self._pending)
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
        return Match(end - num_before, start - num_before, (self._pending + data)[start:end]), runs


def _advanced(
    automaton: _SearchDfa, run: dict[int, int], data: bytes, begin: int
) -> tuple[tuple[int, int] | None, dict[int, int]]:
    """Return (end, start) of the first match that ends in `data`, which begins at `begin`.

    And the runs after it all.
    """
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
            moved.setdefault(begun, at)  # a run that is in this state already began earlier
        run = moved
        if found is None:
            starts = [start for state, start in run.items() if state in automaton.accepting]
            if starts:
                found = at + 1, min(starts)
    return found, run


def _compiled(pattern: str) -> tuple[Dfa, int]:
    """Compile a pattern; return its automaton and its number of states between characters."""
    expression = parse_regex(pattern, "python")
    if _has_anchor(expression):
        raise GrammarError("anchors and look-around have no meaning inside a stream")
    budget = CompileBudget(_MAX_STATES, _MAX_STEPS)
    chars = char_dfa(expression, budget)
    if chars.is_empty:
        raise GrammarError("it matches no text")
    if chars.accepting[START]:
        raise GrammarError("it matches the empty text, hence everywhere")
    if chars.num_states > MAX_CHAR_STATES:
        raise GrammarError(f"too complex: it needs more than {MAX_CHAR_STATES} states")
    return byte_dfa(chars, "utf8", CompileBudget(MAX_BYTE_STATES, _MAX_STEPS)), chars.num_states


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


def _has_anchor(expression: Expression) -> bool:
    """Return True if an expression contains an anchor or look-around."""
    todo = [expression]
    while todo:
        match todo.pop():
            case TextStart() | TextEnd() | Look():
                return True
            case Seq(parts=parts) | Alt(parts=parts):
                todo += parts
            case Repeat(part=part):
                todo.append(part)
    return False


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= _MAX_SHOWN else pattern[:_MAX_SHOWN] + "...")
