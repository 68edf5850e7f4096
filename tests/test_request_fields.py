"""A request's field travels whole from the body to the core: few files name it, and none is lost on the way."""

from __future__ import annotations

import dataclasses
import re

import msgspec
import pytest
from pydantic import BaseModel

from ramiform.runtime.frontend.api.chat_body import ChatBody
from ramiform.runtime.frontend.chat.input import ChatOptions
from ramiform.runtime.frontend.http.anthropic.body import CountBody, MessagesBody
from ramiform.runtime.frontend.http.ollama.body import OllamaChatBody, OllamaGenerateBody
from ramiform.runtime.frontend.http.openai.responses.body import ResponseBody
from ramiform.runtime.protocol.core import Generate, ProgramProgress, RequestOptions, Retention, SoftPin
from ramiform.runtime.protocol.pictures import Picture, PictureRun
from ramiform.runtime.protocol.sampling import LogprobParams, SamplingParams
from ramiform.tests.test_layers import modules

MESSAGES = [{"role": "user", "content": "Hello"}]
CHAT_BODIES: list[tuple[type[BaseModel], dict[str, object]]] = [
    (ChatBody, {"messages": MESSAGES}),
    (ResponseBody, {"input": "Hello"}),
    (CountBody, {"messages": MESSAGES}),
    (MessagesBody, {"messages": MESSAGES, "max_tokens": 1}),
    (OllamaChatBody, {"messages": MESSAGES}),
    (OllamaGenerateBody, {"prompt": "Hello"}),
]


@pytest.mark.parametrize("field", ["in_bulk", "exact_history"])
def test_at_most_five_files_name_a_request_s_field(field: str) -> None:
    """docs/architecture.md tells which ones."""
    named = [name for name, path in modules().items() if re.search(rf"\b{field}\b", path.read_text())]
    assert 2 <= len(named) <= 5, named


def test_every_option_reaches_the_core() -> None:
    options = RequestOptions(
        logprobs=LogprobParams(num_top=2),
        priority=3,
        namespace="ours",
        program="p",
        soft_pins=[SoftPin(1)],
        progress=ProgramProgress(4),
        retain=[Retention(5, 6.0)],
        in_bulk=True,
        continued=7,
        adapter="a",
        pictures=[Picture(key=b"k", pixels=b"p", shape=(1, 1, 1, 1), runs=[PictureRun(0, 1)])],
        routed_from=3,
    )
    default = RequestOptions()
    names = RequestOptions.__struct_fields__
    assert [name for name in names if getattr(options, name) == getattr(default, name)] == [], "set each of them here"
    request = Generate.of(options, rid="r", tokens=[1], sampling=SamplingParams())
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Generate)
    assert {name: getattr(decoded, name) for name in names} == msgspec.structs.asdict(options)


@pytest.mark.parametrize(("kind", "body"), CHAT_BODIES, ids=lambda value: getattr(value, "__name__", ""))
def test_every_dialect_takes_the_options_of_chat(kind: type[BaseModel], body: dict[str, object]) -> None:
    names = [each.name for each in dataclasses.fields(ChatOptions)]
    assert [name for name in names if name not in kind.model_fields] == []
    made = kind.model_validate({**body, "exact_history": False, "tool_calls": "strict"})
    assert made.chat_options() == ChatOptions(exact_history=False, tool_calls="strict")  # type: ignore[attr-defined]
    assert kind.model_validate(body).chat_options() == ChatOptions()  # type: ignore[attr-defined]
