"""Bodies of `/v1/messages` and `/v1/messages/count_tokens`, and their conversion to a chat request's body.

Source: Anthropic's API reference. The runtime reuses every prefix; cache breakpoints (`cache_control`) in system blocks
and messages ask to keep one for their time.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from ....protocol.errors import RequestError, did_you_mean
from ....protocol.sampling import MAX_STOPS
from ...api.bodies import Body, ChatOptionsBody, Many, Text, described, example
from ...api.chat_body import ChatBody, Effort
from ...api.chat_messages import MAX_MESSAGES, ContentPart, data_url
from ...api.tool_fields import Function, FunctionName, NamedChoice, SentBody, Tool, ToolChoice
from ...api.validation import validated
from ...core.sessions import RetentionHint, cache_control_seconds
from ..dialects import THREAD_UNSUPPORTED
from .client_tools import CLIENT_OPTIONS, client_tool

SystemRole = Literal["system", "user"]
Content = str | list[ContentPart]
NO_EFFECT = {"cache_control", "caller", "eager_input_streaming", "defer_loading"}
# The members of each type of block that are read, or that clients send back as they got them.
_MEMBERS = {
    "text": ("text", "citations"),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id", "content", "is_error"),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "document": ("source", "title", "context", "citations"),
    "image": ("source",),
}


# In the OpenAPI document: a choice of tools needs some. One that names a tool must name one of them.
_NEEDS_TOOLS: dict[str, Any] = {
    "anyOf": [
        {"properties": {"tool_choice": {"type": "null"}}},
        {"properties": {"tools": {"type": "array", "minItems": 1}}, "required": ["tools"]},
    ]
}


class InputBlock(Body):
    """A block of content. `_Conversation` rejects types that the model cannot read."""

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        json_schema_extra={  # the block that every message may have; docs/use/http.md lists the others
            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            "required": ["type", "text"],
            "additionalProperties": False,
        },
    )
    type: Text


class InputMessage(Body):
    role: Literal["user", "assistant", "system"]
    content: Text | Many[InputBlock]


class InputTool(SentBody):
    model_config = ConfigDict(
        extra="allow",
        strict=True,
        json_schema_extra={"required": ["name", "input_schema"], "additionalProperties": False},
    )
    name: Annotated[Text, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    type: Annotated[Text, described(enum=["custom"])] | None = None
    description: Text | None = None
    input_schema: dict[str, Any] | None = None
    input_examples: Many[dict[str, Any]] | None = None
    strict: bool = False

    def to_tool(self, index: int) -> Tool:
        """Convert to a tool of a chat request. Raises RequestError for a tool that Anthropic's servers would run."""
        where = f"tools[{index}]"
        if self.type is not None and self.type != "custom":
            return self._client_tool(where, self.type)
        if self.input_schema is None:
            raise RequestError(f"{where} needs input_schema", param="tools")
        _check_known(self.model_extra or {}, where, NO_EFFECT, "tools")
        names = {"name": "name", "description": "description", "input_schema": "parameters", "strict": "strict"}
        sent = {names[key]: value for key, value in self.sent.items() if key in names}
        if self.input_examples:
            shown = "\n".join(json.dumps(example, ensure_ascii=False) for example in self.input_examples)
            sent["description"] = f"{self.description or ''}\nExamples of arguments:\n{shown}".lstrip()
        return _tool(self.name, sent.get("description"), self.input_schema, sent, is_strict=self.strict)

    def _client_tool(self, where: str, kind: str) -> Tool:
        """Return the tool that a type of Anthropic's stands for, which the client runs."""
        options = self.model_extra or {}
        found = client_tool(kind, self.name, options, where)
        if found is None:
            message = f"{where} is of type {kind!r}: custom tools and those that clients run are served"
            raise RequestError(message, param="tools")
        _check_known(self.model_extra or {}, where, (*CLIENT_OPTIONS, *NO_EFFECT), "tools")
        description, schema = found
        sent = {"name": self.name, "description": description, "parameters": schema}
        return _tool(self.name, description, schema, sent, is_strict=self.strict)


def _tool(name: str, description: Any, schema: dict[str, Any], sent: dict[str, Any], *, is_strict: bool) -> Tool:
    function = Function.model_construct(name=name, description=description, parameters=schema, strict=is_strict)
    return Tool.of(function, sent)


class ToolUseChoice(Body):
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "oneOf": [
                {"properties": {"type": {"const": "tool"}, "name": {"type": "string"}}, "required": ["name"]},
                {"properties": {"type": {"not": {"const": "tool"}}, "name": {"type": "null"}}},
            ]
        },
    )
    type: Literal["auto", "any", "tool", "none"]
    name: Text | None = None
    disable_parallel_tool_use: bool = False


class ThinkingOptions(Body):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputSchema(Body):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputSchema | None = None


class CountBody(ChatOptionsBody):
    """Body of `/v1/messages/count_tokens`."""

    model_config = example({"model": "", "messages": [{"role": "user", "content": "What is the capital of France?"}]})
    model: Text | None = None
    messages: Annotated[list[InputMessage], Field(fail_fast=True, max_length=MAX_MESSAGES), described(minItems=1)]
    system: Text | Many[InputBlock] | None = None
    tools: Many[InputTool] = Field(default_factory=list)
    tool_choice: ToolUseChoice | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputConfig | None = None
    output_format: OutputSchema | None = None
    cache_control: dict[str, Any] | None = None  # of the whole prompt
    thread: Annotated[dict[str, Any] | None, described(type="null")] = None  # refused in the way that clients know

    def retention_hints(self) -> list[RetentionHint]:
        """Return how long parts of the prompt are to be kept: each breakpoint means all before it.

        A tool's breakpoint counts with the next block's, since tools precede everything. Raises RequestError.
        """
        blocks = list(self.system) if isinstance(self.system, list) else []
        for message in self.messages:
            blocks += message.content if isinstance(message.content, list) else []
        hints = [
            RetentionHint(cache_control_seconds(control, "cache_control"), text if isinstance(text, str) else None)
            for block in blocks
            if (control := (given := block.model_extra or {}).get("cache_control")) is not None
            for text in [given.get("text", given.get("content"))]
        ]
        if self.cache_control is not None:
            hints.append(RetentionHint(cache_control_seconds(self.cache_control, "cache_control")))
        return hints

    def chat(self, *, late_system_role: SystemRole = "system", **fields: Any) -> ChatBody:
        """Convert to a chat body, with further `fields` of it. Raises RequestError for unsupported content.

        System messages behind the first message get the role `late_system_role`.
        """
        if self.thread is not None:
            message = "thread: the server keeps no threads; send the whole conversation"
            raise RequestError(message, param="thread", code=THREAD_UNSUPPORTED)
        conversation = _Conversation()
        if self.system is not None:
            conversation.add("system", self.system, "system")
        for index, message in enumerate(self.messages):
            role = late_system_role if message.role == "system" and index else message.role
            conversation.add(role, message.content, f"messages[{index}]")
        if not self.messages:
            raise RequestError("messages must not be empty", param="messages")
        is_prefilled = self.messages[-1].role == "assistant"
        if is_prefilled and "tool_calls" in conversation.messages[-1]:
            raise RequestError("the last message has a tool_use without its tool_result", param="messages")
        for message in conversation.messages:
            if "tool_calls" not in message:
                message.setdefault("content", "")
        options: dict[str, Any] = {}
        if self.thinking is not None and self.thinking.type != "adaptive":
            options["enable_thinking"] = self.thinking.type == "enabled"
        choice, parallel = self._choice()
        values: dict[str, Any] = dict(
            model=self.model,
            messages=conversation.messages,
            tool_choice=choice,
            parallel_tool_calls=parallel,
            response_format=self._response_format(),
            reasoning_effort=self._effort(),
            chat_template_kwargs=options,
            thinking_token_budget=self._thinking_budget(),
            continue_final_message=is_prefilled,
            **fields,
        )
        chat = validated(ChatBody, values)
        return chat.model_copy(update={"tools": [tool.to_tool(index) for index, tool in enumerate(self.tools)]})

    def _choice(self) -> tuple[ToolChoice | None, bool]:
        choice = self.tool_choice
        if choice is None:
            return None, True
        if (choice.type == "tool") != (choice.name is not None):
            raise RequestError("tool_choice has a name if its type is tool", param="tool_choice")
        if choice.type in ("any", "tool") and not self.tools:
            raise RequestError("tool_choice needs tools", param="tool_choice")
        parallel = not choice.disable_parallel_tool_use
        match choice.type:
            case "any":
                return "required", parallel
            case "tool":
                named = FunctionName.model_construct(name=choice.name)
                return NamedChoice.model_construct(type="function", function=named), parallel
            case kind:
                return kind, parallel

    def _response_format(self) -> dict[str, Any] | None:
        formats = [self.output_format, self.output_config.format if self.output_config else None]
        given = [each for each in formats if each is not None]
        if len(given) > 1:
            raise RequestError("output_format is output_config.format: give one", param="output_format")
        if not given:
            return None
        return {"type": "json_schema", "json_schema": {"name": "output", "schema": given[0].schema_, "strict": True}}

    def _thinking_budget(self) -> int | None:
        return None if self.thinking is None or self.thinking.type == "disabled" else self.thinking.budget_tokens

    def _effort(self) -> Effort | None:
        effort = self.output_config.effort if self.output_config else None
        return "xhigh" if effort == "max" else effort


class MessagesBody(CountBody):
    """Body of `/v1/messages`."""

    model_config = example(
        {"model": "", "max_tokens": 16, "messages": [{"role": "user", "content": "What is the capital of France?"}]},
        **_NEEDS_TOOLS,
    )
    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Annotated[Many[Annotated[Text, described(minLength=1)]], described(maxItems=MAX_STOPS)] = Field(
        default_factory=list
    )
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_k: Annotated[int, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    metadata: dict[str, Any] | None = None  # without effect
    service_tier: Literal["auto", "standard_only"] | None = None  # without effect
    context_management: Annotated[dict[str, Any], described(maxProperties=0)] | None = None

    def chat(self, *, late_system_role: SystemRole = "system", **fields: Any) -> ChatBody:
        _check_context_management(self.context_management)
        return super().chat(
            late_system_role=late_system_role,
            stop=self.stop_sequences,
            stream=self.stream,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k or -1,
            **fields,
        )


class _Conversation:
    """Builds the messages of a chat body. Neighbours of one role become one message."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def add(self, role: str, content: str | list[InputBlock], where: str) -> None:
        """Add a message. Raises RequestError for a block that the model cannot read."""
        if isinstance(content, str):
            self._add_text(role, content)
            return
        if not content:
            raise RequestError(f"{where} is empty", param=where.partition("[")[0])
        for index, block in enumerate(content):
            self._add_block(role, block, f"{where}.content[{index}]" if where != "system" else f"system[{index}]")

    def _add_block(self, role: str, block: InputBlock, where: str) -> None:
        given = block.model_extra or {}
        _check_members(block.type, given, where)
        match block.type:
            case "text":
                self._add_text(role, _text_of(given, "text", where))
            case "tool_use" if role == "assistant":
                arguments = json.dumps(given.get("input", {}), ensure_ascii=False)
                function = {"name": _text_of(given, "name", where), "arguments": arguments}
                call = {"id": _text_of(given, "id", where), "type": "function", "function": function}
                self._last("assistant").setdefault("tool_calls", []).append(call)
            case "tool_result" if role == "user":
                result = _result(given.get("content", ""), f"{where}.content")
                if given.get("is_error"):
                    result = _joined("Error: ", result, "") if result else "Error: "
                self.messages.append(
                    {"role": "tool", "tool_call_id": _text_of(given, "tool_use_id", where), "content": result}
                )
            case "thinking" if role == "assistant":
                message = self._last("assistant")
                message["reasoning_content"] = message.get("reasoning_content", "") + _text_of(given, "thinking", where)
            case "redacted_thinking" if role == "assistant":
                pass  # only who encrypted it can read it
            case "document" if role == "user":
                self._add_text(role, _document_text(given, where))
            case "image" if role == "user":
                self._add(role, [_image(given, where)])
            case other:
                raise RequestError(
                    f"{where} is of type {other!r}, which a {role} message cannot have here", param=where
                )

    def _add_text(self, role: str, text: str) -> None:
        self._add(role, text)

    def _add(self, role: str, content: Content) -> None:
        message = self._last(role)
        before = message.get("content")
        between = "" if role == "assistant" else "\n"
        message["content"] = content if before is None else _joined(before, content, between)

    def _last(self, role: str) -> dict[str, Any]:
        """Return the last message, or a new one if that is of another role."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role})
        return self.messages[-1]


def _result_text(content: Any, where: str) -> str:
    """Return a tool result as text. Raises RequestError for blocks that are not text."""
    if isinstance(content, str):
        return content
    texts = []
    for index, block in enumerate(content if isinstance(content, list) else [content]):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in ("document", "text"):
            _check_members(kind, block, f"{where}[{index}]")
        if kind == "document":
            texts.append(_document_text(block, f"{where}[{index}]"))
        elif kind == "text":
            texts.append(_text_of(block, "text", f"{where}[{index}]"))
        else:
            raise RequestError(f"{where}[{index}] is of type {kind!r}: this model reads text only", param=where)
    return "\n".join(texts)


def _joined(before: Content, after: Content, between: str) -> Content:
    """Return two contents as one: a text, or parts where one has images."""
    if not before:
        return after
    if isinstance(before, str) and isinstance(after, str):
        return f"{before}{between}{after}"
    return [*_parts(before), *_parts(after)]


def _parts(content: Content) -> list[ContentPart]:
    if not isinstance(content, str):
        return content
    return [ContentPart(type="text", text=content)] if content else []


def _result(content: Any, where: str) -> Content:
    """Return a tool result. Raises RequestError for blocks that are neither text nor images."""
    if not isinstance(content, list) or all(
        not isinstance(each, dict) or each.get("type") != "image" for each in content
    ):
        return _result_text(content, where)
    result: Content = ""
    for index, block in enumerate(content):
        place = f"{where}[{index}]"
        if isinstance(block, dict) and block.get("type") == "image":
            _check_members("image", block, place)
            result = _joined(result, [_image(block, place)], "\n")
        else:
            result = _joined(result, _result_text([block], where), "\n")
    return result


def _image(block: dict[str, Any], where: str) -> ContentPart:
    """Return the image of a block. Raises RequestError for a source that is none."""
    source = block.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if kind not in ("base64", "url"):
        message = f"{where}.source is of type {kind!r}: images come as base64, or as url"
        raise RequestError(message, param=f"{where}.source")
    _check_known(source, f"{where}.source", ("type", "media_type", "data") if kind == "base64" else ("type", "url"))
    text = _text_of(source, "data" if kind == "base64" else "url", f"{where}.source")
    return ContentPart.of_image(data_url(text) if kind == "base64" else text, where)


def _document_text(document: dict[str, Any], where: str) -> str:
    """Return title, context and text of a document. Raises RequestError for one that is not text."""
    source = document.get("source")
    if not isinstance(source, dict) or source.get("type") not in ("text", "content"):
        raise RequestError(f"{where} is a document that is not text: this model reads text only", param=where)
    if (document.get("citations") or {}) not in ({}, {"enabled": False}):
        message = f"{where}.citations: this server cites no documents: leave it out, or say enabled: false"
        raise RequestError(message, param=f"{where}.citations")
    given = ("type", "media_type", "data") if source["type"] == "text" else ("type", "content")
    _check_known(source, f"{where}.source", given)
    if source["type"] == "text":
        text = _text_of(source, "data", f"{where}.source")
    else:
        text = _result_text(source.get("content"), f"{where}.source.content")
    about = [_text_of(document, name, where) for name in ("title", "context") if document.get(name) is not None]
    return "\n".join([*about, text])


def _text_of(given: dict[str, Any], name: str, where: str) -> str:
    if not isinstance(value := given.get(name), str):
        raise RequestError(f"{where} needs {name}, a text", param=f"{where}.{name}")
    return value


def _check_members(kind: str, block: dict[str, Any], where: str) -> None:
    """Raise RequestError for a member of a block that would be lost silently. Unknown types are refused as such."""
    if kind in _MEMBERS:
        _check_known(block, where, ("type", *_MEMBERS[kind], *NO_EFFECT))


def _check_known(given: dict[str, Any], where: str, known: Collection[str], param: str = "messages") -> None:
    """Raise RequestError for a member that is not known. Those that are null are not given."""
    for name, value in given.items():
        if value is not None and name not in known:
            raise RequestError(f"unknown parameter {where}.{name}{did_you_mean(name, known)}", param=param)


def _check_context_management(value: dict[str, Any] | None) -> None:
    """Raise RequestError unless nothing of the context is to be removed."""
    for edit in (value or {}).get("edits") or []:
        if not isinstance(edit, dict) or (edit.get("type"), edit.get("keep")) != ("clear_thinking_20251015", "all"):
            raise RequestError("context_management can only keep all thinking", param="context_management")
