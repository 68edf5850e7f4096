"""Programs over token ids, for benches: append, generate, fork, join and wait; and what their requests got.

A program is a series of steps on numbered states; state 0 is there from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple


class Say(NamedTuple):
    """The program appends tokens."""

    state: int
    tokens: tuple[int, ...]


class Gen(NamedTuple):
    """The model appends `num_tokens` tokens: a request whose prompt is all that the state holds."""

    state: int
    num_tokens: int


class Think(NamedTuple):
    """The program waits for something else: a tool, a user."""

    seconds: float


class Fork(NamedTuple):
    """New states that begin with what `state` holds."""

    state: int
    children: tuple[int, ...]


class Join(NamedTuple):
    """Append what each child has appended since its fork, in order."""

    state: int
    children: tuple[int, ...]


class End(NamedTuple):
    """These states ask for nothing more."""

    states: tuple[int, ...]


class Together(NamedTuple):
    """Series of steps at the same time; over when all of them are."""

    branches: tuple[Sequence[Step], ...]


Step = Say | Gen | Think | Fork | Join | End | Together
Steps = Sequence[Step]


@dataclass(frozen=True)
class Workload:
    """`concurrency` programs are alive at once, the next one starts when one is over."""

    name: str
    programs: list[Steps]
    concurrency: int


@dataclass(eq=False)
class Asked:
    """A request: what it asked, and what it got. Times are in seconds since the run's start."""

    prompt: Sequence[int]
    submitted: float
    output: list[int] = field(default_factory=list)
    first_token: float | None = None
    num_cached: int = 0  # prompt tokens whose KV was reused

    @property
    def computed(self) -> list[int]:
        """The tokens whose KV it needs or makes: the last one of the output is nobody's input."""
        return [*self.prompt, *self.output[:-1]]

    @property
    def num_hittable(self) -> int:
        """All but the last token of the prompt: that one is computed in any case, for its logits."""
        return len(self.prompt) - 1


Event = tuple[Literal["starts", "ends"], Asked]  # a request gets its place among the running ones, or is over


@dataclass(frozen=True)
class Run:
    """The requests in the order in which they were submitted."""

    requests: list[Asked]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt) for request in self.requests)

    @property
    def num_hits(self) -> int:
        return sum(request.num_cached for request in self.requests)
