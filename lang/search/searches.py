"""Search over branches: the best of several, the first that will do, a vote, and beam search.

Each function waits for branches of a state and stops those that lose at once. Those whose names begin with `a` are for
event loops. A branch that fails is left out; if all fail, the error of the first one is raised.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from ...runtime.protocol.decisions import Predicate, Rate
from ...runtime.protocol.errors import RequestError
from ..expressions.decide import predicate
from ..expressions.expr import Expr, GenExpr, SelectExpr, parts_of
from ..states.state import ForkGroup, ProgramState
from .race import AsyncRace, Race, Step, blocking

Score = Callable[[ProgramState], Any] | Predicate | Rate | str  # a question's answer is the score


@dataclass(frozen=True)
class Vote:
    """The result of a vote: the value that most branches made, and how many branches made each one."""

    value: Any
    counts: dict[Hashable, int]  # by key
    branch: ProgramState

    @property
    def share(self) -> float:
        """Return the part of the counted votes that the value has got."""
        return max(self.counts.values()) / sum(self.counts.values())


def best_of(s: ProgramState, k: int, step: Step, score: Score | None = None) -> ProgramState:
    """Run `step` on `k` branches of `s`, and adopt the branch with the highest score; return that branch.

    `score` is a function of the branch that returns a number, or a question: the probability of a yes, or the level of
    a rate. None: the mean log-probability of what the branch generated. Raises RequestError for other scores.
    """
    return blocking(_best_of(Race(), s, k, step, score))


async def abest_of(s: ProgramState, k: int, step: Step, score: Score | None = None) -> ProgramState:
    """Search as `best_of` does, in an event loop; `step` and `score` may be async."""
    return await _best_of(AsyncRace(), s, k, step, score)


def first(
    branches: ForkGroup | Iterable[ProgramState], until: Callable[[ProgramState], Any] | None = None
) -> ProgramState | None:
    """Return the first branch that is done and for which `until` holds, and stop the others; None if there is none.

    Without `until` it is the first branch that is done and has not failed.
    """
    return blocking(_first(Race(), list(branches), until))


async def afirst(
    branches: ForkGroup | Iterable[ProgramState], until: Callable[[ProgramState], Any] | None = None
) -> ProgramState | None:
    """Search as `first` does, in an event loop; `until` may be async."""
    return await _first(AsyncRace(), list(branches), until)


def vote(s: ProgramState, k: int, step: Step, key: Callable[[Any], Hashable] | None = None) -> Vote:
    """Run `step` on `k` branches of `s`, count the values, and adopt the first branch with the most frequent one.

    The value is that of the last named gen or select of an expression, or what a function returns. Values with the same
    `key(value)` count as one. Branches that can no longer change the result are stopped.
    """
    return blocking(_vote(Race(), s, k, step, key))


async def avote(s: ProgramState, k: int, step: Step, key: Callable[[Any], Hashable] | None = None) -> Vote:
    """Search as `vote` does, in an event loop; `step` may be async."""
    return await _vote(AsyncRace(), s, k, step, key)


def beam(
    s: ProgramState, step: Step, width: int, depth: int, score: Score | None = None, expand: int | None = None
) -> ProgramState:
    """Run `step` `depth` times on the `width` best branches, and adopt the best one; return it.

    Each of the best branches is continued in `expand` ways, by default `width`. Scores are those of `best_of`; the mean
    log-probability is that of all steps together.
    """
    return blocking(_beam(Race(), s, step, width, depth, score, expand))


async def abeam(
    s: ProgramState, step: Step, width: int, depth: int, score: Score | None = None, expand: int | None = None
) -> ProgramState:
    """Search as `beam` does, in an event loop; `step` and `score` may be async."""
    return await _beam(AsyncRace(), s, step, width, depth, score, expand)


# The searches: coroutines that wait by their race only, which does so in a thread or in an event loop.


async def _best_of(race: Race, s: ProgramState, k: int, step: Step, score: Score | None) -> ProgramState:
    _check_count("k", k)
    rate = _score_of(score)
    with race:
        [best] = await _best(race, s, race.fork(s, k, rate is None), step, rate, 1)
        s.adopt(race.keep(best))
        return best


async def _first(
    race: Race, branches: list[ProgramState], until: Callable[[ProgramState], Any] | None
) -> ProgramState | None:
    if not branches or not all(isinstance(branch, ProgramState) for branch in branches):
        raise RequestError(f"first needs a group or list of branches, got {branches!r}", param="branches")
    if until is not None and not callable(until):
        raise RequestError(f"until must be a function of the branch, got {until!r}", param="until")
    with race:
        race.watch(branches)
        while (branch := await race.next_done()) is not None:
            with race.failing(branch):
                if until is None or await race.value(until(branch)):
                    return race.keep(branch)
        race.raise_if_all_failed()
        return None


async def _vote(race: Race, s: ProgramState, k: int, step: Step, key: Callable[[Any], Hashable] | None) -> Vote:
    _check_count("k", k)
    if key is not None and not callable(key):
        raise RequestError(f"key must be a function of the value, got {key!r}", param="key")
    name = _value_name(step)
    values: dict[Hashable, list[tuple[int, Any]]] = {}
    with race:
        branches = race.fork(s, k, False)
        race.start(branches, step)
        while (branch := await race.next_done()) is not None:
            with race.failing(branch):
                value = branch.ret_value if name is None else branch[name]
                values.setdefault(_key_of(value, key), []).append((branches.index(branch), value))
            leading = [*sorted((len(voters) for voters in values.values()), reverse=True), 0, 0]
            if leading[0] > leading[1] + race.num_left:
                break
        race.raise_if_all_failed()
        counts = {voted: len(voters) for voted, voters in values.items()}
        winner = min(values, key=lambda voted: (-counts[voted], min(values[voted], key=itemgetter(0))[0]))
        index, value = min(values[winner], key=itemgetter(0))
        s.adopt(race.keep(branches[index]))
        return Vote(value, counts, branches[index])


async def _beam(
    race: Race, s: ProgramState, step: Step, width: int, depth: int, score: Score | None, expand: int | None
) -> ProgramState:
    expand = width if expand is None else expand
    for name, count in (("width", width), ("depth", depth), ("expand", expand)):
        _check_count(name, count)
    rate = _score_of(score)
    beams: list[list[ProgramState]] = [[s]]  # the path of each, from `s`
    with race:
        for _ in range(depth):
            paths = {id(child): [*path, child] for path in beams for child in race.fork(path[-1], expand, rate is None)}
            children = [path[-1] for path in paths.values()]
            best = await _best(race, s, children, step, rate, width)
            beams = [paths[id(branch)] for branch in best]
            race.stop_all_but([branch for path in beams for branch in path])
        path = beams[0]
        for parent, child in reversed(list(itertools.pairwise(path))):
            parent.adopt(race.keep(child))
        return path[-1]


async def _best(
    race: Race, root: ProgramState, branches: list[ProgramState], step: Step, score: Score | None, size: int
) -> list[ProgramState]:
    """Run `step` on the branches; return those with the `size` highest scores, the best one first."""
    race.start(branches, step)
    scores: dict[int, float] = {}
    while (branch := await race.next_done()) is not None:
        with race.failing(branch):
            scores[branches.index(branch)] = await _scored(race, root, branch, score)
    race.raise_if_all_failed()
    return [branches[index] for index in sorted(scores, key=lambda index: (-scores[index], index))[:size]]


async def _scored(race: Race, root: ProgramState, branch: ProgramState, score: Score | None) -> float:
    match score:
        case None:
            return _mean_logprob(root, branch)
        case Predicate() | Rate():
            probe = branch.fork()[0]
            probe.decide(score=score)
            answer = await race.read(probe, "score")
            number = answer.probability if isinstance(score, Predicate) else answer.score
        case _:
            assert callable(score)
            number = await race.value(score(branch))
    if isinstance(number, bool) or not isinstance(number, int | float) or math.isnan(number):
        raise TypeError(f"a score must be a number, got {number!r}")
    return float(number)


def _mean_logprob(root: ProgramState, branch: ProgramState) -> float:
    """Return the mean log-probability of the tokens that `branch` has generated or chosen since `root`."""
    logprobs: list[float] = []
    for log, end in branch._handle.segments()[len(root._handle.segments()) :]:
        for index in log.visible(0, end):
            done = log.done[index]
            if done.choice is not None:
                logprobs += [token.logprob for token in done.choice.token_logprobs[done.choice.index]]
            for sequence in (done.sequences or ())[:1]:
                if sequence.logprobs is None:
                    raise RequestError("the backend gives no log-probabilities: give a score", param="score")
                logprobs += [token.logprob for token in sequence.logprobs]
    if not logprobs:
        raise RequestError("the branch has generated nothing to score: give a score", param="score")
    return sum(logprobs) / len(logprobs)


def _score_of(score: Any) -> Score | None:
    if isinstance(score, str):
        return predicate(score)
    if score is None or callable(score) or isinstance(score, Predicate | Rate):
        return score  # type: ignore[no-any-return]
    raise RequestError(f"score must be a function of the branch, a predicate or a rate, got {score!r}", param="score")


def _value_name(step: Step) -> str | None:
    """Return the variable that a vote counts. None: what a function returns. Raises RequestError without a name."""
    if not isinstance(step, Expr | str):
        return None
    names = [part.name for part in parts_of(step) if isinstance(part, GenExpr | SelectExpr) and part.name is not None]
    if not names:
        raise RequestError("a vote counts the values of a named gen or select, and there is none", param="step")
    return names[-1]


def _key_of(value: Any, key: Callable[[Any], Hashable] | None) -> Hashable:
    voted = value if key is None else key(value)
    try:
        hash(voted)
    except TypeError:
        return repr(voted)
    return voted


def _check_count(name: str, count: Any) -> None:
    if type(count) is not int or count < 1:
        raise RequestError(f"{name} must be a positive integer, got {count!r}", param=name)
