"""States of given texts, of which one after another is taken out, compared with a set of texts."""

from __future__ import annotations

import random

import pytest

from ramiform.constrained.automaton.actions import ARGUMENT, FILLED, GOTO, HEAD, POP, SHIFT, action
from ramiform.constrained.automaton.literals import literal_states, without_text
from ramiform.constrained.automaton.tables import Tables

Texts = list[tuple[bytes, int]]


def texts_of(tables: Tables, state: int) -> Texts:
    """Return the texts that are read from a state on, with the actions of their last bytes."""
    assert tables.states[state, FILLED]
    found: Texts = []
    edge = int(tables.states[state, HEAD])
    while edge >= 0:
        byte, code, edge = tables.edges[edge].tolist()
        if code >> SHIFT == GOTO:
            found += [(bytes([byte]) + text, last) for text, last in texts_of(tables, code & ARGUMENT)]
        else:
            found.append((bytes([byte]), code))
    return sorted(found)


@pytest.mark.parametrize("seed", range(30))
def test_a_text_is_taken_out_and_the_states_before_stay_as_they_were(seed: int) -> None:
    draw, tables = random.Random(seed), Tables()
    words = {"".join(draw.choice("ab") for _ in range(draw.randint(0, 6))) for _ in range(draw.randint(1, 40))}
    left = [(word.encode() + b'"', action(POP, number)) for number, word in enumerate(sorted(words))]
    left.sort()
    root: int | None = literal_states(tables, left)
    made = []
    while root is not None:
        made.append((root, list(left)))
        text, _ = left.pop(draw.randrange(len(left)))
        root = without_text(tables, root, text)
    assert not left
    for state, texts in made:
        assert texts_of(tables, state) == texts
