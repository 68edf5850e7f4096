"""The waiting requests, in the order in which they may start. Knows no pages."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any

from .queue_policies import QueueContext, QueuePolicy
from .request import Request

MAX_ARRANGED = (
    128  # requests that an order arranges in one step; with more waiting, the others keep their places behind
)
MAX_PASSES = 16  # requests that may start ahead of the one that has waited longest


class WaitingQueue:
    """Kept sorted, so that a step costs what is in front and not what waits.

    Nobody starves: among those of the highest priority, the one that came first is passed at most PATIENCE times, and
    is the first of all then.
    """

    def __init__(self, order: QueuePolicy) -> None:
        self._order = order
        self._by_place: list[Request] = []
        self._by_arrival: list[Request] = []
        self._num_passed = 0  # how often the one that came first was passed

    def __len__(self) -> int:
        return len(self._by_place)

    def add(self, request: Request) -> None:
        """A retracted request comes back to where it was."""
        if not self._by_arrival or _arrival_key(request) < _arrival_key(self._by_arrival[0]):
            self._num_passed = 0
        insort(self._by_place, request, key=self._order.place)
        insort(self._by_arrival, request, key=_arrival_key)

    def remove(self, request: Request) -> None:
        """It ends without having started."""
        if self._by_arrival[0] is request:
            self._num_passed = 0
        _remove_sorted(self._by_place, request, self._order.place)
        _remove_sorted(self._by_arrival, request, _arrival_key)

    def start(self, request: Request) -> None:
        """It gets its place among the running."""
        first = self._by_arrival[0]
        if first is not request and first.message.priority == request.message.priority:
            self._num_passed += 1
        self.remove(request)

    def front(self, view: QueueContext) -> list[Request]:
        """Who may start now, one after the other."""
        arranged = self._order.arrange(self._by_place[:MAX_ARRANGED], view)
        if self._num_passed < MAX_PASSES:
            return arranged
        first = self._by_arrival[0]
        return [first, *(request for request in arranged if request is not first)]


def _arrival_key(request: Request) -> tuple[int, int]:
    return -request.message.priority, request.serial


def _remove_sorted(requests: list[Request], request: Request, key: Callable[[Request], Any]) -> None:
    at = bisect_left(requests, key(request), key=key)
    assert requests[at] is request
    del requests[at]
