"""The body of `/v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ....protocol.core import ModelInfo
from ....protocol.errors import RequestError
from ...text.generation import MAX_SAMPLES
from ..bodies import MAX_BATCH, Many, Text, TokenIds, described, example
from .fields import GenerationFields


class CompletionBody(GenerationFields):
    model_config = example({"prompt": "The capital of France is", "max_tokens": 8})
    prompt: Annotated[Text | Many[Text] | TokenIds | Many[TokenIds], described(minItems=1)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = None
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_special_tokens: bool = True

    def prompts(self) -> list[str] | list[list[int]]:
        """Raises RequestError for none, and too many."""
        given: Any = self.prompt
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            given = [given]
        if not 1 <= len(given) <= MAX_BATCH:
            raise RequestError(f"give 1 to {MAX_BATCH} prompts, got {len(given)}", param="prompt")
        prompts: list[str] | list[list[int]] = given
        return prompts

    def check(self, info: ModelInfo) -> None:
        super().check(info)
        if self.max_tokens == 0 and not self.echo:
            raise RequestError("max_tokens may be 0 with echo only: there is nothing to answer", param="max_tokens")
        if self.best_of is not None and self.best_of < self.n:
            raise RequestError(f"best_of must be at least n, {self.n}; got {self.best_of}", param="best_of")
        if self.best_of is not None and self.stream and self.best_of > self.n:
            raise RequestError("the best of several cannot be streamed", param="best_of")
