"""A chat request as a value, and the deltas of its answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...protocol.sampling import TokenLogprob
from ..text.generation import Prompt
from .exact_history import EncodedPrompt
from .harmony import Place
from .input import CallableTools
from .reasoning import ReasoningMarkers
from .tools.formats import ToolFormat


@dataclass(frozen=True, kw_only=True)
class ToolCallOptions(CallableTools):
    """The offered tools, in the format in which the model calls them."""

    format: ToolFormat
    reads_bare: bool = True  # an answer may be a call without the format's markers
    constrained: bool = False  # an unforced call is constrained: its schemas compile and its format has a marker


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """Everything that its answers depend on.

    `prompt.sampling` holds for the whole answer: its limit, a seed, and the constraint of its text.
    """

    prompt: Prompt
    constraint_field: str | None = None  # the request field of the constraint, for errors
    reasoning: ReasoningMarkers | None = None
    may_reason: bool = False  # the answer may begin with reasoning
    in_reasoning: bool = False  # the prompt has begun the reasoning
    thinking_budget: int | None = None  # maximum number of reasoning tokens; then the reasoning is closed
    tools: ToolCallOptions | None = None
    place: Place | None = None  # where an answer in harmony begins; None: the format has no channels
    conversation: EncodedPrompt | None = None  # to be remembered with its answer; None: history is not exact

    @property
    def num_remembered(self) -> int:
        """Return the number of prompt tokens that are generated ids of earlier answers."""
        conversation = self.conversation
        return 0 if conversation is None else conversation.num_remembered

    @property
    def has_parts(self) -> bool:
        """Return True if the answer may have more than text."""
        return self.splits_reasoning or self.tools is not None or self.place is not None

    @property
    def splits_reasoning(self) -> bool:
        """Return True if the answer may contain reasoning."""
        return self.reasoning is not None and (self.may_reason or self.in_reasoning)

    @property
    def is_staged(self) -> bool:
        """Return True if the answer runs in stages: a constrained part follows free text, a call is forced, or the
        reasoning has a limit.
        """
        if self.tools is not None and (self.tools.forced or self.tools.constrained):
            return True
        if self.splits_reasoning and self.thinking_budget is not None:
            return True
        return self.prompt.sampling.constraint is not None and self.has_parts


@dataclass(frozen=True)
class ToolCallDelta:
    """Part of call `index`. The first delta has the id and the name."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


@dataclass(slots=True)
class ChatDelta:
    """Next part of an answer: its text, its reasoning and its calls."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
