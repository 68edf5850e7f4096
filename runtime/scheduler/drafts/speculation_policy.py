"""Decides how much to draft and to verify, by measured step times and acceptance rates.

For each batch size, plain steps are timed, and what guesses add to a step's time. Guesses are verified, and drafted, as
far as the acceptance rate of their request makes tokens cheaper. A balance of time gained and lost checks the result:
when it is used up, speculation is closed for that batch size and tried again after a pause that doubles each time. So
guessing that does not pay costs a few steps, whatever the reason. Nothing here changes the output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MIN_SPEEDUP = 1.1  # over plain decoding; smaller gains are within the measurement error
TRIAL_BALANCE, MAX_BALANCE = 3.0, 6.0  # plain steps; less to lose at first than after gains
FIRST_PAUSE, MAX_PAUSE = 256, 2048  # plain steps until the next trial
TRIAL_STEPS = 3  # steps with guesses, from which their cost is learned
MIN_PLAIN_STEPS = 3  # needed before speculation can be judged
PLAIN_INTERVAL = 96  # speculative steps after which plain ones are timed again
PLAIN_PROMPT_INTERVAL = 16  # the same for steps with prompts
MAX_JUDGED_PROMPT = 256  # prompt tokens; in larger steps the effect of guesses is lost in the noise
OUTLIER_RATIO = 4.0  # slower steps are clipped: other processes cause them
DECAY = 15 / 16  # weight of older steps, from step to step
MIN_TRIAL_PROBABILITY = 0.2  # of guesses that are verified while their cost is not known
NUM_TRIAL_GUESSES = 4  # if none is as likely: without evidence the estimate would stay
MAX_PROBABILITY = 0.98  # of an acceptance
PRIOR_CHANCE = 0.7  # acceptance of a level before anything was verified
NUM_DEPTHS = 3  # trials alternate between the greatest depth, half and a quarter of it
DEEPEN_STEPS = 512  # speculative steps after which the next depth is tried
_HALF_LIFE = 256  # steps without a verification, after which a request's record counts half


@dataclass
class Acceptance:
    """Decaying counts over verified trees, of one request or all: accepted levels, trees that ended in a rejection, and
    acceptances that the draft predicted."""

    hits: float = 0.0
    misses: float = 0.0
    expected: float = 0.0
    last_step: int = 0

    def observe(self, expected: float, depth: int, num_right: int, *, memory: float, now: int = 0) -> None:
        """Record a tree of depth `depth` of which `num_right` levels were accepted; the draft predicted `expected`."""
        memory *= self._kept(now)
        self.hits = memory * self.hits + num_right
        self.misses = memory * self.misses + (num_right < depth)
        self.expected = memory * self.expected + expected
        self.last_step = now

    def chance(self, prior: float, now: int = 0) -> float:
        """Return the probability that the next level is accepted too."""
        kept, weight = self._kept(now), 1.5
        return min(MAX_PROBABILITY, (kept * self.hits + weight * prior) / (kept * (self.hits + self.misses) + weight))

    def ratio(self, prior: float, now: int = 0, weight: float = 6.0) -> float:
        """Return the ratio of accepted to predicted draft tokens."""
        kept = self._kept(now)
        return (kept * self.hits + weight * prior) / (kept * self.expected + weight)

    def _kept(self, now: int) -> float:
        return math.exp2((self.last_step - now) / _HALF_LIFE)


class StepWork(NamedTuple):
    """A step's work, as far as plain decoding can be compared with it."""

    num_rows: int  # rows that returned tokens
    num_prompt: int  # tokens of prompts, or forced
    num_guesses: int  # draft tokens verified
    num_gained: int  # of these accepted
    context: float  # mean number of tokens before a row's
    speculated: bool  # the step cost more than a plain one: it verified, drafted, or had to wait for the last result


@dataclass
class DecayingLine:
    """Least-squares line through points whose weights decay (Welford's sums).

    With little spread in x, the slope is near its prior: 0, or without `spread` the ratio of the means.
    """

    spread: float | None = None  # of x, at which points and prior weigh the same; None: half of its mean
    count: int = 0
    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def observe(self, x: float, y: float) -> None:
        self.count += 1
        self._weight = DECAY * self._weight + 1.0
        dx, dy = x - self._x, y - self._y
        self._x += dx / self._weight
        self._y += dy / self._weight
        self._xx = DECAY * self._xx + dx * (x - self._x)
        self._xy = DECAY * self._xy + dx * (y - self._y)

    def at(self, x: float) -> float:
        """Return the line's value, at least a tenth of the mean."""
        prior, spread = (0.0, self.spread) if self.spread is not None else (self._y / self._x, self._x / 2)
        slope = (self._xy + spread**2 * prior) / (self._xx + spread**2)
        return max(self._y + slope * (x - self._x), 0.1 * self._y)

    @property
    def mean(self) -> float:
        return self._y

    def forget(self) -> None:
        """Forget the level, but not the slope."""
        self._weight, self.count = 0.0, 0


@dataclass
class _BatchSize:
    """Times and balance of one batch size; times in seconds, the balance in plain steps."""

    open: bool = True
    plain: DecayingLine = field(default_factory=lambda: DecayingLine(spread=256.0))  # over the context
    extra: DecayingLine = field(default_factory=DecayingLine)  # over guesses
    trials: int = TRIAL_STEPS  # steps whose guesses are still to be verified whether that pays or not
    warm: bool = False  # there was a step with guesses; the first one is not counted
    halvings: int = 0  # of the greatest depth
    num_steps: int = 0  # speculative ones since it was opened, or since the depth changed
    balance: float = TRIAL_BALANCE
    pause: int = FIRST_PAUSE
    waited: int = 0  # plain steps since it was closed, or since guesses were worth verifying
    since_plain: int = 0  # speculative steps
    seconds: float = 0.0  # of recent speculative steps, decaying
    tokens: float = 0.0  # that they gave per row
    checking: bool = False  # the balance is used up; plain steps are timed again before it is closed

    @property
    def measured(self) -> bool:
        return self.plain.count >= MIN_PLAIN_STEPS and self.since_plain < PLAIN_INTERVAL

    @property
    def gains(self) -> bool:
        """True if recent speculative steps were faster than plain ones."""
        return self.seconds * MIN_SPEEDUP < self.tokens * self.plain.mean

    def observe_plain(self, context: float, seconds: float, count: int) -> None:
        step = self.plain.at(context)
        self.plain.observe(context, min(seconds, OUTLIER_RATIO * step) if self.plain.count else seconds)
        self.since_plain = 0
        self.waited += count
        if self.checking and self.measured:
            self.checking = False
            if not self.gains:
                self.close()
            else:
                self.balance = TRIAL_BALANCE  # everything got slower
        elif not self.open and self.waited >= self.pause:
            self.open, self.trials, self.balance, self.waited = True, TRIAL_STEPS, TRIAL_BALANCE, 0

    def observe_speculative(self, work: StepWork, seconds: float, plain: float) -> None:
        """Record a step that would have taken `plain` seconds without speculation."""
        step = self.plain.at(work.context)
        seconds = min(seconds, OUTLIER_RATIO * max(plain, step))
        tokens = 1 + work.num_gained / work.num_rows
        self.since_plain += 1
        self.num_steps += 1
        if self.num_steps >= DEEPEN_STEPS and self.halvings:
            self.halvings, self.num_steps = self.halvings - 1, 0
        if work.num_guesses and not self.warm:
            self.warm = True
            return
        if not work.num_prompt:
            self.seconds, self.tokens = DECAY * self.seconds + seconds, DECAY * self.tokens + tokens
        if work.num_guesses:
            self.extra.observe(work.num_guesses, seconds - plain)
            self.trials, self.waited = max(0, self.trials - 1), 0
        self.balance += (plain + (tokens - 1) * step) / MIN_SPEEDUP / step - seconds / step
        if self.balance >= MAX_BALANCE:
            self.balance, self.pause = MAX_BALANCE, FIRST_PAUSE
        elif self.balance < 0 and not self.checking:
            self.checking = True
            self.plain.forget()

    def close(self) -> None:
        """Close speculation for a pause; the next one is twice as long."""
        self.open, self.waited, self.num_steps = False, 0, 0
        self.halvings = (self.halvings + 1) % NUM_DEPTHS
        self.pause = min(2 * self.pause, MAX_PAUSE)

    def decline(self) -> None:
        """Record a step in which no guess was worth verifying. After a pause of them, some are tried."""
        self.waited += 1
        if self.waited >= self.pause:
            self.trials, self.waited = 1, 0
            self.pause = min(2 * self.pause, MAX_PAUSE)


@dataclass
class SpeculationPolicy:
    """Times by batch size, and acceptance rates over all requests."""

    overall: Acceptance = field(default_factory=Acceptance)
    _sizes: dict[int, _BatchSize] = field(default_factory=dict)
    _prompts: DecayingLine = field(default_factory=DecayingLine)  # time beyond a plain step's, over prompt tokens
    _since_plain_prompt: int = 0  # speculative steps with prompts
    _after_speculation: bool = False  # the last step was speculative
    now: int = 0  # steps

    def is_open(self, num_rows: int) -> bool:
        """Return True if guesses are allowed for this number of decoding requests, or will be after some plain
        steps."""
        return self._size(num_rows).open

    def may_guess(self, num_rows: int) -> bool:
        """Return True if guesses are allowed now. False while speculation is closed, and when plain steps are to be
        timed."""
        size = self._size(num_rows)
        return size.open and size.measured

    def is_measured(self, num_rows: int) -> bool:
        """Return True if the time of a plain step is known."""
        return self._size(max(1, num_rows)).measured

    @property
    def may_draft_new(self) -> bool:
        """True if new requests may be drafted for. False when a step with a prompt is to be timed without that."""
        return self._prompts.count > 0 and self._since_plain_prompt < PLAIN_PROMPT_INTERVAL

    def observe_accepted(self, own: Acceptance, expected: float, depth: int, num_right: int) -> None:
        own.observe(expected, depth, num_right, memory=0.85, now=self.now)
        self.overall.observe(expected, depth, num_right, memory=0.98)

    def observe_step(self, work: StepWork, seconds: float, count: int = 1) -> None:
        """Record a step's whole time, from the end of the last one to its own. A plain one may stand for `count`."""
        self.now += count
        if seconds <= 0 or not work.num_rows or work.num_prompt > MAX_JUDGED_PROMPT:
            return
        size, first = self._size(work.num_rows), self._after_speculation
        self._after_speculation = work.speculated
        if not work.speculated and not work.num_prompt:
            if not first:  # a step after speculative ones runs on cold caches
                size.observe_plain(work.context, seconds, count)
            return
        if not size.plain.count:
            return
        plain = size.plain.at(work.context)
        if not work.speculated:
            self._prompts.observe(work.num_prompt, seconds - plain)
            self._since_plain_prompt = 0
            return
        if work.num_prompt:
            self._since_plain_prompt += 1
            if not self._prompts.count:
                return
            plain += max(0.0, self._prompts.at(work.num_prompt))
        size.observe_speculative(work, seconds, plain)

    def probability(self, own: Acceptance, score: float) -> float:
        """Return the probability that a draft token of score `score` is accepted."""
        return min(MAX_PROBABILITY, own.ratio(self.overall.ratio(1.0, weight=24.0), self.now) * math.exp(score))

    def num_to_verify(
        self, num_rows: int, probabilities: Sequence[Sequence[float]], limit: int, *, drafted: bool = False
    ) -> list[int]:
        """Return the number of draft tokens of each request to verify, the likeliest first, at most `limit` in all, for
        the most tokens per second. `num_rows` requests decode in any case. The cost of making the drafts was spent
        already if they are `drafted`."""
        size, counts = self._size(num_rows), [0] * len(probabilities)
        ranked = sorted(((p, index) for index, own in enumerate(probabilities) for p in own), reverse=True)[:limit]
        if size.trials or not size.extra.count:
            num_likely = sum(p >= MIN_TRIAL_PROBABILITY for p, _ in ranked)
            num_best = len(ranked) if drafted else num_likely or min(NUM_TRIAL_GUESSES, len(ranked))
        elif drafted:
            least = 0.5 * self._level_cost(size, num_rows, len(ranked))
            num_best = sum(p >= least for p, _ in ranked)
        else:
            num_best, best, tokens = 0, MIN_SPEEDUP, 1.0
            for num, (probability, _) in enumerate(ranked, 1):
                tokens += probability / num_rows
                if (speed := tokens / self._relative_cost(size, num)) > best:
                    best, num_best = speed, num
        for _, index in ranked[:num_best]:
            counts[index] += 1
        if ranked and not num_best and not drafted:
            if self._is_hopeless(size, num_rows):
                size.close()
            else:
                size.decline()
        return counts

    def depths(self, num_rows: int, requests: Sequence[Acceptance], steps: int) -> list[int]:
        """Return the depth of each request's next draft, at most `steps`, 0 for none; closes speculation if none pays.

        A level is drafted if it is likely enough to be reached; `num_rows` requests decode, at least these.
        """
        size = self._size(num_rows)
        steps = max(1, steps >> size.halvings)
        if size.trials or not size.extra.count:
            return [steps] * len(requests)
        prior = self.overall.chance(PRIOR_CHANCE)
        chances = [own.chance(prior, self.now) for own in requests]
        least = min(0.95, max(0.05, self._level_cost(size, num_rows, steps * len(requests))))
        depths = [min(steps, int(math.log(least) / math.log(chance))) for chance in chances]
        gained = sum(chance**level for chance, depth in zip(chances, depths, strict=True) for level in _levels(depth))
        pays = (1 + gained / num_rows) / self._relative_cost(size, sum(depths)) > MIN_SPEEDUP
        if not pays and not size.gains:
            size.close()
            return [0] * len(requests)
        return depths if pays else [max(1, depth) for depth in depths]

    def _is_hopeless(self, size: _BatchSize, num_rows: int) -> bool:
        """Return True if guesses that are nearly always right would not pay: arithmetic bounds the step."""
        return all(
            1 + MAX_PROBABILITY * levels <= MIN_SPEEDUP * self._relative_cost(size, levels * num_rows)
            for levels in (1, 4)
        )

    def _level_cost(self, size: _BatchSize, num_rows: int, num_guesses: int) -> float:
        """Return the cost of one more guess, in tokens."""
        return num_rows * (self._relative_cost(size, num_guesses) - self._relative_cost(size, num_guesses - 1))

    def _relative_cost(self, size: _BatchSize, num_guesses: int) -> float:
        """Time of a step with guesses over a plain step's."""
        return 1 + max(0.0, size.extra.at(num_guesses)) / size.plain.mean

    def _size(self, num_rows: int) -> _BatchSize:
        """Return the record of a batch size. Sizes are half octaves: 1, 2, 3, 4, 5-6, 7-8, 9-12, ..."""
        octave = max(0, (num_rows - 1).bit_length() - 2)
        upper = -(-num_rows >> octave) << octave
        if upper not in self._sizes:
            smaller = max((other for other in self._sizes if other < upper), default=None)
            # Where a smaller batch does not gain, a larger one does not either, as far as is known.
            self._sizes[upper] = _BatchSize(open=smaller is None or self._sizes[smaller].open)
        return self._sizes[upper]


def _levels(depth: int) -> range:
    return range(1, depth + 1)
