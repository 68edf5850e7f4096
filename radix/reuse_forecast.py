"""Forecasts when prefixes are used again, from the waits that were seen. Knows owners and seconds; knows no nodes.

Waits are heavy-tailed: the longer one has lasted, the longer it will. So each kind of wait (a tool's name, a user's
turn) has a rate of returns by the time waited: returns over seconds waited, from there on. Owners differ from one
another: each one's rate is scaled by the returns that its own waits had over those that were to be expected (a gamma
frailty, as survival analysis calls it), as far as they suffice to tell.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

NUM_BUCKETS = 20  # of time waited: bucket k begins at 2^k - 1 seconds
_WINDOW = 300.0  # seconds ahead in which returns count
PRIOR_RETURNS = 1.0  # imagined returns of each bucket, at half a return per (time waited + PRIOR_SECONDS)
PRIOR_SECONDS = 20.0
MEMORY = 0.9  # weight of an owner's earlier waits
PRIOR_WAITS = 4.0  # imagined ordinary waits of each owner
LEVELS_PER_OCTAVE, MAX_LEVEL = 4, 8  # of an owner's scale
MAX_KINDS = 64  # later ones count as OTHER
OTHER = ""
_STARTS = [2.0**k - 1 for k in range(NUM_BUCKETS + 1)]


class WaitGroup(NamedTuple):
    """Waits whose rates are equal after equal times."""

    kind: str
    level: int  # of the owner's scale


class Wait(NamedTuple):
    """An owner's wait since `since`, in seconds. What came before `counted` is in the statistics already."""

    group: WaitGroup
    since: float
    counted: float


_UNKNOWN = Wait(WaitGroup(OTHER, 0), 0.0, 0.0)


@dataclass
class _OwnerHistory:
    num_returns: float = 0.0
    num_expected: float = 0.0

    @property
    def level(self) -> int:
        ratio = (self.num_returns + PRIOR_WAITS) / (self.num_expected + PRIOR_WAITS)
        # Half of the exponent: an owner's past tells as much about its future on average.
        return max(-MAX_LEVEL, min(MAX_LEVEL, round(LEVELS_PER_OCTAVE * math.log2(ratio) / 2)))


class _KindOfWait:
    """Returns, and seconds waited, by time waited."""

    def __init__(self) -> None:
        self._returns = [0.0] * NUM_BUCKETS
        self._seconds = [0.0] * NUM_BUCKETS
        self._rates: list[float] | None = None

    def add(self, begin: float, end: float, returned: bool) -> None:
        """Count a wait from `begin` to `end` seconds after it began, which a return ended or not."""
        self._rates = None
        for bucket in range(_bucket(begin), _bucket(end) + 1):
            self._seconds[bucket] += max(0.0, min(end, _STARTS[bucket + 1]) - max(begin, _STARTS[bucket]))
        self._returns[_bucket(end)] += returned

    def rate(self, seconds: float) -> float:
        """Return the expected returns per second, after a wait of `seconds`. Never grows with them."""
        if self._rates is None:
            self._rates = self._falling_rates()
        bucket = _bucket(seconds)
        rate, following = self._rates[bucket], self._rates[min(bucket + 1, NUM_BUCKETS - 1)]
        share = min(1.0, (seconds - _STARTS[bucket]) / (_STARTS[bucket + 1] - _STARTS[bucket]))
        return rate + (following - rate) * share

    def expected_returns(self, seconds: float) -> float:
        """Return the returns that ordinary owners have in a wait of that length, if it goes on after each."""
        expected = 0.0
        for bucket in range(_bucket(seconds) + 1):
            begin, end = _STARTS[bucket], _STARTS[bucket + 1]
            rate = (self._returns[bucket] + PRIOR_RETURNS / 2) / (self._seconds[bucket] + end + PRIOR_SECONDS)
            expected += (min(seconds, end) - begin) * rate
        return expected

    def _falling_rates(self) -> list[float]:
        rates: list[float] = []
        for bucket, begin in enumerate(_STARTS[:-1]):
            last = max(bucket, _bucket(begin + _WINDOW))
            num = PRIOR_RETURNS + sum(self._returns[bucket : last + 1])
            seconds = 2 * (begin + PRIOR_SECONDS) * PRIOR_RETURNS + sum(self._seconds[bucket : last + 1])
            rates.append(min(num / seconds, *rates[-1:] or [math.inf]))
        return rates


class ReuseForecast:
    """Waits of owners, and what was learned from earlier ones. Each event takes constant time.

    Without `by_kind` all waits are of one kind, without `by_owner` all owners alike: benches measure what these add.
    """

    def __init__(self, *, by_kind: bool = True, by_owner: bool = True) -> None:
        self.now = 0.0  # seconds, by the caller's clock
        self._by_kind = by_kind
        self._by_owner = by_owner
        self._kinds: dict[str, _KindOfWait] = {}
        self._waits: dict[Hashable, Wait] = {}
        self._histories: dict[Hashable, _OwnerHistory] = {}  # by owner
        self._retained: dict[Hashable, float] = {}  # by owner: the time until which a client has asked for its prefix

    def __len__(self) -> int:
        return len(self._waits)

    def begin_wait(self, owner: Hashable, kind: str = OTHER) -> None:
        """Note that `owner` waits from now on. Replaces its earlier wait, which is not counted."""
        self._waits[owner] = Wait(WaitGroup(self._known(kind), self._level(owner)), self.now, self.now)

    def set_kind(self, owner: Hashable, kind: str) -> None:
        """Note what `owner`, if it waits, waits for."""
        wait = self._waits.get(owner)
        if wait is not None:
            self._waits[owner] = wait._replace(group=wait.group._replace(kind=self._known(kind)))

    def end_wait(self, owner: Hashable) -> bool:
        """Note that `owner` returned, and learn from its wait. Returns False if it had none."""
        wait = self._waits.pop(owner, None)
        if wait is None:
            return False
        kind = self._kinds[wait.group.kind]
        history = self._histories.setdefault(owner, _OwnerHistory())
        history.num_returns = MEMORY * history.num_returns + 1
        history.num_expected = MEMORY * history.num_expected + kind.expected_returns(self.now - wait.since)
        kind.add(wait.counted - wait.since, self.now - wait.since, returned=True)
        return True

    def cancel_wait(self, owner: Hashable) -> None:
        """Note that `owner` waits no longer, and learn nothing from that."""
        self._waits.pop(owner, None)

    def note_lost(self, owner: Hashable) -> None:
        """Note that nothing of the owner's prefix is left: it waited so long without a return."""
        wait = self._waits.get(owner)
        if wait is not None:
            self._kinds[wait.group.kind].add(wait.counted - wait.since, self.now - wait.since, returned=False)
            self._waits[owner] = wait._replace(counted=self.now)

    def retain(self, owner: Hashable, until: float) -> None:
        """Note that the owner's prefix is to be kept until then. Such an owner waits for nothing."""
        self._retained[owner] = until

    def retained_until(self, owner: Hashable) -> float | None:
        """Return the time until which the owner's prefix is to be kept; None for an owner that waits."""
        return self._retained.get(owner)

    def forget(self, owner: Hashable) -> None:
        """Forget an owner that has ended."""
        self._retained.pop(owner, None)
        self._waits.pop(owner, None)
        self._histories.pop(owner, None)

    def is_waiting(self, owner: Hashable) -> bool:
        """Return True if the owner waits for something."""
        return owner in self._waits

    def wait(self, owner: Hashable) -> Wait:
        """Return the owner's wait, or one that began at time 0."""
        return self._waits.get(owner, _UNKNOWN)

    def rate(self, group: WaitGroup, since: float) -> float:
        """Return the expected returns per second of an owner of `group` that has waited since then."""
        kind = self._kinds.get(group.kind)
        rate = 1 / (2 * PRIOR_SECONDS) if kind is None else kind.rate(max(0.0, self.now - since))
        return rate * math.exp2(group.level / LEVELS_PER_OCTAVE)

    def _known(self, kind: str) -> str:
        if not self._by_kind or (kind not in self._kinds and len(self._kinds) >= MAX_KINDS):
            kind = OTHER
        self._kinds.setdefault(kind, _KindOfWait())
        return kind

    def _level(self, owner: Hashable) -> int:
        history = self._histories.get(owner)
        return 0 if history is None or not self._by_owner else history.level


def _bucket(seconds: float) -> int:
    return min(NUM_BUCKETS - 1, math.frexp(seconds + 1)[1] - 1)
