"""`rollouts`: runs a program on the examples of a dataset, several times each, and keeps what a trainer needs."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import secrets
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, overload

from msgspec.structs import replace

from ...runtime.protocol.errors import RequestError, did_you_mean
from ..backends.backend import Backend, Channel, channel_of
from ..evaluation.dataset import Dataset, Example, example_of, inputs_of, read_dataset
from ..expressions.attempts import derived_seed
from ..expressions.expr import RUN_ARGUMENTS
from ..running import runner
from ..running.batch import iterating, progress_on_stderr
from ..running.planning import blocking
from ..running.program import Program
from ..states.state import ProgramState
from .exports import rows_of, trl_columns, write_parquet
from .in_flight import GroupsInFlight
from .reading import branches_of, refuses_all
from .trajectory import Advantage, Node, Trajectory, node_advantages, tree_of

Reward = Callable[[Example, ProgramState], float | Awaitable[float]]
OPTIONS = ("timeout", "max_total_tokens")  # of `run`, beside sampling arguments
_ROUTED = "return_routed_experts"


@dataclass(frozen=True)
class FailedRun:
    """A run, or a state of one, that ended in an error and gave no trajectory."""

    run: int
    error: Exception


@dataclass(frozen=True)
class RolloutGroup:
    """The trajectories of one example, and the tree that they make.

    `prompt_tokens` are those of all requests; `cached_tokens` of these were not computed, as a prefix was there.
    """

    example: dict[str, Any]
    trajectories: tuple[Trajectory, ...]
    failed: tuple[FailedRun, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @cached_property
    def root(self) -> Node:
        """Return the tree's root. Raises RequestError for a group without trajectories."""
        if not self.trajectories:
            raise RequestError("no run of this example gave a trajectory: see `failed`", param="group")
        return tree_of(self.trajectories)

    def advantages(self, kind: Advantage = "group", *, scaled: bool = True) -> dict[int, float]:
        """Return the advantage of each node of the tree, as `node_advantages` does."""
        return node_advantages(self.root, [one.reward for one in self.trajectories], kind, scaled=scaled)


@dataclass(frozen=True)
class Rollouts(Sequence[RolloutGroup]):
    """Groups of trajectories, one for each example in order."""

    groups: list[RolloutGroup]
    seconds: float = field(default=0.0, compare=False)

    @overload
    def __getitem__(self, index: int) -> RolloutGroup: ...

    @overload
    def __getitem__(self, index: slice) -> list[RolloutGroup]: ...

    def __getitem__(self, index: int | slice) -> RolloutGroup | list[RolloutGroup]:
        return self.groups[index]

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[RolloutGroup]:
        return iter(self.groups)

    @property
    def mean_reward(self) -> float:
        """Return the mean reward of all trajectories; 0 without any."""
        rewards = [one.reward for group in self.groups for one in group.trajectories]
        return sum(rewards) / len(rewards) if rewards else 0.0

    def rows(self, advantage: Advantage = "group", *, scaled: bool = True) -> list[dict[str, Any]]:
        """Return a row for each trajectory, of numbers, texts and lists of them; see docs/use/training.md."""
        found = []
        for number, group in enumerate(self.groups):
            if group.trajectories:
                advantages = group.advantages(advantage, scaled=scaled)
                found += rows_of(number, group.trajectories, group.root, advantages)
        return found

    def to_parquet(self, path: str | os.PathLike[str], advantage: Advantage = "group", *, scaled: bool = True) -> None:
        """Write the rows to a Parquet file. Needs `pyarrow`."""
        write_parquet(self.rows(advantage, scaled=scaled), path)

    def for_trl(self) -> dict[str, list[Any]]:
        """Return what TRL's `rollout_func` returns: columns with an entry for each trajectory, group after group."""
        return trl_columns([one for group in self.groups for one in group.trajectories])


async def arollouts(
    program: Program,
    dataset: Dataset,
    reward: Reward | None = None,
    *,
    leaf_reward: Reward | None = None,
    group: int = 8,
    concurrency: int = 64,
    backend: Backend | None = None,
    **options: Any,
) -> Rollouts:
    """Run `program` `group` times on every example; return the trajectories with their rewards.

    `dataset` and the program's arguments are those of `evaluate`. `reward(example, state)`, sync or async, gives the
    number that all branches of a run have; `leaf_reward(example, state)` in its place is called for each branch, with
    the branch's state. One of both is needed. At most `concurrency` runs are in flight. `options` are arguments of
    `run`: sampling arguments, budgets, and arguments of the function that are the same for all examples. Runs draw by
    seeds of their own, derived from `seed`. `return_routed_experts=True` records the experts of all tokens; the runtime
    has to be started with --enable-return-routed-experts.

    What the runs of an example have in common is computed once; the group counts it. A run that raises is one of its
    group's `failed`. Raises RequestError before anything runs for a dataset without examples, an example without a
    required argument and unknown options; later for a reward that is no number, a gen of several samples, and a backend
    that holds texts. `arollouts` is awaited in an event loop; `rollouts` blocks.
    """
    plan = _Plan.checked(program, reward, leaf_reward, group, concurrency, options)
    cases = plan.cases(dataset)
    began = time.perf_counter()
    with progress_on_stderr("runs", len(cases) * group, sys.stderr.isatty()) as advance:
        found = plan.batches(iter(cases), len(cases), 0, backend, advance)
        async with contextlib.aclosing(found):
            groups = [one async for batch in found for one in batch]
    return Rollouts(groups, time.perf_counter() - began)


rollouts = blocking(arollouts)


def arollout_batches(
    program: Program,
    dataset: Dataset,
    reward: Reward | None = None,
    *,
    leaf_reward: Reward | None = None,
    group: int = 8,
    batch: int = 8,
    max_staleness: int = 1,
    concurrency: int = 64,
    backend: Backend | None = None,
    **options: Any,
) -> AsyncIterator[Rollouts]:
    """Run `program` as `rollouts` does; yield batches of `batch` groups as they end, while further runs go on.

    A trainer changes the weights once for each batch, before it asks for the next. `max_staleness` bounds how many of
    its changes a token may lack when its group is handed over: 0 starts the runs of a batch when it is asked for, 1
    lets those of the next one run meanwhile. For that no more groups start than the batches up to there have room for,
    and a batch waits for a group that would be too old for the next. A run in which the weights change goes on as the
    update's `mode` says; its tokens name the version of each.

    `dataset` may be an iterator without an end: an example is taken from it when its runs start. The last batch may be
    smaller. Breaking off the iteration cancels the runs. `arollout_batches` is iterated in an event loop, which must
    not be blocked by the trainer's step; `rollout_batches` runs the programs in a thread.
    """
    plan = _Plan.checked(program, reward, leaf_reward, group, concurrency, options)
    for name, value, least in (("batch", batch, 1), ("max_staleness", max_staleness, 0)):
        if not isinstance(value, int) or value < least:
            raise RequestError(f"{name} must be an integer of at least {least}, got {value!r}", param=name)
    cases = plan.endless_cases(dataset) if isinstance(dataset, Iterator) else iter(plan.cases(dataset))

    async def iterate() -> AsyncIterator[Rollouts]:
        began = time.perf_counter()
        async with contextlib.aclosing(plan.batches(cases, batch, max_staleness, backend)) as found:
            async for groups in found:
                yield Rollouts(groups, time.perf_counter() - began)
                began = time.perf_counter()

    return iterate()


rollout_batches = iterating(arollout_batches)


@dataclass(frozen=True)
class _Plan:
    """The arguments of rollouts, checked."""

    program: Program
    reward: Reward
    is_of_leaves: bool
    group: int
    concurrency: int
    routed_experts: bool
    options: dict[str, Any]
    seed: int

    @classmethod
    def checked(
        cls,
        program: Program,
        reward: Reward | None,
        leaf_reward: Reward | None,
        group: int,
        concurrency: int,
        options: dict[str, Any],
    ) -> _Plan:
        """Raises RequestError for what is no program, unknown options, and wrong values."""
        if not isinstance(program, Program):
            raise RequestError(f"program must be made by @ramiform.function, got {program!r}", param="program")
        allowed = {*RUN_ARGUMENTS, *OPTIONS, _ROUTED, *program.parameters}
        if (unknown := next((name for name in options if name not in allowed), None)) is not None:
            raise RequestError(f"rollouts has no option {unknown!r}{did_you_mean(unknown, allowed)}", param=unknown)
        if options.get("n") not in (None, 1):
            raise RequestError("a rollout has one sample of each gen: give group, or fork in the program", param="n")
        for name, value in (("group", group), ("concurrency", concurrency)):
            if not isinstance(value, int) or value < 1:
                raise RequestError(f"{name} must be a positive integer, got {value!r}", param=name)
        routed_experts = options.pop(_ROUTED, False)
        if not isinstance(routed_experts, bool):
            raise RequestError(f"{_ROUTED} must be true or false, got {routed_experts!r}", param=_ROUTED)
        seed = options.pop("seed", None)
        base = secrets.randbits(62) if seed is None else seed
        reward, is_of_leaves = _checked_reward(reward, leaf_reward)
        return cls(program, reward, is_of_leaves, group, concurrency, routed_experts, options, base)

    def cases(self, dataset: Dataset) -> list[_Case]:
        """Return the examples with what they give the program. Raises RequestError for none, and for wrong ones."""
        if not (examples := read_dataset(dataset)):
            raise RequestError("dataset has no examples", param="dataset")
        return [self._case(one, index) for index, one in enumerate(examples)]

    def endless_cases(self, examples: Iterator[Example]) -> Iterator[_Case]:
        """Yield as `cases`, each when it is asked for."""
        for index, one in enumerate(examples):
            yield self._case(example_of(one, f"dataset[{index}]"), index)

    def _case(self, example: dict[str, Any], index: int) -> _Case:
        required = [name for name in self.program.required if name not in self.options]
        return _Case(example, inputs_of(example, self.program.parameters, required, index))

    async def batches(
        self,
        cases: Iterator[_Case],
        batch: int,
        max_staleness: int,
        backend: Backend | None,
        advance: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[list[RolloutGroup]]:
        """Run the program and yield batches of groups; `advance` is called after each run."""
        channel = await asyncio.to_thread(channel_of, backend)
        with ThreadPoolExecutor(min(self.concurrency, 64), thread_name_prefix="ramiform-reward") as threads:

            async def run_once(number: int, case: _Case, run: int) -> RunOutcome:
                own_seed = derived_seed(derived_seed(self.seed, number), run)
                arguments = {**case.inputs, **self.options, "seed": own_seed}
                scorer = _Scorer(case.example, self.reward, self.is_of_leaves, threads)
                recorded = {"details_of_draws": True, "routed_experts": self.routed_experts}
                outcome = await _run(self.program, arguments, channel, run, scorer, recorded)
                advance()
                return outcome

            in_flight = GroupsInFlight(
                cases,
                run_once,
                group=self.group,
                batch=batch,
                max_staleness=max_staleness,
                concurrency=self.concurrency,
            )
            async with contextlib.aclosing(in_flight.batches()) as found:
                async for groups in found:
                    yield [_group(case.example, outcomes) for case, outcomes in groups]


class _Case(NamedTuple):
    example: dict[str, Any]
    inputs: dict[str, Any]  # the arguments that it gives the program


@dataclass(frozen=True)
class RunOutcome:
    trajectories: list[Trajectory]
    failed: list[FailedRun]
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class _Scorer:
    """Calls the reward function in a thread."""

    example: dict[str, Any]
    function: Reward
    is_of_leaves: bool
    threads: ThreadPoolExecutor

    async def score(self, state: ProgramState) -> float:
        """Return the reward. Raises RequestError for what is no number."""
        value = await asyncio.get_running_loop().run_in_executor(self.threads, self.function, self.example, state)
        if inspect.isawaitable(value):
            value = await value
        if not isinstance(value, bool | int | float) or value != value:
            param = "leaf_reward" if self.is_of_leaves else "reward"
            raise RequestError(f"{param} must return a number, got {value!r}", param=param)
        return float(value)


async def _run(
    program: Program,
    arguments: dict[str, Any],
    channel: Channel,
    run: int,
    scorer: _Scorer,
    recorded: dict[str, bool],
) -> RunOutcome:
    """Run the program once, and read and score its branches. An exception of the program is the run's failure.
    `recorded` are defaults that say what is kept of each token."""
    call = program._call((), arguments, False)
    call = replace(call, defaults={**call.defaults, **recorded}, keeps_states=True)
    try:
        state = await runner.run_async(channel, call)
    except Exception as error:
        if refuses_all(error):
            raise
        return RunOutcome([], [FailedRun(run, error)])
    states: list[ProgramState] = state._handle.execution.kept_states or []
    branches, errors = await branches_of(states, run)
    failed = [FailedRun(run, error) for error in errors]
    rewards = [await scorer.score(branch.state) for branch in branches] if scorer.is_of_leaves else []
    if not scorer.is_of_leaves and branches:
        rewards = [await scorer.score(state)] * len(branches)
    trajectories = [
        Trajectory(run, branch.tokens, branch.generations, branch.tools, reward)
        for branch, reward in zip(branches, rewards, strict=True)
    ]
    answers = [done for one in states for done in one._log.done if done.sequences]
    counts = [(part.prompt_tokens, part.cached_tokens) for done in answers for part in done.sequences or ()]
    states.clear()  # they refer to the run, and it to them
    return RunOutcome(trajectories, failed, sum(prompt for prompt, _ in counts), sum(cached for _, cached in counts))


def _group(example: dict[str, Any], runs: Sequence[RunOutcome]) -> RolloutGroup:
    return RolloutGroup(
        example,
        tuple(one for run in runs for one in run.trajectories),
        tuple(one for run in runs for one in run.failed),
        sum(run.prompt_tokens for run in runs),
        sum(run.cached_tokens for run in runs),
    )


def _checked_reward(reward: Reward | None, leaf_reward: Reward | None) -> tuple[Reward, bool]:
    """Return the function that scores, and whether it does so for each branch."""
    if (reward is None) == (leaf_reward is None):
        raise RequestError("give either reward, of a whole run, or leaf_reward, of each branch", param="reward")
    param, given = ("reward", reward) if leaf_reward is None else ("leaf_reward", leaf_reward)
    if given is None or not callable(given):
        raise RequestError(f"{param} must be a function of the example and the state, got {given!r}", param=param)
    return given, leaf_reward is not None
