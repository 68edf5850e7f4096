"""A backend for Anthropic's messages API."""

from __future__ import annotations

import os
from typing import Unpack

from ...runtime.protocol import session
from ...runtime.protocol.errors import RequestError
from .anthropic_format import MessageEvents, counts_of, messages_body, own_stops, sampling_body, sequence_of
from .endpoints.endpoint_backend import EndpointBackend
from .endpoints.endpoint_client import EndpointClient, EndpointOptions, estimated_tokens, settings_of
from .endpoints.openai_address import key_of
from .model import ModelCall, ModelOutput, OnText
from .stop_cutter import StopCutter
from .transcript import Transcript, TranscriptPart

ANTHROPIC_URL = "https://api.anthropic.com"
OLDER_VERSION = "2023-06-01"  # the last that takes temperature, top_p and top_k


class Anthropic(EndpointBackend):
    """Runs programs on `model_name` of Anthropic's messages API.

    The address is `base_url`, that of ANTHROPIC_BASE_URL, or Anthropic's own; `api_key` is by default that of
    ANTHROPIC_API_KEY. Versions of the API after 2023-06-01 take no `temperature`, `top_p` and `top_k`; with one of them
    as `api_version` these are refused here. In that version some models refuse them themselves. `options` are those of
    `EndpointOptions`: timeout, retries, rate limits, and `extra_body`, such as `{"thinking": {"type": "disabled"}}`.
    `usage` counts tokens and requests.

    The system messages at the beginning are the request's `system`. Text before a gen in the assistant's message is
    sent as its beginning, where the model allows this. Text without roles is sent as one user message. Stop strings of
    white space only are looked for here, which ends the request there. Samples of n > 1 are drawn one after the other.
    JSON schemas, `schema` and `tools` use the API's structured output. Other constraints, `select`, `decide`,
    log-probabilities, `seed` and the parameters that the API lacks are refused with RequestError.
    """

    def __init__(
        self,
        model_name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        api_version: str = OLDER_VERSION,
        **options: Unpack[EndpointOptions],
    ) -> None:
        if not isinstance(model_name, str) or not model_name:
            raise RequestError(f"model_name must be a non-empty string, got {model_name!r}", param="model_name")
        options["default_headers"] = {"anthropic-version": api_version, **options.get("default_headers", {})}
        settings = settings_of("Anthropic", options)
        self.model = model_name
        self._api_version = api_version
        url = base_url or os.environ.get("ANTHROPIC_BASE_URL") or ANTHROPIC_URL
        credentials = key_of("ANTHROPIC_API_KEY", api_key, header="x-api-key", required=url == ANTHROPIC_URL)
        super().__init__("Anthropic's API", EndpointClient(url, settings, credentials, counts_of))

    # Methods of `Model`

    def generate(self, transcript: Transcript, gen: session.Gen, on_text: OnText, call: ModelCall) -> ModelOutput:
        if gen.logprobs is not None:
            raise self._unsupported("returns no log-probabilities", "return_logprob")
        prompt, space = messages_body(transcript)
        body = {"model": self.model, **prompt, **sampling_body(gen.sampling, draws=self._api_version == OLDER_VERSION)}
        num_tokens = estimated_tokens(prompt, gen.sampling.max_new_tokens)
        sequences = []
        for _ in range(gen.n):
            cutter = StopCutter(own_stops(gen.sampling), skips_space=bool(space))
            events = MessageEvents(on_text if gen.n == 1 else lambda text: None, cutter)
            answer = self._client.stream("/v1/messages", {**body, "stream": True}, call, events, num_tokens=num_tokens)
            sequences.append(sequence_of(answer, cutter))
        return ModelOutput(sequences, (TranscriptPart("generated", sequences[0].text),))

    def select(self, transcript: Transcript, select: session.Select, call: ModelCall) -> session.Choice:
        raise self._unsupported(
            "returns no log-probabilities, so no select; use gen with schema=Literal[...]", "choices"
        )
