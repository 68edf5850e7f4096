"""Experts of a request's tokens, as its rows' results bring them.

A retracted request computes some tokens twice; the first experts, by which the later tokens were sampled, stay.
"""

from __future__ import annotations

from ...protocol.core import Generate, RoutedExperts
from ...protocol.errors import RequestError

MAX_ROUTE_BYTES = 32 << 20  # of an answer; a message holds 64 MiB


class RouteRecord:
    """Experts of the tokens from position `first` on, of `shape`: layers, and experts of a token in each."""

    def __init__(self, first: int, shape: tuple[int, int]) -> None:
        self._first, self._shape, self._experts = first, shape, bytearray()

    @property
    def _token_bytes(self) -> int:
        return 2 * self._shape[0] * self._shape[1]

    @property
    def next_position(self) -> int:
        """Position of the first token whose experts are not known."""
        return self._first + len(self._experts) // self._token_bytes

    def wanted_from(self, start: int, end: int) -> int | None:
        """Return the first position that a row is asked for which ends before `end`; None: it brings nothing new.
        `start` is where rows in flight end, or 0."""
        first = max(self.next_position, start)
        return first if first < end else None

    def take(self, first: int, experts: bytes) -> None:
        """Take the experts that a row has brought from position `first` on."""
        if first <= self.next_position:  # else those between are asked for again
            self.cut(first)
            self._experts += experts

    def cut(self, num_computed: int) -> None:
        """Forget the tokens from that position on, which are computed again with others before them."""
        del self._experts[max(0, num_computed - self._first) * self._token_bytes :]

    def of(self, num_tokens: int) -> RoutedExperts:
        """Return the experts of a sequence of so many tokens, but of its last."""
        size = max(0, num_tokens - 1 - self._first) * self._token_bytes
        return RoutedExperts(self._first, *self._shape, bytes(self._experts[:size]).ljust(size, b"\xff"))


def route_record(message: Generate, shape: tuple[int, int] | None, end: int) -> RouteRecord | None:
    """Return the record that a request asks for, whose tokens end before position `end`; None if it asks for none.

    Raises RequestError without `shape`, which is that of a runtime that records experts.
    """
    first = message.routed_from
    if first is None:
        return None
    if shape is None:
        raise RequestError(
            "return_routed_experts needs a model with experts that is served with --enable-return-routed-experts",
            param="return_routed_experts",
            code="not_supported",
        )
    if not 0 <= first <= len(message.tokens):
        raise RequestError(
            f"routed_experts_start_len must be from 0 to the prompt's {len(message.tokens)} tokens, got {first}",
            param="routed_experts_start_len",
        )
    size = 2 * shape[0] * shape[1] * max(0, end - 1 - first)
    if size > MAX_ROUTE_BYTES:
        raise RequestError(
            f"the experts of {end - 1 - first} tokens take {size} bytes, and at most {MAX_ROUTE_BYTES} fit an answer: "
            "give a larger routed_experts_start_len or a smaller max_new_tokens",
            param="routed_experts_start_len",
            code="too_long",
        )
    return RouteRecord(first, shape)
