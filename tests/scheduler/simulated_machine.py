"""Decoding on simulated machines with given costs, in simulated seconds: by the speculation policy, or with a fixed
depth.

A step is what the scheduler makes of it: drafts of one step are verified in the next, a new request's prompt is
computed in its first, and the source catches up with what it has not followed when it drafts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ramiform.runtime.scheduler.drafts.acceptance import Acceptance
from ramiform.runtime.scheduler.drafts.speculation_policy import SpeculationPolicy, StepWork

STEPS = 7


class StepShape(NamedTuple):
    """A step's work, as far as its time depends on it.

    `num_nodes` are the tree nodes that the draft's rounds evaluate; `num_rounds` excludes the first round.
    """

    num_tokens: int
    wide: bool = False  # any row has several tokens
    num_drafts: int = 0
    num_rounds: int = 0
    num_nodes: int = 0


@dataclass(frozen=True)
class Step:
    """Inputs of a machine's step time. `num_caught_up` are tokens of the drafted sequences that the source had not
    followed, beyond the last step's tokens."""

    shape: StepShape
    num_rows: int
    context: float
    num_prompt: int
    num_caught_up: int
    done: float  # tokens of each place of the batch, since the start


Seconds = Callable[[Step], float]
Apart = Callable[[Step], tuple[float, float]]  # seconds of drafting and of catching up that the engine times


@dataclass
class Slot:
    """A place of the batch, filled by one request after another."""

    prompt: int
    output: int
    acceptance: Acceptance
    num_done: int = 0
    followed: int = 0  # tokens that the source has seen
    draft: int = 0  # guesses waiting to be verified

    @property
    def context(self) -> int:
        return self.prompt + self.num_done


@dataclass
class Decoding:
    """A decoding run. With `depth` None the policy decides; else every draft has that depth, 0 for plain decoding."""

    seconds: Seconds
    chance: float
    batch: int = 1
    depth: int | None = None
    prompt: int = 30
    output: int = 60
    seed: int = 0
    now: float = 0.0
    num_tokens: int = 0
    num_guessing: int = 0  # steps
    num_steps: int = 0
    apart: Apart = lambda step: (drafting_time(step.shape), 0.0)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.policy = SpeculationPolicy()
        self.slots = [self._slot() for _ in range(self.batch)]

    def run(self, num_tokens: int) -> Decoding:
        while self.num_tokens < num_tokens:
            self._step()
        return self

    def _slot(self) -> Slot:
        record = self.policy.records.begin(None, constrained=False)
        return Slot(self.prompt, self.draw.randint(self.output // 2, 3 * self.output // 2), record)

    def _step(self) -> None:
        decoding = [slot for slot in self.slots if slot.num_done]
        guessing = self.depth is not None or self.policy.may_guess(self.batch)
        counts = self._counts([slot for slot in decoding if slot.draft])
        depths, new_depth = self._depths(decoding) if guessing else ({}, 0)
        gained = prompt = guesses = caught_up = num_drafts = num_nodes = deepest = 0
        context = sum(slot.context for slot in self.slots) / self.batch
        for index, slot in enumerate(self.slots):
            count, newcomer = counts.get(id(slot), 0), not slot.num_done
            depth = new_depth if newcomer else depths.get(id(slot), 0)
            right = 0
            while right < count and self.draw.random() < self.chance:
                right += 1
            if count and self.depth is None:
                expected = sum(0.8**n for n in range(1, count + 1))
                self.policy.observe_accepted(slot.acceptance, expected, count, right)
            prompt += slot.prompt - 1 if newcomer else 0
            guesses += count
            right = min(right, slot.output - slot.num_done - 1)
            slot.num_done += right + 1
            self.num_tokens += right + 1
            gained += right
            slot.draft = 0
            if depth and slot.output - slot.num_done > 1:
                slot.draft = depth
                num_drafts += 1
                num_nodes += depth - 1
                deepest = max(deepest, depth)
                missing = slot.context - slot.followed - 1
                caught_up += missing if missing > STEPS else 0
                slot.followed = slot.context - 1
            if slot.num_done >= slot.output:
                self.slots[index] = self._slot()
        rounds = deepest - 1 if num_drafts else 0
        shape = StepShape(self.batch + prompt + guesses, prompt + guesses > 0, num_drafts, rounds, num_nodes)
        step = Step(shape, self.batch, context, prompt, caught_up, self.num_tokens / self.batch)
        seconds = self.seconds(step)
        self.now += seconds
        # Drafts are timed apart, as the engine does; what other steps pay for them is hidden.
        apart = self.apart(step) if num_drafts else (0.0, 0.0)
        speculated = bool(guesses or num_drafts)
        self.num_guessing += speculated
        self.num_steps += 1
        if self.depth is None:
            work = StepWork(self.batch, prompt, guesses, gained, context, speculated, "free", *apart)
            self.policy.observe_step(work, seconds)

    def _counts(self, drafted: list[Slot]) -> dict[int, int]:
        if not drafted:
            return {}
        if self.depth is not None:
            return {id(slot): slot.draft for slot in drafted}
        chances = [
            [self.policy.probability(slot.acceptance, -0.22 * n) for n in range(1, slot.draft + 1)] for slot in drafted
        ]
        worth = self.policy.num_to_verify(self.batch, chances, 1000, drafted=True)
        return {id(slot): count for slot, count in zip(drafted, worth, strict=True)}

    def _depths(self, decoding: list[Slot]) -> tuple[dict[int, int], int]:
        """Depth of the next draft by slot, and of new requests'."""
        if self.depth is not None:
            return {id(slot): self.depth for slot in decoding}, self.depth
        rates = [slot.acceptance for slot in decoding] or [self.policy.records.begin(None, constrained=False)]
        depths = self.policy.depths(self.batch, rates, STEPS)
        return {id(slot): depth for slot, depth in zip(decoding, depths, strict=False)}, max(depths)


def linear(
    token: float = 0.02, drafting: float = 0.2, round_: float = 0.05, draft: float = 0.02, wide: float = 0.1
) -> Seconds:
    """The machine that the cost model assumes: a pass takes a second, all else adds to it. Prompts cost a tenth of
    other tokens."""

    def seconds(step: Step) -> float:
        shape = step.shape
        tokens = shape.num_tokens - 0.9 * step.num_prompt
        return 1 + token * tokens + wide * shape.wide + drafting_time(shape, drafting, round_, draft)

    return seconds


def drafting_time(shape: StepShape, drafting: float = 0.2, round_: float = 0.05, draft: float = 0.02) -> float:
    """Return the seconds in which the linear machine makes a step's drafts."""
    return drafting + round_ * shape.num_rounds + draft * shape.num_drafts if shape.num_drafts else 0.0
