"""Fields that completions and chat share, and their conversion to SamplingParams."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field, create_model

from ...protocol.core import ModelInfo, RequestOptions
from ...protocol.errors import RequestError
from ...protocol.sampling import MAX_ASKED_LOGPROBS, Constraint, LogprobParams, SamplingParams
from ..chat.input import ChatInput
from ..core.client import new_rid
from ..core.sessions import MAX_RETENTION_SECONDS, RetentionHint, SessionId, cache_control_seconds, requested_session
from ..text.encoding import Side, Truncation
from ..text.generation import MAX_SAMPLES
from .bodies import (
    Body,
    Priority,
    StreamedBody,
    Text,
    TokenIds,
    described,
    require_adapter,
    sampling_fields,
    sampling_params,
)
from .constraints import ConstraintFields
from .peer_fields import PEER_FIELDS
from .validation import NotFoundError

MAX_TOP = 20  # alternatives at a position

# Switches whose `false` asks for something: routes that do not have them refuse both values.
ASKING_SWITCHES = frozenset({"add_generation_prompt", "do_sample", "enable_thinking", "reasoning", "think", "thinking"})
RequestId = Annotated[Text, Field(min_length=1, max_length=256)]


class StreamOptions(Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] = False


class AgentHints(Body):
    """Dynamo's hints. `priority` and `prefix_id`, which names a session, have an effect; the others are accepted."""

    priority: Priority | None = None
    prefix_id: Text | None = None
    strict_priority: Annotated[int, Field(ge=0)] | None = None
    osl: Annotated[int, Field(ge=0)] | Text | None = None
    iat: Annotated[int, Field(ge=0)] | Text | None = None
    total_requests: Annotated[int, Field(ge=0)] | None = None
    latency_sensitivity: float | None = None
    speculative_prefill: bool | None = None


class NvExtension(Body):
    """Dynamo's extension of request bodies."""

    agent_hints: AgentHints | None = None
    cache_control: dict[str, Any] | None = None


OpenAISampling = create_model("OpenAISampling", __base__=ConstraintFields, **sampling_fields("openai"))


class GenerationFields(OpenAISampling, StreamedBody):
    model: Text | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 1
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    min_tokens: Annotated[int, Field(ge=0)] = 0
    include_stop_str_in_output: bool = False
    priority: Priority = 0
    cache_salt: Text = ""
    extra_key: Text = ""
    session_id: Text | None = None
    prompt_cache_key: Text | None = None
    nvext: NvExtension | None = None
    lora_path: Text | None = None
    # Accepted without effect on the answer.
    user: Text | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default", "flex", "priority", "scale"] | None = None
    prompt_cache_retention: Literal["in-memory", "in_memory", "24h"] | None = None
    safety_identifier: Text | None = None

    @classmethod
    def is_neutral(cls, name: str, value: Any) -> bool:
        """Return True for unknown switches that are off too: clients of other servers send them."""
        is_known = name in cls.model_fields or name in PEER_FIELDS or name in ASKING_SWITCHES
        is_switched_off = value is False and not is_known
        return is_switched_off or super().is_neutral(name, value)

    @property
    def name(self) -> str | None:
        """Id that the client gave the request, by which `/abort_request` ends it."""
        return None

    def logprob_params(self) -> LogprobParams | None:
        """Return the log-probabilities that the answer needs."""
        return None

    def request_options(self, info: ModelInfo) -> RequestOptions:
        """Return what the core is asked besides tokens and sampling. Raises as `adapter`."""
        return msgspec.structs.replace(
            self.delivery(),
            logprobs=self.logprob_params(),
            priority=self.queue_priority,
            namespace=self.namespace,
            continued=self.num_continued,
            adapter=self.adapter(info),
        )

    def chat_input(
        self,
        messages: Sequence[Mapping[str, Any]],
        info: ModelInfo,
        *,
        prompt_field: str,
        limit: tuple[int | None, str],
        default_limit: int | None = None,
    ) -> ChatInput:
        """Return what the body asks of a chat with these messages. Raises RequestError."""
        return ChatInput(
            messages=messages,
            prompt_field=prompt_field,
            sampling=self.sampling,
            has_seed=self.seed is not None,
            constraint=self.constraint(),
            limit=limit,
            default_limit=default_limit,
            options=self.request_options(info),
            session=self.session,
            name=self.name,
            retain=self.retention,
        )

    def adapter(self, info: ModelInfo) -> str | None:
        """Return the LoRA adapter that answers, by `model` or `lora_path`; None: the model itself answers.

        Raises NotFoundError for another model, RequestError for an adapter that is not loaded, and for two.
        """
        named = require_model(info, self.model)
        if self.lora_path is None:
            return named
        require_adapter(info, self.lora_path)
        if named not in (None, self.lora_path):
            raise RequestError(f"model is another LoRA adapter, {named!r}: name one", param="lora_path")
        return self.lora_path

    def answering(self, info: ModelInfo) -> str:
        """Return the name of the adapter or model that answers. Raises as `adapter`."""
        return self.adapter(info) or info.name

    def check(self, info: ModelInfo) -> None:
        """Check the fields together. Raises NotFoundError for another model, RequestError for conflicting fields."""
        self.adapter(info)
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

    @property
    def session(self) -> SessionId | None:
        """The session that the request belongs to; None: the client names none."""
        hints = None if self.nvext is None else self.nvext.agent_hints
        return requested_session(self.session_id or (hints and hints.prefix_id), self.prompt_cache_key)

    @property
    def retention(self) -> list[RetentionHint]:
        """Times for which the client asks to keep the whole prompt. Raises RequestError for a time of another form."""
        hints = [RetentionHint(MAX_RETENTION_SECONDS)] if self.prompt_cache_retention == "24h" else []
        if self.nvext is not None and self.nvext.cache_control is not None:
            hints.append(RetentionHint(cache_control_seconds(self.nvext.cache_control, "nvext.cache_control")))
        return hints

    @property
    def queue_priority(self) -> int:
        """The request's priority: its own field's, else that of its hints."""
        hints = None if self.nvext is None else self.nvext.agent_hints
        return self.priority or (hints and hints.priority) or 0

    @property
    def num_continued(self) -> int:
        """Number of output tokens that the prompt ends with."""
        return 0

    def sampling(self, max_tokens: int, constraint: Constraint | None) -> SamplingParams:
        """Convert to SamplingParams, with a seed. Raises RequestError naming the parameter that is out of range."""
        most = max_tokens + self.num_continued
        if self.min_tokens > most:
            raise RequestError(f"min_tokens is {self.min_tokens}, the most is {most}", param="min_tokens")
        return sampling_params(
            self,
            "openai",
            max_new_tokens=max_tokens,
            min_new_tokens=max(0, self.min_tokens - self.num_continued),
            top_k=self.top_k if self.top_k > 0 else None,
            seed=secrets.randbits(62) if self.seed is None else self.seed,
            no_stop_trim=self.no_stop_trim or self.include_stop_str_in_output,
            constraint=constraint,
        )


class CompletionFields(GenerationFields):
    """Fields of completions and chat that the other routes do not have."""

    request_id: RequestId | None = None
    rid: RequestId | None = None
    truncate_prompt_tokens: Annotated[int, described(anyOf=[{"const": -1}, {"minimum": 1}])] | None = None
    truncation_side: Side = "left"
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    logprob_token_ids: TokenIds = Field(default_factory=list)
    token_details: bool = False
    return_tokens_as_token_ids: bool = False
    return_token_ids: bool = False

    def check(self, info: ModelInfo) -> None:
        super().check(info)
        if self.rid is not None and self.request_id is not None and self.rid != self.request_id:
            raise RequestError("rid and request_id are two names of one id", param="request_id")
        if self.prompt_logprobs is not None and self.stream:
            raise RequestError("prompt_logprobs are not part of a stream", param="prompt_logprobs")
        most = info.max_request_tokens
        if self.truncate_prompt_tokens is not None and not (
            self.truncate_prompt_tokens == -1 or 1 <= self.truncate_prompt_tokens <= most
        ):
            raise RequestError(
                f"truncate_prompt_tokens must be -1 or between 1 and {most}, got {self.truncate_prompt_tokens}",
                param="truncate_prompt_tokens",
            )
        if len(self.logprob_token_ids) > MAX_ASKED_LOGPROBS:
            raise RequestError(
                f"log-probabilities of at most {MAX_ASKED_LOGPROBS} tokens, got {len(self.logprob_token_ids)}",
                param="logprob_token_ids",
            )
        if self.logprob_token_ids and not self.returns_logprobs:
            raise RequestError("logprob_token_ids needs logprobs", param="logprob_token_ids")
        if self.token_details and not self.returns_logprobs:
            raise RequestError("token_details needs logprobs", param="token_details")

    @property
    def returns_logprobs(self) -> bool:
        """Return True if the client asked for the output's log-probabilities."""
        asked = getattr(self, "logprobs", None)
        return asked is not None and asked is not False  # 0 asks for those of the output alone

    @property
    def name(self) -> str | None:
        return self.request_id if self.rid is None else self.rid

    def response_id(self, prefix: str) -> str:
        """Return the id of the answer: `rid` as it is, another id after `prefix`."""
        return self.rid or f"{prefix}-{self.request_id or new_rid()}"

    def truncation(self, info: ModelInfo, asked: int | None) -> Truncation | None:
        """Return how to shorten the prompt of an answer of `asked` tokens; None: not at all."""
        if self.truncate_prompt_tokens is None:
            return None
        if self.truncate_prompt_tokens > 0:
            return Truncation(self.truncate_prompt_tokens, self.truncation_side)
        return Truncation(max(1, info.max_request_tokens - (1 if asked is None else asked)), self.truncation_side)


def require_model(info: ModelInfo, name: str | None) -> str | None:
    """Return `name` if it is that of a LoRA adapter, which then answers; None if it is a name of the served model or
    its path. None and "" mean the model. Raises NotFoundError for another name."""
    if name and any(name == adapter.name for adapter in info.adapters):
        return name
    if name and name not in (*info.names, info.path):
        raise NotFoundError(
            f"the model {name!r} does not exist; {info.name!r} is served", param="model", code="model_not_found"
        )
    return None
