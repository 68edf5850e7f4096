"""`/v1/decisions`: answer many questions about one input by probabilities, over one shared prefix."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from ....protocol.core import RequestOptions
from ....protocol.decisions import MAX_LABELS, MAX_QUESTIONS, Question
from ....protocol.errors import RequestError
from ...api.bodies import Body, Many, RequestBody, Text, described, example
from ...api.chat_messages import template_messages
from ...api.fields import require_model
from ...programs.content import TokenContent
from ...programs.decisions import Decided, decide
from ...text.encoding import TokenLimit
from ...text.generation import Generator
from ...text.named_fields import name_prompt_field
from ...text.offload import CancellationToken, offload_if_large
from ..transport.body_route import BodyRoute
from ..transport.streaming import cancel_on_disconnect, json_response
from .responses.items import InputItem, as_items, to_messages

NOT_BLANK = r"\S"
Instructions = Annotated[Text, described(pattern=NOT_BLANK)]


class ChoiceOption(Body):
    value: Annotated[Text, described(pattern=NOT_BLANK)] | bool
    description: Text | None = None


class ScoreLevel(Body):
    label: Annotated[Text, described(pattern=NOT_BLANK)]
    description: Text | None = None


class PredicateQuestion(Body):
    type: Literal["predicate"]
    instructions: Instructions
    name: Text | None = None


class ChoiceQuestion(Body):
    type: Literal["choice"]
    instructions: Instructions
    choices: Annotated[Many[ChoiceOption], described(minItems=2, maxItems=MAX_LABELS, uniqueItems=True)]
    name: Text | None = None


class ScoreQuestion(Body):
    type: Literal["score"]
    instructions: Instructions
    levels: Annotated[Many[ScoreLevel], described(minItems=2, maxItems=MAX_LABELS, uniqueItems=True)]
    name: Text | None = None


AnyQuestion = Annotated[PredicateQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]


class DecisionBody(RequestBody):
    model_config = example(
        {
            "input": "The soup was cold and nobody apologised.",
            "questions": [
                {"type": "predicate", "name": "angry", "instructions": "Is the writer angry?"},
                {"type": "choice", "instructions": "What about?", "choices": [{"value": "food"}, {"value": "price"}]},
            ],
        }
    )
    model: Text | None = None
    input: Annotated[Text | Many[InputItem], described(minLength=1, minItems=1)]
    questions: Annotated[Many[AnyQuestion], described(minItems=1, maxItems=MAX_QUESTIONS)]
    cache_salt: Text = ""
    prompt_cache_key: Text | None = None
    safety_identifier: Text | None = None
    metadata: dict[str, Any] | None = None
    user: Text | None = None


class DecisionsApi:
    """Route for decisions."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["openai"], route_class=BodyRoute)
        router.add_api_route("/v1/decisions", self.create, methods=["POST"], response_model=None)
        return router

    async def create(self, body: DecisionBody, request: Request) -> Response:
        """Answer predicates, choices and scores about one input."""
        info = self._generator.core.require_info()
        adapter = require_model(info, body.model)
        asked = [question.model_dump(exclude_none=True) for question in body.questions]
        questions = msgspec.convert(asked, list[Question])
        with name_prompt_field("input"):
            decided = await cancel_on_disconnect(request, self._decide(body, questions, adapter))
        return json_response(
            {
                "object": "decision",
                "model": adapter or info.name,
                "answers": decided.answers,
                "usage": {
                    "input_tokens": decided.prompt_tokens,
                    "input_tokens_details": {
                        "cached_tokens": decided.cached_tokens,
                        "cache_write_tokens": decided.prompt_tokens - decided.cached_tokens,
                    },
                    "output_tokens": 0,
                    "output_tokens_details": {"reasoning_tokens": 0},
                    "total_tokens": decided.prompt_tokens,
                },
            }
        )

    async def _decide(self, body: DecisionBody, questions: list[Question], adapter: str | None) -> Decided:
        bound = await self._generator.encoder.prompt_bound("input")
        content = await offload_if_large(partial(self._content, body, bound), body.input)
        options = RequestOptions(namespace=body.cache_salt, adapter=adapter)
        return await decide(self._generator, content, questions, options_for=lambda *_: options)

    def _content(self, body: DecisionBody, bound: TokenLimit | None, cancellation: CancellationToken) -> TokenContent:
        """Build the input with its last user message left open, for the questions to follow inside it. Raises
        RequestError.
        """
        content = TokenContent(self._generator.tokenizer, self._generator.encoder)
        if not body.input:
            raise RequestError("input must not be empty", param="input")
        if self._generator.tokenizer.chat is None:
            if not isinstance(body.input, str):
                raise RequestError("this model has no chat template: give the input as text", param="input")
            content.append_text(body.input)
            return content
        messages = template_messages(to_messages(as_items(body.input)))
        for index, message in enumerate(messages):
            if message["role"] == "tool" or message.get("tool_calls"):
                raise RequestError("calls and their outputs are no input of decisions", param="input")
            cancellation.check()
            if bound is not None:  # every message renders all earlier ones, so check before each
                self._generator.encoder.check_length([text for text, _ in content.pending], bound)
            content.begin_role(message["role"])
            content.append_text(message["content"] or "")
            if index < len(messages) - 1 or message["role"] != "user":
                content.end_role()
        return content
