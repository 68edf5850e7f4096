"""Records what was accepted of drafts: of a request, its session or program, and all requests with its kind of text."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

MAX_PROBABILITY = 0.98  # of an acceptance
PRIOR_CHANCE = 0.7  # acceptance of a level before anything was verified
_HALF_LIFE = 256  # steps without a verification, after which a record counts half
_MAX_GROUPS = 1024  # sessions and programs whose records are kept


@dataclass
class Acceptance:
    """Decaying counts over verified trees: accepted levels, trees that ended in a rejection, and acceptances that the
    draft predicted. A record of little is near its `prior`, which is one of more requests."""

    prior: Acceptance | None = None
    memory: float = 0.85  # weight of the trees before, from tree to tree
    hits: float = 0.0
    misses: float = 0.0
    expected: float = 0.0
    last_step: int = 0

    def observe(self, expected: float, depth: int, num_right: int, now: int = 0) -> None:
        """Record a tree of depth `depth` of which `num_right` levels were accepted; the draft predicted `expected`. The
        prior records it too."""
        memory = self.memory * self._kept(now)
        self.hits = memory * self.hits + num_right
        self.misses = memory * self.misses + (num_right < depth)
        self.expected = memory * self.expected + expected
        self.last_step = now
        if self.prior is not None:
            self.prior.observe(expected, depth, num_right, now)

    def chance(self, now: int = 0) -> float:
        """Return the probability that the next level is accepted too."""
        prior = PRIOR_CHANCE if self.prior is None else self.prior.chance(now)
        kept, weight = self._kept(now), 1.5
        return min(MAX_PROBABILITY, (kept * self.hits + weight * prior) / (kept * (self.hits + self.misses) + weight))

    def ratio(self, now: int = 0) -> float:
        """Return the ratio of accepted to predicted draft tokens."""
        prior, weight = (1.0, 24.0) if self.prior is None else (self.prior.ratio(now), 6.0)
        kept = self._kept(now)
        return (kept * self.hits + weight * prior) / (kept * self.expected + weight)

    def _kept(self, now: int) -> float:
        return 1.0 if self.prior is None else math.exp2((self.last_step - now) / _HALF_LIFE)


class AcceptanceRecords:
    """The records that those of requests begin with."""

    def __init__(self) -> None:
        self._of_kinds = {constrained: Acceptance(memory=0.98) for constrained in (False, True)}
        self._of_groups: OrderedDict[tuple[str, bool], Acceptance] = OrderedDict()  # the last used one at the end

    def begin(self, group: str | None, *, constrained: bool) -> Acceptance:
        """Return a new request's record. `group` is its session or program."""
        kind = self._of_kinds[constrained]
        if group is None:
            return Acceptance(kind)
        if (record := self._of_groups.get((group, constrained))) is None:
            record = self._of_groups[group, constrained] = Acceptance(kind, memory=0.95)
            if len(self._of_groups) > _MAX_GROUPS:
                self._of_groups.popitem(last=False)
        self._of_groups.move_to_end((group, constrained))
        return Acceptance(record)
