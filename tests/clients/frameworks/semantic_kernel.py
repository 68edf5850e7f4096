"""semantic-kernel: an agent over its service of chat completions."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, Literal

from openai import AsyncOpenAI
from outcomes import MODEL, URL, report
from pydantic import BaseModel
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function

client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
service = OpenAIChatCompletion(ai_model_id=MODEL, async_client=client)
calls: list[Any] = []


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


class Room(Enum):  # the kernel describes a Literal as an object
    KITCHEN = "kitchen"
    HALL = "hall"


class Lights:
    @kernel_function
    def switch(self, on: bool, room: Room) -> str:
        """Switch a room's light."""
        calls.append({"on": on, "room": Room(room).value})
        return "Done. The receipt is 7261."


def asked(text: str) -> ChatHistory:
    history = ChatHistory()
    history.add_user_message(text)
    return history


async def streamed() -> Any:
    settings = OpenAIChatPromptExecutionSettings(max_tokens=32)
    parts = service.get_streaming_chat_message_content(asked("What is the capital of France?"), settings)
    return [str(part) async for part in parts]


async def called() -> Any:
    kernel = Kernel()
    kernel.add_plugin(Lights(), "lights")
    force = FunctionChoiceBehavior.Required(auto_invoke=True)  # in the first request, then it asks for an answer
    settings = OpenAIChatPromptExecutionSettings(function_choice_behavior=force, max_tokens=64)
    history = asked("Switch the kitchen's light on.")
    answer = await service.get_chat_message_content(history, settings, kernel=kernel)
    return calls[0], str(answer)


async def structured() -> Any:
    settings = OpenAIChatPromptExecutionSettings(response_format=Place)
    return json.loads(str(await service.get_chat_message_content(asked("What is Paris?"), settings)))


async def refused() -> Any:
    try:
        lost = OpenAIChatCompletion(ai_model_id="no-such-model", async_client=client)
        await lost.get_chat_message_content(asked("Hi"), OpenAIChatPromptExecutionSettings())
    except Exception as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
