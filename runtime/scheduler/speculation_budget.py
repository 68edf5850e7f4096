"""Limits what speculation may cost against plain decoding, by measured time, for each batch size.

A cost model can be wrong in its shape; this module uses nothing but the total time of steps. Plain steps tell what a
token takes without drafts. A speculative step is charged the time beyond what plain steps would have taken for its
tokens. Time saved is credited, and so is a small share of plain steps' time. With a negative balance, speculation is
closed until there is enough for another trial. So the time lost is at most that share plus the initial balance,
whatever drafts cost and why, as far as plain steps are known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

LOSS_ALLOWANCE = 0.01  # share of plain steps' time
PLAIN_TIME_UNCERTAINTY = 0.02  # relative; smaller gains are within the error of plain steps' time
INITIAL_SAVINGS = 8.0  # plain steps; the initial balance, and the maximum at first
RETRY_SAVINGS = 2.0  # plain steps; for the first trial of each other depth
MAX_GAIN_SAVINGS = 32.0  # plain steps; maximum balance from gains, so that noise does not close what pays
TRIAL_PRICE, MAX_TRIAL_PRICE = 8.0, 64.0  # plain steps; the cost of a trial
SHORT_TRIAL_STEPS = 16  # a trial that catching up ended this early gets twice the balance next time
PRICE_RESET_GAIN = 64.0  # plain steps gained, after which TRIAL_PRICE applies again
DEEPEN_GAIN = 150.0  # plain steps gained, after which the next depth is tried
NUM_DEPTH_STAGES = 3  # trials alternate between the model's depth, half and a quarter of it
MIN_PLAIN_INTERVAL, MAX_PLAIN_INTERVAL = (
    24,
    192,
)  # speculative steps between plain ones: at first, and finally
PLAIN_RUN_STEPS = 2  # plain steps in a row; the one before them does not count, because of cold caches
PLAIN_PROMPT_INTERVAL = 16  # speculative steps with prompts between plain ones with prompts
STALE_STEPS = 2000  # steps of other batch sizes, after which plain steps are measured again
MIN_PLAIN_STEPS = 3  # plain steps needed before speculation can be judged
MAX_JUDGED_PROMPT = 256  # prompt tokens; in larger steps the effect of drafts is lost in the noise
LEVEL_RATIO, LEVEL_STEPS = 1.5, 4  # a ratio to the mean over this many steps in a row is a change of level
OUTLIER_RATIO = 4.0  # ratio to the mean; more is clipped, as caused by other processes
DECAY = 15 / 16  # weight of older plain steps, from step to step


class StepWork(NamedTuple):
    """A step's work, as far as plain decoding can be compared with it."""

    num_rows: int  # rows that returned tokens
    num_prompt: int  # tokens of prompts, or forced
    num_gained: int  # accepted draft tokens
    context: float  # mean number of tokens before a row's
    speculated: bool  # a draft was verified or made, or the source followed
    catching_up: bool = False  # the source had to catch up with a sequence


@dataclass
class DecayingLine:
    """Least-squares line through points whose weights decay (Welford's sums).

    With little spread in x, the slope is near its prior: 0, or for `proportional` lines the ratio of the means.
    """

    spread: float  # standard deviation of x at which points and prior weigh the same
    proportional: bool = False
    weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0
    count: int = 0

    def observe(self, x: float, y: float) -> None:
        self.count += 1
        self.weight = DECAY * self.weight + 1.0
        dx, dy = x - self._x, y - self._y
        self._x += dx / self.weight
        self._y += dy / self.weight
        self._xx = DECAY * self._xx + dx * (x - self._x)
        self._xy = DECAY * self._xy + dx * (y - self._y)

    def at(self, x: float) -> float:
        prior = self._y / self._x if self.proportional and self._x else 0.0
        trust = self.spread**2
        return self._y + (self._xy + trust * prior) / (self._xx + trust) * (x - self._x)

    @property
    def mean(self) -> float:
        return self._y

    def forget(self) -> None:
        """Forget the level, but not the slope."""
        self.weight, self.count = 0.0, 0


@dataclass
class LevelTracker:
    """Running mean that detects a change of level."""

    mean: float = 0.0
    _num_off_level: int = 0  # number of values in a row; negative: below the mean

    @property
    def is_off_level(self) -> bool:
        """True if the last value was not near the mean."""
        return self._num_off_level != 0

    def clipped(self, value: float) -> float:
        return min(value, OUTLIER_RATIO * self.mean) if self.mean else value

    def observe(self, value: float) -> bool:
        """Add a value. Returns True if the level changed; the mean then starts anew."""
        if not self.mean:
            self.mean = value
            return False
        side = (value > LEVEL_RATIO * self.mean) - (value < self.mean / LEVEL_RATIO)
        self._num_off_level = self._num_off_level + side if side and side * self._num_off_level >= 0 else side
        if abs(self._num_off_level) == LEVEL_STEPS:
            self.mean, self._num_off_level = value, 0
            return True
        self.mean += (value - self.mean) * (1 - DECAY)
        return False


@dataclass
class _BucketLedger:
    """Ledger of one batch-size bucket, in seconds (`trial_price`: in plain steps)."""

    plain: DecayingLine = field(default_factory=lambda: DecayingLine(spread=256.0))
    levels: dict[bool, LevelTracker] = field(
        default_factory=lambda: {False: LevelTracker(), True: LevelTracker()}
    )  # by whether the step is speculative
    initial_savings: float = INITIAL_SAVINGS  # in plain steps
    savings: float | None = None
    trial_cost: float = 0.0  # of the trial that was last considered
    trial_price: float = TRIAL_PRICE
    open: bool = True
    halvings: int = 0  # of the draft depth
    num_closed: int = 0
    num_steps: int = 0  # speculative steps since it was opened
    gained: float = 0.0  # since it was opened, in plain steps
    catching_up: float = 0.0  # charged for catching up since it was opened
    num_since_plain: int = 0
    plain_interval: int = MIN_PLAIN_INTERVAL
    num_in_run: int = 0  # plain steps in the current run
    num_since_closed: int = 0  # plain steps since it was closed
    last_plain: int = 0  # by the budget's count of steps

    def record_plain_step(self, context: float, seconds: float) -> None:
        level = self.levels[False]
        seconds = level.clipped(seconds)
        if level.observe(seconds):
            self.plain.forget()
            self.halvings, self.plain_interval = 0, MIN_PLAIN_INTERVAL
            if not self.open and self.num_since_closed <= 2 * LEVEL_STEPS:
                # It was closed by measurements of the old level.
                self.savings = max(self.savings or 0.0, RETRY_SAVINGS * seconds)
                self._start_trial()
        self.num_since_closed += 1
        self.plain.observe(context, seconds)
        self.num_in_run += 1
        if self.num_in_run >= PLAIN_RUN_STEPS and not level.is_off_level:
            self.plain_interval = (
                min(MAX_PLAIN_INTERVAL, 2 * self.plain_interval) if self.num_since_plain else self.plain_interval
            )
            self.num_since_plain = 0  # otherwise another plain step follows: an outlier, or a new level

    def plain_seconds(self, context: float) -> float:
        """Expected time of a plain step."""
        return max(self.plain.at(context), 0.1 * self.plain.mean)

    def charge_speculative_step(self, seconds: float, *, catching_up: bool) -> float:
        """The time to charge for the step: outliers of the machine are clipped, the source's catching up is not."""
        self.num_steps += 1
        if catching_up:
            self.catching_up += seconds
            return seconds
        level = self.levels[True]
        seconds = level.clipped(seconds)
        if level.observe(seconds):
            self.plain.forget()  # the level of plain steps has probably changed too
        return seconds

    def credit(self, seconds: float, step: float) -> None:
        """Credit, or charge if negative. `step` is the time of a plain step."""
        if self.savings is None:
            self.savings = self.initial_savings * step
        most = max(INITIAL_SAVINGS, self.trial_price)
        if self.open:
            self.gained = max(0.0, self.gained + seconds / step)
            most = min(MAX_GAIN_SAVINGS, most + self.gained / 2)
        self.savings = min(self.savings + seconds, max(self.trial_cost, most * step))
        if self.open and self.savings <= 0:
            self.halvings = (self.halvings + 1) % NUM_DEPTH_STAGES
            self.num_closed += 1
            if self.num_steps < SHORT_TRIAL_STEPS and self.catching_up > self.trial_price * step / 2:
                self.trial_price = min(2 * self.trial_price, MAX_TRIAL_PRICE)
            if self.num_closed < NUM_DEPTH_STAGES:
                self.savings += RETRY_SAVINGS * step
            if self.savings > 0:
                self._start_trial()
            else:
                self.close()
        elif self.open and self.gained >= PRICE_RESET_GAIN:
            self.trial_price = TRIAL_PRICE
            if self.gained >= DEEPEN_GAIN and self.halvings:
                self.halvings, self.gained = self.halvings - 1, 0.0
        elif not self.open and self.savings >= self.trial_price * step:
            self._start_trial()

    def _start_trial(self) -> None:
        self.open, self.num_steps, self.gained, self.catching_up = True, 0, 0.0, 0.0

    def close(self) -> None:
        self.open, self.num_since_closed = False, 0


@dataclass
class SpeculationBudget:
    """Ledgers of all batch-size buckets."""

    _ledgers: dict[int, _BucketLedger] = field(default_factory=dict)
    _ledger_of_rows: dict[int, _BucketLedger] = field(default_factory=dict)  # by number of rows
    _unallocated: float = 2 * INITIAL_SAVINGS  # plain steps; for new buckets
    _prompts: DecayingLine = field(
        default_factory=lambda: DecayingLine(spread=16.0, proportional=True)
    )  # time beyond a plain step's, over prompt tokens
    _num_since_prompts: int = 0  # speculative steps with prompts
    _num_steps: int = 0
    _after_speculation: bool = False  # the last step was speculative

    def observe(self, work: StepWork, seconds: float, count: int = 1) -> None:
        """Record a step's total time, from the previous step's end to its own. A plain one may stand for `count` like
        it."""
        self._num_steps += count
        if seconds <= 0 or not work.num_rows or work.num_prompt > MAX_JUDGED_PROMPT:
            return
        ledger = self._ledger(work.num_rows)
        first, self._after_speculation = self._after_speculation, work.speculated
        if first and not work.speculated and not work.num_prompt:
            ledger.num_in_run = 0
            return
        if not work.speculated and not work.num_prompt:
            ledger.record_plain_step(work.context, seconds)
            ledger.last_plain = self._num_steps
        if not ledger.plain.count:
            return
        step = ledger.plain_seconds(work.context)
        if not work.speculated:
            if work.num_prompt:
                self._prompts.observe(work.num_prompt, seconds - step)
                self._num_since_prompts = 0
            ledger.credit(LOSS_ALLOWANCE * count * min(seconds, OUTLIER_RATIO * step), step)
            return
        ledger.num_since_plain += 1
        value = (1 - PLAIN_TIME_UNCERTAINTY) * step * (1 + work.num_gained / work.num_rows)
        if work.num_prompt:
            self._num_since_prompts += 1
            if not self._prompts.count:
                return
            value += max(0.0, self._prompts.at(work.num_prompt))
            if work.catching_up:
                ledger.catching_up += seconds - value
            ledger.credit(value - seconds, step)
        else:
            ledger.credit(value - ledger.charge_speculative_step(seconds, catching_up=work.catching_up), step)

    def measured(self, num_rows: int) -> bool:
        """True if the time of a plain step is known. Otherwise a plain step is due."""
        ledger = self._ledger(num_rows)
        if ledger.plain.count >= MIN_PLAIN_STEPS and self._num_steps - ledger.last_plain > STALE_STEPS:
            ledger.plain.forget()
        return ledger.plain.count >= MIN_PLAIN_STEPS and ledger.num_since_plain < ledger.plain_interval

    def is_open(self, num_rows: int) -> bool:
        """True if drafts that are expected to pay are allowed."""
        return self._ledger(num_rows).open

    def max_depth(self, num_rows: int, steps: int) -> int:
        """Maximum draft depth, at most `steps`."""
        return max(1, steps >> self._ledger(num_rows).halvings)

    @property
    def prompts_measured(self) -> bool:
        """True if the time of a step with prompts is known. Otherwise one without drafts is due."""
        return self._prompts.count > 0 and self._num_since_prompts < PLAIN_PROMPT_INTERVAL

    def affords(self, num_rows: int, seconds: float) -> bool:
        """True if `seconds` may be lost on a trial of drafts that are not expected to pay.
        Otherwise they are saved up."""
        ledger = self._ledger(num_rows)
        ledger.trial_cost = seconds
        return ledger.savings is not None and ledger.savings >= seconds

    def close(self, num_rows: int) -> None:
        """Close speculation until a trial is affordable."""
        self._ledger(num_rows).close()

    def _ledger(self, num_rows: int) -> _BucketLedger:
        """The ledger of a batch size. Buckets are half octaves: 1, 2, 3, 4, 5-6, 7-8, 9-12, ..."""
        ledger = self._ledger_of_rows.get(num_rows)
        if ledger is None:
            octave = max(0, (num_rows - 1).bit_length() - 2)
            size = -(-num_rows >> octave) << octave
            if size not in self._ledgers:
                self._ledgers[size] = self._new(size)
            ledger = self._ledger_of_rows[num_rows] = self._ledgers[size]
        return ledger

    def _new(self, size: int) -> _BucketLedger:
        """Open the ledger of a new bucket: closed if a smaller one is closed, else with a part of the unallocated
        balance."""
        smaller = max((other for other in self._ledgers if other < size), default=None)
        if smaller is not None and not self._ledgers[smaller].open:
            return _BucketLedger(initial_savings=0.0, open=False, num_closed=NUM_DEPTH_STAGES)
        initial_savings = min(INITIAL_SAVINGS, self._unallocated / 2)
        self._unallocated -= initial_savings
        return _BucketLedger(initial_savings=initial_savings)
