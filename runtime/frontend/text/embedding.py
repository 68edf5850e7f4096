"""Computes embeddings of prompts: the model's final hidden states, pooled by the core."""

from __future__ import annotations

import array
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from ...protocol.core import EncoderOutput, Generate, RequestOptions
from ...protocol.errors import RequestError
from ...protocol.sampling import SamplingParams
from ..core.client import CoreClient, TokenStream, new_rid
from .offload import cooperative_iter

_NO_TOKENS = SamplingParams(max_new_tokens=0, temperature=0.0, seed=0)


@dataclass(frozen=True)
class Embedded:
    """An embedding, as float32 values, and the number of tokens of its prompt."""

    values: array.array[float]
    prompt_tokens: int


async def embed(
    core: CoreClient,
    prompts: Sequence[list[int]],
    pooling: EncoderOutput,
    options: RequestOptions,
    types: Sequence[list[int]] | None = None,
) -> list[Embedded]:
    """Embed prompts, given as token ids and submitted together. `types` are those of an encoder's tokens.

    Raises RamiformError and aborts the others when one fails.
    """
    with ExitStack() as stack:
        answers = [
            stack.enter_context(
                core.submit(
                    Generate.of(
                        options,
                        rid=new_rid(),
                        tokens=tokens,
                        sampling=_NO_TOKENS,
                        pooling=pooling,
                        token_types=() if types is None else types[index],
                    )
                )
            )
            async for index, tokens in cooperative_iter(list(enumerate(prompts)))
        ]
        return [Embedded(await _read(answer), len(ids)) for answer, ids in zip(answers, prompts, strict=True)]


def l2_normalised(values: array.array[float]) -> array.array[float]:
    """Scale a vector to length 1; a zero vector stays zero."""
    length = math.sqrt(math.fsum(value * value for value in values)) or 1.0
    return array.array("f", (value / length for value in values))


async def _read(answer: TokenStream) -> array.array[float]:
    values = array.array("f")
    async for tokens in answer:
        if tokens.finish is not None and tokens.finish.type == "abort":
            raise RequestError("the embedding was aborted", code="aborted")
        if tokens.embedding is not None:
            values.frombytes(tokens.embedding)
    return values
