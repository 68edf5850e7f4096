"""Rules with options, repeats and alternatives inside to plain alternatives of symbols. Front ends build with it.

What is inside becomes a nonterminal of its own, so that n options give n rules, not 2^n. Repeats recurse to the left,
which costs an Earley parser nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import GrammarError
from .cfg import MAX_RULES, Cfg, Symbol, Terminal, cfg

MAX_REPEAT = 10_000
MAX_SYMBOLS = 200_000


class CfgBuilder:
    """Alternatives by nonterminal, growing."""

    def __init__(self) -> None:
        self._alternatives: list[list[tuple[Symbol, ...]]] = []
        self._num_symbols = 0
        self._terminals: list[Terminal] = []
        self._terminal_of: dict[object, int] = {}

    def new(self) -> Symbol:
        """A nonterminal without alternatives yet. The first is the start."""
        self._alternatives.append([])
        if len(self._alternatives) > MAX_RULES:
            raise GrammarError(f"the grammar is too complex: it has more than {MAX_RULES} rules")
        return len(self._alternatives) - 1

    def terminal(self, key: object, make: Callable[[], Terminal]) -> Symbol:
        """Equal keys are one terminal."""
        if key not in self._terminal_of:
            self._terminals.append(make())
            self._terminal_of[key] = len(self._terminals) - 1
        return -1 - self._terminal_of[key]

    def define(self, nonterminal: Symbol, alternatives: list[tuple[Symbol, ...]]) -> None:
        self._alternatives[nonterminal] += alternatives
        self._num_symbols += sum(map(len, alternatives))
        if self._num_symbols > MAX_SYMBOLS:
            raise GrammarError(f"the grammar is too complex: it has more than {MAX_SYMBOLS} symbols")

    def choice(self, alternatives: list[tuple[Symbol, ...]]) -> tuple[Symbol, ...]:
        if len(alternatives) == 1:
            return alternatives[0]
        number = self.new()
        self.define(number, alternatives)
        return (number,)

    def repeat(self, part: tuple[Symbol, ...], least: int, most: int | None) -> tuple[Symbol, ...]:
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise GrammarError(f"a repeat from {least} to {most} times")
        if len(part) > 1:
            whole = self.new()
            self.define(whole, [part])
            part = (whole,)
        head = part * least
        if most is None:
            more = self.new()
            self.define(more, [(), (more, *part)])
            return (*head, more)
        tail: tuple[Symbol, ...] = ()
        for _ in range(most - least):
            tail = self.choice([(), (*part, *tail)])
        return (*head, *tail)

    def build(self, ignored: list[Symbol]) -> Cfg:
        """Raises GrammarError when nothing satisfies the grammar."""
        return cfg(self._terminals, self._alternatives, [-1 - symbol for symbol in ignored])
