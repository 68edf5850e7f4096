"""The automaton of texts without some texts, and of those that end in the first of some patterns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..budget import INTERPRETED, CompileBudget
from ..regex.alphabet import alphabet_of
from ..regex.byte_dfa import byte_dfa
from ..regex.char_dfa import CharDfa
from ..regex.dfa import DEAD, START, Dfa


def free_text(
    patterns: Sequence[str], excluded: Sequence[str], budget: CompileBudget
) -> tuple[Dfa, list[tuple[int, ...]]]:
    """Return the automaton of the texts that hold none of these, and of those that end in the first pattern.

    And the numbers of the patterns that end in each state. All patterns and exclusions are matched at once (Aho and
    Corasick 1975).
    """
    letters = sorted({letter for text in (*patterns, *excluded) for letter in text})
    alphabet, classes = alphabet_of(tuple(((ord(letter), ord(letter)),) for letter in letters))
    label_of = {letter: label for letter, (label,) in zip(letters, classes, strict=True)}
    children: list[dict[int, int]] = [{}, {}]
    found: list[set[int]] = [set(), set()]  # patterns that end here
    forbidden = {DEAD}
    for number, text in enumerate((*patterns, *excluded)):
        budget.check(len(children), len(text) * INTERPRETED)
        state = START
        for letter in text:
            after = children[state].setdefault(label_of[letter], len(children))
            if after == len(children):
                children.append({})
                found.append(set())
            state = after
        if number < len(patterns):
            found[state].add(number)
        else:
            forbidden.add(state)
    budget.check(len(children), len(children) * (alphabet.num_classes + INTERPRETED))
    table = np.zeros((len(children), alphabet.num_classes), np.int32)
    table[START] = START
    suffix = [START] * len(children)  # the longest proper suffix that is a state too
    order = [START]
    for state in order:
        longest = suffix[state]
        if state != START:
            table[state] = table[longest]
            found[state] |= found[longest]
            if longest in forbidden:
                forbidden.add(state)
        for label, child in children[state].items():
            suffix[child] = int(table[state, label])
            table[state, label] = child
            order.append(child)
    ends = [state for state in range(len(children)) if found[state]]
    table[ends] = DEAD
    table[np.isin(table, list(forbidden))] = DEAD
    accepting = np.ones(len(children), np.bool_)
    accepting[list(forbidden)] = False
    dfa = byte_dfa(CharDfa(alphabet, table, accepting), "utf8", budget)
    labels = [tuple(sorted(numbers)) for numbers in found]
    return dfa, labels + [()] * (dfa.num_states - len(labels))
