"""Chat messages of request bodies, and their conversion for chat templates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeGuard

from pydantic import ConfigDict, Field, PrivateAttr

from ...protocol.errors import RequestError, did_you_mean
from ...tokenizer.chat_template import JsonText
from ..chat.renderer import RenderOptions
from ..chat.template_forms import PART_MARK
from ..core.sessions import RetentionHint, cache_control_seconds
from ..text.pictures import PICTURE_MARK, ImageSource
from .bodies import Body, Many, Text

MAX_MESSAGES = 100_000
TEXT_PARTS = ("text", "input_text", "output_text")
IMAGE_PARTS = ("image_url", "input_image")


class EchoedBody(Body):
    """Body that clients make of an answer. Members in `echoed`, of openai-python's and LiteLLM's own objects, say
    nothing to a model that its other fields do not."""

    echoed: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def is_neutral(cls, name: str, value: Any) -> bool:
        return name in cls.echoed or super().is_neutral(name, value)


class ImageUrl(Body):
    """An image as a data URL, or as an URL from which the server may download it.

    Every image is prepared as the model's own image processor says, which `detail` may ask for, but not change.
    """

    url: Text
    detail: Literal["auto", "high", "low"] = "auto"


class ContentPart(EchoedBody):
    """One part of a message's content. `message_text` and `with_images` reject types that the model cannot read, and
    unknown members of the others."""

    echoed = frozenset({"annotations", "logprobs"})

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        json_schema_extra={
            "additionalProperties": False,
            "oneOf": [
                {"required": ["text"], "properties": {"type": {"enum": list(TEXT_PARTS)}, "text": {"type": "string"}}},
                {"required": ["refusal"], "properties": {"type": {"const": "refusal"}, "refusal": {"type": "string"}}},
            ],
        },
    )
    type: str
    text: Text | None = None
    refusal: Text | None = None
    cache_control: dict[str, Any] | None = None
    image_url: ImageUrl | Text | None = None
    detail: Literal["auto", "high", "low"] | None = None

    _where: str | None = PrivateAttr(default=None)  # the place of an image in another dialect's body

    @classmethod
    def of_image(cls, url: str, where: str) -> Self:
        """Return the part that is an image at the place `where` of a body."""
        return cls(type="image_url", image_url=ImageUrl.model_construct(url=url)).at(where)

    def at(self, where: str) -> Self:
        """Return the part, whose errors name the place `where` of another dialect's body."""
        self._where = where
        return self

    def image(self, where: str) -> ImageSource:
        """Return the image of a part at the place `where`. Raises RequestError for a part without one."""
        where = self._where or where
        given = self.image_url
        if self.text is not None or self.refusal is not None:
            raise RequestError(f"{where} is an image and has a text: give two parts", param=where)
        if given is None:
            raise RequestError(f"{where} is an image without image_url", param=where)
        url, detail = (given, None) if isinstance(given, str) else (given.url, given.detail)
        if "low" in (detail, self.detail):
            message = f"{where}.detail: an image is prepared as the model's own settings say: leave it out, or say auto"
            raise RequestError(message, param=f"{where}.detail")
        return ImageSource(url, where)


class CalledFunction(EchoedBody):
    echoed = frozenset({"parsed_arguments"})
    name: Text
    arguments: Text


class PastCall(EchoedBody):
    echoed = frozenset({"index", "provider_specific_fields"})
    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(EchoedBody):
    """One message. Further fields go to the chat template, which must read them (`MessageRenderer`)."""

    echoed = frozenset({"annotations", "parsed", "provider_specific_fields"})
    model_config = ConfigDict(
        extra="allow",
        strict=True,
        json_schema_extra={
            "additionalProperties": False,
            "anyOf": [
                {
                    "properties": {"role": {"not": {"const": "tool"}}, "content": {"not": {"type": "null"}}},
                    "required": ["content"],
                },
                {
                    "properties": {
                        "role": {"const": "assistant"},
                        "refusal": {"type": "string"},
                        "content": {"type": "null"},
                    },
                    "required": ["refusal"],
                },
                {
                    "properties": {"role": {"const": "assistant"}, "tool_calls": {"type": "array", "minItems": 1}},
                    "required": ["tool_calls"],
                },
                {
                    "properties": {"role": {"const": "assistant"}, "function_call": {"type": "object"}},
                    "required": ["function_call"],
                },
                {
                    "properties": {"content": {"not": {"type": "null"}}, "tool_call_id": {"type": "string"}},
                    "required": ["content", "tool_call_id"],
                },
            ],
        },
    )
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | Many[ContentPart] | None = None
    refusal: Text | None = None
    name: Text | None = None
    tool_calls: Many[PastCall] | None = None
    function_call: CalledFunction | None = None
    tool_call_id: Text | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None


Messages = Annotated[list[Message], Field(fail_fast=True, max_length=MAX_MESSAGES, json_schema_extra={"minItems": 1})]


class TemplateFields(Body):
    """Fields that say how messages become a prompt."""

    chat_template: Text | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    def template_variables(self) -> dict[str, Any]:
        return self.chat_template_kwargs

    def rendering(self) -> RenderOptions:
        return RenderOptions(
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            variables=self.template_variables(),
            template=self.chat_template,
        )


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Convert messages for a chat template. Raises RequestError naming the first unsupported message."""
    if not messages:
        raise RequestError("messages must not be empty", param="messages")
    if any(message.function_call is not None or message.role == "function" for message in messages):
        messages = _with_tool_calls(messages)
    return [_for_template(message, index) for index, message in enumerate(messages)]


def _with_tool_calls(messages: Sequence[Message]) -> list[Message]:
    """Replace `function_call` and messages of the role `function`, the older form, by tool calls and their results."""
    replaced = []
    call_id = ""
    for index, message in enumerate(messages):
        changes: dict[str, Any] = {}
        if message.function_call is not None:
            if message.tool_calls:
                raise RequestError(f"messages[{index}] has function_call and tool_calls: give one", param="messages")
            call_id = f"call_{index}"
            call = PastCall.model_construct(id=call_id, type="function", function=message.function_call)
            changes = {"tool_calls": [call], "function_call": None}
        elif message.role == "function":
            if not call_id:
                raise RequestError(f"messages[{index}] answers no function_call", param="messages")
            changes = {"role": "tool", "tool_call_id": call_id}
        replaced.append(message.model_copy(update=changes))
    return replaced


def _for_template(message: Message, index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    if message.refusal is not None:
        if message.content is not None:
            raise RequestError(f"{where} has content and refusal: give one", param="messages")
        message = message.model_copy(update={"content": message.refusal, "refusal": None})
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        raise RequestError(f"{where} needs content", param="messages")
    if message.role == "tool" and message.tool_call_id is None:
        raise RequestError(f"{where} needs tool_call_id: which call does it answer?", param="messages")
    if "images" in (message.model_extra or ()):
        raise RequestError(f"unknown parameter {where}.images: an image is a part of content", param=f"{where}.images")
    given = message.model_dump(exclude_none=True)
    # Templates know system messages only; developer is OpenAI's newer name.
    given["role"] = "system" if message.role == "developer" else message.role
    if has_images(message.content):
        given["content"], given["images"] = with_images(message.content, where)
    else:
        given["content"] = None if message.content is None else message_text(message.content, where, PART_MARK)
    if message.tool_calls:
        given["tool_calls"] = [
            _for_call(call, f"{where}.tool_calls[{number}].function.arguments")
            for number, call in enumerate(message.tool_calls)
        ]
    if message.reasoning is not None:
        given.setdefault("reasoning_content", message.reasoning)
    return given


def retention_hints(messages: Sequence[Message]) -> list[RetentionHint]:
    """Return what parts of contents ask for by Anthropic's `cache_control`. Raises RequestError for another form."""
    return [
        RetentionHint(cache_control_seconds(control, f"messages[{index}].cache_control"), part.text)
        for index, message in enumerate(messages)
        if isinstance(message.content, list)
        for part in message.content
        if (control := part.cache_control) is not None
    ]


def data_url(base64: str) -> str:
    """Return the data URL of an image in base64: one that begins as an address does is none."""
    return f"data:;base64,{base64}"


def has_images(content: Any) -> TypeGuard[list[ContentPart]]:
    """Return True if a part of a message's content is an image."""
    return isinstance(content, list) and any(part.type in IMAGE_PARTS for part in content)


def with_images(content: Sequence[ContentPart], where: str) -> tuple[str, list[ImageSource]]:
    """Return the text of a content, with a mark for each image between its parts, and the images. Raises RequestError
    for other parts."""
    texts, images = [], []
    for index, part in enumerate(content):
        if part.type in IMAGE_PARTS:
            images.append(part.image(f"{where}.content[{index}]"))
            _check_extra(part, f"{where}.content[{index}]")
            texts.append(PICTURE_MARK)
        else:
            texts.append(_part_text(part, where, index).replace(PICTURE_MARK, ""))
    return PART_MARK.join(texts), images


def message_text(content: str | list[ContentPart] | None, where: str, between: str = "\n") -> str:
    """Return the text of a message's content, with `between` between its parts. Raises RequestError for parts that are
    not text."""
    if content is None or isinstance(content, str):
        return content or ""
    return between.join([_part_text(part, where, index) for index, part in enumerate(content)])


def _part_text(part: ContentPart, where: str, index: int) -> str:
    text = part.text if part.type in TEXT_PARTS else part.refusal if part.type == "refusal" else None
    if text is None:
        is_text = part.type in TEXT_PARTS
        wrong = "without text" if is_text else f"of type {part.type!r}: this model reads text only"
        raise RequestError(f"{where} has a part {wrong}", param=where.partition("[")[0])
    _check_extra(part, f"{where}.content[{index}]")
    for name in ("image_url", "detail"):
        if getattr(part, name) is not None:
            raise RequestError(f"{where}.content[{index}] is no image and has {name}", param=where.partition("[")[0])
    return text


def _check_extra(part: ContentPart, where: str) -> None:
    for name in part.model_extra or ():
        place = f"{where}.{name}"
        raise RequestError(f"unknown parameter {place}{did_you_mean(name, ContentPart.model_fields)}", param=place)


def _for_call(call: PastCall, where: str) -> dict[str, Any]:
    """Convert a past call. Templates serialise arguments themselves, so they get the parsed value if it is an object,
    else the text as it was.

    Clients and cut calls have an empty text or null where there are no arguments.
    """
    arguments: Any
    try:
        arguments = json.loads(call.function.arguments.strip() or "{}")
    except (ValueError, RecursionError):
        arguments = call.function.arguments
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        arguments = JsonText(call.function.arguments, where)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
