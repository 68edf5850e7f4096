"""Chooses how much to draft and to verify, by measured costs and acceptance rates.

The same rule finds long drafts for one request on an idle GPU and none for a full batch. A cost model (`step_cost`)
says how much to draft; `speculation_budget` limits the loss where the model is wrong. Neither changes the output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from .acceptance import Acceptance, expected_accepted
from .speculation_budget import SpeculationBudget, StepWork
from .step_cost import StepCost, StepShape

MIN_SPEEDUP = 1.03  # over plain decoding; less is within the measurement error
DEPTHS = (1, 2, 3, 5, 7, 10, 14, 20, 32)  # draft depths that are compared
PLAIN_SAMPLE_INTERVAL = 8  # one in this many plain steps is recorded: recording all would slow a small model
REST_STEPS = 4  # steps for which a decision not to draft stands; longer for large batches
PRIOR_LEVEL_ACCEPTANCE = 0.7  # acceptance of a level before anything was verified


@dataclass(frozen=True)
class DraftCandidate:
    """A request that could be drafted for, and the bounds of its tree."""

    acceptance: Acceptance
    steps: int
    top_k: int
    max_draft_tokens: int

    def num_verified(self, steps: int) -> int:
        return min(self.max_draft_tokens, steps) if self.top_k == 1 else self.max_draft_tokens


@dataclass(frozen=True)
class DraftChoice:
    """Draft depth (0: none), the chosen candidates in order of preference, and whether new requests are included."""

    steps: int = 0
    chosen: tuple[int, ...] = ()
    include_new: bool = False
    is_trial: bool = False


@dataclass
class SpeculationPolicy:
    """Costs, and acceptance rates over all requests."""

    cost: StepCost = field(default_factory=StepCost)
    budget: SpeculationBudget = field(default_factory=SpeculationBudget)
    overall: Acceptance = field(default_factory=Acceptance)
    _rest_steps: int = 0  # steps for which the decision not to draft still stands
    _num_plain: int = 0  # plain steps since the cost model recorded one
    _num_skipped: int = 0  # plain steps not recorded

    def observe(self, own: Acceptance, expected: float, depth: int, num_right: int) -> None:
        own.observe(expected, depth, num_right, memory=0.85)
        self.overall.observe(expected, depth, num_right, memory=0.98)

    def observe_step(self, shape: StepShape, work: StepWork, seconds: float) -> None:
        """Record a step. `seconds` is its whole time, including the loop around the engine."""
        count, self._num_skipped = 1 + self._num_skipped, 0
        self.budget.observe(work, seconds, count=count)
        self._num_plain += PLAIN_SAMPLE_INTERVAL if shape.wide or shape.num_drafts else count
        if not self.cost.known or self._num_plain >= PLAIN_SAMPLE_INTERVAL:
            self.cost.observe(shape, seconds)
            self._num_plain = 0

    def may_skip(self, num_rows: int) -> bool:
        """True if a step without the source need not be recorded: one of PLAIN_SAMPLE_INTERVAL
        stands for the others."""
        if self._num_skipped == PLAIN_SAMPLE_INTERVAL - 1 or not self.budget.measured(num_rows):
            return False
        self._num_skipped += 1
        return True

    def may_draft(self, num_rows: int) -> bool:
        """True if drafts are allowed for `num_rows` decoding requests."""
        return self.cost.known and self.budget.measured(num_rows) and self.budget.is_open(num_rows)

    def probability(self, own: Acceptance, score: float) -> float:
        """Probability that a draft token of score `score` is accepted."""
        return min(0.98, own.ratio(self.overall.ratio(1.0)) * math.exp(score))

    def num_to_verify(
        self, num_rows: int, probabilities: Sequence[Sequence[float]], limit: int, *, forced_rows: Sequence[bool] = ()
    ) -> list[int]:
        """Number of draft tokens of each request to verify, the likeliest first, `limit` in all, for the most tokens
        per second.

        `num_rows` requests decode in any case. Requests in `forced_rows` are verified whether that pays or not.
        """
        counts = [0] * len(probabilities)
        ranked = sorted(((p, index) for index, own in enumerate(probabilities) for p in own), reverse=True)[:limit]
        if not ranked:
            return counts
        if self.cost.known:
            plain, wide = (self.cost.seconds(StepShape(num_rows, wide)) for wide in (False, True))
            token = self.cost.seconds(StepShape(num_rows + 1)) - plain
            tokens, seconds = float(num_rows), wide
            best, num_best = MIN_SPEEDUP * tokens / plain, 0
            for num, (probability, _) in enumerate(ranked, 1):
                seconds += token
                tokens += probability
                if tokens / seconds > best:
                    best, num_best = tokens / seconds, num
            for _, index in ranked[:num_best]:
                counts[index] += 1
            if not num_best and not any(forced_rows):
                _, first = ranked[0]
                num = sum(index == first for _, index in ranked)
                if self.budget.affords(num_rows, wide - plain + token * num):
                    counts[first] = num
        for index, forced in enumerate(forced_rows):
            if forced:
                counts[index] = sum(one == index for _, one in ranked)
        return counts

    def choose_drafts(self, candidates: Sequence[DraftCandidate], num_rows: int) -> DraftChoice:
        """Choose the depth and the requests of the next drafts for the most tokens per second; occasionally a trial.

        `num_rows` requests decode, at least the candidates.
        """
        if not self.may_draft(num_rows):
            return DraftChoice()
        if self._rest_steps:
            self._rest_steps -= 1
            return DraftChoice()
        plain = self.cost.seconds(StepShape(num_rows))
        chances = [self._chance(candidate) for candidate in candidates]
        order = sorted(range(len(candidates)), key=lambda index: -chances[index])
        best, choice = MIN_SPEEDUP * num_rows / plain, DraftChoice()
        deepest = self.budget.max_depth(num_rows, max(candidate.steps for candidate in candidates))
        for steps in (*(depth for depth in DEPTHS if depth < deepest), deepest):
            tokens, verified, nodes = float(num_rows), num_rows, 0
            for count, index in enumerate(order, 1):
                candidate = candidates[index]
                depth = min(steps, candidate.steps)
                tokens += expected_accepted(chances[index], depth)
                verified += candidate.num_verified(depth)
                nodes += (depth - 1) * candidate.top_k
                if count & (count - 1) and count < len(order):
                    continue  # compare powers of two, and all
                speed = tokens / self.cost.seconds(StepShape(verified, True, count, steps - 1, nodes))
                if speed > best:
                    best, choice = speed, DraftChoice(steps, tuple(order[:count]))
        if choice.steps:
            worst = min(chances[index] for index in choice.chosen)
            include_new = self.budget.prompts_measured and self.overall.chance(PRIOR_LEVEL_ACCEPTANCE) >= worst
            return DraftChoice(choice.steps, choice.chosen, include_new=include_new)
        self._rest_steps = REST_STEPS + len(candidates) // 2
        least_known = min(range(len(candidates)), key=lambda index: candidates[index].acceptance.evidence)
        candidate, steps = candidates[least_known], min(deepest, candidates[least_known].steps)
        drafted = StepShape(num_rows, False, 1, steps - 1, (steps - 1) * candidate.top_k)
        verified_too = StepShape(num_rows + candidate.num_verified(steps), True)
        if self.budget.affords(num_rows, self.cost.seconds(drafted) + self.cost.seconds(verified_too) - 2 * plain):
            self._rest_steps = 0
            return DraftChoice(steps, (least_known,), is_trial=True)
        self.budget.close(num_rows)
        return choice

    def _chance(self, candidate: DraftCandidate) -> float:
        return candidate.acceptance.chance(self.overall.chance(PRIOR_LEVEL_ACCEPTANCE))
