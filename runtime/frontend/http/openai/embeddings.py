"""`/v1/embeddings`: a decoder's final hidden states as vectors of texts."""

from __future__ import annotations

import array
import base64
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from ....protocol.core import ModelInfo, Pooling
from ....protocol.errors import RequestError
from ...text.embedding import Embedded, embed, l2_normalised
from ...text.generation import Generator
from ..bodies import Many, Priority, RequestBody, Text, TokenIds, described, example
from ..errors import name_prompt_field
from ..transport.body_route import BodyRoute
from ..transport.streaming import cancel_on_disconnect, json_response
from .fields import require_model

MAX_INPUTS = 2048


InputText = Annotated[Text, described(minLength=1)]
InputIds = Annotated[TokenIds, described(minItems=1)]


class EmbeddingBody(RequestBody):
    """`pooling`: of the last token or the mean of all; default: as the checkpoint says, else the last token."""

    model: Text | None = None
    model_config = example({"input": ["A cat sat on the mat.", "Stocks fell."]})
    input: (
        InputText
        | Annotated[Many[InputText], described(minItems=1, maxItems=MAX_INPUTS)]
        | InputIds
        | Annotated[Many[InputIds], described(minItems=1, maxItems=MAX_INPUTS)]
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    pooling: Pooling | None = None
    normalize: bool = True
    add_special_tokens: bool = True
    priority: Priority = 0
    cache_salt: Text = ""
    user: Text | None = None

    def inputs(self) -> list[str] | list[list[int]]:
        """Raises RequestError for none, and too many."""
        given: Any = self.input
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            given = [given]
        if not 1 <= len(given) <= MAX_INPUTS or not all(given):
            raise RequestError(f"give 1 to {MAX_INPUTS} inputs, none of them empty", param="input")
        inputs: list[str] | list[list[int]] = given
        return inputs


class EmbeddingsApi:
    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["openai"], route_class=BodyRoute)
        router.add_api_route("/v1/embeddings", self.create, methods=["POST"], response_model=None)
        return router

    async def create(self, body: EmbeddingBody, request: Request) -> Response:
        """The vector of each input: of length 1, unless `normalize` is false."""
        info = self._generator.core.require_info()
        require_model(info, body.model)
        found = await cancel_on_disconnect(request, self._embed(body, info))
        num_tokens = sum(each.prompt_tokens for each in found)
        return json_response(
            {
                "object": "list",
                "model": info.name,
                "data": [
                    {"object": "embedding", "index": index, "embedding": _written(body, each)}
                    for index, each in enumerate(found)
                ],
                "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
            }
        )

    async def _embed(self, body: EmbeddingBody, info: ModelInfo) -> list[Embedded]:
        prompts = [await self._ids(given, body.add_special_tokens) for given in body.inputs()]
        pooling = body.pooling or _pooling_of(Path(info.path))
        core = self._generator.core
        with name_prompt_field("input"):
            found = await embed(core, prompts, pooling, namespace=body.cache_salt, priority=body.priority)
        size = len(found[0].values)
        if body.dimensions not in (None, size):
            raise RequestError(f"the model's embeddings have {size} dimensions, and no others", param="dimensions")
        return found

    async def _ids(self, given: str | list[int], add_special_tokens: bool) -> list[int]:
        if isinstance(given, list):
            return given
        return await self._generator.encoder.encode_prompt(given, with_bos=add_special_tokens, param="input")


def _written(body: EmbeddingBody, embedded: Embedded) -> list[float] | str:
    values: array.array[float] = l2_normalised(embedded.values) if body.normalize else embedded.values
    return values.tolist() if body.encoding_format == "float" else base64.b64encode(values.tobytes()).decode()


def _pooling_of(folder: Path) -> Pooling:
    """What a checkpoint that was trained for embeddings says, in the layout of sentence-transformers."""
    path = folder / "1_Pooling" / "config.json"
    return "mean" if path.is_file() and json.loads(path.read_text("utf-8")).get("pooling_mode_mean_tokens") else "last"
