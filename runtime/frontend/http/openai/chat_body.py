"""Body of `/v1/chat/completions`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ....protocol.core import ModelInfo
from ....protocol.errors import RequestError
from ....protocol.sampling import LogprobParams
from ..bodies import Many, example
from .chat_messages import Messages, message_text
from .fields import GenerationFields
from .tool_fields import Tool, ToolChoice

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class ChatBody(GenerationFields):
    model_config = example(
        {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 16}
    )
    messages: Messages
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    tools: Many[Tool] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: Effort | None = None
    separate_reasoning: bool = True
    include_reasoning: bool = True
    verbosity: Literal["low", "medium", "high"] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    echo: bool = False
    return_token_ids: bool = False

    def check(self, info: ModelInfo) -> None:
        super().check(info)
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise RequestError(
                "max_tokens and max_completion_tokens are two names of one limit", param="max_completion_tokens"
            )
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise RequestError("tool_choice needs tools", param="tool_choice")

    @property
    def limit(self) -> tuple[int | None, str]:
        """Maximum number of tokens, and the field that sets it."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"

    def echoed_text(self) -> str:
        """Return the text that `echo` puts before the answer: the last message's, if it is the assistant's."""
        last = self.messages[-1]
        return message_text(last.content, "messages") if self.echo and last.role == "assistant" else ""

    def template_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            options["reasoning_effort"] = self.reasoning_effort
            if self.reasoning_effort == "none":
                options["enable_thinking"] = False
        if self.verbosity is not None:
            options["verbosity"] = self.verbosity
        return options | self.chat_template_kwargs

    def logprob_params(self) -> LogprobParams | None:
        return LogprobParams(num_top=self.top_logprobs) if self.logprobs else None
