"""What one answer of a chat is to be, and the pieces in which it comes. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...protocol.sampling import Constraint, LogprobParams, SamplingParams, TokenLogprob
from .tools.formats import ToolFormat


@dataclass(frozen=True, kw_only=True)
class ToolCallOptions:
    """Which tools may be called, and how. `schemas` has what each tool's arguments must match."""

    format: ToolFormat
    schemas: Mapping[str, Constraint]
    forced: bool = False  # the answer is a call
    strict: bool = False  # a call that the model opens itself must be held to its schema
    exact: bool = False  # and is: the schemas can be compiled, and it shows when a call begins
    parallel: bool = True


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """`sampling` is for the whole answer: its limit, and the constraint of its text. The seed is set.

    `thinks`: the answer may begin with thinking; `thinking`: the prompt has begun it.
    """

    tokens: list[int]
    sampling: SamplingParams
    logprobs: LogprobParams | None = None
    priority: int = 0
    namespace: str = ""
    thinks: bool = False
    thinking: bool = False
    calling: ToolCallOptions | None = None
    in_bulk: bool = False  # nobody reads along

    @property
    def is_staged(self) -> bool:
        """Whether something in it must match exactly what the model's own words decide the place of."""
        if self.calling is not None and (self.calling.forced or self.calling.exact):
            return True
        apart = self.thinks or self.thinking or self.calling is not None
        return self.sampling.constraint is not None and apart


@dataclass(frozen=True)
class ToolCallDelta:
    """More of call `index`. Its first delta has the id and the name."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


@dataclass(slots=True)
class ChatDelta:
    content: str = ""
    reasoning: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
