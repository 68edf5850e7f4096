"""A backend for OpenAI-compatible endpoints: chat completions, responses, and completions of text without roles."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack, get_args

import msgspec

from ...runtime.protocol import choices, session
from ...runtime.protocol.core import Finish
from ...runtime.protocol.errors import RequestError, RuntimeFailed
from ...runtime.protocol.sampling import Dialect, SamplingParams, TokenLogprob
from ...runtime.protocol.session import Gen
from .endpoints.asked_output import AskedOutput, asked_tools, choice_of_output, gen_of_select
from .endpoints.endpoint_backend import EndpointBackend
from .endpoints.endpoint_client import EndpointClient, EndpointOptions, estimated_tokens, settings_of
from .endpoints.native_tools import openai_message, openai_tools
from .endpoints.openai_address import EndpointAddress, azure_address, openai_address
from .endpoints.responses import ResponseEvents, response_body, response_calls, response_counts, response_sequence
from .endpoints.usage import CountedTokens, TokenUsage
from .model import ModelCall, ModelOutput, OnText
from .openai_format import (
    DIALECTS,
    CompletionEvents,
    calls_of,
    chat_form,
    constraint_body,
    counts_of,
    format_body,
    sampling_body,
    scores_of,
    sequences_of,
)
from .stop_cutter import StopCutter
from .transcript import SpeculatedText, Transcript, TranscriptPart

UNKNOWN_ID = -1  # of every token: the API returns texts only
SPECULATION_ATTEMPTS = 3
OpenAIApi = Literal["chat", "responses"]
_REASONERS = re.compile(r"(o\d|gpt-[5-9])\b")  # OpenAI's models that take max_completion_tokens only


@dataclass(frozen=True)
class OpenAIRequest:
    """A request that is to be sent, and what is asked beside text."""

    path: str
    body: dict[str, Any]
    asked: AskedOutput


class OpenAI(EndpointBackend):
    """Runs programs on `model` of the endpoint at `base_url`; `model_name` is SGLang's name of `model`.

    The address is that of OPENAI_BASE_URL, or OpenAI's own; `api_key` is by default that of OPENAI_API_KEY. With
    `is_azure` the model is the deployment at `azure_endpoint` (or AZURE_OPENAI_ENDPOINT), called with `api_version`
    (or OPENAI_API_VERSION) and the key of AZURE_OPENAI_API_KEY. `options` are those of `EndpointOptions`: timeout,
    retries, rate limits. `usage` counts tokens and requests.

    `dialect` names the endpoint's parameters beside OpenAI's own: those of vLLM or of SGLang. A parameter that it does
    not have is refused with RequestError where it is appended, never dropped; so are log-probabilities of a gen and
    `decide`. In a chat, types, regexes and choices are asked for as structured output where the dialect has no field
    for them, and agents' tools as native tool calls; a `select` there has no scores. Elsewhere `select` scores its
    choices by completions with `echo` and needs an endpoint that returns log-probabilities for them.

    `api="responses"` uses OpenAI's Responses API in place of chat completions, for all text. It takes `temperature`,
    `top_p`, and stops, which are looked for here; nothing is stored.

    Text without roles is completed. `is_chat_model=True`: the endpoint has no completions, and such text is sent as
    one user message; `False`: it has no chat, and roles are refused. In a chat a gen stands at the beginning of the
    assistant's message. After other text there it needs `continues_messages` (the endpoint knows
    `continue_final_message`; by default those of vLLM's and SGLang's dialects do) or speculation.

    `num_speculative_tokens`, for one program `@function(num_api_spec_tokens=...)`: a gen with `stop` asks for that many
    tokens at least and for no stop, and the program's later constants and gens are taken from that text as long as they
    agree with it; at the first difference a new call is made. A gen that is taken from that text counts no tokens.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        model_name: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        dialect: Dialect = "openai",
        api: OpenAIApi = "chat",
        is_chat_model: bool | None = None,
        num_speculative_tokens: int | None = None,
        continues_messages: bool | None = None,
        max_tokens_field: str | None = None,
        is_azure: bool = False,
        azure_endpoint: str | None = None,
        api_version: str | None = None,
        organization: str | None = None,
        project: str | None = None,
        num_threads: int | None = None,
        **options: Unpack[EndpointOptions],
    ) -> None:
        if (model is None) == (model_name is None):
            raise RequestError("give the model as model or as model_name, one of the two", param="model")
        if dialect not in DIALECTS:
            raise RequestError(f"dialect is one of {', '.join(DIALECTS)}, got {dialect!r}", param="dialect")
        is_other = dialect != "openai" or is_chat_model is False or num_speculative_tokens is not None or is_azure
        _check_api(api, is_other=is_other)
        if num_speculative_tokens is not None and num_speculative_tokens < 1:
            raise RequestError(
                f"num_speculative_tokens must be positive, got {num_speculative_tokens}", param="num_speculative_tokens"
            )
        if num_threads is not None:  # an earlier name
            options = {"max_concurrency": num_threads, **options}
        account = {"OpenAI-Organization": organization, "OpenAI-Project": project}
        headers = {name: value for name, value in account.items() if value is not None}
        options["default_headers"] = headers | dict(options.get("default_headers", {}))
        settings = settings_of(type(self).__name__, options)
        self.model = str(model or model_name)
        if is_azure:
            address = azure_address(self.model, base_url, azure_endpoint, api_version, api_key)
        elif azure_endpoint is not None or api_version is not None:
            raise RequestError("azure_endpoint and api_version need is_azure=True", param="is_azure")
        else:
            address = self._address(base_url, api_key)
        counts = response_counts if api == "responses" else counts_of
        client = EndpointClient(address.url, settings, address.credentials, counts, query=address.query)
        super().__init__("an OpenAI-compatible endpoint", client)
        self._dialect = dialect
        self._api_kind = api
        self._is_chat_model = True if api == "responses" else is_chat_model
        self._num_speculative = num_speculative_tokens
        self._continues = dialect != "openai" if continues_messages is None else continues_messages
        is_reasoner = dialect == "openai" and _REASONERS.match(self.model) is not None
        self._max_tokens_field = max_tokens_field or ("max_completion_tokens" if is_reasoner else "max_tokens")

    @property
    def token_usage(self) -> TokenUsage:
        """Return `usage`, by SGLang's name."""
        return self._client.usage

    # Methods of `Model`

    def generate(self, transcript: Transcript, gen: Gen, on_text: OnText, call: ModelCall) -> ModelOutput:
        num_ahead = gen.num_api_spec_tokens or self._num_speculative
        if num_ahead is not None and can_take(gen):
            if transcript.speculated is not None and (taken := take(transcript.speculated, gen)) is not None:
                return _taken(*taken, None, on_text)
            if (generated := self._speculate(transcript, gen, num_ahead, on_text, call)) is not None:
                return generated
        request = self._request(transcript, gen)
        if self._api_kind == "responses":
            return self._respond(request, gen, on_text, call)
        if gen.stream and gen.n == 1:
            options = {"stream": True, "stream_options": {"include_usage": True}}
            num_tokens = _num_tokens(request.body, gen.sampling.max_new_tokens)
            events = CompletionEvents(request.asked.pieces_to(on_text))
            body = request.body | options
            answer = self._client.stream(request.path, body, call, events, num_tokens=num_tokens)
        else:
            answer = self._post(request.path, request.body, gen.n, call)
        return request.asked.output(sequences_of(answer, gen.n), calls_of(answer))

    def select(self, transcript: Transcript, select: session.Select, call: ModelCall) -> session.Choice:
        if transcript.has_roles or self._is_chat_model:
            output = self.generate(transcript, gen_of_select(select), lambda text: None, call)
            return choice_of_output(select, output)
        self._check_scoring(select)
        before = transcript.text
        body = {
            "model": self.model,
            "prompt": [before + choice for choice in select.choices],
            "max_tokens": 1,  # not all endpoints take 0
            "temperature": 0.0,
            "logprobs": 1,
            "echo": True,
        }
        num_tokens = _num_tokens(body, len(select.choices))
        answer = self._client.post("/completions", body, call, num_tokens=num_tokens)
        found = sorted(answer.get("choices", ()), key=lambda one: int(one.get("index", 0)))
        if len(found) != len(select.choices):
            raise RuntimeFailed(f"{len(found)} answers for {len(select.choices)} choices")
        values = [
            scores_of(one.get("logprobs"), before, choice) for one, choice in zip(found, select.choices, strict=True)
        ]
        logprobs = [[TokenLogprob(value, UNKNOWN_ID) for value in part] for part in values]
        return choices.choose(select, logprobs, prompt_tokens=(answer.get("usage") or {}).get("prompt_tokens", 0))

    def check(self, transcript: Transcript, operation: session.Operation) -> None:
        """Raise RequestError for an operation that the endpoint cannot answer after such a transcript."""
        match operation:
            case session.Gen(num_api_spec_tokens=num_ahead) if (num_ahead or self._num_speculative) and can_take(
                operation
            ):
                return  # its beginning may be written by the endpoint
            case session.Gen():
                self._request(transcript, operation)
            case session.Select() if transcript.has_roles or self._is_chat_model:
                self._request(transcript, gen_of_select(operation))
            case session.Select():
                self._check_scoring(operation)
            case session.Decide():
                raise self._no_decisions()

    # Requests

    def _check_scoring(self, select: session.Select) -> None:
        if select.method == "unconditional_likelihood_normalized":
            raise RequestError(
                f"{select.method} needs log-probabilities without a context, which the endpoint does not give: choose "
                "another choices_method, or run on a Runtime",
                param="choices_method",
                code="unsupported",
            )

    def _address(self, base_url: str | None, api_key: str | None) -> EndpointAddress:
        """Return the address, unless it is on Azure."""
        return openai_address(base_url, api_key)

    def _speculate(
        self, transcript: Transcript, gen: Gen, num_ahead: int, on_text: OnText, call: ModelCall
    ) -> ModelOutput | None:
        """Make one over-long call. Return None if its text does not show where `gen` ends.

        In a chat the call writes the whole message, which must begin as the open message does. If it does not, a draw
        is repeated; after SPECULATION_ATTEMPTS, or where each would be the same, RequestError is raised.
        """
        length = max(num_ahead, gen.sampling.max_new_tokens)
        sampling = msgspec.structs.replace(gen.sampling, stop=(), max_new_tokens=length)
        written, path, prompt = "", *self._prompt(transcript, fresh_message=True)
        if "messages" in prompt and transcript.has_roles and not self._continues:
            written = transcript.messages()[-1].content
        is_drawn = not sampling.greedy and sampling.seed is None
        num_spent = 0
        for _ in range(SPECULATION_ATTEMPTS if written and is_drawn else 1):
            body = self._body(prompt, sampling, 1, AskedOutput())
            [sequence] = sequences_of(self._post(path, body, 1, call), 1)
            num_spent += sequence.completion_tokens
            sequence = msgspec.structs.replace(sequence, completion_tokens=num_spent)
            if not sequence.text.startswith(written):
                continue
            text = sequence.text[len(written) :]
            ahead = SpeculatedText(text, sampling_without_stop(gen.sampling), ended=sequence.finish.type == "stop")
            if (taken := take(ahead, gen)) is not None:
                return _taken(*taken, sequence, on_text)
            is_all = length == gen.sampling.max_new_tokens and not any(stop in text for stop in gen.sampling.stop)
            if is_all and not written:
                return _taken(text, sequence.finish, None, sequence, on_text)
        if written:
            raise RequestError(
                f"the endpoint wrote a message that begins with {sequence.text[:80]!r}, not as the program's, "
                f"{written[-80:]!r}, with a stop within {gen.sampling.max_new_tokens} tokens after it: show it the "
                "format, or set continues_messages",
                param="num_api_spec_tokens",
                code="speculation_failed",
            )
        return None

    def _prompt(self, transcript: Transcript, *, fresh_message: bool = False) -> tuple[str, dict[str, Any]]:
        """Return the route, and the fields of the body that hold the transcript.

        Raises RequestError for a chat whose open message the endpoint cannot continue; `fresh_message` leaves it out.
        """
        if not transcript.has_roles:
            if self._is_chat_model:
                return "/chat/completions", {"messages": [{"role": "user", "content": transcript.text}]}
            return "/completions", {"prompt": transcript.text}
        if self._is_chat_model is False:
            raise RequestError(
                "the endpoint has no chat (is_chat_model=False), so a program must do without roles",
                param="role",
                code="unsupported",
            )
        chat = transcript.chat()
        messages = [openai_message(message) for message in chat]
        if not chat[-1].content:
            return "/chat/completions", {"messages": messages[:-1]}
        if self._continues:
            extra = {"continue_final_message": True, "add_generation_prompt": False}
            return "/chat/completions", {"messages": messages, **extra}
        if fresh_message:
            return "/chat/completions", {"messages": messages[:-1]}
        raise RequestError(
            f"the assistant's message has begun with {chat[-1].content[-80:]!r}, and the endpoint begins "
            "messages only: let the gen stand first, or set continues_messages, or num_speculative_tokens and stop",
            param="role",
            code="unsupported",
        )

    def _request(self, transcript: Transcript, gen: Gen) -> OpenAIRequest:
        """Return the request of a gen. Raises RequestError for what the endpoint cannot do."""
        if gen.logprobs is not None:
            raise self._unsupported(
                "returns no token ids, so log-probabilities of a gen are not supported: leave return_logprob out, or "
                "run on a Runtime",
                "return_logprob",
            )
        path, prompt = self._prompt(transcript)
        asked, sampling = asked_tools(transcript, gen.sampling), gen.sampling
        if asked.constraint is not None and "messages" in prompt and self._dialect == "openai":
            form = chat_form(asked.constraint)
            asked = replace(asked, form=form, stops=sampling.stop if form.is_wrapped else ())
        if self._api_kind == "responses":
            return OpenAIRequest("/responses", response_body(self.model, transcript, sampling, asked), asked)
        if asked.stops:
            sampling = msgspec.structs.replace(sampling, stop=())
        return OpenAIRequest(path, self._body(prompt, sampling, gen.n, asked), asked)

    def _body(self, prompt: dict[str, Any], sampling: SamplingParams, n: int, asked: AskedOutput) -> dict[str, Any]:
        in_chat = "messages" in prompt
        body = {"model": self.model, **prompt, **sampling_body(sampling, self._dialect)}
        if asked.form is not None:
            body |= format_body(asked.form)
        elif asked.constraint is not None:
            body |= constraint_body(asked.constraint, self._dialect, in_chat=in_chat)
        if asked.tools is not None and in_chat:
            body |= openai_tools(asked.tools, strict=self._dialect == "openai")
        body[self._max_tokens_field if in_chat else "max_tokens"] = sampling.max_new_tokens
        return body | ({"n": n} if n > 1 else {})

    def _post(self, path: str, body: dict[str, Any], n: int, call: ModelCall) -> Any:
        num_tokens = _num_tokens(body, n * int(body.get("max_tokens") or body.get(self._max_tokens_field) or 0))
        return self._client.post(path, body, call, num_tokens=num_tokens)

    def _respond(self, request: OpenAIRequest, gen: Gen, on_text: OnText, call: ModelCall) -> ModelOutput:
        """Ask for responses, which are streamed so that a stop ends them; the API has no stops and no `n`."""
        stops = () if request.asked.form is not None else gen.sampling.stop
        num_tokens = _num_tokens(request.body, gen.sampling.max_new_tokens)
        pieces = request.asked.pieces_to(on_text) if gen.stream and gen.n == 1 else lambda text: None
        sequences, answers = [], []
        for _ in range(gen.n):
            events = ResponseEvents(pieces, StopCutter(stops))
            answers.append(self._client.stream(request.path, request.body, call, events, num_tokens=num_tokens))
            sequences.append(response_sequence(answers[-1]))
        return request.asked.output(sequences, response_calls(answers[0]))


def _check_api(api: str, *, is_other: bool) -> None:
    """Raise RequestError for an unknown API, and for the Responses API of anybody but OpenAI."""
    if api not in get_args(OpenAIApi):
        raise RequestError(f"api is one of {', '.join(get_args(OpenAIApi))}, got {api!r}", param="api")
    if api == "responses" and is_other:
        raise RequestError(
            "api='responses' is OpenAI's own and always a chat: leave dialect, is_chat_model, is_azure and "
            "num_speculative_tokens out",
            param="api",
        )


def _num_tokens(body: dict[str, Any], num_completion: int) -> int:
    return estimated_tokens(body.get("messages") or body.get("input") or body.get("prompt"), num_completion)


def _taken(
    text: str, finish: Finish, rest: SpeculatedText | None, call: session.Sequence | None, on_text: OnText
) -> ModelOutput:
    """Return a gen's output taken from a speculated text. `call` is the call that was made for it, if there was one."""
    on_text(text)
    counts = (
        CountedTokens()
        if call is None
        else CountedTokens(call.prompt_tokens, call.cached_tokens, call.completion_tokens)
    )
    sequence = counts.sequence(text, finish)
    return ModelOutput([sequence], (TranscriptPart("generated", text),), rest)


# Speculative execution: one over-long call, whose text also answers the program's later gens. A chat or completion
# endpoint computes a prompt again at every call. Where gens end at stop strings, the model is likely to write the
# program's next constant by itself; as long as it does, its text is the answer to the later gens too. The distribution
# is that of separate calls: a text, given the text before it. Source: SGLang (Zheng et al. 2024), section 4.3.


def can_take(gen: Gen) -> bool:
    """Return True if `gen` wants nothing but text, and the text alone shows where it ends."""
    sampling = gen.sampling
    return (
        gen.n == 1
        and gen.logprobs is None
        and bool(sampling.stop)
        and sampling.constraint is None
        and not sampling.stop_regex
        and not sampling.stop_token_ids
        and not sampling.min_new_tokens
        and not sampling.ignore_eos
        and not sampling.no_stop_trim
    )


def sampling_without_stop(sampling: SamplingParams) -> SamplingParams:
    """Return the parameters that draw text, without those that end it. They must agree for a text to be taken."""
    return msgspec.structs.replace(sampling, stop=(), max_new_tokens=0)


def take(ahead: SpeculatedText, gen: Gen) -> tuple[str, Finish, SpeculatedText | None] | None:
    """Return the text that answers `gen`, its finish, and the speculated text that is left; None if it has no end.

    A token is at least one byte, so a text of at most `max_new_tokens` bytes is within the limit.
    """
    if ahead.sampling != sampling_without_stop(gen.sampling):
        return None
    found = [(ahead.text.index(stop), -len(stop), stop) for stop in gen.sampling.stop if stop in ahead.text]
    if not found and not ahead.ended:
        return None
    end, _, stop = min(found) if found else (len(ahead.text), 0, None)
    if len((ahead.text[:end] + (stop or "")).encode()) > gen.sampling.max_new_tokens:
        return None
    left = None if stop is None else SpeculatedText(ahead.text[end:], ahead.sampling, ahead.ended)
    return ahead.text[:end], Finish("stop", stop), left
