"""Bodies of llama-server's `/completion` and `/infill`. Source: llama.cpp's tools/server/README.md."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

from pydantic import Field

from ....protocol.errors import RequestError
from ....protocol.sampling import Constraint, SamplingParams
from ...api.bodies import MAX_BATCH, Body, Many, StreamedBody, Text, TokenId, described, example, sampling_params
from ...api.fields import MAX_TOP, OpenAISampling, RequestId
from ...text.generation import MAX_SAMPLES

Piece = Text | TokenId
Bias = Annotated[list[bool | int | float | Text], Field(min_length=2, max_length=2)]  # a token or text, and a number


class PromptObject(Body):
    """llama-server's form of a prompt that may have media; here it has a text alone."""

    prompt_string: Text
    multimodal_data: Annotated[Many[Any], Field(max_length=0)] = Field(default_factory=list)


OnePrompt = Text | Many[Piece] | PromptObject


class CompletionOptions(OpenAISampling, StreamedBody):
    """Options that both routes have, with llama-server's defaults except its repeat_last_n, which is of no effect
    without a repeat_penalty."""

    model: Text | None = None
    temperature: Annotated[float, described(minimum=0, maximum=100)] = 0.8
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] = 40  # below 1: all
    top_p: Annotated[float, described(exclusiveMinimum=0, maximum=1)] = 0.95
    min_p: Annotated[float, described(minimum=0, maximum=1)] = 0.05
    n_predict: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None  # -1: as many tokens as fit
    max_tokens: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None  # another name of n_predict
    n_cmpl: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 1
    seed: Annotated[int, Field(ge=-1, lt=1 << 62)] = -1  # -1: drawn
    repeat_penalty: Annotated[float, described(minimum=0.01, maximum=10)] = 1.0
    # -1: the penalty covers the whole context; 0: no penalty. Others only without a penalty.
    repeat_last_n: Annotated[int, Field(ge=-1, lt=1 << 31)] = -1
    logit_bias: Many[Bias] | dict[Text, float | bool] = Field(default_factory=list)  # type: ignore[assignment]
    n_probs: Annotated[int, Field(ge=0, le=MAX_TOP)] = 0
    return_tokens: bool = False
    cache_salt: Text = ""
    request_id: RequestId | None = None

    def num_tokens(self) -> tuple[int | None, str]:
        """Return how many tokens are asked for, None for what fits, and the field that says so."""
        if None not in (self.n_predict, self.max_tokens) and self.n_predict != self.max_tokens:
            raise RequestError("n_predict and max_tokens are two names of one limit", param="max_tokens")
        name = "max_tokens" if self.n_predict is None else "n_predict"
        asked: int | None = getattr(self, name)
        return None if asked in (None, -1) else asked, name

    def sampling(self, max_tokens: int, constraint: Constraint | None, bias: dict[int, float]) -> SamplingParams:
        """Convert to SamplingParams, with a seed. Raises RequestError naming the parameter that is out of range."""
        if self.repeat_last_n > 0 and self.repeat_penalty != 1.0:
            raise RequestError(
                f"repeat_last_n {self.repeat_last_n}: a penalty covers the whole context (-1), or nothing (0)",
                param="repeat_last_n",
            )
        if self.repetition_penalty != 1.0:
            raise RequestError("repetition_penalty is repeat_penalty here", param="repetition_penalty")
        return sampling_params(
            self,
            "openai",
            max_new_tokens=max_tokens,
            min_new_tokens=min(self.min_tokens, max_tokens),
            top_k=self.top_k if self.top_k > 0 else None,
            repetition_penalty=self.repeat_penalty if self.repeat_last_n else 1.0,
            seed=secrets.randbits(62) if self.seed < 0 else self.seed,
            logit_bias=bias,
            constraint=constraint,
        )

    def biases(self) -> list[tuple[int | str, float]]:
        """Return the biases, of tokens or texts. Raises RequestError for a switch: no bias means "never"."""
        pairs = self.logit_bias.items() if isinstance(self.logit_bias, dict) else self.logit_bias
        found: list[tuple[int | str, float]] = []
        for token, value in pairs:
            if isinstance(value, bool | str):
                raise RequestError(f"logit_bias of {token!r}: give a number, as -100", param="logit_bias")
            if isinstance(token, bool | float):
                raise RequestError(f"logit_bias of {token!r}: name a token by its id or text", param="logit_bias")
            number = int(token) if isinstance(token, str) and token.isdecimal() and len(token) < 10 else token
            found.append((number if isinstance(self.logit_bias, dict) else token, value))
        return found


class LlamaCompletionBody(CompletionOptions):
    model_config = example({"prompt": "The capital of France is", "n_predict": 8})
    prompt: Annotated[OnePrompt | Many[OnePrompt], described(minItems=1)]

    def prompts(self) -> list[str | list[str | int]]:
        """Return the prompts: texts, or tokens and texts that follow one another. Raises RequestError."""
        given: Any = self.prompt
        has_token = isinstance(given, list) and any(isinstance(part, int) for part in given)
        is_flat = has_token and all(isinstance(part, int | str) for part in given)
        several = given if isinstance(given, list) and not is_flat else [given]
        if not 1 <= len(several) * self.n_cmpl <= MAX_BATCH or not all(several):
            raise RequestError(f"give 1 to {MAX_BATCH} prompts, none of them an empty list", param="prompt")
        return [each.prompt_string if isinstance(each, PromptObject) else each for each in several]


class ExtraText(Body):
    """File that stands before the text to fill in."""

    text: Text
    filename: Text = "tmp"


class InfillBody(CompletionOptions):
    """The texts before and behind what is to be written. `prompt` follows the first."""

    model_config = example({"input_prefix": "def add(a, b):\n    ", "input_suffix": "\n", "n_predict": 16})
    input_prefix: Text
    input_suffix: Text
    input_extra: Many[ExtraText] = Field(default_factory=list)
    prompt: Text = ""
