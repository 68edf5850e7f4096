"""Terminals of structural tags: texts by an automaton, whole tokens, JSON values; and places in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..budget import cached_property
from ..constraint import PropertyOrder, WhitespacePolicy
from ..regex.dfa import START, Dfa
from ..schema.document import Document
from ..schema.formula import ResultCodes
from ..schema.value_states import ValueStart


@dataclass(frozen=True, eq=False)
class TextLeaf:
    """Terminals that one automaton reads: `labels[q]` are those that may end in its state q.

    `max_chars` and `max_tokens` are the numbers of characters and tokens that its texts may have, None for any number.
    A token of which it has a part counts as one.
    """

    dfa: Dfa
    labels: list[tuple[int, ...]]
    max_chars: int | None = None
    max_tokens: int | None = None
    lazy: bool = False  # only where there is a `Lexer`, as is a temperature
    temperature: float | None = None

    @property
    def first(self) -> TextPlace:
        return TextPlace(self, START, self.max_chars, self.max_tokens, False)

    @cached_property
    def distances(self) -> list[int]:
        """The number of bytes from each state to the next one in which a terminal may end."""
        found = np.where([bool(label) for label in self.labels], 0, len(self.labels))
        while True:
            nearer = np.minimum(found, 1 + found[self.dfa.table].min(axis=1))
            if (nearer == found).all():
                distances: list[int] = found.tolist()
                return distances
            found = nearer


@dataclass(frozen=True, eq=False)
class TokensLeaf:
    """A terminal of one to `max_tokens` whole tokens (None: any number), each of them in `mask`: int32[V / 32]."""

    mask: NDArray[np.int32]
    max_tokens: int | None

    def allows(self, token: int) -> bool:
        return bool(self.mask.item(token >> 5) >> (token & 31) & 1)


@dataclass(frozen=True, eq=False)
class ValueLeaf:
    """A terminal that is a JSON value."""

    start: ValueStart
    document: Document
    whitespace: WhitespacePolicy
    order: PropertyOrder


class OneOfValues(NamedTuple):
    """State before a value that one of several leaves reads, whose result says which of them do."""

    start: ValueStart
    codes: ResultCodes


class TextPlace(NamedTuple):
    """State of a text: that of its automaton, and the numbers of characters and tokens that may follow.

    `is_in_token`: it has a part of the token that is read, which is among those that may follow.
    """

    leaf: TextLeaf
    state: int
    left: int | None
    tokens_left: int | None
    is_in_token: bool


class TokensPlace(NamedTuple):
    """Place before whole tokens, of which `left` may follow."""

    leaf: TokensLeaf
    left: int | None
