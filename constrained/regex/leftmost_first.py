"""Expressions to automata of their preferred match, as a backtracking `match` would find it: the first alternative that
matches, greedy repeats before lazy ones.

The automaton accepts a text when its preferred match is all of it, so long as nothing follows. What follows may bring a
match that is preferred: from an accepting state exactly those lead on. So a reader that stops there must see that the
automaton, running along over what follows, accepts no more. (The ordered subset construction of RE2 and others.)
"""

from __future__ import annotations

from ..budget import CompileBudget
from ..errors import GrammarError
from .char_dfa import DEAD, CharDfa, trimmed_char_dfa
from .expression import Expression
from .nfa import CharNfa, build_char_nfa

Key = tuple[tuple[int, ...], bool]  # states that take a character, the preferred first; whether they match so far


def leftmost_first_dfa(expression: Expression, budget: CompileBudget) -> CharDfa:
    """Raises GrammarError beyond the budget, and for anchors and look-around."""
    nfa = build_char_nfa(expression, budget)
    if nfa.guarded:
        raise GrammarError("anchors, \\b and look-around are not supported in a terminal")
    first = _closure(nfa, [nfa.pattern.entry])
    number = {((), False): DEAD, first: 1}
    keys = [first]
    rows = [[DEAD] * nfa.alphabet.num_classes]
    closures: dict[tuple[int, ...], int] = {}
    for states, _ in keys:
        budget.check(len(keys))
        targets: list[list[int]] = [[] for _ in range(nfa.alphabet.num_classes)]
        for state in states:
            classes, target = nfa.moves[state] or ((), DEAD)
            for label in classes:
                targets[label].append(target)
        row = []
        for group in map(tuple, targets):
            if group not in closures:
                key = _closure(nfa, group)
                if key not in number:
                    number[key] = len(keys) + 1
                    keys.append(key)
                closures[group] = number[key]
            row.append(closures[group])
        rows.append(row)
    return trimmed_char_dfa(nfa.alphabet, rows, [False, *(matches for _, matches in keys)])


def _closure(nfa: CharNfa, states: list[int] | tuple[int, ...]) -> Key:
    """What can be reached without a character, in order of preference, up to a match."""
    found: list[int] = []
    seen: set[int] = set()
    todo = list(reversed(states))
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        if state == nfa.pattern.accept:
            return tuple(found), True
        if nfa.moves[state] is not None:
            found.append(state)
        todo += reversed(nfa.free[state])
    return tuple(found), False
