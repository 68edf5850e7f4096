"""Translates rules, which are expressions with references to rules, to a grammar.

Regular rules become terminals: those that do not recurse, and those that refer only to themselves and only at their
end, which are loops. All others become nonterminals with alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..budget import INTERPRETED, CompileBudget
from ..errors import GrammarError
from ..regex.byte_dfa import byte_dfa
from ..regex.char_dfa import CharDfa, length_char_dfa
from ..regex.charset import ALL
from ..regex.dfa import START, Dfa, without_empty
from ..regex.subset import char_dfa
from ..regex.syntax.expression import (
    EMPTY,
    Alt,
    Chars,
    Expression,
    Look,
    Repeat,
    Seq,
    TextEnd,
    TextStart,
    alternation,
    repeat,
    sequence,
)
from .cfg import Cfg, CfgBuilder, Symbol, Terminal, TokenSet
from .free_text import free_text

MAX_REGULAR_SIZE = 4_000  # nodes of an expression that is inlined
MAX_INLINED = 40  # rules within rules
ANY_BYTE = Dfa(np.array([[0], [2], [0]], np.int32), np.zeros(256, np.uint8), np.array([False, False, True]))


@dataclass(frozen=True)
class RuleReference:
    """Reference to a rule by name."""

    name: str


@dataclass(frozen=True)
class Concatenation:
    """Rules one after another."""

    parts: tuple[Rule, ...]


@dataclass(frozen=True)
class Alternatives:
    """Choice of one rule."""

    parts: tuple[Rule, ...]


@dataclass(frozen=True)
class Repetition:
    """A rule `least` to `most` times (None: any number of times)."""

    part: Rule
    least: int
    most: int | None


@dataclass(frozen=True)
class Dispatch:
    """Free text without `excludes` in which each of some texts is followed by its rule.

    It ends after one text and its rule, unless it `loops`.
    """

    rules: tuple[tuple[str, RuleReference], ...]
    excludes: tuple[str, ...]
    loops: bool


@dataclass(frozen=True)
class Pattern:
    """A regular expression, which may look around itself. `has_anchors`: it had some at its ends."""

    expression: Expression
    has_anchors: bool = False


@dataclass(frozen=True)
class Without:
    """Free text in which nothing matches an expression."""

    expression: Expression


Rule = Chars | Seq | Pattern | RuleReference | Concatenation | Alternatives | Repetition | TokenSet | Dispatch | Without


def cfg_of_rules(rules: Mapping[str, Rule], start: str, budget: CompileBudget) -> Cfg:
    """Translate rules, in which every reference must be defined, to a grammar.

    Raises GrammarError if no text satisfies the start rule, and beyond the budget.
    """
    return _RuleTranslator(rules, budget).translate(start)


class _RuleTranslator:
    def __init__(self, rules: Mapping[str, Rule], budget: CompileBudget) -> None:
        self._rules = rules
        self._budget = budget
        self._builder = CfgBuilder()
        self._regular: dict[str, tuple[Expression, int] | None] = {}
        self._numbers: dict[str, Symbol] = {}
        self._todo: list[str] = []
        self._depth = 0  # nested rules that are being inlined

    def translate(self, start: str) -> Cfg:
        first = self._builder.new()
        self._builder.define(first, [self._symbols(RuleReference(start))])
        while self._todo:
            name = self._todo.pop()
            self._builder.define(self._numbers[name], self._alternatives(self._rules[name]))
        self._builder.merge_literals()
        return self._builder.build([])

    def _expression(self, rule: Rule) -> tuple[Expression, int] | None:
        """Return a rule as an expression with its size, or None if it is not regular."""
        self._budget.check(0, (2 + len(getattr(rule, "parts", ()))) * INTERPRETED)
        match rule:
            case Chars() | Seq():
                return rule, 1 + len(getattr(rule, "parts", ()))
            case Pattern(expression=expression):
                return _limited(expression, _size([expression]))
            case RuleReference(name=name):
                return self._named(name)
            case Repetition(part=part, least=least, most=most):
                inner = self._expression(part)
                if inner is None:
                    return None
                return _limited(repeat(inner[0], least, most), 1 + inner[1])
            case Concatenation(parts=parts) | Alternatives(parts=parts):
                found = [self._expression(part) for part in parts]
                kept = [part for part in found if part is not None]
                if len(kept) < len(found):
                    return None
                join = sequence if isinstance(rule, Concatenation) else _choice
                return _limited(join(*(part for part, _ in kept)), 1 + sum(size for _, size in kept))
            case TokenSet() | Dispatch() | Without():
                return None

    def _named(self, name: str) -> tuple[Expression, int] | None:
        if name not in self._regular:
            if self._depth == MAX_INLINED:
                return None
            self._depth += 1
            self._regular[name] = None  # meanwhile: a reference to it from inside is recursion
            rule = self._rules[name]
            found = self._expression(rule)
            if found is None and (loop := self._tail_recursion(rule, name)) is not None:
                turns, exits = loop
                found = _limited(sequence(repeat(_choice(*turns), 0, None), _choice(*exits)), _size(turns + exits))
            self._regular[name] = found
            self._depth -= 1
        return self._regular[name]

    def _tail_recursion(self, rule: Rule, name: str) -> tuple[list[Expression], list[Expression]] | None:
        """Split a rule into the parts before a final reference to `name`, and those without one.

        Returns None if it refers to rules in other ways.
        """
        found = self._expression(rule)
        if found is not None:
            return [], [found[0]]
        match rule:
            case RuleReference(name=other) if other == name:
                return [EMPTY], []
            case Alternatives(parts=parts):
                ways = [self._tail_recursion(part, name) for part in parts]
                kept = [way for way in ways if way is not None]
                if len(kept) < len(ways):
                    return None
                return [turn for turns, _ in kept for turn in turns], [exit for _, exits in kept for exit in exits]
            case Concatenation(parts=parts):
                before = self._expression(Concatenation(parts[:-1]))
                last = self._tail_recursion(parts[-1], name)
                if before is None or last is None:
                    return None
                return [sequence(before[0], turn) for turn in last[0]], [sequence(before[0], end) for end in last[1]]
            case Repetition(part=part, least=0, most=1):
                inner = self._tail_recursion(part, name)
                return None if inner is None else (inner[0], [*inner[1], EMPTY])
            case _:
                return None

    def _alternatives(self, rule: Rule) -> list[tuple[Symbol, ...]]:
        if not isinstance(rule, Alternatives):
            return [self._symbols(rule)]
        return [self._symbols(part) for part in rule.parts]

    def _symbols(self, rule: Rule) -> tuple[Symbol, ...]:
        found = self._expression(rule)
        if found is not None:
            return self._terminal(found[0])
        match rule:
            case RuleReference(name=name):
                if name not in self._numbers:
                    self._numbers[name] = self._builder.new()
                    self._todo.append(name)
                return (self._numbers[name],)
            case Concatenation(parts=parts):
                return tuple(symbol for part in self._joined(parts) for symbol in self._symbols(part))
            case Repetition(part=part, least=least, most=most):
                return self._builder.repeat(self._symbols(part), least, most)
            case TokenSet(tokens=tokens):
                made = Terminal(f"token {tokens}", ANY_BYTE, False, token=rule)
                return (self._builder.terminal(rule, lambda: made),)
            case Dispatch():
                return self._dispatch(rule)
            case Without(expression=expression):
                anything = repeat(Chars(ALL), 0, None)
                free = char_dfa(sequence(anything, expression, anything), self._budget).complement()
                return self._optional_terminal(rule, free)
            case _:
                return self._builder.choice(self._alternatives(rule))

    def _dispatch(self, rule: Dispatch) -> tuple[Symbol, ...]:
        dfa, found = free_text([text for text, _ in rule.rules], rule.excludes, self._budget)
        ended = np.array([bool(numbers) for numbers in found])
        free = self._builder.choice([(), (self._of_states(rule, -1, dfa, dfa.accepting & ~ended),)])
        dispatched = [
            (self._of_states(rule, number, dfa, np.array([number in own for own in found])), *self._symbols(content))
            for number, (_, content) in enumerate(rule.rules)
        ]
        if not rule.loops:
            return self._builder.choice([free, *dispatched])
        return (*self._builder.repeat(self._builder.choice(dispatched), 0, None), *free) if dispatched else free

    def _of_states(self, rule: Dispatch, number: int, dfa: Dfa, accepting: NDArray[np.bool_]) -> Symbol:
        """Return the terminal of the texts, but the empty one, that end in some of an automaton's states."""
        own = without_empty(Dfa(dfa.table, dfa.class_of, accepting))
        return self._builder.terminal((rule, number), lambda: Terminal(f"text {number}", own, preferred=False))

    def _joined(self, parts: tuple[Rule, ...]) -> list[Rule]:
        """Merge neighbouring parts that are regular together."""
        runs: list[list[Rule]] = []
        was_regular = False
        for part in parts:
            is_regular = self._expression(part) is not None
            if is_regular and was_regular and self._expression(Concatenation((*runs[-1], part))) is not None:
                runs[-1].append(part)
            else:
                runs.append([part])
            was_regular = is_regular
        return [run[0] if len(run) == 1 else Concatenation(tuple(run)) for run in runs]

    def _terminal(self, expression: Expression) -> tuple[Symbol, ...]:
        if expression == EMPTY:
            return ()
        return self._optional_terminal(expression, char_dfa(expression, self._budget))

    def _optional_terminal(self, key: Expression | Without, chars: CharDfa) -> tuple[Symbol, ...]:
        """Return the symbols of a terminal, which may be empty."""
        may_be_empty = bool(chars.accepting[START])
        if may_be_empty:
            chars = chars.intersect(length_char_dfa(1, None), self._budget)
        name = f"terminal {len(self._numbers)}"
        dfa = byte_dfa(chars, "utf8", self._budget)
        if may_be_empty and dfa.is_empty:
            return ()
        symbol = self._builder.terminal(key, lambda: Terminal(name, dfa, preferred=False))
        return self._builder.choice([(), (symbol,)]) if may_be_empty else (symbol,)


def _choice(*parts: Expression) -> Expression:
    return alternation(parts)


def _limited(expression: Expression, size: int) -> tuple[Expression, int] | None:
    return (expression, size) if size <= MAX_REGULAR_SIZE else None


def _size(expressions: list[Expression]) -> int:
    """Count nodes, up to `MAX_REGULAR_SIZE`."""
    todo, count = list(expressions), 0
    while todo and count <= MAX_REGULAR_SIZE:
        expression = todo.pop()
        count += 1
        if isinstance(expression, Seq | Alt):
            todo += expression.parts
        elif isinstance(expression, Repeat):
            todo.append(expression.part)
    return count


def without_anchors(expression: Expression) -> Expression:
    """Drop anchors at the ends of a pattern, which matches whole anyway. Raises GrammarError for those inside it."""
    parts = list(expression.parts) if isinstance(expression, Seq) else [expression]
    while parts and isinstance(parts[0], TextStart):
        del parts[0]
    while parts and isinstance(parts[-1], TextEnd):
        del parts[-1]
    todo: list[Expression] = [*parts]
    while todo:
        match todo.pop():
            case TextStart() | TextEnd() | Look():
                raise GrammarError("look-around, and anchors but at its ends, are not supported")
            case Seq(parts=inner) | Alt(parts=inner):
                todo += inner
            case Repeat(part=part):
                todo.append(part)
    return sequence(*parts)
