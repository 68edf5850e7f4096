"""Whether guesses pay: what one more token costs a step, against how often guesses like it have proved right.

Measured, not configured: the same rule finds the long drafts of one request on an idle GPU and the none of a full one.
Time is read from results, so that a logged run decides again what it decided. None of it touches what is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

MEMORY = 0.99  # of a step's measurement, a step later
SMALL = 256  # tokens; larger steps say nothing of the cost of a few more
# Of an unmeasured step, in its own units: the pass itself, one token more, any row of several tokens (for which other
# kernels run than for single ones), drafting at all, one more request's draft.
PRIOR = np.array([0.75, 0.03, 0.1, 0.15, 0.02])
UNITS = np.array([1.0, 16.0, 1.0, 1.0, 4.0])  # what counts as one measurement of each
PRIOR_WEIGHT = 0.2  # of a measurement
OUTLIER = 3.0  # times the usual; a busy machine's, cut down to that
PLAIN_EVERY = 48  # steps, of which one is plain at least: what guessing saves is not known without it
FIRST_PROBE, LAST_PROBE = 64, 1024  # steps from one look at what does not pay to the next


class StepCost:
    """Seconds of a step, fitted to the recent ones: `pass + token * tokens + wide * any row of several tokens +
    drafting * any draft + draft * drafts`."""

    def __init__(self) -> None:
        self._squares = np.zeros((len(PRIOR), len(PRIOR)))
        self._products = np.zeros(len(PRIOR))
        self._usual = 0.0
        self.num_since_plain = 0  # steps, since one without guesses and drafts
        self._fitted: np.ndarray | None = PRIOR

    def observe(self, *, num_tokens: int, wide: bool, num_drafts: int, seconds: float) -> None:
        if seconds <= 0 or num_tokens > SMALL:
            return
        self.num_since_plain = self.num_since_plain + 1 if wide or num_drafts else 0
        if self._usual:
            seconds = min(seconds, OUTLIER * self._usual)
        self._usual = seconds if not self._usual else 0.95 * self._usual + 0.05 * seconds
        x = np.array([1.0, num_tokens, wide, num_drafts > 0, num_drafts])
        self._squares = MEMORY * self._squares + np.outer(x, x)
        self._products = MEMORY * self._products + seconds * x
        self._fitted = None

    @property
    def coefficients(self) -> tuple[float, float, float, float, float]:
        """Of the fit, none below a thousandth of the pass, which is positive."""
        if self._fitted is None:
            # The prior counts as a fraction of one measurement of each kind: it decides what was never varied.
            scale = PRIOR_WEIGHT * UNITS**2
            fitted = _solve(self._squares + np.diag(scale), self._products + scale * PRIOR * self._usual)
            fitted[0] = max(fitted[0], 0.05 * self._usual)
            self._fitted = np.maximum(fitted, 1e-3 * fitted[0])
        step, token, wide, drafting, draft = self._fitted.tolist()
        return step, token, wide, drafting, draft


def _solve(matrix: np.ndarray, values: np.ndarray) -> np.ndarray:
    """x of `matrix x = values`, for a small positive definite matrix, by elimination. Not numpy's own, whose threads
    wake for it and then compete with the model's for the cores: measured, they cost a step its double."""
    rows = [[*row, value] for row, value in zip(matrix.tolist(), values.tolist(), strict=True)]
    for at, pivot in enumerate(rows):
        for row in rows:
            if row is not pivot:
                factor = row[at] / pivot[at]
                row[:] = [a - factor * b for a, b in zip(row, pivot, strict=True)]
    return np.array([row[-1] / row[at] for at, row in enumerate(rows)])


@dataclass
class Acceptance:
    """How many of the guesses expected to be right were so, lately; and how many a draft had right."""

    expected: float = 0.0
    right: float = 0.0
    drafts: float = 0.0

    def observe(self, expected: float, num_right: int, *, memory: float) -> None:
        self.expected = memory * self.expected + expected
        self.right = memory * self.right + num_right
        self.drafts = memory * self.drafts + 1

    def ratio(self, prior: float, weight: float = 3.0) -> float:
        return (self.right + weight * prior) / (self.expected + weight)

    def gain(self, prior: float, weight: float = 1.5) -> float:
        """Guesses that prove right, of a draft."""
        return (self.right + weight * prior) / (self.drafts + weight)


@dataclass
class Probes:
    """What does not pay is tried again after a while, each time after twice as long."""

    after: int = FIRST_PROBE
    waited: int = 0

    def pays(self) -> None:
        self.after, self.waited = FIRST_PROBE, 0

    def due(self) -> bool:
        """It does not pay in this step; whether to try all the same."""
        self.waited += 1
        if self.waited < self.after:
            return False
        self.after, self.waited = min(LAST_PROBE, 2 * self.after), 0
        return True


@dataclass
class Economy:
    """What is known of costs, and of guesses over all requests."""

    cost: StepCost = field(default_factory=StepCost)
    overall: Acceptance = field(default_factory=Acceptance)
    _drafting: Probes = field(default_factory=Probes)
    _verifying: Probes = field(default_factory=Probes)
    _trying: bool = False  # what was drafted just to see is verified all the same

    def observe(self, own: Acceptance, expected: float, num_right: int) -> None:
        own.observe(expected, num_right, memory=0.85)
        self.overall.observe(expected, num_right, memory=0.99)

    def probability(self, own: Acceptance, score: float) -> float:
        """Of a guess to be right, if the draft says `score`."""
        return min(0.98, own.ratio(self.overall.ratio(1.0)) * math.exp(score))

    def num_worth(self, num_rows: int, probabilities: Sequence[Sequence[float]], limit: int) -> list[int]:
        """How many guesses of each request to verify, the likeliest first, `limit` in all, so that most tokens are had
        in a second. `num_rows` decode in any case."""
        step, token, wide, _, _ = self.cost.coefficients
        seconds, tokens = step + token * num_rows, float(num_rows)
        best, num_best = tokens / seconds, 0
        seconds += wide
        ranked = sorted(((p, index) for index, own in enumerate(probabilities) for p in own), reverse=True)[:limit]
        for num, (probability, _) in enumerate(ranked, 1):
            seconds += token
            tokens += probability
            if tokens / seconds > best or self._trying:
                best, num_best = tokens / seconds, num
        if num_best:
            self._verifying.pays()
        elif ranked and self._verifying.due():
            num_best = len(ranked)
        counts = [0] * len(probabilities)
        for _, index in ranked[:num_best]:
            counts[index] += 1
        return counts

    def worth_drafting(self, gains: Sequence[float], num_rows: int, num_guesses: float) -> bool:
        """Whether to draft for so many requests, whose drafts have `gains` tokens right and cost `num_guesses` tokens
        each to verify; once in a while it is, just to see."""
        step, token, wide, drafting, draft = self.cost.coefficients
        plain = step + token * num_rows
        more = wide + drafting + len(gains) * (draft + token * num_guesses)
        if sum(gains) * plain > num_rows * more:
            self._drafting.pays()
            self._trying = False
            return self.cost.num_since_plain < PLAIN_EVERY
        self._trying = self._drafting.due()
        return self._trying
