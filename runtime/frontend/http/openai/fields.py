"""Fields that completions and chat share, and their conversion to SamplingParams."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from ....protocol.core import ModelInfo
from ....protocol.errors import RequestError, context_exceeded
from ....protocol.sampling import Constraint, SamplingParams
from ...text.generation import MAX_SAMPLES
from ..bodies import Body, Priority, Text, sampling_fields, sampling_params
from ..errors import NotFoundError
from ..peer_fields import PEER_FIELDS
from .constraints import ConstraintFields


class StreamOptions(Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] = False


OpenAISampling = create_model("OpenAISampling", __base__=ConstraintFields, **sampling_fields("openai"))


class GenerationFields(OpenAISampling):
    model: Text | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 1
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    min_tokens: Annotated[int, Field(ge=0)] = 0
    include_stop_str_in_output: bool = False
    priority: Priority = 0
    cache_salt: Text = ""
    extra_key: Text = ""
    # Accepted without effect on the answer.
    user: Text | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default", "flex", "priority", "scale"] | None = None
    prompt_cache_key: Text | None = None
    prompt_cache_retention: Literal["in-memory", "in_memory", "24h"] | None = None
    safety_identifier: Text | None = None

    @classmethod
    def is_neutral(cls, name: str, value: Any) -> bool:
        """Also ignore unknown switches that are off; clients of other servers send them."""
        is_switched_off = value is False and name not in cls.model_fields and name not in PEER_FIELDS
        return is_switched_off or super().is_neutral(name, value)

    def check(self, info: ModelInfo) -> None:
        """Check the fields together. Raises NotFoundError for another model, RequestError for conflicting fields."""
        require_model(info, self.model)
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options are for streams: set stream", param="stream_options")

    @property
    def namespace(self) -> str:
        """Namespace of the prefix cache: requests share prefixes only if both keys are the same."""
        return (
            f"{self.cache_salt}\0{self.extra_key}"
            if self.cache_salt and self.extra_key
            else (self.cache_salt or self.extra_key)
        )

    def sampling(self, max_tokens: int, constraint: Constraint | None) -> SamplingParams:
        """Convert to SamplingParams, with a seed. Raises RequestError naming the parameter that is out of range."""
        if self.min_tokens > max_tokens:
            raise RequestError(f"min_tokens is {self.min_tokens}, the most is {max_tokens}", param="min_tokens")
        return sampling_params(
            self,
            "openai",
            max_new_tokens=max_tokens,
            top_k=self.top_k if self.top_k > 0 else None,
            seed=secrets.randbits(62) if self.seed is None else self.seed,
            no_stop_trim=self.no_stop_trim or self.include_stop_str_in_output,
            constraint=constraint,
        )


def require_model(info: ModelInfo, name: str | None) -> None:
    """Raise NotFoundError unless `name` is the served model's name or path. None and "" mean the served model."""
    if name and name not in (info.name, info.path):
        raise NotFoundError(
            f"the model {name!r} does not exist; {info.name!r} is served", param="model", code="model_not_found"
        )


def completion_token_limit(
    info: ModelInfo, num_prompt: int, asked: int | None, *, prompt: str, limit: str, default: int | None = None
) -> int:
    """Return the maximum number of tokens of an answer: `asked`, else `default`, else what fits.

    Raises RequestError when prompt and answer exceed the context. `prompt` and `limit` are the names of their fields.
    """
    most = info.max_request_tokens
    if num_prompt + (1 if asked is None else asked) > most:
        num_completion = asked or (1 if num_prompt == most else 0)
        raise context_exceeded(most, num_prompt, num_completion, prompt=prompt, limit=limit)
    if asked is not None:
        return asked
    return most - num_prompt if default is None else min(default, most - num_prompt)
