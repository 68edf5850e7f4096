"""`/v1/embeddings`: final hidden states as vectors of texts."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...api.embeddings import EmbeddingAnswers, EmbeddingBody
from ...text.generation import Generator
from ..transport.body_route import BodyRoute
from ..transport.streaming import cancel_on_disconnect, json_response


class EmbeddingsApi:
    """Route for embeddings."""

    def __init__(self, generator: Generator) -> None:
        self.answers = EmbeddingAnswers(generator)

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["openai"], route_class=BodyRoute)
        router.add_api_route("/v1/embeddings", self.create, methods=["POST"], response_model=None)
        return router

    async def create(self, body: EmbeddingBody, request: Request) -> Response:
        """Return the vector of each input, of length 1 unless `normalize` is false."""
        return json_response(await cancel_on_disconnect(request, self.answers.answer(body)))
