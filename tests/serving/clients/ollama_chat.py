"""ollama: lists, answers, streams, tools, a typed answer, embeddings, errors, from `URL MODEL`; prints them as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

import ollama
from pydantic import BaseModel

url, model = sys.argv[1:]
client = ollama.Client(host=url)
GREEDY: Any = {"temperature": 0, "num_predict": 24}
QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


class Person(BaseModel):
    sure: bool
    kind: Literal["city", "river"]


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number
        b: The second number
    """
    return a + b


def error_of(**body: Any) -> list[Any]:
    try:
        client.chat(**{"model": model, "messages": QUESTION} | body)
    except ollama.ResponseError as error:
        return [error.status_code, error.error]
    return []


async def ask_async() -> str:
    other = ollama.AsyncClient(host=url)
    parts = await other.chat(model=model, messages=QUESTION, options=GREEDY, stream=True)
    return "".join([part.message.content or "" async for part in parts])


chat = client.chat(model=model, messages=QUESTION, options=GREEDY)
streamed = list(client.chat(model=model, messages=QUESTION, options=GREEDY, stream=True))
typed = client.chat(model=model, messages=QUESTION, options={"num_predict": 60}, format=Person.model_json_schema())
answered = client.chat(
    model=model,
    messages=[
        *QUESTION,
        ollama.Message(
            role="assistant",
            tool_calls=[
                ollama.Message.ToolCall(
                    function=ollama.Message.ToolCall.Function(name="add", arguments={"a": 1, "b": 2})
                )
            ],
        ),
        {"role": "tool", "content": "3", "tool_name": "add"},
    ],
    tools=[add],
    options=GREEDY,
)
first = client.generate(model=model, prompt="The capital of France is", options=GREEDY)
second = client.generate(model=model, prompt="And of Spain?", context=first.context, options=GREEDY)
print(
    json.dumps(
        {
            "text": chat.message.content,
            "streamed": "".join(part.message.content or "" for part in streamed),
            "asynchronous": asyncio.run(ask_async()),
            "done": [streamed[-1].done, streamed[-1].done_reason, streamed[-1].eval_count, chat.eval_count],
            "typed": Person.model_validate_json(typed.message.content or "").model_dump(),
            "answered": answered.done,
            "generated": first.response,
            "context": [len(first.context or []), second.prompt_eval_count],
            "embedded": [len(vector) for vector in client.embed(model=model, input=["a cat", "a dog"]).embeddings],
            "old": len(client.embeddings(model=model, prompt="a cat").embedding),
            "models": [each.model for each in client.list().models],
            "running": [each.model for each in client.ps().models],
            "capabilities": client.show(model).capabilities,
            "pulled": client.pull(model).status,
            "errors": [error_of(model="other"), error_of(options={"top_k": "many"})],
        }
    )
)
