"""Whether guessing has paid by the clock: an account of what it took beyond plain decoding, for each size of batch.

A model of costs can be wrong in its shape; this knows nothing of costs but the whole time of steps. Plain steps say
what a token takes without guesses. A step with guesses is charged what it took beyond what plain steps would have taken
for its tokens. What it saves is credited, and so is a small share of plain steps' time; in the red, guessing is shut
until there is enough for another look. So the time lost is at most that share of the time and what the account began
with, whatever guessing costs and why, as far as plain steps are known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

ALLOWANCE = 0.01  # of plain steps' time
DOUBT = 0.02  # of what guesses are worth: less is within what plain steps' time is known to
BEGINNING = 8.0  # plain steps' time to try guesses with when nothing is known, and the most that is saved up at first
AGAIN = 2.0  # to try each of the other depths with, the first time
GOOD = 32.0  # the most that is saved up of what was gained: what noise may take without shutting what pays
PRICE, MOST_EXPENSIVE = 8.0, 64.0  # of a look, in plain steps' time
SHORT = 16  # steps; a look that catching up ended so soon gets twice as much the next time
GOOD_LOOK = 64.0  # plain steps' time gained, after which the next look has the usual price again
DEEPER = 150.0  # after which it is seen whether deeper drafts do as well by now
TURNS = 3  # looks in turn draft as deep as wanted, half as deep, and a quarter: a model may be wrong in that alone
SOON, PLAIN_EVERY = 24, 192  # steps with guesses, after which plain ones are due: at first, and in the end
RUN = 2  # of these, after one that does not count: caches are full of what guessing touches
PROMPTS_EVERY = 16  # steps with prompts and guesses, likewise
STALE = 2000  # steps of other batches, after which what a plain step took is measured again
FEWEST = 3  # plain steps, before guesses can be judged
MAX_JUDGED_PROMPT = 256  # tokens of prompts; in larger steps guesses are lost in the noise, and little of the work
CHANGED, IN_A_ROW = 1.5, 4  # times the usual, steps one after the other: the machine is not what it was
OUTLIER = 4.0  # times the usual; what is more was something else on the machine
MEMORY = 15 / 16  # of plain steps, from one to the next


class StepWork(NamedTuple):
    """What a step did, as far as plain decoding can be compared with it."""

    num_rows: int  # that gave tokens
    num_prompt: int  # tokens, of prompts or forced
    num_gained: int  # tokens beyond one of each row: guesses that proved right
    context: float  # tokens before a row's, on average
    guessed: bool  # any guess was verified or drafted, or a source followed what might have been
    behind: bool = False  # the source first had to catch up with a sequence


@dataclass
class DecayingLine:
    """y over x by least squares, older points fading (Welford's sums with a memory). With little spread in x the slope
    is near `slope` of the prior: 0, or for what is `proportional` y's mean to x's."""

    spread: float  # of x, that tells as much of the slope as the prior
    proportional: bool = False
    weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0
    count: int = 0

    def observe(self, x: float, y: float) -> None:
        self.count += 1
        self.weight = MEMORY * self.weight + 1.0
        dx, dy = x - self._x, y - self._y
        self._x += dx / self.weight
        self._y += dy / self.weight
        self._xx = MEMORY * self._xx + dx * (x - self._x)
        self._xy = MEMORY * self._xy + dx * (y - self._y)

    def at(self, x: float) -> float:
        prior = self._y / self._x if self.proportional and self._x else 0.0
        trust = self.spread**2
        return self._y + (self._xy + trust * prior) / (self._xx + trust) * (x - self._x)

    @property
    def mean(self) -> float:
        return self._y

    def forget(self) -> None:
        """What is known holds no longer: all but the slope is found anew."""
        self.weight, self.count = 0.0, 0


@dataclass
class LevelTracker:
    """A running mean that notices when the level changes."""

    mean: float = 0.0
    _aside: int = 0  # values in a row, negative: below

    @property
    def aside(self) -> bool:
        """Whether the last value was another than usual."""
        return self._aside != 0

    def clipped(self, value: float) -> float:
        return min(value, OUTLIER * self.mean) if self.mean else value

    def observe(self, value: float) -> bool:
        """Whether it is another level from now on; the mean begins anew then."""
        if not self.mean:
            self.mean = value
            return False
        side = (value > CHANGED * self.mean) - (value < self.mean / CHANGED)
        self._aside = self._aside + side if side and side * self._aside >= 0 else side
        if abs(self._aside) == IN_A_ROW:
            self.mean, self._aside = value, 0
            return True
        self.mean += (value - self.mean) * (1 - MEMORY)
        return False


@dataclass
class _BucketLedger:
    """Of one size of batch. Seconds, but for `price`."""

    plain: DecayingLine = field(default_factory=lambda: DecayingLine(spread=256.0))
    usual: dict[bool, LevelTracker] = field(
        default_factory=lambda: {False: LevelTracker(), True: LevelTracker()}
    )  # with guesses?
    beginning: float = BEGINNING  # savings, in plain steps' time
    savings: float | None = None
    wanted: float = 0.0  # for a look that could not be afforded
    price: float = PRICE
    open: bool = True
    halvings: int = 0  # of the depth
    num_closed: int = 0
    num_steps: int = 0  # with guesses, since it was opened
    gained: float = 0.0  # since then, in plain steps' time
    behind: float = 0.0  # charged since then for catching up
    num_since_plain: int = 0
    plain_every: int = SOON
    num_in_run: int = 0  # plain steps measured since then
    num_since_closed: int = 0  # plain steps
    last_plain: int = 0  # by the guard's count of steps

    def plain_step(self, context: float, seconds: float) -> None:
        usual = self.usual[False]
        seconds = usual.clipped(seconds)
        if usual.observe(seconds):
            self.plain.forget()
            self.halvings, self.plain_every = 0, SOON
            if not self.open and self.num_since_closed <= 2 * IN_A_ROW:
                # What it was closed for was measured by what had been true before.
                self.savings = max(self.savings or 0.0, AGAIN * seconds)
                self._begin_look()
        self.num_since_closed += 1
        self.plain.observe(context, seconds)
        self.num_in_run += 1
        if self.num_in_run >= RUN and not usual.aside:
            self.plain_every = min(PLAIN_EVERY, 2 * self.plain_every) if self.num_since_plain else self.plain_every
            self.num_since_plain = 0  # else the next one is plain too: either this was an accident, or much has changed

    def seconds(self, context: float) -> float:
        """Of a plain step."""
        return max(self.plain.at(context), 0.1 * self.plain.mean)

    def guessed_step(self, seconds: float, *, behind: bool) -> float:
        """What of it is charged: a pause of the machine is not guessing's fault, catching up is."""
        self.num_steps += 1
        if behind:
            self.behind += seconds
            return seconds
        usual = self.usual[True]
        seconds = usual.clipped(seconds)
        if usual.observe(seconds):
            self.plain.forget()  # plain steps take something else too, as likely as not
        return seconds

    def add(self, seconds: float, step: float) -> None:
        """Credit, or charge if negative; `step` is a plain step's time."""
        if self.savings is None:
            self.savings = self.beginning * step
        most = max(BEGINNING, self.price)
        if self.open:
            self.gained = max(0.0, self.gained + seconds / step)
            most = min(GOOD, most + self.gained / 2)
        self.savings = min(self.savings + seconds, max(self.wanted, most * step))
        if self.open and self.savings <= 0:
            self.halvings = (self.halvings + 1) % TURNS
            self.num_closed += 1
            if self.num_steps < SHORT and self.behind > self.price * step / 2:
                self.price = min(2 * self.price, MOST_EXPENSIVE)
            if self.num_closed < TURNS:
                self.savings += AGAIN * step
            if self.savings > 0:
                self._begin_look()
            else:
                self.close()
        elif self.open and self.gained >= GOOD_LOOK:
            self.price = PRICE
            if self.gained >= DEEPER and self.halvings:
                self.halvings, self.gained = self.halvings - 1, 0.0
        elif not self.open and self.savings >= self.price * step:
            self._begin_look()

    def _begin_look(self) -> None:
        self.open, self.num_steps, self.gained, self.behind = True, 0, 0.0, 0.0

    def close(self) -> None:
        self.open, self.num_since_closed = False, 0


@dataclass
class SpeculationBudget:
    _accounts: dict[int, _BucketLedger] = field(default_factory=dict)
    _account_of: dict[int, _BucketLedger] = field(default_factory=dict)  # by the number of rows
    _purse: float = 2 * BEGINNING  # plain steps' time, for sizes of batches that are new
    _prompts: DecayingLine = field(
        default_factory=lambda: DecayingLine(spread=16.0, proportional=True)
    )  # over a plain step's time
    _num_since_prompts: int = 0
    _num_steps: int = 0
    _after_guesses: bool = False  # the last step had some

    def observe(self, work: StepWork, seconds: float, count: int = 1) -> None:
        """A step, and its whole time: from the one before to the next, not the computing alone. A plain one may speak
        for `count` like it."""
        self._num_steps += count
        if seconds <= 0 or not work.num_rows or work.num_prompt > MAX_JUDGED_PROMPT:
            return
        account = self._account(work.num_rows)
        first, self._after_guesses = self._after_guesses, work.guessed
        if first and not work.guessed and not work.num_prompt:
            account.num_in_run = 0
            return
        if not work.guessed and not work.num_prompt:
            account.plain_step(work.context, seconds)
            account.last_plain = self._num_steps
        if not account.plain.count:
            return
        step = account.seconds(work.context)
        if not work.guessed:
            if work.num_prompt:
                self._prompts.observe(work.num_prompt, seconds - step)
                self._num_since_prompts = 0
            account.add(ALLOWANCE * count * min(seconds, OUTLIER * step), step)
            return
        account.num_since_plain += 1
        worth = (1 - DOUBT) * step * (1 + work.num_gained / work.num_rows)
        if work.num_prompt:
            self._num_since_prompts += 1
            if not self._prompts.count:
                return
            worth += max(0.0, self._prompts.at(work.num_prompt))
            if work.behind:
                account.behind += seconds - worth
            account.add(worth - seconds, step)
        else:
            account.add(worth - account.guessed_step(seconds, behind=work.behind), step)

    def measured(self, num_rows: int) -> bool:
        """Whether it is known what a plain step takes. If not, one should come."""
        account = self._account(num_rows)
        if account.plain.count >= FEWEST and self._num_steps - account.last_plain > STALE:
            account.plain.forget()
        return account.plain.count >= FEWEST and account.num_since_plain < account.plain_every

    def is_open(self, num_rows: int) -> bool:
        """Whether guesses may be had that are thought to pay."""
        return self._account(num_rows).open

    def deepest(self, num_rows: int, steps: int) -> int:
        """How deep to draft at most where `steps` could be."""
        return max(1, steps >> self._account(num_rows).halvings)

    @property
    def prompts_measured(self) -> bool:
        """Whether it is known what a step with prompts takes. If not, one without guesses should come."""
        return self._prompts.count > 0 and self._num_since_prompts < PROMPTS_EVERY

    def affords(self, num_rows: int, seconds: float) -> bool:
        """Whether so much may be lost to see what is not thought to pay. If not, it is saved up."""
        account = self._account(num_rows)
        account.wanted = seconds
        return account.savings is not None and account.savings >= seconds

    def shut(self, num_rows: int) -> None:
        """Nothing is thought to pay, and to look would cost more than there is: until there is enough."""
        self._account(num_rows).close()

    def _account(self, num_rows: int) -> _BucketLedger:
        """Batches within a half of a power of two share one: 1, 2, 3, 4, 5 and 6, 7 and 8, 9 to 12, ..."""
        account = self._account_of.get(num_rows)
        if account is None:
            octave = max(0, (num_rows - 1).bit_length() - 2)
            size = -(-num_rows >> octave) << octave
            if size not in self._accounts:
                self._accounts[size] = self._new(size)
            account = self._account_of[num_rows] = self._accounts[size]
        return account

    def _new(self, size: int) -> _BucketLedger:
        """Of a size that has not come before. What does not pay in a smaller batch pays still less in this one, so it
        begins shut there; else with a part of what is left to try guesses with."""
        smaller = max((other for other in self._accounts if other < size), default=None)
        if smaller is not None and not self._accounts[smaller].open:
            return _BucketLedger(beginning=0.0, open=False, num_closed=TURNS)
        beginning = min(BEGINNING, self._purse / 2)
        self._purse -= beginning
        return _BucketLedger(beginning=beginning)
