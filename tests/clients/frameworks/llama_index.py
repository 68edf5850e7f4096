"""llama-index: its model of servers like OpenAI's."""

from typing import Any, Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from outcomes import MODEL, URL, report
from pydantic import BaseModel


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


def switch(on: bool, room: Literal["kitchen", "hall"]) -> str:
    """Switch a room's light."""
    return "Done. The receipt is 7261."


def model(name: str = MODEL) -> OpenAILike:
    return OpenAILike(
        model=name,
        api_base=f"{URL}/v1",
        api_key="none",
        max_retries=0,
        max_tokens=100,
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
    )


def streamed() -> Any:
    return [part.delta for part in model().stream_chat([ChatMessage("What is the capital of France?")])]


def called() -> Any:
    llm, light = model(), FunctionTool.from_defaults(switch)
    question = ChatMessage("Switch the kitchen's light on.")
    first = llm.chat_with_tools([light], chat_history=[question], tool_required=True)
    [call] = llm.get_tool_calls_from_response(first)
    result = light(**call.tool_kwargs).content
    told = ChatMessage(role="tool", content=result, additional_kwargs={"tool_call_id": call.tool_id})
    last = llm.chat_with_tools([light], chat_history=[question, first.message, told], tool_choice="none")
    return call.tool_kwargs, last.message.content


def structured() -> Any:
    return model().structured_predict(Place, PromptTemplate("What is Paris?")).model_dump()


def refused() -> Any:
    try:
        model("no-such-model").chat([ChatMessage("Hi")])
    except Exception as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
