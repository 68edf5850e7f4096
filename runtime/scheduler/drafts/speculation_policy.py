"""Decides how much to draft and to verify, by measured step times and acceptance rates.

For each batch size, of free texts, constrained ones or both, plain steps are timed, and what guesses add to a step's
time. Guesses are verified, and drafted, as far as the acceptance rate of their request makes tokens cheaper. A balance
of time gained and lost checks the result: when it is used up, speculation is closed there and tried again after a pause
that doubles each time, and of which the next trial is to be a small share. So guessing that does not pay costs a few
steps, whatever the reason. Nothing here changes the output.

A draft is paid for when it is verified, in one step with what it gains, and what a draft model reads of prompts is
spread over the verifications after it. So what is dear at first and pays later is not closed before it is heard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from .acceptance import MAX_PROBABILITY, Acceptance, AcceptanceRecords

MIN_SPEEDUP = 1.1  # over plain decoding; smaller gains are within the measurement error
MAX_BAR, BAR_STEP = 2.0, 1.35  # the speedup that guesses from texts have to promise rises so before the end
TRIAL_BALANCE, MAX_BALANCE = 3.0, 6.0  # plain steps; less to lose at first than after gains
FIRST_PAUSE, MAX_PAUSE = 128, 2048  # plain steps until the next trial
UNTRIED_PAUSE = 64  # at least, until the first one of a size that was closed untried
TRIAL_SHARE = 0.05  # of decoding's time, that trials may cost
TRIAL_STEPS = 3  # steps with guesses, from which their cost is learned
MIN_HEARD, MIN_HEARD_AGAIN = 6, 1  # verifications before speculation may be closed: at first, and in later trials
CATCH_UP_SHARE = 0.125  # of what catching up took, that a verification pays for
MAX_DRAFTING = 16.0  # plain steps that a draft may be said to take: more was another process
MIN_PLAIN_STEPS = 3  # needed before speculation can be judged
PLAIN_INTERVAL = 96  # speculative steps after which plain ones are timed again
MAX_JUDGED_PROMPT = 256  # prompt tokens; in larger steps the effect of guesses is lost in the noise
OUTLIER_RATIO = 4.0  # slower steps are clipped: other processes cause them
DECAY = 15 / 16  # weight of older steps, from step to step
MIN_TRIAL_PROBABILITY = 0.2  # of guesses that are verified while their cost is not known
MAX_TRIAL_LEVELS = 4  # drafted for all requests of a step while their cost is not known, but for one each
NUM_TRIAL_GUESSES = 4  # if none is as likely: without evidence the estimate would stay
MIN_SCORE = math.log(0.02)  # of a path that is followed while the cost is not known
NUM_DEPTHS = 3  # trials alternate between the greatest depth, half and a quarter of it
DEEPEN_STEPS = 512  # speculative steps after which the next depth is tried
HOPELESS = "guesses cost too much here, even if all were right"


Kind = Literal["free", "constrained", "mixed"]  # whether grammars constrain the texts of a step


class StepWork(NamedTuple):
    """A step's work, as far as plain decoding can be compared with it."""

    num_rows: int  # rows that returned tokens
    num_prompt: int  # tokens of prompts, or forced
    num_guesses: int  # draft tokens verified
    num_gained: int  # of these accepted
    context: float  # mean number of tokens before a row's
    speculated: bool  # the step cost more than a plain one: it verified, drafted, or had to wait for the last result
    kind: Kind = "free"
    drafting: float = 0.0  # seconds of the step in which drafts were made, if they were timed apart
    catching_up: float = 0.0  # and in which the source computed what it lacked of prompts, or of steps without it


class Change(NamedTuple):
    """Speculation was opened or closed for batches of one kind of text and at most `num_rows` requests."""

    kind: Kind
    num_rows: int
    open: bool
    why: str
    gain: float  # tokens a second with speculation over those without it, lately; 0: not measured


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
    extra: DecayingLine = field(default_factory=DecayingLine)  # over guesses, making them included
    verifying: DecayingLine = field(default_factory=DecayingLine)  # over guesses, making them not included
    trials: int = TRIAL_STEPS  # steps whose guesses are still to be verified whether that pays or not
    warm: bool = False  # there was a step with guesses; the first one is not counted
    halvings: int = 0  # of the greatest depth
    num_steps: int = 0  # speculative ones since it was opened, or since the depth changed
    balance: float = TRIAL_BALANCE
    pause: int = FIRST_PAUSE
    least_pause: int = 0  # for what the last trial cost
    waited: int = 0  # plain steps since it was closed, or since guesses were worth verifying
    since_plain: int = 0  # speculative steps
    seconds: float = 0.0  # of recent speculative steps, decaying
    tokens: float = 0.0  # that they gave per row
    checking: bool = False  # the balance is used up; plain steps are timed again before it is closed
    heard: int = 0  # verifications since it was opened
    closings: int = 0
    owed: float = 0.0  # seconds of drafts that are still to be verified
    debt: float = 0.0  # seconds of catching up that are still to be paid for
    drafts: bool = False  # making guesses took time
    bar: float = MIN_SPEEDUP  # that guesses from texts have to promise
    waits: bool = False  # it was closed before it was tried
    why: str = "not tried yet"

    @property
    def tried(self) -> bool:
        return bool(self.heard or self.closings)

    @property
    def measured(self) -> bool:
        return self.plain.count >= MIN_PLAIN_STEPS and self.since_plain < PLAIN_INTERVAL

    @property
    def gains(self) -> bool:
        """True if recent speculative steps were faster than plain ones."""
        return self.gain > MIN_SPEEDUP

    @property
    def gain(self) -> float:
        """Speed of recent speculative steps over that of plain ones; 0 before there were any."""
        return self.tokens * self.plain.mean / self.seconds if self.seconds else 0.0

    def observe_plain(self, context: float, seconds: float, count: int) -> None:
        step = self.plain.at(context)
        self.plain.observe(context, min(seconds, OUTLIER_RATIO * step) if self.plain.count else seconds)
        self.since_plain = 0
        self.waited += count
        if self.checking and self.measured:
            self.checking = False
            if not self.gains:
                self.give_up()
            else:
                self.balance = TRIAL_BALANCE  # everything got slower
        elif not self.open and self.waited >= self.pause:
            self.open, self.trials, self.balance, self.waited, self.heard = True, TRIAL_STEPS, TRIAL_BALANCE, 0, 0
            self.why = f"tried again after {self.pause} plain steps"

    def observe_speculative(self, work: StepWork, seconds: float, plain: float) -> None:
        """Record a step that would have taken `plain` seconds without speculation, and took `seconds` without making
        drafts. It pays for the drafts of the steps before, verified or lost."""
        step = self.plain.at(work.context)
        self.drafts = self.drafts or self.owed > 0
        verifying = min(seconds, OUTLIER_RATIO * max(plain, step))
        seconds, self.owed = verifying + min(self.owed, MAX_DRAFTING * step), 0.0
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
            self.verifying.observe(work.num_guesses, verifying - plain)
            self.trials, self.waited, self.heard = max(0, self.trials - 1), 0, self.heard + 1
            if self.open:
                self.why = "it gains" if self.gains else "being tried"
            catching_up = CATCH_UP_SHARE * self.debt
            self.debt -= catching_up
            seconds += catching_up
        self.balance += (plain + (tokens - 1) * step) / MIN_SPEEDUP / step - seconds / step
        if self.balance >= MAX_BALANCE:
            self.balance, self.pause, self.bar = MAX_BALANCE, FIRST_PAUSE, MIN_SPEEDUP
        elif self.balance < 0 and not self.checking and self.is_heard:
            self.checking = True
            self.plain.forget()

    def begin_alike(self) -> _BatchSize:
        """Return the record of another kind of text. Its times are about the same; what is accepted is not."""
        lines = {name: replace(getattr(self, name)) for name in ("plain", "extra", "verifying")}
        return _BatchSize(**lines)

    @property
    def is_heard(self) -> bool:
        """True if enough was verified to judge by, or steps without a verification used up twice what is allowed."""
        enough = MIN_HEARD_AGAIN if self.closings else MIN_HEARD
        return self.heard >= enough or self.balance < -2 * TRIAL_BALANCE

    def give_up(self) -> None:
        """Close speculation; but as long as making guesses cost nothing, first verify only what promises more."""
        if self.drafts or self.bar >= MAX_BAR:
            self.close("its steps cost more than they gained")
        else:
            self.bar, self.balance, self.heard = self.bar * BAR_STEP, TRIAL_BALANCE, 0
            self.seconds, self.tokens = 0.0, 0.0

    def wait(self, why: str, pause: int) -> None:
        """Close speculation before it is tried."""
        self.open, self.waits, self.pause, self.waited, self.why = False, True, max(UNTRIED_PAUSE, pause), 0, why

    def close(self, why: str) -> None:
        """Close speculation for a pause, of which this trial's cost is a small share; the next one is twice as long."""
        step = self.plain.mean
        cost = TRIAL_BALANCE - self.balance + (self.debt / step if step else 0.0)  # in plain steps
        self.least_pause = min(math.ceil(cost / TRIAL_SHARE), MAX_PAUSE)
        self.open, self.waited, self.num_steps, self.why = False, 0, 0, why
        self.closings, self.owed, self.debt = self.closings + 1, 0.0, 0.0
        self.halvings = (self.halvings + 1) % NUM_DEPTHS
        self.pause = max(min(2 * self.pause, MAX_PAUSE), self.least_pause)

    def decline(self) -> None:
        """Record a step in which no guess was worth verifying. After a pause of them, some are tried."""
        self.waited += 1
        if self.waited >= self.pause:
            self.trials, self.waited = 1, 0
            self.pause = min(2 * self.pause, MAX_PAUSE)


@dataclass
class SpeculationPolicy:
    """Times by kind of text and batch size, and acceptance rates."""

    records: AcceptanceRecords = field(default_factory=AcceptanceRecords)
    _sizes: dict[tuple[Kind, int], _BatchSize] = field(default_factory=dict)
    _told: dict[tuple[Kind, int], bool] = field(default_factory=dict)  # whether `changes` said that they are open
    _prompts: DecayingLine = field(default_factory=DecayingLine)  # time beyond a plain step's, over prompt tokens
    _after_speculation: bool = False  # the last step was speculative
    now: int = 0  # steps

    def is_open(self, num_rows: int, kind: Kind = "free") -> bool:
        """Return True if guesses are allowed for this number of decoding requests, or will be after some plain
        steps."""
        return self._size(num_rows, kind).open

    def may_guess(self, num_rows: int, kind: Kind = "free") -> bool:
        """Return True if guesses are allowed now. False while speculation is closed, and when plain steps are to be
        timed."""
        size = self._size(num_rows, kind)
        return size.open and size.measured

    def is_measured(self, num_rows: int, kind: Kind = "free") -> bool:
        """Return True if the time of a plain step is known."""
        return self._size(max(1, num_rows), kind).measured

    def plain_seconds(self, num_rows: int, kind: Kind = "free") -> float:
        """Return the mean time of a plain step; 0 before one was timed."""
        return self._size(num_rows, kind).plain.mean

    @property
    def states(self) -> list[Change]:
        """The state of every kind and batch size that was seen."""
        return [
            Change(kind, num_rows, size.open, size.why, size.gain)
            for (kind, num_rows), size in sorted(self._sizes.items())
        ]

    def changes(self) -> list[Change]:
        """Return what was closed since the last call, and what is open again and gains; everything begins open."""
        found = []
        for key, size in self._sizes.items():
            was_open = self._told.get(key, True)
            # A trial is no change before it gains.
            if was_open != (size.open and (was_open or (size.is_heard and size.gains))):
                self._told[key] = not was_open
                found.append(Change(*key, not was_open, size.why, size.gain))
        return found

    def observe_accepted(self, own: Acceptance, expected: float, depth: int, num_right: int) -> None:
        own.observe(expected, depth, num_right, self.now)

    def observe_step(self, work: StepWork, seconds: float, count: int = 1) -> None:
        """Record a step's whole time, from the end of the last one to its own. A plain one may stand for `count`."""
        self.now += count
        if seconds <= 0 or not work.num_rows:
            return
        size, first = self._size(work.num_rows, work.kind), self._after_speculation
        size.debt += work.catching_up
        if work.num_prompt > MAX_JUDGED_PROMPT:
            size.owed += work.drafting
            return
        seconds = max(0.0, seconds - work.drafting - work.catching_up)
        self._after_speculation = work.speculated
        if not work.speculated and not work.num_prompt:
            if not first:  # a step after speculative ones runs on cold caches
                size.observe_plain(work.context, seconds, count)
            return
        if not size.plain.count:
            return
        plain = size.plain.at(work.context)
        if not work.speculated or (work.num_prompt and work.drafting and not work.num_guesses):
            self._prompts.observe(work.num_prompt, seconds - plain)  # without the drafts
            size.owed += work.drafting
            return
        if work.num_prompt:
            if not self._prompts.count:
                return
            plain += max(0.0, self._prompts.at(work.num_prompt))
        size.observe_speculative(work, seconds, plain)
        size.owed += work.drafting

    def probability(self, own: Acceptance, score: float) -> float:
        """Return the probability that a draft token of score `score` is accepted."""
        return min(MAX_PROBABILITY, own.ratio(self.now) * math.exp(score))

    def num_to_verify(
        self,
        num_rows: int,
        probabilities: Sequence[Sequence[float]],
        limit: int,
        *,
        kind: Kind = "free",
        drafted: bool = False,
    ) -> list[int]:
        """Return the number of draft tokens of each request to verify, the likeliest first, at most `limit` in all, for
        the most tokens per second. `num_rows` requests decode in any case. The cost of making the drafts was spent
        already if they are `drafted`."""
        size, counts = self._size(num_rows, kind), [0] * len(probabilities)
        ranked = sorted(((p, index) for index, own in enumerate(probabilities) for p in own), reverse=True)[:limit]
        if size.trials or not size.extra.count:
            num_likely = sum(p >= MIN_TRIAL_PROBABILITY for p, _ in ranked)
            num_best = len(ranked) if drafted else num_likely or min(NUM_TRIAL_GUESSES, len(ranked))
        elif drafted:
            costs = [_relative_cost(size, size.verifying, len(ranked) - less) for less in (0, 1)]
            least = 0.5 * num_rows * (costs[0] - costs[1])
            num_best = sum(p >= least for p, _ in ranked)
        else:
            num_best, speed = _fastest(size, size.verifying, num_rows, [p for p, _ in ranked])
            if speed <= size.bar:
                num_best = 0
        for _, index in ranked[:num_best]:
            counts[index] += 1
        if ranked and not num_best and not drafted:
            if self._is_hopeless(size, num_rows):
                size.close(HOPELESS)
            else:
                size.decline()
        return counts

    def depths(self, num_rows: int, requests: Sequence[Acceptance], steps: int, kind: Kind = "free") -> list[int]:
        """Return the depth of each request's next draft, at most `steps`, 0 for none; closes speculation if none pays.

        The levels that are likeliest to be reached are drafted, as many as give the most tokens per second; `num_rows`
        requests decode, at least these.
        """
        size = self._size(num_rows, kind)
        steps = max(1, steps >> size.halvings)
        if size.extra.count >= TRIAL_STEPS and not size.gains and self._is_hopeless(size, num_rows):
            size.close(HOPELESS)
            return [0] * len(requests)
        if size.trials or not size.extra.count:
            return [max(1, min(steps, MAX_TRIAL_LEVELS // num_rows))] * len(requests)
        chances = [own.chance(self.now) for own in requests]
        levels = [(chance**level, index) for index, chance in enumerate(chances) for level in range(1, steps + 1)]
        levels.sort(reverse=True)
        num_best, speed = _fastest(size, size.extra, num_rows, [p for p, _ in levels])
        pays = speed > MIN_SPEEDUP
        if not pays and not size.gains and size.is_heard:
            cost = _relative_cost(size, size.extra, num_best) - 1
            size.close(
                f"a level is right with probability {max(chances):.2f}, and {num_best} of them cost {cost:.2f} of a "
                "plain step"
            )
            return [0] * len(requests)
        depths = [0] * len(requests)
        for _, index in levels[:num_best]:
            depths[index] += 1
        return depths if pays else [max(1, depth) for depth in depths]

    def least_score(self, num_rows: int, own: Acceptance, steps: int, kind: Kind = "free") -> float:
        """Return the score of a path in a draft of up to `steps` levels below which what follows gives fewer tokens a
        second than steps do lately."""
        size = self._size(num_rows, kind)
        if size.trials or not size.extra.count:
            return MIN_SCORE
        return math.log(self._least(size, num_rows, steps) / own.ratio(self.now))

    def _is_hopeless(self, size: _BatchSize, num_rows: int) -> bool:
        """Return True if guesses that are nearly always right would not pay: arithmetic bounds the step."""
        return all(
            1 + MAX_PROBABILITY * levels <= MIN_SPEEDUP * _relative_cost(size, size.extra, levels * num_rows)
            for levels in (1, 4)
        )

    def _least(self, size: _BatchSize, num_rows: int, num_guesses: int) -> float:
        """Return the probability that a guess has to be right with for making and verifying it, of so many, to give as
        many tokens a second as steps do lately."""
        costs = [_relative_cost(size, size.extra, num_guesses - less) for less in (0, 1)]
        return min(0.95, max(0.05, max(1.0, size.gain) * num_rows * (costs[0] - costs[1])))

    def _size(self, num_rows: int, kind: Kind) -> _BatchSize:
        """Return the record of a batch size. Sizes are half octaves: 1, 2, 3, 4, 5-6, 7-8, 9-12, ..."""
        octave = max(0, (num_rows - 1).bit_length() - 2)
        upper = -(-num_rows >> octave) << octave
        if (size := self._sizes.get((kind, upper))) is None:
            like = next((size for (_, rows), size in self._sizes.items() if rows == upper and size.plain.count), None)
            size = self._sizes[kind, upper] = _BatchSize() if like is None else like.begin_alike()
        if not (size.waits or size.tried):
            # Where a smaller batch does not gain, a larger one does not either, as far as is known. And a smaller one
            # is mostly the rest of a larger one, with little left to pay for what drafting lacks.
            near = self._nearest_tried(upper, kind)
            if near is not None and not self._sizes[kind, near].open:
                size.wait(f"closed for {near} requests", self._sizes[kind, near].least_pause)
        return size

    def _nearest_tried(self, num_rows: int, kind: Kind) -> int | None:
        """Return the next smaller size at which speculation was tried, else the next larger one."""
        tried = [rows for (other, rows), size in self._sizes.items() if other == kind and size.tried]
        return max((rows for rows in tried if rows < num_rows), default=min(tried, default=None))


def _relative_cost(size: _BatchSize, line: DecayingLine, num_guesses: int) -> float:
    """Return the time of a step with guesses over a plain step's."""
    return 1 + max(0.0, line.at(num_guesses)) / size.plain.mean


def _fastest(size: _BatchSize, line: DecayingLine, num_rows: int, probabilities: Sequence[float]) -> tuple[int, float]:
    """Return how many guesses, the likeliest first, give the most tokens a second, at least one, and their speed over
    plain decoding's."""
    best, num_best, tokens = 0.0, 0, 1.0
    for num, probability in enumerate(probabilities, 1):
        tokens += probability / num_rows
        if (speed := tokens / _relative_cost(size, line, num)) > best:
            best, num_best = speed, num
    return num_best, best
