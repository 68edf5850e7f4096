"""Body of `/v1/responses`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from .....protocol.core import ModelInfo
from .....protocol.errors import RequestError
from .....protocol.sampling import Constraint, LogprobParams, PropertyOrder
from ....api.bodies import Body, ChatOptionsBody, Many, Text, described, example
from ....api.chat_body import Effort
from ....api.constraints import JsonObjectFormat, Schema, TextFormat
from ....api.fields import GenerationFields
from ....api.tool_fields import (
    AllowedChoice,
    AllowedTools,
    Function,
    FunctionName,
    Name,
    NamedChoice,
    SentBody,
    Tool,
    ToolChoice,
    callable_tools,
)
from ....chat.input import ChatInput
from ....chat.renderer import RenderOptions
from .custom_tools import CustomTool
from .items import InputItem, qualified_name

# All but the first two are about items of tools that OpenAI's servers run, and of images: an answer here has none.
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class FlatSchemaFormat(Body):
    type: Literal["json_schema"]
    name: Annotated[Text, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Text | None = None
    schema_: Annotated[Schema, Field(alias="schema")]
    strict: bool = False


class TextOptions(Body):
    format: Annotated[TextFormat | JsonObjectFormat | FlatSchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class FlatTool(SentBody):
    type: Literal["function"]
    name: Name
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False

    def to_tool(self, **changes: Any) -> Tool:
        """Convert to a tool of a chat request, with `changes` of its fields."""
        function = Function.model_construct(**self.model_dump(exclude={"type"}) | changes)
        return Tool.of(function, {key: value for key, value in (self.sent | changes).items() if key != "type"})


class NamespaceTool(Body):
    """Functions under a common name: the model calls `NAMESPACE.NAME`."""

    type: Literal["namespace"]
    name: Name
    description: Text | None = None
    tools: Annotated[Many[FlatTool], described(minItems=1)]

    def to_tool(self, function: FlatTool) -> Tool:
        """Convert a function of the namespace to a tool of a chat request."""
        texts = [text for text in (self.description, function.description) if text]
        described = {"description": "\n".join(texts)} if texts else {}
        return function.to_tool(name=qualified_name(self.name, function.name), **described)


class FlatChoice(Body):
    type: Literal["function", "custom"]
    name: Name


class FlatAllowed(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Many[FlatChoice]


class ReasoningOptions(Body):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ConversationName(Body):
    id: Text


class ResponseBody(GenerationFields, ChatOptionsBody):
    model_config = example({"input": "What is the capital of France?", "max_output_tokens": 16})
    n: Literal[1] = 1
    input: Annotated[Text | Many[InputItem], described(minLength=1, minItems=1)]
    instructions: Text | None = None
    previous_response_id: Text | None = None
    conversation: Text | ConversationName | None = None
    tools: Many[Annotated[FlatTool | NamespaceTool | CustomTool, Field(discriminator="type")]] = Field(
        default_factory=list
    )
    tool_choice: Literal["none", "auto", "required"] | FlatChoice | FlatAllowed | None = None
    parallel_tool_calls: bool = True
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    include: list[Includable] = Field(default_factory=list)
    truncation: Literal["auto", "disabled"] | None = None
    background: bool = False
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None  # of tools that a server runs: there are none here
    client_metadata: dict[str, Any] | None = None  # without effect
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    def check(self, info: ModelInfo) -> None:
        super().check(info)
        if not self.input:
            raise RequestError("input must not be empty", param="input")
        if self.background and self.store is False:
            raise RequestError("a response in the background is stored: leave store out", param="background")
        if self.conversation is not None and self.previous_response_id is not None:
            message = "conversation and previous_response_id exclude one another: each names what went before"
            raise RequestError(message, param="conversation")
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise RequestError("tool_choice needs tools", param="tool_choice")

    def constraint(self) -> tuple[Constraint, str] | None:
        asked = super().constraint()
        text_format = self.text.format if self.text is not None else None
        if text_format is None or isinstance(text_format, TextFormat):
            return asked
        if asked is not None:
            raise RequestError(f"text.format and {asked[1]} exclude one another", param=asked[1])
        if isinstance(text_format, JsonObjectFormat):
            return self.as_constraint("text.format", "json_schema", {"type": "object"})
        order: PropertyOrder = "schema" if text_format.strict else "any"
        return self.as_constraint("text.format", "json_schema", text_format.schema_, order)

    @property
    def has_other_schemas(self) -> bool:
        return super().has_other_schemas or (self.text is not None and isinstance(self.text.format, FlatSchemaFormat))

    def chat_tools(self) -> list[Tool]:
        tools = []
        for tool in self.tools:
            if isinstance(tool, NamespaceTool):
                tools += [tool.to_tool(function) for function in tool.tools]
            else:
                tools.append(tool.to_tool())
        return tools

    @property
    def namespaced_names(self) -> dict[str, tuple[str, str]]:
        """Names as the model calls functions of namespaces, with their namespace and own name."""
        return {
            qualified_name(tool.name, function.name): (tool.name, function.name)
            for tool in self.tools
            if isinstance(tool, NamespaceTool)
            for function in tool.tools
        }

    @property
    def custom_names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools if isinstance(tool, CustomTool))

    def chat_input_of(self, messages: Sequence[Mapping[str, Any]], info: ModelInfo) -> ChatInput:
        """Return what the body asks, with its conversation as the chat template gets it. Raises RequestError."""
        limit = (self.max_output_tokens, "max_output_tokens")
        asked = self.chat_input(messages, info, prompt_field="input", limit=limit)
        return replace(
            asked,
            chat=self.chat_options(),
            tools=callable_tools(
                self.chat_tools(),
                self.chat_choice(),
                parallel=self.parallel_tool_calls,
                constrained=asked.constraint is not None,
                additional_properties=self.additional_properties,
                number_digits=self.number_digits,
                json_whitespace=self.whitespace(),
                inputs={
                    tool.name: tool.constraint
                    for tool in self.tools
                    if isinstance(tool, CustomTool) and tool.constraint is not None
                },
            ),
            rendering=RenderOptions(variables=self.template_variables()),
        )

    def chat_choice(self) -> ToolChoice | None:
        match self.tool_choice:
            case FlatChoice(name=name):
                return NamedChoice(type="function", function=FunctionName(name=name))
            case FlatAllowed(mode=mode, tools=tools):
                named = [NamedChoice(type="function", function=FunctionName(name=tool.name)) for tool in tools]
                return AllowedChoice(type="allowed_tools", allowed_tools=AllowedTools(mode=mode, tools=named))
            case choice:
                return choice

    def template_variables(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.reasoning is not None and self.reasoning.effort is not None:
            options["reasoning_effort"] = self.reasoning.effort
            if self.reasoning.effort == "none":
                options["enable_thinking"] = False
        return options | self.chat_template_kwargs

    @property
    def wants_logprobs(self) -> bool:
        return "message.output_text.logprobs" in self.include or self.top_logprobs > 0

    def logprob_params(self) -> LogprobParams | None:
        return LogprobParams(num_top=self.top_logprobs) if self.wants_logprobs else None

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationName) else self.conversation

    def echoed(self) -> dict[str, Any]:
        """Return the fields that the response repeats."""
        options = self.text or TextOptions()
        text_format = options.format or TextFormat(type="text")
        choice = self.tool_choice
        reasoning = self.reasoning or ReasoningOptions()
        return {
            "background": self.background,
            "conversation": None if self.conversation_id is None else {"id": self.conversation_id},
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": self.previous_response_id,
            "prompt_cache_key": self.prompt_cache_key,
            "prompt_cache_retention": (self.prompt_cache_retention or "in_memory").replace("-", "_"),
            "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
            "safety_identifier": self.safety_identifier,
            "service_tier": "default",
            "store": self.store is not False,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "text": {
                "format": text_format.model_dump(by_alias=True, exclude_none=True),
                "verbosity": options.verbosity or "medium",
            },
            "tool_choice": choice.model_dump() if isinstance(choice, Body) else choice or "auto",
            "tools": [tool.model_dump() for tool in self.tools],
            "top_logprobs": self.top_logprobs,
            "truncation": self.truncation or "disabled",
            "user": self.user,
        }
