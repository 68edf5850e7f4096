"""What came of playing a workload: its requests, with their tokens and times. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


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
