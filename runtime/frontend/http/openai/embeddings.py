"""`/v1/embeddings`: refused in so many words, for a model that generates text."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from ....protocol.errors import RequestError
from ...generation import Generator
from ..bodies import Body, Many, Text, TokenIds
from .fields import require_model


class EmbeddingBody(Body):
    model: Text
    input: Text | Many[Text] | TokenIds | Many[TokenIds]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: Text | None = None


class EmbeddingsApi:
    def __init__(self, generator: Generator) -> None:
        self._core = generator.core

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["openai"])
        router.add_api_route("/v1/embeddings", self.create, methods=["POST"], response_model=None)
        return router

    async def create(self, body: EmbeddingBody) -> Response:
        """400: the models that are served here generate text."""
        info = self._core.require_info()
        require_model(info, body.model)
        raise RequestError(
            f"{info.name!r} generates text; it has no embeddings", param="model", code="unsupported_model"
        )
