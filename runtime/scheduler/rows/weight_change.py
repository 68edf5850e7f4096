"""The weights that requests are computed with, how running ones pass from one version to the next, and pauses.

Prefixes are cached in a namespace of the weights that computed them, whose mark no other weights ever get, in this
process or another. So nothing that other weights computed is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ....radix.cache import PrefixCache
from ...protocol.core import FromCore, Hold
from ...protocol.sampling import DEFAULT_VERSION, MemoryTag, RunningRequests
from ..apply_result import settled_answer
from ..batch import Batch
from ..request import Request


class WeightChange:
    """The weights in use, and the change that waits for running requests."""

    def __init__(self, batch: Batch, cache: PrefixCache) -> None:
        self._batch, self._cache = batch, cache
        self._mark = ""  # of the namespaces; "": the weights that the model was loaded with
        self._version = DEFAULT_VERSION
        self.pending: RunningRequests | None = None
        self.hold: Hold = "nothing"  # what a client's pause holds back
        self.released: frozenset[MemoryTag] = frozenset()  # memory that the system has while the runtime sleeps

    @property
    def admits(self) -> bool:
        """True if waiting requests may start."""
        return self.hold == "nothing" and self.pending is None and not self.released

    @property
    def computes(self) -> bool:
        """True if running requests may be computed."""
        return self.hold != "all" and self.pending in (None, "finish") and not self.released

    @property
    def is_due(self) -> bool:
        """True if no running request stands in the way of a pending change; a plan in flight may."""
        return self.pending is not None and (self.pending != "finish" or not self._batch)

    @property
    def never_due(self) -> bool:
        """True if requests that should finish first are held by a pause."""
        return self.hold == "all" and bool(self._batch)

    def note(self, request: Request) -> None:
        """Let a request that has no pages be computed with the weights in use from its first token on."""
        request.weights_mark, request.weights_version, request.poisoned = self._mark, self._version, False

    def take(
        self, mark: str, version: str, requests: Iterable[Request], wait_again: Callable[[Request], None]
    ) -> list[FromCore]:
        """Let all requests go on with other weights; return their tokens of the last ones that were held back.

        `wait_again` lets a request wait that has lost its pages.
        """
        assert self.is_due
        answers: list[FromCore] = [answer for request in requests if (answer := settled_answer(request)) is not None]
        self._mark, self._version = mark, version
        for request in list(self._batch):
            if self.pending == "retract":
                self._batch.retract(request)
                wait_again(request)
            else:  # it keeps its keys and values, which nobody may share: those to come are of other weights
                request.poisoned, request.weights_version = True, version
        for request in requests:
            if request.lease is None:
                self.note(request)
        self.pending = None
        self._cache.flush()
        return answers

    def release(
        self,
        tags: Iterable[MemoryTag],
        mark: str,
        requests: Iterable[Request],
        wait_again: Callable[[Request], None],
    ) -> None:
        """Compute nothing from now on: memory is given back. Requests that run wait again, as in `take`.

        The namespaces get the `mark` if pages of keys and values remain that somebody still holds.
        """
        assert self.is_due
        for request in list(self._batch):
            self._batch.retract(request)
            wait_again(request)
        self.pending, self.released = None, self.released.union(tags)
        if "kv_cache" not in self.released:
            return
        self._cache.flush()
        if self._cache.num_free < self._cache.num_pages or self._cache.num_host_cached:
            self._mark = mark
            for request in requests:
                self.note(request)
