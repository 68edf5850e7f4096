"""States for sets of given texts: chains for names and strings inside a value, an automaton for whole outputs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ..record import record
from ..regex.dfa import START, Dfa
from ..regex.listed import ListedEdges
from .actions import DEAD, ENDING, FILLED, GOTO, HEAD, SHIFT
from .automaton import Automaton, ControlState, TransitionRow
from .generation import HasNamedParts, OutputReader
from .tables import Tables

_NO_TABLE, _NO_CLASSES, _NO_STATES = np.zeros((1, 1), np.int32), np.zeros(256, np.uint8), np.zeros(0, np.bool_)

_LARGE = 1 << 17  # bytes of texts: for more, states are reserved by what the texts do not share


def literal_states(
    tables: Tables,
    texts: list[tuple[bytes, int]],
    base: int = 0,
    dfa: Dfa | None = None,
    begins: NDArray[np.bool_] | None = None,
) -> int:
    """Add states that read one of the texts and do its action at its last byte. Returns the number of the first.

    The texts are sorted, and none is a prefix of another. Other texts are read by the automaton `dfa`, whose block is
    at `base`; without one they are refused. If the block counts characters, `begins` are the states of `dfa` from which
    one begins. The action `DEAD` refuses a text. Returns 0 if every text is refused.
    """
    data = b"".join(text for text, _ in texts)
    starts = np.array([*accumulate((len(text) for text, _ in texts), initial=0)], np.int32)
    root = tables.new_states(1 + (len(data) if len(data) < _LARGE else _num_new_bytes(texts)))
    tables.reserve_edges(len(data))
    counts = np.zeros(len(data) + 1, np.int32)
    from . import literal_kernel  # here, because it imports numba

    tables.num_edges, used = literal_kernel.insert_texts(
        np.frombuffer(bytearray(data), np.uint8),  # the loop is compiled for writable arrays
        starts,
        np.array([action for _, action in texts], np.int32),
        tables.states,
        tables.edges,
        root,
        tables.num_edges,
        base,
        _NO_TABLE if dfa is None else dfa.table,
        _NO_CLASSES if dfa is None else dfa.class_of,
        _NO_STATES if begins is None else begins,
        counts,
    )
    tables.states[root : root + used, FILLED] = 1
    # States that were reserved but not used are given back.
    tables.num_states = root + used
    if any(action == DEAD for _, action in texts):
        arrays = tables.states, tables.edges, tables.classes, tables.targets, tables.pushes
        if not literal_kernel.trim_texts(*arrays, root, used, counts):
            return 0
    return root


def without_text(tables: Tables, root: int, text: bytes) -> int | None:
    """Add states that read the texts from `root` on except one of them, and share all others. None if none is left.

    The states are those of `literal_states` without other texts.
    """
    from . import literal_kernel  # here, because it imports numba

    data = np.frombuffer(bytearray(text), np.uint8)  # the loop is compiled for writable arrays
    first = tables.new_states(len(text))
    while True:
        found, num_states, num_edges = literal_kernel.remove_text(
            data, tables.states, tables.edges, root, first, tables.num_edges
        )
        if found >= 0:
            tables.num_states, tables.num_edges = num_states, num_edges  # the states that were not used are given back
            return found or None
        tables.reserve_edges(num_edges - tables.num_edges)


def _num_new_bytes(texts: list[tuple[bytes, int]]) -> int:
    """Return the number of bytes after the beginning that each of the sorted texts shares with the one before it."""
    count, previous = 0, b""
    for text, _ in texts:
        common = 0
        while common < len(text) and text[: common + 1] == previous[: common + 1]:
            common += 1
        count += len(text) - common
        previous = text
    return count


@record()
class LeadState(HasNamedParts):
    """State before a text, which is not empty, after which `rest` follows."""

    text: bytes
    rest: ControlState

    def expand(self, automaton: Automaton) -> TransitionRow:
        following = LeadState(self.text[1:], self.rest) if len(self.text) > 1 else self.rest
        return TransitionRow({self.text[0]: automaton.goto(following)})

    def reader(self, automaton: Automaton) -> OutputReader | None:
        """Return what reads the text behind the lead, if it has named parts."""
        inner = self.rest.reader(automaton) if isinstance(self.rest, HasNamedParts) else None
        return None if inner is None else _BehindLead(len(self.text), inner)


@dataclass
class _BehindLead:
    """Reads an output behind its first `num_left` bytes, within which no token but the last ends."""

    num_left: int
    inner: OutputReader

    def read(self, token: int, data: bytes) -> None:
        num_passed = min(self.num_left, len(data))
        self.num_left -= num_passed
        if num_passed == 0 or data[num_passed:]:
            self.inner.read(token if num_passed == 0 else -1, data[num_passed:])

    def captures(self) -> list[tuple[str, bytes]]:
        return self.inner.captures()


@dataclass(frozen=True, eq=False)
class ListedTextsStart:
    """Start state of a whole text that is one of those of an automaton without cycles."""

    edges: ListedEdges

    def expand(self, automaton: Automaton) -> TransitionRow:
        base = _listed_states(automaton.tables, self.edges)
        return TransitionRow(automaton.edges_of(base + START), accepts=bool(self.edges.labels[START] >= 0))


def _listed_states(tables: Tables, edges: ListedEdges) -> int:
    """Add the states of an automaton; return the base: the number of its state q is the base plus q."""
    sources, symbols, targets, labels = edges
    base = tables.new_states(len(labels) - 1) - 1
    tables.reserve_edges(len(sources))
    first = tables.num_edges
    tables.num_edges += len(sources)
    is_last = np.append(sources[1:] != sources[:-1], len(sources) > 0)
    rows = tables.edges[first : tables.num_edges]
    rows[:, 0] = symbols
    rows[:, 1] = (GOTO << SHIFT) + base + targets
    rows[:, 2] = np.where(is_last[: len(sources)], -1, np.arange(first + 1, tables.num_edges + 1))
    begun, place = np.unique(sources, return_index=True)
    tables.states[base + begun, HEAD] = first + place
    states = tables.states[base + START : base + len(labels)]
    states[:, FILLED] = 1
    states[:, ENDING] = np.where(labels[START:] >= 0, -1, 0)
    return base
