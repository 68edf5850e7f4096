"""Programs over token ids, for benches: append, generate, fork, join and wait.

A program is a series of steps on numbered states; state 0 is there from the start. `play` walks one on any host: the
real runtime, or a scheduler without a model. The host chooses the tokens that a Gen returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

# Steps


@dataclass(frozen=True)
class Say:
    """The program appends tokens."""

    state: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Gen:
    """The model appends `num_tokens` tokens: a request whose prompt is all that the state holds."""

    state: int
    num_tokens: int


@dataclass(frozen=True)
class Think:
    """The program waits for something else: a tool, a user."""

    seconds: float


@dataclass(frozen=True)
class Fork:
    """New states that begin with what `state` holds."""

    state: int
    children: tuple[int, ...]


@dataclass(frozen=True)
class Join:
    """Append what each child has appended since its fork, in order."""

    state: int
    children: tuple[int, ...]


@dataclass(frozen=True)
class End:
    """These states ask for nothing more."""

    states: tuple[int, ...]


@dataclass(frozen=True)
class Together:
    """Series of steps at the same time; over when all of them are."""

    branches: tuple[Steps, ...]


Step = Say | Gen | Think | Fork | Join | End | Together
Steps = Sequence[Step]


@dataclass(frozen=True)
class Workload:
    """`concurrency` programs are alive at once, the next one starts when one is over."""

    name: str
    programs: list[Steps]
    concurrency: int


# Playing


class Host(Protocol):
    """Host of one program. Operations that take time call `then` when they are over, never before they return."""

    def say(self, state: int, tokens: Sequence[int]) -> None: ...

    def fork(self, state: int, children: Sequence[int]) -> None: ...

    def join(self, state: int, children: Sequence[int]) -> None: ...

    def end(self, states: Sequence[int]) -> None: ...

    def generate(self, state: int, num_tokens: int, then: Callable[[], None]) -> None: ...

    def think(self, seconds: float, then: Callable[[], None]) -> None: ...


def play(steps: Steps, host: Host, then: Callable[[], None]) -> None:
    """Begin to play `steps`; `then` is called after the last one."""
    remaining = iter(steps)

    def go_on() -> None:
        for step in remaining:
            match step:
                case Say(state, tokens):
                    host.say(state, tokens)
                case Fork(state, children):
                    host.fork(state, children)
                case Join(state, children):
                    host.join(state, children)
                case End(states):
                    host.end(states)
                case Gen(state, num_tokens):
                    return host.generate(state, num_tokens, go_on)
                case Think(seconds):
                    return host.think(seconds, go_on)
                case Together(branches):
                    return _play_together(branches, host, go_on)
        return then()

    go_on()


def _play_together(branches: Sequence[Steps], host: Host, then: Callable[[], None]) -> None:
    num_playing = len(branches)

    def one_is_over() -> None:
        nonlocal num_playing
        num_playing -= 1
        if num_playing == 0:
            then()

    for branch in branches:
        play(branch, host, one_is_over)


def play_all(workload: Workload, open_host: Callable[[int], Host]) -> None:
    """Begin to play all programs, `workload.concurrency` at a time; `open_host` is given each one's number."""
    waiting = iter(enumerate(workload.programs))

    def start_next() -> None:
        for number, steps in waiting:
            play(steps, open_host(number), start_next)
            return

    for _ in range(workload.concurrency):
        start_next()


class States:
    """Token ids of a program's states; base class of hosts."""

    def __init__(self, start: Sequence[int] = ()) -> None:
        self.ids: dict[int, list[int]] = {0: list(start)}
        self._num_inherited = {0: 0}

    def say(self, state: int, tokens: Sequence[int]) -> None:
        self.ids[state] += tokens

    def fork(self, state: int, children: Sequence[int]) -> None:
        for child in children:
            self.ids[child] = self.ids[state].copy()
            self._num_inherited[child] = len(self.ids[state])

    def join(self, state: int, children: Sequence[int]) -> None:
        for child in children:
            self.ids[state] += self.ids[child][self._num_inherited[child] :]

    def end(self, states: Sequence[int]) -> None:
        for state in states:
            del self.ids[state]


# Results


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

    @property
    def ttft(self) -> float:
        assert self.first_token is not None
        return self.first_token - self.submitted


Event = tuple[Literal["starts", "ends"], Asked]  # a request gets its place among the running ones, or is over


@dataclass(frozen=True)
class Run:
    """The requests in the order in which they were submitted."""

    requests: list[Asked]
    seconds: float

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt) for request in self.requests)

    @property
    def num_output_tokens(self) -> int:
        return sum(len(request.output) for request in self.requests)

    @property
    def num_hits(self) -> int:
        return sum(request.num_cached for request in self.requests)
