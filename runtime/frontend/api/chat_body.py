"""Body of `/v1/chat/completions`.

Fields of all dialects are declared in `chat/input.py` (`ChatOptions`), what travels whole to the core in
`protocol/core.py` (`RequestOptions`), sampling fields in `protocol/sampling.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from ...protocol.core import ModelInfo
from ...protocol.errors import RequestError
from ...protocol.sampling import LogprobParams
from ..chat.input import ChatInput
from .bodies import Body, ChatOptionsBody, Many, example
from .chat_messages import Messages, TemplateFields, message_text, retention_hints
from .fields import MAX_TOP, CompletionFields
from .tool_fields import Function, FunctionName, NamedChoice, Tool, ToolChoice, callable_tools

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


Budget = Annotated[int, Field(ge=0)]


class ThinkingSwitch(Body):
    """Anthropic's form, which other servers take too."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Budget | None = None


class ReasoningSettings(Body):
    """OpenRouter's form. `exclude` leaves the reasoning out of the answer."""

    effort: Effort | None = None
    enabled: bool | None = None
    exclude: bool = False
    max_tokens: Budget | None = None


class ChatBody(CompletionFields, TemplateFields, ChatOptionsBody):
    model_config = example(
        {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 16}
    )
    messages: Messages
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] = 0
    tools: Many[Tool] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    functions: Many[Function] = Field(default_factory=list)
    function_call: Literal["none", "auto"] | FunctionName | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: Effort | None = None
    separate_reasoning: bool = True
    include_reasoning: bool = True
    verbosity: Literal["low", "medium", "high"] | None = None
    echo: bool = False
    thinking: ThinkingSwitch | None = None
    enable_thinking: bool | None = None
    reasoning: ReasoningSettings | None = None
    thinking_token_budget: Budget | None = None
    max_thinking_tokens: Budget | None = None

    _calls_functions: bool = PrivateAttr(default=False)

    @model_validator(mode="after")
    def _convert_functions(self) -> Self:
        """Convert `functions` and `function_call`, the older form of tools."""
        if self.functions and not self.tools and self.tool_choice is None:
            self._calls_functions = True
            self.tools = [Tool.of(function) for function in self.functions]
            self.parallel_tool_calls = False
            if isinstance(self.function_call, FunctionName):
                self.tool_choice = NamedChoice.model_construct(type="function", function=self.function_call)
            else:
                self.tool_choice = self.function_call
        return self

    @property
    def calls_functions(self) -> bool:
        """Return True if calls are answered in the older form, as `function_call`."""
        return self._calls_functions

    def check(self, info: ModelInfo) -> None:
        super().check(info)
        if self.functions and not self.calls_functions:
            raise RequestError("functions is the older form of tools: give one", param="functions")
        if self.function_call not in (None, "none", "auto") and not self.functions:
            raise RequestError("function_call needs functions", param="function_call")
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise RequestError(
                "max_tokens and max_completion_tokens are two names of one limit", param="max_completion_tokens"
            )
        if len({effort for effort in self._efforts if effort is not None}) > 1:
            raise RequestError("reasoning.effort is reasoning_effort: give one", param="reasoning")
        if len({thinks for thinks in self._switches if thinks is not None}) > 1:
            raise RequestError("enable_thinking contradicts another switch of thinking", param="enable_thinking")
        if len(set(self._budgets.values())) > 1:
            *_, last = self._budgets
            raise RequestError(f"{' and '.join(self._budgets)} are names of one limit", param=last)
        if self.thinking_budget is not None and not self.separate_reasoning:
            raise RequestError("a limit of the reasoning needs separate_reasoning", param=next(iter(self._budgets)))
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise RequestError("tool_choice needs tools", param="tool_choice")

    @property
    def limit(self) -> tuple[int | None, str]:
        """Maximum number of tokens, and the field that sets it."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"

    def chat_input_of(self, messages: Sequence[Mapping[str, Any]], info: ModelInfo) -> ChatInput:
        """Return what the body asks, with its messages as the chat template gets them. Raises RequestError."""
        asked = self.chat_input(messages, info, prompt_field="messages", limit=self.limit)
        return replace(
            asked,
            chat=self.chat_options(),
            retain=[*retention_hints(self.messages), *asked.retain],
            truncation=self.truncation(info, self.limit[0]),
            tools=callable_tools(
                self.tools,
                self.tool_choice,
                parallel=self.parallel_tool_calls,
                constrained=asked.constraint is not None,
                additional_properties=self.additional_properties,
                number_digits=self.number_digits,
                json_whitespace=self.whitespace(),
            ),
            splits_reasoning=self.separate_reasoning,
            thinking_budget=self.thinking_budget,
            rendering=self.rendering(),
        )

    def echoed_text(self) -> str:
        """Return the text that `echo` puts before the answer: the last message's, if it is the assistant's."""
        last = self.messages[-1]
        return message_text(last.content, "messages") if self.echo and last.role == "assistant" else ""

    def template_variables(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        effort = next((effort for effort in self._efforts if effort is not None), None)
        if effort is not None:
            options["reasoning_effort"] = effort
        thinks = self._thinks
        if thinks is not None:
            options["enable_thinking"] = options["thinking"] = thinks  # families differ in the name
        if self.verbosity is not None:
            options["verbosity"] = self.verbosity
        return options | self.chat_template_kwargs

    @property
    def thinking_budget(self) -> int | None:
        """Maximum number of reasoning tokens; None: no limit of its own, or thinking is switched off."""
        return None if self._thinks is False else next(iter(self._budgets.values()), None)

    @property
    def shows_reasoning(self) -> bool:
        """Return True if the answer contains the reasoning."""
        return self.include_reasoning and not (self.reasoning is not None and self.reasoning.exclude)

    @property
    def _efforts(self) -> tuple[Effort | None, ...]:
        return self.reasoning_effort, None if self.reasoning is None else self.reasoning.effort

    @property
    def _thinks(self) -> bool | None:
        """Return whether the request switches thinking on or off; None: neither."""
        return next((thinks for thinks in self._switches if thinks is not None), None)

    @property
    def _switches(self) -> tuple[bool | None, ...]:
        """Return the values of the fields that switch thinking on or off, in their order; None: one is not given."""
        kind = None if self.thinking is None or self.thinking.type == "adaptive" else self.thinking.type
        return (
            False if "none" in self._efforts else None,
            None if kind is None else kind == "enabled",
            None if self.reasoning is None else self.reasoning.enabled,
            self.enable_thinking,
        )

    @property
    def _budgets(self) -> dict[str, int]:
        """The given limits of reasoning tokens, by field."""
        given = {
            "thinking_token_budget": self.thinking_token_budget,
            "max_thinking_tokens": self.max_thinking_tokens,
            "thinking.budget_tokens": self.thinking.budget_tokens if self.thinking is not None else None,
            "reasoning.max_tokens": self.reasoning.max_tokens if self.reasoning is not None else None,
        }
        return {name: value for name, value in given.items() if value is not None}

    def logprob_params(self) -> LogprobParams | None:
        if not self.logprobs and self.prompt_logprobs is None:
            return None
        return LogprobParams(
            num_top=max(self.top_logprobs, self.prompt_logprobs or 0),
            prompt_from=None if self.prompt_logprobs is None else 0,
            of=tuple(self.logprob_token_ids),
            details=self.token_details,
        )
