"""The smallest automata of listed texts, built in one compiled loop instead of by the subset construction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import GrammarError
from .alphabet import alphabet_of
from .char_dfa import CharDfa
from .charset import has_surrogates
from .dfa import DEAD, START, Dfa

MAX_LISTED_STATES = 3 << 19
MAX_LISTED_CELLS = 1 << 24  # states times symbols, of a table

Ints = NDArray[np.int32]


class ListedEdges(NamedTuple):
    """Smallest automaton of some texts: E edges, sorted by their sources, and the labels of S states, -1 for none."""

    sources: Ints  # [E]
    symbols: Ints  # [E]
    targets: Ints  # [E]
    labels: Ints  # [S]


def listed_edges(texts: Iterable[bytes]) -> ListedEdges:
    """Return the automaton of given texts, all with the label 0. Raises GrammarError beyond `MAX_LISTED_STATES`."""
    ordered = sorted(set(texts))
    return _built(ordered, [0] * len(ordered), np.zeros(len(ordered), np.bool_))


def listed_dfa(texts: Mapping[bytes, int], repeated: Collection[bytes] = (), again: int = 0) -> tuple[Dfa, Ints]:
    """Return the automaton of given texts, and the label of each state's texts: int32[S], -1 where none ends.

    `texts` maps each text to its label, which is not negative. Any number of bytes `again` may follow those that are in
    `repeated`, with the same label. Raises GrammarError beyond `MAX_LISTED_STATES`.
    """
    ordered = sorted(texts)
    used = sorted({again} | set(b"".join(ordered)))
    repeats = np.array([text in repeated for text in ordered], np.bool_)
    table, labels = _table(_built(ordered, [texts[text] for text in ordered], repeats, again), used)
    class_of = np.full(256, len(used), np.uint8)
    class_of[used] = np.arange(len(used))
    if len(used) < 256:
        table = np.concatenate([table, np.zeros((len(table), 1), np.int32)], axis=1)
    return Dfa(table, class_of, labels >= 0), labels


def listed_chars(texts: Iterable[str]) -> CharDfa:
    """Return the automaton of given texts over characters. Texts with surrogates are left out.

    Raises GrammarError beyond `MAX_LISTED_STATES`.
    """
    kept = sorted({text for text in texts if not has_surrogates(text)})
    letters = sorted(set(chain.from_iterable(kept)))
    alphabet, classes = alphabet_of(tuple(((ord(letter), ord(letter)),) for letter in letters))
    coded = [list(map(ord, text)) for text in kept]
    edges = _built(coded, [0] * len(kept), np.zeros(len(kept), np.bool_))
    table, labels = _table(edges, [ord(letter) for letter in letters])
    rows = np.zeros((len(table), alphabet.num_classes), np.int32)
    rows[:, [label for (label,) in classes]] = table
    return CharDfa(alphabet, rows, labels >= 0)


def _table(edges: ListedEdges, used: list[int]) -> tuple[Ints, Ints]:
    """Return the table [S, symbols of `used`], and the labels [S]."""
    num_states = len(edges.labels)
    if num_states * (len(used) + 1) > MAX_LISTED_CELLS:
        raise GrammarError(f"the listed texts are too many: their table has more than {MAX_LISTED_CELLS} cells")
    table = np.zeros((num_states, len(used)), np.int32)
    table[edges.sources, np.searchsorted(used, edges.symbols)] = edges.targets
    return table, edges.labels


def _built(
    texts: Collection[bytes] | Collection[list[int]], given: list[int], repeats: NDArray[np.bool_], again: int = 0
) -> ListedEdges:
    """Return the automaton of sorted texts."""
    from . import dfa_kernel as kernel  # not at the top: it imports numba

    ends = np.fromiter(accumulate(map(len, texts)), np.int64, len(texts))
    data = np.fromiter(chain.from_iterable(texts), np.int32, int(ends[-1]) if len(ends) else 0)
    text_labels = np.array(given, np.int32)
    num_tails = int(text_labels[repeats].max(initial=-1)) + 1
    room = min(len(data) + num_tails, MAX_LISTED_STATES) + 4
    begins, labels = np.zeros(room, np.int64), np.full(room, -1, np.int32)
    symbols, targets = (
        np.zeros(len(data) + 2 * num_tails + 1, np.int32),
        np.zeros(len(data) + 2 * num_tails + 1, np.int32),
    )
    counts, slots = np.zeros(2, np.int64), np.zeros(1 << (2 * room + 2).bit_length(), np.int32)
    root = kernel.listed(
        data, ends, text_labels, repeats, again, num_tails, begins, symbols, targets, labels, counts, slots
    )
    num_states = int(counts[kernel.NODES])
    if root == kernel.NO_ROOM or num_states > MAX_LISTED_STATES:
        raise GrammarError(f"the listed texts are too many: they need more than {MAX_LISTED_STATES} states")
    # Nodes are numbered from the ends of the texts on, states from the start on.
    number = np.zeros(num_states, np.int32)
    number[1:] = num_states - np.arange(1, num_states)
    first = int(np.flatnonzero(number == START)[0])
    number[first], number[root] = number[root], START
    number[DEAD] = DEAD
    num_edges = int(counts[kernel.EDGES])
    sources = number[np.repeat(np.arange(num_states), np.diff(begins[: num_states + 1]))]
    order = np.argsort(sources, kind="stable")
    found = np.full(num_states, -1, np.int32)
    found[number] = labels[:num_states]
    found[DEAD] = -1
    return ListedEdges(sources[order], symbols[:num_edges][order], number[targets[:num_edges]][order], found)
