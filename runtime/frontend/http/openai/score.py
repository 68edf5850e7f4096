"""`/v1/score`: log-probabilities of given continuations of a prompt."""

from __future__ import annotations

import math
from typing import Annotated, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ....programs.common_prefix import common_prefix_length
from ....protocol.errors import RequestError
from ...text.generation import Generator
from ...text.scoring import Continuation, RequestContext, Scored, score
from ..bodies import Many, RequestBody, Text, TokenIds, described, example
from ..transport.body_route import BodyRoute
from ..transport.streaming import cancel_on_disconnect, json_response
from .fields import require_model

MAX_CONTINUATIONS = 1024


class ScoreBody(RequestBody):
    """Continuations are texts after a text, or token ids after token ids."""

    model: Text | None = None
    model_config = example({"prompt": "The capital of France is", "continuations": [" Paris", " Rome"]})
    prompt: Text | Annotated[TokenIds, described(minItems=1)]
    continuations: (
        Annotated[Many[Annotated[Text, described(minLength=1)]], described(minItems=1, maxItems=MAX_CONTINUATIONS)]
        | Annotated[Many[Annotated[TokenIds, described(minItems=1)]], described(minItems=1, maxItems=MAX_CONTINUATIONS)]
    )
    cache_salt: Text = ""


class ScoreApi:
    """Route for scores of continuations."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["ramiform"], route_class=BodyRoute)
        router.add_api_route("/v1/score", self.create, methods=["POST"], response_model=None)
        return router

    async def create(self, body: ScoreBody, request: Request) -> Response:
        """Return the log-probability of each continuation and of its tokens. The prompt is computed once."""
        info = self._generator.core.require_info()
        require_model(info, body.model)
        batch = await cancel_on_disconnect(request, self._batch(body))
        context = RequestContext(namespace=body.cache_salt)
        scored = await cancel_on_disconnect(request, score(self._generator.core, batch, context))
        num_prompt = sum(part.prompt_tokens for part in scored)
        return json_response(
            {
                "object": "list",
                "model": info.name,
                "data": [_score_entry(index, part) for index, part in enumerate(scored)],
                "usage": {
                    "prompt_tokens": num_prompt,
                    "completion_tokens": 0,
                    "total_tokens": num_prompt,
                    "prompt_tokens_details": {"cached_tokens": sum(part.cached_tokens for part in scored)},
                },
            }
        )

    async def _batch(self, body: ScoreBody) -> list[Continuation]:
        """Tokenise each continuation with the prompt. Its tokens begin after the longest prefix shared with the prompt
        alone.

        So a token that spans the boundary counts in full. Raises RequestError.
        """
        if not 1 <= len(body.continuations) <= MAX_CONTINUATIONS:
            raise RequestError(f"give 1 to {MAX_CONTINUATIONS} continuations", param="continuations")
        batch = []
        bound = await self._generator.encoder.prompt_bound("prompt")
        alone = body.prompt if isinstance(body.prompt, list) else await self._token_ids(body.prompt)
        for continuation in body.continuations:
            if isinstance(continuation, str) != isinstance(body.prompt, str):
                raise RequestError("continuations are texts after a text, ids after ids", param="continuations")
            if isinstance(continuation, str):
                ids = await self._token_ids(f"{body.prompt}{continuation}")
                start = common_prefix_length(alone, ids)
            else:
                num_tokens = len(alone) + len(continuation)
                if bound is not None and num_tokens > bound.most:
                    raise bound.error(num_tokens)
                ids, start = [*alone, *continuation], len(alone)
            if len(ids) == start:
                raise RequestError(f"continuation {continuation!r} adds no token", param="continuations")
            if start == 0:
                raise RequestError("the first token of all has no probability: give a prompt", param="prompt")
            batch.append(Continuation(ids, start))
        return batch

    async def _token_ids(self, text: str) -> list[int]:
        return await self._generator.encoder.encode_prompt(text)


def _score_entry(index: int, scored: Scored) -> dict[str, Any]:
    values = [token.logprob for token in scored.logprobs]
    total = math.fsum(values)
    return {
        "index": index,
        "logprob": total,
        "mean_logprob": total / len(values),
        "tokens": [token.id for token in scored.logprobs],
        "token_logprobs": values,
    }
