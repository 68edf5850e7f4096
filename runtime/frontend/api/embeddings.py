"""Answers of `/v1/embeddings`: final hidden states as vectors of texts."""

from __future__ import annotations

import array
import base64
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ...models.errors import CheckpointError
from ...models.sentence_files import stored_pooling
from ...protocol.core import EncoderOutput, ModelInfo, Pooling, RequestOptions
from ...protocol.errors import RequestError
from ..text.embedding import Embedded, embed, l2_normalised
from ..text.generation import Generator
from ..text.named_fields import name_prompt_field
from .bodies import Many, Priority, RequestBody, Text, TokenIds, described, example
from .fields import require_model

MAX_INPUTS = 2048


InputText = Annotated[Text, described(minLength=1)]
InputIds = Annotated[TokenIds, described(minItems=1)]


class EmbeddingBody(RequestBody):
    """`pooling` takes the last token or the mean of all; its default is the checkpoint's, else the last token."""

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
        """Return the inputs. Raises RequestError for none, and for too many."""
        is_single = isinstance(self.input, str) or (self.input and isinstance(self.input[0], int))
        inputs: Any = [self.input] if is_single else self.input
        if not 1 <= len(inputs) <= MAX_INPUTS or not all(inputs):
            raise RequestError(f"give 1 to {MAX_INPUTS} inputs, none of them empty", param="input")
        checked: list[str] | list[list[int]] = inputs
        return checked


class EmbeddingAnswers:
    """Answers requests for embeddings."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    async def answer(self, body: EmbeddingBody) -> dict[str, Any]:
        """Return the answer. Raises RamiformError."""
        info = self._generator.core.require_info()
        adapter = require_model(info, body.model)
        embedded = await self._embed(body, info, adapter)
        num_tokens = sum(each.prompt_tokens for each in embedded)
        return {
            "object": "list",
            "model": adapter or info.name,
            "data": [
                {"object": "embedding", "index": index, "embedding": _encode(body, each)}
                for index, each in enumerate(embedded)
            ],
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }

    async def _embed(self, body: EmbeddingBody, info: ModelInfo, adapter: str | None) -> list[Embedded]:
        # An encoder with a head gives no embeddings, however they were pooled.
        given = None if info.encoder == "head" else body.pooling
        pooling = given or checkpoint_pooling(info)
        prompts = [await self._token_ids(text, body.add_special_tokens) for text in body.inputs()]
        core = self._generator.core
        options = RequestOptions(namespace=body.cache_salt, priority=body.priority, adapter=adapter)
        with name_prompt_field("input"):
            embedded = await embed(core, prompts, pooling, options)
        size = len(embedded[0].values)
        if body.dimensions not in (None, size):
            raise RequestError(f"the model's embeddings have {size} dimensions, and no others", param="dimensions")
        return embedded

    async def _token_ids(self, text: str | list[int], add_special_tokens: bool) -> list[int]:
        if isinstance(text, list):
            return text
        return await self._generator.encoder.encode_prompt(text, with_bos=add_special_tokens, param="input")


def _encode(body: EmbeddingBody, embedded: Embedded) -> list[float] | str:
    values: array.array[float] = l2_normalised(embedded.values) if body.normalize else embedded.values
    return values.tolist() if body.encoding_format == "float" else base64.b64encode(values.tobytes()).decode()


def checkpoint_pooling(info: ModelInfo) -> EncoderOutput:
    """Return the checkpoint's pooling mode, in the layout of sentence-transformers.

    Raises RequestError for a model that gives no embeddings, and for a mode that is not computed.
    """
    if info.encoder == "head":
        raise RequestError(
            f"{info.architecture} is an encoder with a classification head: it gives labels at /classify, no "
            "embeddings",
            param="model",
            code="not_supported",
        )
    if info.encoder is not None:
        return info.encoder
    try:
        mode = stored_pooling(Path(info.path))
    except CheckpointError as error:
        raise RequestError(f"{error}: give pooling last or mean", param="pooling") from None
    if mode not in _POOLING:
        raise RequestError(
            f"the checkpoint pools by {mode}, which is not computed: give pooling last or mean", param="pooling"
        )
    return _POOLING[mode]


_POOLING: dict[str | None, Pooling] = {"mean": "mean", "lasttoken": "last", None: "last"}
