"""Expressions to nondeterministic byte automata (Thompson 1968), with edges that cost nothing, or hold only at the
text's start or end. Knows no tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .budget import Budget
from .dfa import DEAD, START, Dfa
from .encodings import END, Branch, Encoding
from .expression import (
    Bytes,
    Chars,
    Choice,
    Expression,
    Joined,
    Machine,
    Members,
    Prefix,
    Repeat,
    Rest,
    Sequence,
    TextEnd,
    TextStart,
)


@dataclass
class Nfa:
    """State 0 is the start. `edges[s]` are (first byte, last byte, target); what leads to `free[s]` takes no byte."""

    edges: list[list[tuple[int, int, int]]] = field(default_factory=list)
    free: list[list[int]] = field(default_factory=list)
    at_start: dict[int, list[int]] = field(default_factory=dict)
    at_end: dict[int, list[int]] = field(default_factory=dict)
    absorbing: set[int] = field(default_factory=set)  # from these every text is accepted: other states do not matter
    accept: int = 0


def build_nfa(expression: Expression, encoding: Encoding, budget: Budget) -> Nfa:
    """Raises GrammarError when it grows beyond the budget."""
    builder = _Builder(encoding, budget)
    builder.nfa.accept = builder.add(expression, builder.state())
    return builder.nfa


class _Builder:
    def __init__(self, encoding: Encoding, budget: Budget) -> None:
        self.nfa = Nfa()
        self._encoding = encoding
        self._budget = budget

    def state(self) -> int:
        self.nfa.edges.append([])
        self.nfa.free.append([])
        number = len(self.nfa.free) - 1
        if number % 256 == 0:
            self._budget.check(number)
        return number

    def add(self, expression: Expression, entry: int) -> int:
        """Add what leads from `entry` over a match of the expression; the state where it ends."""
        match expression:
            case Bytes(data=data):
                for byte in data:
                    entry = self._step(byte, byte, entry)
                return entry
            case Chars(ranges=ranges):
                return self._branch(self._encoding(ranges), entry, self.state())
            case Sequence(parts=parts):
                for part in parts:
                    entry = self.add(part, entry)
                return entry
            case Choice(parts=parts):
                exit = self.state()
                for part in parts:
                    self._free(self.add(part, entry), exit)
                return exit
            case Repeat(part=part, least=least, most=most):
                return self._repeat(part, least, most, entry)
            case Joined(part=part, separator=separator):
                begin = self._after(entry)
                end = self.add(part, begin)
                self._free(self.add(separator, end), begin)
                return self._after(end)
            case Members(parts=members, separator=separator):
                return self._members(members, separator, entry)
            case Prefix(parts=parts, least=least):
                exit = self.state()
                for number, part in enumerate(parts):
                    if number >= least:
                        self._free(entry, exit)
                    entry = self.add(part, entry)
                self._free(entry, exit)
                return exit
            case Rest(ranges=ranges):
                exit = self.add(Repeat(Chars(ranges), 0, None), entry)
                self.nfa.absorbing.add(exit)
                return exit
            case TextStart():
                exit = self.state()
                self.nfa.at_start.setdefault(entry, []).append(exit)
                return exit
            case TextEnd():
                exit = self.state()
                self.nfa.at_end.setdefault(entry, []).append(exit)
                return exit
            case Machine(dfa=dfa):
                return self._machine(dfa, entry)

    def _free(self, source: int, target: int) -> None:
        self.nfa.free[source].append(target)

    def _after(self, source: int) -> int:
        """A new state, so that what loops back to it does not reach what else begins at `source`."""
        new = self.state()
        self._free(source, new)
        return new

    def _step(self, first: int, last: int, source: int) -> int:
        target = self.state()
        self.nfa.edges[source].append((first, last, target))
        return target

    def _branch(self, branch: Branch, entry: int, exit: int) -> int:
        states = {END: exit, branch: entry}
        todo = [branch]
        while todo:
            source = todo.pop()
            for first, last, after in source.edges:
                if after not in states:
                    states[after] = self.state()
                    todo.append(after)
                self.nfa.edges[states[source]].append((first, last, states[after]))
        return exit

    def _repeat(self, part: Expression, least: int, most: int | None, entry: int) -> int:
        for _ in range(least):
            entry = self.add(part, entry)
        if most is None:
            loop = self._after(entry)
            self._free(self.add(part, loop), loop)
            return self._after(loop)
        exit = self.state()
        for _ in range(most - least):
            self._free(entry, exit)
            entry = self.add(part, entry)
        self._free(entry, exit)
        return exit

    def _members(self, members: tuple[tuple[Expression, bool], ...], separator: Expression, entry: int) -> int:
        # Two rails: `none` where no member has come yet, `some` where one has; each member is built once.
        none: int | None = entry
        some: int | None = None
        for part, required in members:
            begin = self.state()
            if none is not None:
                self._free(none, begin)
            if some is not None:
                self._free(self.add(separator, some), begin)
            end = self.add(part, begin)
            if not required and some is not None:
                self._free(some, end)
            none, some = (None if required else none), end
        exit = self.state()
        for rail in (none, some):
            if rail is not None:
                self._free(rail, exit)
        return exit

    def _machine(self, dfa: Dfa, entry: int) -> int:
        exit = self.state()
        states = {START: self._after(entry)}
        for source in range(START, dfa.num_states):
            if source not in states:
                states[source] = self.state()
        for source, state in states.items():
            targets = dfa.table[source][dfa.class_of]
            starts = np.flatnonzero(np.diff(targets, prepend=-1))
            for first, last in zip(starts.tolist(), [*(starts[1:] - 1).tolist(), 255], strict=True):
                if targets[first] != DEAD:
                    self.nfa.edges[state].append((first, last, states[int(targets[first])]))
            if dfa.accepting[source]:
                self._free(state, exit)
        return exit
