"""Leftmost-first automata, by the ordered subset construction of RE2: they find the match of a backtracking engine.

The preferred match takes the first alternative that matches; greedy repeats are preferred over lazy ones. The automaton
accepts a text if its preferred match is the whole text and nothing follows. From an accepting state only those
characters lead on that may bring a preferred, longer match. So a reader that stops at an accepting state must run the
automaton over the text that follows, and see that it does not accept again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..budget import INTERPRETED, CompileBudget
from ..errors import GrammarError
from .char_dfa import CharDfa, trimmed_char_dfa
from .charset import intersection
from .dfa import DEAD
from .nfa import CharNfa, build_char_nfa
from .syntax.expression import Alt, Chars, Expression, Look, Repeat, Seq, alternation, has_look, sequence

_SPOILS = Chars(((0x10FFFF, 0x10FFFF),))  # stands where a match turns out to be none, and then for no character

Key = tuple[tuple[int, ...], bool]  # NFA states that consume a character, the preferred first; the text so far matches


def leftmost_first_dfa(expression: Expression, budget: CompileBudget) -> CharDfa:
    """Compile an expression. Raises GrammarError beyond the budget, and for anchors and look-around."""
    return _determinised(build_char_nfa(expression, budget), None, budget)


def leftmost_first_with_ends(expression: Expression, budget: CompileBudget) -> tuple[CharDfa, NDArray[np.bool_] | None]:
    r"""Compile an expression whose look-around is at its ends: `(?!...)`, and `\b` after a word character.

    Returns the states in which the last match turns out to be none too, because of what follows it. A shorter match is
    not tried then. Raises GrammarError as `leftmost_first_dfa`.
    """
    if not has_look(expression):
        return leftmost_first_dfa(expression, budget), None
    nfa = build_char_nfa(_with_spoiled(expression), budget)
    label = nfa.alphabet.class_of(_SPOILS.ranges[0][0])
    dfa = _determinised(nfa, label, budget)
    spoiled = dfa.table[:, label] != DEAD
    table = dfa.table.copy()
    table[:, label] = DEAD
    return CharDfa(dfa.alphabet, table, dfa.accepting), spoiled


def _with_spoiled(expression: Expression) -> Expression:
    """Replace negative look-aheads at the ends of an expression by texts that spoil its match."""
    if isinstance(expression, Alt):
        return alternation(map(_with_spoiled, expression.parts))
    if not isinstance(expression, Seq):
        return expression
    *before, last = expression.parts
    start = sequence(*before)
    if isinstance(last, Alt):
        looks = [part.parts for part in last.parts if isinstance(part, Seq) and len(part.parts) == 2]
        for behind, ahead in looks if len(looks) == len(last.parts) == 2 and before else ():
            if not isinstance(behind, Look) or behind.negated or behind.ahead or not _ends_in(before[-1], behind.part):
                continue
            last = ahead
    if isinstance(last, Look) and last.ahead and last.negated and before:
        return alternation([sequence(start, last.part, _SPOILS), start])
    return sequence(start, _with_spoiled(last)) if isinstance(last, Alt | Seq) else expression


def _ends_in(part: Expression, word: Expression) -> bool:
    """Return True if all texts of a part end in a character of a set."""
    match part:
        case Chars(ranges=ranges):
            return isinstance(word, Chars) and intersection(ranges, word.ranges) == ranges
        case Seq(parts=(*_, last)):
            return _ends_in(last, word)
        case Alt(parts=parts):
            return bool(parts) and all(_ends_in(inner, word) for inner in parts)
        case Repeat(part=inner, least=least):
            return least > 0 and _ends_in(inner, word)
    return False


def _determinised(nfa: CharNfa, spoiling: int | None, budget: CompileBudget) -> CharDfa:
    """Determinise an NFA. The class `spoiling` stands for no character, but for `_SPOILS`."""
    if nfa.guarded:
        raise GrammarError(
            "anchors and look-around are not supported in a terminal, but for (?!...) and \\b at its end"
        )
    first = _closure(nfa, [nfa.pattern.entry], budget)
    number = {((), False): DEAD, first: 1}
    keys = [first]
    rows = [[DEAD] * nfa.alphabet.num_classes]
    closures: dict[tuple[int, ...], int] = {}
    for states, _ in keys:
        budget.check(len(keys), (nfa.alphabet.num_classes + len(states)) * INTERPRETED // 4)
        targets: list[list[int]] = [[] for _ in range(nfa.alphabet.num_classes)]
        for state in states:
            classes, target = nfa.moves[state] or ((), DEAD)
            budget.check(len(keys), len(classes) * INTERPRETED // 10)
            for label in classes:
                if label != spoiling or len(classes) == 1:
                    targets[label].append(target)
        row = []
        for group in map(tuple, targets):
            if group not in closures:
                key = _closure(nfa, group, budget)
                if key not in number:
                    number[key] = len(keys) + 1
                    keys.append(key)
                closures[group] = number[key]
            row.append(closures[group])
        rows.append(row)
    return trimmed_char_dfa(nfa.alphabet, rows, [False, *(matches for _, matches in keys)])


def _closure(nfa: CharNfa, states: list[int] | tuple[int, ...], budget: CompileBudget) -> Key:
    """Return the epsilon closure in order of preference, cut off at the first match."""
    found: list[int] = []
    seen: set[int] = set()
    todo = list(reversed(states))
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        budget.check(0, (1 + len(nfa.epsilon[state])) * INTERPRETED // 4)
        if state == nfa.pattern.accept:
            return tuple(found), True
        if nfa.moves[state] is not None:
            found.append(state)
        todo += reversed(nfa.epsilon[state])
    return tuple(found), False
