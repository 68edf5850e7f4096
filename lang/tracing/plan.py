"""Plans of program calls: the states and operations of a call, known before it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import msgspec

from ...runtime.programs.records.events import StepKind
from ...runtime.programs.records.steps import described
from ...runtime.protocol import session
from ..expressions.symbols import shown
from ..operations.operation_log import OperationLog, StateTie

_GENERATIONS = ("gen", "select", "decide")


@dataclass(frozen=True)
class PlannedStep:
    """One operation of a planned state.

    `name` is the variable that it makes; `states` are the numbers of the states that it forks or joins.
    """

    kind: StepKind
    label: str
    place: str  # file:line
    operation: session.Operation | None = None  # None where nothing is sent: variables gathered, a program called
    name: str | None = None
    states: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlannedState:
    """A state of a planned call."""

    number: int
    parent: int | None
    steps: tuple[PlannedStep, ...]


@dataclass(frozen=True)
class Plan:
    """The operations of a program's call that are known before it runs; `is_whole` if these are all.

    `print(plan)` shows a tree. `{name}` stands for an argument that the text contains and does not otherwise depend on.
    `run` and `run_batch` are the program's: they record anew, so arguments may differ from the example's.
    """

    title: str
    states: tuple[PlannedState, ...]  # the program's own first
    stops_at: str | None  # file:line where the program needs a value that it does not have; the rest is not known
    run: Callable[..., Any]  # returns a ProgramState
    run_batch: Callable[..., Any]
    argument_needed: str | None = None  # the one that the program looks into at `stops_at`; None: a generated value

    @property
    def is_whole(self) -> bool:
        """Return whether the plan goes to the program's end."""
        return self.stops_at is None

    @property
    def num_generations(self) -> int:
        """Return the number of gens, selects and decides in all states."""
        return sum(step.kind in _GENERATIONS for step in self.steps())

    @property
    def width(self) -> int:
        """Return the largest number of branches that may run at once."""
        return self._width(0)

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the names of the variables that operations make."""
        return tuple(dict.fromkeys(step.name for step in self.steps() if step.name is not None))

    @property
    def static_prefix(self) -> tuple[session.Operation, ...]:
        """Return the operations that every call begins with, up to the first text that depends on an argument."""
        operations: list[session.Operation] = []
        for step in self.states[0].steps:
            match step.operation:
                case session.Text(text=text):
                    operations.append(session.Text(static := text.partition("\ue000")[0]))
                    if static != text:
                        break
                case session.RoleBegin() | session.RoleEnd():
                    operations.append(step.operation)
                case _:
                    break
        return tuple(operations)

    def steps(self) -> Iterator[PlannedStep]:
        """Yield the steps of all states."""
        for state in self.states:
            yield from state.steps

    def __str__(self) -> str:
        counts = f"{len(self.states)} states, {self.num_generations} generations, width {self.width}"
        lines = [f"{self.title}: {counts}", *self._tree(0, "")]
        if self.stops_at is not None:
            needed = self.argument_needed
            why = "what is generated" if needed is None else f"the argument {needed!r}, which the program looks into"
            lines.append(f"... and on from {why}, at {self.stops_at}")
        return "\n".join(lines)

    def print_graph(self) -> None:
        """Print the tree."""
        print(self)

    def to_mermaid(self) -> str:
        """Return a Mermaid flowchart: a node for each step, an edge to the next step and to forks and joins."""
        lines = ["flowchart TD"]
        last: dict[int, str | None] = {0: None}  # last node of each state
        after: dict[int, list[str]] = {}  # nodes of the joins that wait for a state
        for state in self.states:
            for index, step in enumerate(state.steps):
                node = f"s{state.number}_{index}"
                label = step.label.replace('"', "'").replace("\n", "\\n")
                lines.append(f'    {node}["{label}"]')
                if (previous := last.get(state.number)) is not None:
                    lines.append(f"    {previous} --> {node}")
                last[state.number] = node
                if step.kind in ("fork", "call"):
                    last.update(dict.fromkeys(step.states, node))
                elif step.kind in ("join", "gather"):
                    for child in step.states:
                        after.setdefault(child, []).append(node)
        for child, nodes in after.items():
            lines += [f"    {last[child]} -.-> {node}" for node in nodes if last.get(child) is not None]
        return "\n".join(lines)

    def _width(self, number: int) -> int:
        """Return the width of a state and its branches, which count until they are joined."""
        live: dict[int, int] = {}
        widest = 1
        for step in self.states[number].steps:
            if step.kind == "fork":
                live.update((child, self._width(child)) for child in step.states)
                widest = max(widest, sum(live.values()))
            elif step.kind == "call":  # the caller waits for its end
                widest = max(widest, sum(live.values()) + sum(map(self._width, step.states)))
            elif step.kind in ("join", "gather"):
                for child in step.states:
                    live.pop(child, None)
        return widest

    def _tree(self, number: int, indent: str) -> Iterator[str]:
        """Yield a line for each line of the program; the branches of a fork follow it, indented."""
        lines = [list(group) for _, group in groupby(self.states[number].steps, key=_line)]
        for index, steps in enumerate(lines):
            is_last = index == len(lines) - 1
            step = steps[-1]
            where = step.place.rpartition("/")[2]
            labels = " · ".join(step.label for step in steps)
            yield f"{indent}{'└─' if is_last else '├─'} {labels}   ({where})"
            if step.kind in ("fork", "call"):
                below = indent + ("   " if is_last else "│  ")
                if step.kind == "call":
                    yield from self._tree(step.states[0], below)
                    continue
                for branch, child in enumerate(step.states):
                    yield f"{below}{'└─' if child == step.states[-1] else '├─'} branch {branch}"
                    yield from self._tree(child, below + ("   " if child == step.states[-1] else "│  "))


def states_of(recorded: Sequence[tuple[int, OperationLog]]) -> tuple[PlannedState, ...]:
    """Return the planned states of recorded logs, numbered from 0 in the order in which the states began."""
    index = {number: position for position, (number, _) in enumerate(recorded)}
    parents: dict[int, int] = {}
    planned = []
    for position, (_, log) in enumerate(recorded):
        steps: list[PlannedStep] = []
        ties = list(log.ties)
        for op, operation in enumerate(log.operations):
            steps += _tied(ties, op, index)
            step = _step(operation, log.locations[op], log.names.get(op), index)
            if isinstance(operation, session.Rollback):
                step = replace(step, label=f"rollback to {log.locations[operation.mark].rpartition('/')[2]}")
            if (label := log.labels.get(op)) is not None:
                step = replace(step, label=label())
            steps.append(step)
        steps += _tied(ties, len(log.operations), index)
        for step in steps:
            if step.kind in ("fork", "call"):
                parents.update(dict.fromkeys(step.states, position))
        planned.append((position, steps))
    return tuple(PlannedState(position, parents.get(position), tuple(steps)) for position, steps in planned)


def substituted(operation: session.Operation, rewrite: Callable[[str], str]) -> Any:
    """Return the operation as builtins, its texts rewritten."""

    def walk(part: Any) -> Any:
        match part:
            case str():
                return rewrite(part)
            case dict():
                return {walk(key): walk(value) for key, value in part.items()}
            case list() | tuple():
                return [walk(value) for value in part]
        return part

    return walk(msgspec.to_builtins(operation))


def _line(step: PlannedStep) -> tuple[str, StepKind | None, tuple[int, ...]]:
    return step.place, step.kind if step.states else None, step.states  # forks and joins stand on lines of their own


def _tied(ties: list[StateTie], op: int, index: dict[int, int]) -> list[PlannedStep]:
    """Take the ties before operation `op` from `ties`; return their steps."""
    steps = []
    while ties and ties[0].before <= op:
        _, numbers, place, called = ties.pop(0)
        states = tuple(index[number] for number in numbers if number in index)
        if called is None:
            steps.append(PlannedStep("gather", f"join x{len(numbers)}", place, states=states))
        else:
            steps.append(PlannedStep("call", called, place, states=states))
    return steps


def _step(operation: session.Operation, place: str, name: str | None, index: dict[int, int]) -> PlannedStep:
    kind, label = described(operation, name, shown)
    match operation:
        case session.Fork(children=children) | session.Concatenate(children=children):
            return PlannedStep(kind, label, place, operation, states=tuple(index[child] for child in children))
        case session.Gen() | session.Select() | session.Decide():
            return PlannedStep(kind, label, place, operation, name)
        case _:
            return PlannedStep(kind, label, place, operation)
