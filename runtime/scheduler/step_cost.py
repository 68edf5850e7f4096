"""Cost model of a step: a Kalman filter over the cost of a pass and of what is added to it, in seconds.

A component that has not been seen for long keeps its value and becomes less certain. So a cost that is seen once in a
thousand steps is still known in between. Times come from results, so a logged run makes the same decisions again.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

import numpy as np

MAX_FITTED_TOKENS = 256  # larger steps do not show the cost of a few tokens more
# Prior, in plain steps: the pass, one more token, any row of several tokens (which other kernels compute),
# drafting at all, one more request's draft, one more round of all drafts, one more node.
PRIOR_COSTS = np.array([0.9, 0.05, 0.1, 0.3, 0.05, 0.1, 0.01])
NUM_UNIT_STEPS = 5  # the median of the first steps is the unit of the prior
STEP_NOISE = 0.2  # standard deviation, relative to a step's time
COST_DRIFT = 0.005  # standard deviation per step, relative to a cost
COMMON_DRIFT = 0.03  # of all costs together: other processes slow everything down alike
MAX_DEVIATIONS = 2.0  # slower steps are clipped to this: a busy machine is slow and never fast


class StepShape(NamedTuple):
    """A step's work, as far as its cost depends on it.

    `num_nodes` are the tree nodes that the draft's rounds evaluate; `num_rounds` excludes the first round.
    """

    num_tokens: int
    wide: bool = False  # any row has several tokens
    num_drafts: int = 0
    num_rounds: int = 0
    num_nodes: int = 0


class StepCost:
    """Fitted cost model. `seconds` may be called when `known`."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._mean = np.zeros(len(PRIOR_COSTS))
        self._clamped = [0.0] * len(PRIOR_COSTS)  # `_mean`, none below a thousandth of the pass
        self._covariance = np.zeros((len(PRIOR_COSTS), len(PRIOR_COSTS)))
        self._max_variance = np.zeros(len(PRIOR_COSTS))  # upper bound of each variance

    @property
    def known(self) -> bool:
        return len(self._first) >= NUM_UNIT_STEPS

    def seconds(self, shape: StepShape) -> float:
        """Predicted time of a step. Only where `known`."""
        step, token, wide, drafting, draft, round_, node = self._clamped
        seconds = step + token * shape.num_tokens + wide * shape.wide
        if shape.num_drafts:
            seconds += drafting + draft * shape.num_drafts + round_ * shape.num_rounds + node * shape.num_nodes
        return seconds

    def observe(self, shape: StepShape, seconds: float) -> None:
        if seconds <= 0 or shape.num_tokens > MAX_FITTED_TOKENS:
            return
        if not self.known:
            self._first.append(seconds)
            if self.known:
                self._mean = PRIOR_COSTS * statistics.median(self._first)
                self._max_variance = self._mean**2
                self._covariance = np.diag(self._max_variance)
                self._clamped = self._mean.tolist()
            return
        x = _regressors(shape)
        spread = (self._covariance * x).sum(axis=1)
        predicted = self.seconds(shape)
        variance = float((spread * x).sum()) + (STEP_NOISE * predicted) ** 2
        error = min(MAX_DEVIATIONS * variance**0.5, seconds - float((self._mean * x).sum()))
        self._mean = self._mean + spread * (error / variance)
        self._mean[0] = max(self._mean[0], 0.05 * predicted)
        self._clamped = np.maximum(self._mean, 1e-3 * self._mean[0]).tolist()
        self._covariance = self._covariance - np.outer(spread, spread) / variance
        self._covariance += COMMON_DRIFT**2 * np.outer(self._mean, self._mean)
        room = np.maximum(0.0, np.maximum(self._max_variance, self._mean**2) - self._covariance.diagonal())
        self._covariance[np.diag_indices(len(PRIOR_COSTS))] += np.minimum(room, (COST_DRIFT * self._mean) ** 2)


def _regressors(shape: StepShape) -> np.ndarray:
    return np.array([1.0, shape.num_tokens, shape.wide, shape.num_drafts > 0, *shape[2:]])
