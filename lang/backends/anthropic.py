"""A backend for Anthropic's messages API."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Unpack

import msgspec

from ...runtime.protocol import session
from ...runtime.protocol.errors import RequestError
from .anthropic_format import (
    MessageEvents,
    calls_of,
    counts_of,
    messages_body,
    output_form_of,
    own_stops,
    sampling_body,
    sequence_of,
    tools_body,
)
from .endpoints.asked_output import AskedOutput, asked_tools, choice_of_output, gen_of_select
from .endpoints.endpoint_backend import EndpointBackend
from .endpoints.endpoint_client import EndpointClient, EndpointOptions, estimated_tokens, settings_of
from .endpoints.openai_address import key_of
from .model import ModelCall, ModelOutput, OnText
from .stop_cutter import StopCutter
from .transcript import Transcript

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
    Types, schemas, regexes, choices and `tools` use the API's structured output, and agents its tool calls. Bounds of
    a type that the API does not take are checked when the value is read. Grammars, scored choices, `decide`,
    log-probabilities, `seed` and the parameters that the API lacks are refused with RequestError where they are
    appended.
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
        body, space, asked = self._request(transcript, gen)
        num_tokens = estimated_tokens(body["messages"], gen.sampling.max_new_tokens)
        pieces = asked.pieces_to(on_text) if gen.n == 1 else lambda text: None
        stops = () if asked.form is not None and asked.form.is_wrapped else own_stops(gen.sampling)
        sequences, answers = [], []
        for _ in range(gen.n):
            cutter = StopCutter(stops, skips_space=bool(space))
            events = MessageEvents(pieces, cutter)
            answer = self._client.stream("/v1/messages", body, call, events, num_tokens=num_tokens)
            answers.append(answer)
            sequences.append(sequence_of(answer, cutter))
        return asked.output(sequences, calls_of(answers[0]))

    def select(self, transcript: Transcript, select: session.Select, call: ModelCall) -> session.Choice:
        return choice_of_output(select, self.generate(transcript, gen_of_select(select), lambda text: None, call))

    def check(self, transcript: Transcript, operation: session.Operation) -> None:
        """Raise RequestError for an operation that the API cannot answer after such a transcript."""
        match operation:
            case session.Gen():
                self._request(transcript, operation)
            case session.Select():
                self._request(transcript, gen_of_select(operation))
            case session.Decide():
                raise self._no_decisions()

    def _request(self, transcript: Transcript, gen: session.Gen) -> tuple[dict[str, Any], str, AskedOutput]:
        """Return the body, the white space at the prompt's end and what is asked beside text."""
        if gen.logprobs is not None:
            raise self._unsupported("returns no log-probabilities: leave return_logprob out", "return_logprob")
        prompt, space = messages_body(transcript)
        asked, sampling = asked_tools(transcript, gen.sampling), gen.sampling
        if asked.constraint is not None:
            is_begun = transcript.has_roles and prompt["messages"][-1]["role"] == "assistant"
            form = output_form_of(asked.constraint, is_begun=is_begun)
            asked = replace(asked, form=form, stops=sampling.stop if form.is_wrapped else ())
        if asked.stops:
            sampling = msgspec.structs.replace(sampling, stop=())
        body = {"model": self.model, **prompt}
        body |= sampling_body(sampling, draws=self._api_version == OLDER_VERSION) | {"stream": True}
        if asked.form is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": asked.form.schema}}
        return body | (tools_body(asked.tools) if asked.tools is not None else {}), space, asked
