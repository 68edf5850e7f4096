"""haystack: its generator for chats."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from outcomes import MODEL, URL, report
from pydantic import BaseModel


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


def switch(
    on: Annotated[bool, "Whether the light is to be on"], room: Annotated[Literal["kitchen", "hall"], "Which room"]
) -> str:
    """Switch a room's light."""
    return "Done. The receipt is 7261."


def generator(model: str = MODEL, **options: Any) -> OpenAIChatGenerator:
    return OpenAIChatGenerator(
        Secret.from_token("none"), model=model, api_base_url=f"{URL}/v1", max_retries=0, **options
    )


def user(text: str) -> list[ChatMessage]:
    return [ChatMessage.from_user(text)]


def streamed() -> Any:
    pieces: list[str] = []
    generator(streaming_callback=lambda chunk: pieces.append(chunk.content)).run(
        user("What is the capital of France?"), generation_kwargs={"max_tokens": 32}
    )
    return pieces


def called() -> Any:
    tools: Any = [create_tool_from_function(switch)]
    question = user("Switch the kitchen's light on.")
    forced = {"tool_choice": {"type": "function", "function": {"name": "switch"}}}
    replies = generator(tools=tools).run(question, generation_kwargs=forced)["replies"]
    [call] = replies[0].tool_calls
    result = ChatMessage.from_tool(tools[0].invoke(**call.arguments), call)
    last = generator(tools=tools).run(
        [*question, *replies, result], generation_kwargs={"tool_choice": "none", "max_tokens": 64}
    )
    return call.arguments, last["replies"][0].text


def structured() -> Any:
    replies = generator().run(user("What is Paris?"), generation_kwargs={"response_format": Place})["replies"]
    return json.loads(replies[0].text)


def refused() -> Any:
    try:
        generator("no-such-model").run(user("Hi"))
    except Exception as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
