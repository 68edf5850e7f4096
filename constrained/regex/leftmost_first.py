"""Leftmost-first automata, by the ordered subset construction of RE2: they find the match of a backtracking engine.

The preferred match takes the first alternative that matches; greedy repeats are preferred over lazy ones. The automaton
accepts a text if its preferred match is the whole text and nothing follows. From an accepting state only those
characters lead on that may bring a preferred, longer match. So a reader that stops at an accepting state must run the
automaton over the text that follows, and see that it does not accept again.
"""

from __future__ import annotations

from ..budget import INTERPRETED, CompileBudget
from ..errors import GrammarError
from .char_dfa import CharDfa, trimmed_char_dfa
from .dfa import DEAD
from .nfa import CharNfa, build_char_nfa
from .syntax.expression import Expression

Key = tuple[tuple[int, ...], bool]  # NFA states that consume a character, the preferred first; the text so far matches


def leftmost_first_dfa(expression: Expression, budget: CompileBudget) -> CharDfa:
    """Compile an expression. Raises GrammarError beyond the budget, and for anchors and look-around."""
    nfa = build_char_nfa(expression, budget)
    if nfa.guarded:
        raise GrammarError("anchors, \\b and look-around are not supported in a terminal")
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
