"""Thompson's construction (1968): an expression to a nondeterministic automaton over classes of characters.

Edges that consume no character are epsilon edges, or guarded by an anchor or a look-around.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from ..budget import INTERPRETED, CompileBudget, cached_property
from .alphabet import Alphabet, alphabet_of, alphabet_steps
from .charset import ALL, CharSet
from .syntax.expression import Alt, Bytes, Chars, Expression, Look, Repeat, Seq, TextEnd, TextStart, least_length


@dataclass(frozen=True)
class LookGuard:
    """Guard of an edge: fragment `number` of `lookarounds` must match here, or must not if negated."""

    number: int
    negated: bool


Guard = Literal["start", "end"] | LookGuard


@dataclass
class Fragment:
    """Entry and accepting state of the pattern itself, or of one look-around."""

    entry: int
    accept: int
    ahead: bool


@dataclass
class CharNfa:
    """Nondeterministic automaton over classes of characters.

    `moves[s]` is (classes of characters, target) or None; `epsilon[s]` are the targets of edges that consume nothing;
    `guarded[s]` are (guard, target) of edges that consume nothing and need their guard to hold. Earlier edges are
    preferred: a state's move, then its epsilon edges in order. In `lookarounds` the inner ones come first.
    """

    alphabet: Alphabet
    moves: list[tuple[tuple[int, ...], int] | None] = field(default_factory=list)
    epsilon: list[list[int]] = field(default_factory=list)
    guarded: dict[int, list[tuple[Guard, int]]] = field(default_factory=dict)
    pattern: Fragment = field(default_factory=lambda: Fragment(0, 0, False))
    lookarounds: list[Fragment] = field(default_factory=list)
    absorbing: set[int] = field(default_factory=set)  # states of the pattern from which every text is accepted
    # Chain and rank of states in the copies of a repeated part: of a chain, the state of the lowest rank accepts all
    # that the others do.
    chains: dict[int, tuple[int, int]] = field(default_factory=dict)

    @cached_property
    def useful(self) -> frozenset[int]:
        """States that consume a character, have a guarded edge or accept."""
        ends = (self.pattern.accept, *(around.accept for around in self.lookarounds))
        return frozenset({s for s, move in enumerate(self.moves) if move is not None}.union(self.guarded, ends))


def build_char_nfa(expression: Expression, budget: CompileBudget) -> CharNfa:
    """Build the automaton of an expression. Raises GrammarError beyond the budget."""
    sets = tuple(dict.fromkeys(_sets(expression)))
    budget.check(0, alphabet_steps(sets) * INTERPRETED // 10)
    alphabet, classes = alphabet_of(sets)
    builder = _NfaBuilder(CharNfa(alphabet), dict(zip(sets, classes, strict=True)), budget)
    entry = builder.state()
    builder.nfa.pattern = Fragment(entry, builder.add(expression, entry), False)
    if isinstance(expression, Seq) and expression.parts[-1:] == (Repeat(Chars(ALL), 0, None),):
        builder.nfa.absorbing.add(builder.last_loop)
    return builder.nfa


def _sets(expression: Expression) -> Iterator[CharSet]:
    """Yield every character set that occurs in an expression."""
    todo = [expression]
    while todo:
        match todo.pop():
            case Chars(ranges=ranges):
                yield ranges
            case Bytes(data=data):
                yield from (((byte, byte),) for byte in data)
            case Seq(parts=parts) | Alt(parts=parts):
                todo += parts
            case Repeat(part=part) | Look(part=part):
                todo.append(part)


class _NfaBuilder:
    """Adds expressions to an automaton, state by state."""

    def __init__(self, nfa: CharNfa, classes: dict[CharSet, tuple[int, ...]], budget: CompileBudget) -> None:
        self.nfa = nfa
        self._classes = classes
        self._budget = budget
        self.last_loop = 0
        self._num_chains = 0

    def state(self) -> int:
        """Add a state without edges; return its number."""
        number = len(self.nfa.epsilon)
        self.nfa.moves.append(None)
        self.nfa.epsilon.append([])
        if number % 256 == 255:
            self._budget.check(number, 256 * INTERPRETED)
        return number

    def add(self, expression: Expression, entry: int) -> int:
        """Add states that match the expression from `entry` on; return the state where matches end.

        No edge leads back to `entry` or out of the end.
        """
        match expression:
            case Chars(ranges=ranges):
                return self._step(ranges, entry)
            case Bytes(data=data):
                assert data.isascii(), "only ASCII bytes are characters"
                for byte in data:
                    entry = self._step(((byte, byte),), entry)
                return entry
            case Seq(parts=parts):
                for part in parts:
                    entry = self.add(part, entry)
                return entry
            case Alt(parts=parts):
                exit = self.state()
                for part in parts:
                    self._add_epsilon(self.add(part, self._after(entry)), exit)
                return exit
            case Repeat():
                return self._repeat(expression, entry)
            case TextStart():
                return self._guarded("start", entry)
            case TextEnd():
                return self._guarded("end", entry)
            case Look(part=part, ahead=ahead, negated=negated):
                begin = self.state()
                around = Fragment(begin, self.add(part, begin), ahead)
                self.nfa.lookarounds.append(around)
                return self._guarded(LookGuard(len(self.nfa.lookarounds) - 1, negated), entry)
            case _:
                raise AssertionError(f"{type(expression).__name__} is not an expression of a pattern")

    def _add_epsilon(self, source: int, target: int) -> None:
        self.nfa.epsilon[source].append(target)

    def _after(self, source: int) -> int:
        new = self.state()
        self._add_epsilon(source, new)
        return new

    def _guarded(self, guard: Guard, source: int) -> int:
        target = self.state()
        self.nfa.guarded.setdefault(source, []).append((guard, target))
        return target

    def _step(self, ranges: CharSet, source: int) -> int:
        if self.nfa.moves[source] is not None:
            source = self._after(source)
        target = self.state()
        self.nfa.moves[source] = (self._classes[ranges], target)
        return target

    def _repeat(self, repeat: Repeat, entry: int) -> int:
        if repeat.most is None:
            return self._endless(repeat, entry)
        for _ in range(repeat.least):
            entry = self.add(repeat.part, entry)
        exit = self.state()
        begins, ends = [], [entry]
        for _ in range(repeat.most - repeat.least):
            begins.append(len(self.nfa.epsilon))
            if repeat.lazy:
                self._add_epsilon(entry, exit)
                entry = self.add(repeat.part, self._after(entry))
            else:
                following = self.add(repeat.part, entry)
                self._add_epsilon(entry, exit)
                entry = following
            ends.append(entry)
        self._add_epsilon(entry, exit)
        self._chain(begins, ends)
        return exit

    def _endless(self, repeat: Repeat, entry: int) -> int:
        is_own_copy = repeat.least > 0 and not isinstance(repeat.part, Chars) and least_length(repeat.part) > 0
        for _ in range(repeat.least - is_own_copy):
            entry = self.add(repeat.part, entry)
        exit = self.state()
        loop = self.last_loop = self._after(entry)
        if is_own_copy:  # the last repetition that has to be is the loop itself, so that it has no states of its own
            self.nfa.epsilon[self.add(repeat.part, loop)] += [exit, loop] if repeat.lazy else [loop, exit]
            return exit
        if repeat.lazy:
            self._add_epsilon(loop, exit)
        self._add_epsilon(self.add(repeat.part, self._after(loop) if repeat.lazy else loop), loop)
        if not repeat.lazy:
            self._add_epsilon(loop, exit)
        return exit

    def _chain(self, begins: list[int], ends: list[int]) -> None:
        """Chain the states of optional copies by their places: from an earlier copy, more may follow.

        Copy i has the states from begins[i] on, and leads from ends[i] to ends[i + 1]. Inner repeats come first.
        """
        sizes = {last - first for first, last in pairwise([*begins, len(self.nfa.epsilon)])}
        if len(begins) < 2 or len(sizes) > 1:
            return
        for place in range(*sizes):
            states = [first + place for first in begins]
            if states[-1] == ends[-1]:
                states.insert(0, ends[0])
            for rank, state in enumerate(states):
                self.nfa.chains.setdefault(state, (self._num_chains, rank))
            self._num_chains += 1
