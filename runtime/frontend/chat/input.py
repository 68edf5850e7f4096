"""What a chat request asks, as a value: every dialect's body makes one, and `ChatService` answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...protocol.config import ToolCallReading
from ...protocol.core import RequestOptions
from ...protocol.sampling import Constraint, SamplingParams
from ..core.sessions import RetentionHint, SessionId
from ..text.encoding import Truncation
from .renderer import RenderOptions


@dataclass(frozen=True)
class ChatOptions:
    """Options that the chat bodies of all dialects have. Bodies derive their fields from these declarations.

    `exact_history` says whether the ids of earlier answers are used; None: by default, unless the request has a seed.
    `tool_calls` says which texts are calls; None: as the server is set.
    """

    exact_history: bool | None = None
    tool_calls: ToolCallReading | None = None


@dataclass(frozen=True, kw_only=True)
class CallableTools:
    """Tools that the model may call. `schemas` maps a tool's name to its arguments' constraint.

    `definitions` are all tools of the request, as the chat template gets them.
    """

    schemas: Mapping[str, Constraint]
    definitions: Sequence[dict[str, Any]] = ()
    forced: bool = False  # the answer must be a call
    strict: bool = False  # an unforced call must be constrained by its schema
    parallel: bool = True  # the answer may have several calls


@dataclass(frozen=True, kw_only=True)
class ChatInput:
    """Messages to answer, and how.

    `sampling` builds the parameters for a maximum number of tokens and a constraint; it raises RequestError. `options`
    go to the core as they are. Names of request fields are for errors: `prompt_field`, and those beside `constraint`
    and `limit`, the maximum number of tokens. Without a limit `default_limit` holds, or what fits. `name` is the
    client's id of the request.
    """

    messages: Sequence[Mapping[str, Any]] = ()
    prompt_field: str
    sampling: Callable[[int, Constraint | None], SamplingParams]
    has_seed: bool = False
    constraint: tuple[Constraint, str] | None = None
    limit: tuple[int | None, str]
    default_limit: int | None = None
    options: RequestOptions = field(default_factory=RequestOptions)
    chat: ChatOptions = ChatOptions()
    session: SessionId | None = None
    name: str | None = None
    retain: Sequence[RetentionHint] = ()  # how long to keep the prompt, or its beginnings
    truncation: Truncation | None = None
    tools: CallableTools | None = None  # None: no tool may be called
    splits_reasoning: bool = True
    thinking_budget: int | None = None  # maximum number of reasoning tokens
    rendering: RenderOptions = field(default_factory=RenderOptions)
