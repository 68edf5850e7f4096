"""Values of rollouts: tokens with what is known of each, trajectories, and the tree that the trajectories of an example
make. Knows nothing of programs.

Of given tokens nothing is known but their ids. A tree is one of token ids: given tokens are shared where they are
equal, generated ones where they are the same draw.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Origin = Literal["given", "forced", "sampled"]
Draw = tuple[int, int, int]  # which draw a token is: number of the run, of the state, of the operation
Advantage = Literal["group", "branch"]


@dataclass(frozen=True, slots=True)
class TokenPath:
    """Token ids with a column of each fact, all of one length; None where a token was given.

    "forced": a grammar allowed no other text. `logprobs` are the model's own, at temperature 1 before penalties and
    masks; `drawn_logprobs` those of the distribution that was drawn from. `versions` name the weights that sampled.
    `experts` are those of given tokens too, by layer, if they were asked for. The last token has none: it was never
    computed.
    """

    ids: list[int]
    origins: list[Origin]
    logprobs: list[float | None]
    drawn_logprobs: list[float | None]
    versions: list[str | None]
    draws: list[Draw | None]
    experts: list[list[list[int]] | None]

    @classmethod
    def given(cls, ids: Sequence[int]) -> TokenPath:
        """Return tokens that nothing generated."""
        n = len(ids)
        return cls([*ids], ["given"] * n, [None] * n, [None] * n, [None] * n, [None] * n, [None] * n)

    def append_given(self, token: int) -> None:
        """Append a token that nothing generated."""
        self.ids.append(token)
        self.origins.append("given")
        for column in (self.logprobs, self.drawn_logprobs, self.versions, self.draws, self.experts):
            column.append(None)

    @property
    def mask(self) -> list[bool]:
        """Return which tokens the model chose: those of a loss."""
        return [origin == "sampled" for origin in self.origins]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> TokenPath:
        return TokenPath(*(getattr(self, name)[part] for name in self.__slots__))

    def key(self, place: int) -> tuple[int, Draw | None]:
        """Return what tells a token of a tree from others at its place."""
        return self.ids[place], self.draws[place]


@dataclass(frozen=True, slots=True)
class GeneratedSpan:
    """A `gen` of a trajectory: its tokens [start, end), a stop token included, and why it ended."""

    name: str | None
    start: int
    end: int
    finish: Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A call that the program made after generation number `generation`, and the text that was appended for it."""

    generation: int
    name: str | None
    arguments: dict[str, Any] | None
    text: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """All tokens from the beginning to the end of one branch of a run, with its reward."""

    run: int
    tokens: TokenPath
    generations: tuple[GeneratedSpan, ...]
    tools: tuple[ToolResult, ...]
    reward: float

    @property
    def is_truncated(self) -> bool:
        """Return whether a generation ended at max_tokens, or was aborted."""
        return any(one.finish != "stop" for one in self.generations)

    @property
    def prompt_length(self) -> int:
        """Return the number of tokens before the first generated one."""
        return next((place for place, one in enumerate(self.tokens.origins) if one != "given"), len(self.tokens))


@dataclass(eq=False)
class Node:
    """Tokens [start, end) that the trajectories with numbers `leaves` share, and the branches that follow.

    `reward` is the mean of the leaves': what the node's tokens were worth.
    """

    number: int
    tokens: TokenPath
    start: int
    leaves: tuple[int, ...]
    reward: float
    parent: Node | None = field(default=None, repr=False)
    children: list[Node] = field(default_factory=list, repr=False)

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def path(self) -> list[Node]:
        """Return the nodes from the root to this one."""
        nodes, node = [self], self
        while node.parent is not None:
            node = node.parent
            nodes.append(node)
        return nodes[::-1]

    def below(self) -> Iterator[Node]:
        """Yield this node and all below it, parents first."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(node.children)


def tree_of(trajectories: Sequence[Trajectory]) -> Node:
    """Return the root of the tree of an example's trajectories, of which there is at least one."""
    numbers = range(len(trajectories))

    def node(own: Sequence[int], start: int, parent: Node | None) -> Node:
        first = trajectories[own[0]].tokens
        end = start + _num_shared([trajectories[number].tokens for number in own], start)
        reward = math.fsum(trajectories[number].reward for number in own) / len(own)
        return Node(next(counted), first[start:end], start, tuple(own), reward, parent)

    counted = itertools.count()
    root = node(numbers, 0, None)
    waiting = [root]
    while waiting:
        parent = waiting.pop()
        branches: dict[Any, list[int]] = {}
        for number in parent.leaves:
            tokens = trajectories[number].tokens
            if len(tokens) > parent.end:
                branches.setdefault(tokens.key(parent.end), []).append(number)
        parent.children = [node(own, parent.end, parent) for own in branches.values()]
        waiting += parent.children[::-1]
    return root


def _num_shared(paths: Sequence[TokenPath], start: int) -> int:
    """Return the number of tokens from `start` on that all paths have."""
    first, shortest = paths[0], min(map(len, paths))
    place = start
    while place < shortest and all(path.key(place) == first.key(place) for path in paths):
        place += 1
    return place - start


def node_advantages(
    root: Node, rewards: Sequence[float], kind: Advantage = "group", *, scaled: bool = True
) -> dict[int, float]:
    """Return the advantage of each node's tokens, by the node's number; `rewards` are those of the trajectories.

    "group": the node's reward less the mean of all leaves; of a tree without forks GRPO's. "branch": less the reward of
    its parent, so that a token's advantage tells what its own branch added. `scaled`: divided by the standard deviation
    of `rewards`. All are 0 where these are equal.
    """
    spread = _deviation(rewards)
    divisor = spread if scaled else 1.0
    found = {}
    for node in root.below():
        base = root if node.parent is None or kind == "group" else node.parent
        found[node.number] = (node.reward - base.reward) / divisor if spread else 0.0
    return found


def _deviation(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return deviation if deviation > 1e-9 else 0.0
