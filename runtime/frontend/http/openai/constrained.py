"""`/v1/constrained`: generate one typed value under a constraint."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from ....protocol.core import ModelInfo
from ....protocol.errors import RequestError
from ....protocol.sampling import Constraint
from ...api.bodies import Many, Text, TokenIds, described, example
from ...api.chat_messages import Messages, template_messages
from ...api.constraints import ConstraintFields, Schema
from ...api.fields import GenerationFields
from ...api.finish import finish_reason
from ...chat.completion import ChatCompletion
from ...chat.service import ChatService
from ...core.client import new_rid
from ...text.offload import offload_if_large
from ..transport.body_route import BodyRoute
from ..transport.streaming import cancel_on_disconnect, json_response

DEFAULT_VALUE_TOKENS = 1024


class ConstrainedBody(GenerationFields):
    """One of `regex`, `json_schema`, `grammar` and `choices`, and one of `prompt` and `messages`."""

    exactly_one = (("prompt", "messages"), ("regex", "json_schema", "grammar", "choices"))
    undocumented = frozenset(ConstraintFields.model_fields) - {
        "regex",
        "json_schema",
        "grammar",
        "additional_properties",
        "number_digits",
        "json_whitespace",
    }
    model_config = example({"prompt": "The capital of France is", "choices": [" Paris", " Rome", " Oslo"]})
    stream: Literal[False] = False
    n: Literal[1] = 1
    prompt: Text | TokenIds | None = None
    messages: Messages | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    regex: Text | None = None
    json_schema: Schema | Text | None = None
    choices: Annotated[Many[Text], described(minItems=1)] | None = None

    def check(self, info: ModelInfo) -> None:
        super().check(info)
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("give either prompt or messages", param="messages" if self.prompt else "prompt")

    def constraint(self) -> tuple[Constraint, str]:
        """Return the constraint and its field. Raises RequestError unless exactly one is given."""
        asked = super().constraint()
        given = [] if asked is None else [asked]
        if self.choices is not None:
            given.append(self.as_constraint("choices", "choices", self.choices))
        if len(given) != 1:
            raise RequestError(
                "give exactly one of regex, json_schema, grammar and choices", param=given[1][1] if given else "regex"
            )
        return given[0]


class ConstrainedApi:
    """Route for constrained values."""

    def __init__(self, service: ChatService) -> None:
        self._service = service
        self._generator = service.generator

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["ramiform"], route_class=BodyRoute)
        router.add_api_route("/v1/constrained", self.create, methods=["POST"], response_model=None)
        return router

    async def create(self, body: ConstrainedBody, request: Request) -> Response:
        """Generate one value: JSON as JSON, a choice with its index, anything else as text."""
        info = self._generator.core.require_info()
        body.check(info)
        return json_response(
            {"id": f"con-{new_rid()}", "object": "constrained", "model": body.answering(info)}
            | await cancel_on_disconnect(request, self._answer(body))
        )

    async def _answer(self, body: ConstrainedBody) -> dict[str, Any]:
        constraint, _ = body.constraint()
        given = body.messages
        asked = body.chat_input(
            [] if given is None else await offload_if_large(lambda _: template_messages(given), given),
            self._generator.core.require_info(),
            prompt_field="prompt" if given is None else "messages",
            limit=(body.max_tokens, "max_tokens"),
            default_limit=DEFAULT_VALUE_TOKENS,
        )
        if given is None:
            chat = await self._service.plain_request(body.prompt or "", asked)
        else:
            chat = await self._service.request(asked)
        async with self._service.completions(chat) as [completion]:
            text = "".join([delta.content async for delta in completion.deltas()])
        usage = _usage(len(chat.prompt.tokens), completion)
        return {"text": text, **_value(constraint, text, completion), "usage": usage}


def _value(constraint: Constraint, text: str, completion: ChatCompletion) -> dict[str, Any]:
    """Build the value and the finish reason. The value is null when the output was cut."""
    assert completion.finish is not None
    value: dict[str, Any] = {"finish_reason": finish_reason(completion.finish)}
    if completion.finish.type != "stop" or isinstance(completion.finish.matched, str):
        return {"value": None, **value}
    match constraint.kind:
        case "json_schema":
            return {"value": json.loads(text), **value}
        case "choices":
            return {"value": text, "index": json.loads(constraint.source).index(text), **value}
        case _:
            return {"value": text, **value}


def _usage(num_prompt: int, completion: ChatCompletion) -> dict[str, Any]:
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": completion.num_completion_tokens,
        "total_tokens": num_prompt + completion.num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": completion.num_cached_tokens},
    }
