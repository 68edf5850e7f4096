"""google-adk: an agent over litellm's provider of OpenAI's API."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else litellm fetches prices when imported

from google.adk.agents import Agent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from outcomes import MODEL, URL, report
from pydantic import BaseModel

calls: list[Any] = []
LIMIT = types.GenerateContentConfig(max_output_tokens=64)


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


def switch(on: bool, room: Literal["kitchen", "hall"]) -> str:
    """Switch a room's light."""
    calls.append({"on": on, "room": room})
    return "Done. The receipt is 7261."


def force(callback_context: Any, llm_request: Any) -> None:
    mode = types.FunctionCallingConfigMode.NONE if calls else types.FunctionCallingConfigMode.ANY
    llm_request.config.tool_config = types.ToolConfig(function_calling_config=types.FunctionCallingConfig(mode=mode))


async def events_of(text: str, stream: bool = False, model: str = MODEL, **options: Any) -> list[Any]:
    llm = LiteLlm(f"openai/{model}", api_base=f"{URL}/v1", api_key="none", num_retries=0)
    runner = InMemoryRunner(agent=Agent(name="agent", model=llm, **options), app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="user")
    return [
        event
        async for event in runner.run_async(
            user_id="user",
            session_id=session.id,
            new_message=types.UserContent(text),
            run_config=RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE),
        )
    ]


def text_of(event: Any) -> str:
    return "".join(part.text or "" for part in event.content.parts)


async def streamed() -> Any:
    events = await events_of("What is the capital of France?", True, generate_content_config=LIMIT)
    return [text_of(event) for event in events if event.partial]


async def called() -> Any:
    events = await events_of(
        "Switch the kitchen's light on.", tools=[switch], before_model_callback=force, generate_content_config=LIMIT
    )
    return calls[0], text_of(events[-1])


async def structured() -> Any:
    return json.loads(text_of((await events_of("What is Paris?", output_schema=Place))[-1]))


async def refused() -> Any:
    try:
        events = await events_of("Hi", model="no-such-model")
    except Exception as error:
        return str(error)
    return events[-1].error_message


report(streamed=streamed, called=called, structured=structured, refused=refused)
