"""Answers of `/v1/embeddings`: a decoder's final hidden states as vectors of texts."""

from __future__ import annotations

import array
import base64
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ...protocol.core import ModelInfo, Pooling, RequestOptions
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
        prompts = [await self._token_ids(text, body.add_special_tokens) for text in body.inputs()]
        pooling = body.pooling or checkpoint_pooling(Path(info.path))
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


def checkpoint_pooling(folder: Path) -> Pooling:
    """Return the checkpoint's pooling mode, in the layout of sentence-transformers."""
    path = folder / "1_Pooling" / "config.json"
    return "mean" if path.is_file() and json.loads(path.read_text("utf-8")).get("pooling_mode_mean_tokens") else "last"
