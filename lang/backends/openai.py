"""A backend for OpenAI-compatible endpoints: chat completions if a program uses roles, otherwise completions."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from ...runtime.protocol import choices, session
from ...runtime.protocol.core import Finish
from ...runtime.protocol.decisions import DecisionAnswer, Question
from ...runtime.protocol.errors import RequestError, RuntimeFailed
from ...runtime.protocol.sampling import Dialect, SamplingParams, TokenLogprob
from . import chatml as roles
from .channel import LazyChannel, LocalChannel
from .http_client import HttpClient
from .model import Method, ModelCall, ModelOutput, OnText
from .openai_format import DIALECTS, sampling_body, scores_of, sequence_of, sequences_of
from .speculation import can_take, sampling_without_stop, take
from .transcript import SpeculatedText, Transcript, TranscriptPart

UNKNOWN_ID = -1  # of every token: the API returns texts only


class OpenAI:
    """Runs programs on `model` of the endpoint at `base_url`; `api_key` is by default that of OPENAI_API_KEY.

    `dialect` names the endpoint's parameters beside OpenAI's own: those of vLLM or of SGLang. A parameter that it does
    not have is refused with RequestError, never dropped; so are log-probabilities of a gen and `decide`. `select`
    scores its choices by completions with `echo` and needs an endpoint that returns log-probabilities for them.

    In a chat a gen stands at the beginning of the assistant's message. After other text there it needs
    `continues_messages` (the endpoint knows `continue_final_message`: vLLM and SGLang do) or speculation.

    `num_speculative_tokens`: a gen with `stop` asks for that many tokens at least and for no stop, and the program's
    later constants and gens are taken from that text as long as they agree with it; at the first difference a new call
    is made. A gen that is taken from that text counts no tokens.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        dialect: Dialect = "openai",
        num_speculative_tokens: int | None = None,
        continues_messages: bool = False,
        max_tokens_field: str = "max_tokens",
        num_threads: int = 64,
        timeout: float = 600.0,
    ) -> None:
        if dialect not in DIALECTS:
            raise RequestError(f"dialect is one of {', '.join(DIALECTS)}, got {dialect!r}", param="dialect")
        if num_speculative_tokens is not None and num_speculative_tokens < 1:
            raise RequestError(
                f"num_speculative_tokens must be positive, got {num_speculative_tokens}", param="num_speculative_tokens"
            )
        if num_threads < 1:
            raise RequestError(f"num_threads must be positive, got {num_threads}", param="num_threads")
        self.model = model
        self._http = HttpClient(base_url, os.environ.get("OPENAI_API_KEY") if api_key is None else api_key, timeout)
        self._dialect = dialect
        self._num_speculative = num_speculative_tokens
        self._continues = continues_messages
        self._max_tokens_field = max_tokens_field
        self._channel = LazyChannel(self, num_threads)

    def connection(self) -> LocalChannel:
        return self._channel.get()

    def close(self) -> None:
        """End every program that runs on it."""
        self._channel.close()
        self._http.close()

    # Methods of `Model`

    def begin_role(self, role: str) -> str:
        return roles.begin(role)

    def end_role(self, role: str) -> str:
        return roles.end(role)

    def generate(self, transcript: Transcript, gen: session.Gen, on_text: OnText, call: ModelCall) -> ModelOutput:
        if gen.logprobs is not None:
            raise RequestError(
                "an OpenAI-compatible endpoint returns no token ids, so log-probabilities of a gen are not supported",
                param="return_logprob",
                code="unsupported",
            )
        if self._num_speculative is not None and can_take(gen):
            if transcript.speculated is not None and (taken := take(transcript.speculated, gen)) is not None:
                return _taken(*taken, None, on_text)
            if (generated := self._speculate(transcript, gen, on_text, call)) is not None:
                return generated
        path, prompt = self._prompt(transcript)
        body = self._body(prompt, gen.sampling, gen.n)
        if gen.stream and gen.n == 1:
            sequences = [self._streamed(path, body, on_text, call)]
        else:
            sequences = sequences_of(self._http.post(path, body, call), gen.n)
        return ModelOutput(sequences, (TranscriptPart("generated", sequences[0].text),))

    def select(self, transcript: Transcript, select: session.Select, call: ModelCall) -> session.Choice:
        if transcript.has_roles:
            raise RequestError(
                "a chat endpoint gives no log-probabilities of given text, so no select inside messages",
                param="choices",
                code="unsupported",
            )
        if select.method == "unconditional_likelihood_normalized":
            raise RequestError(
                f"{select.method} needs log-probabilities without a context, which the endpoint does not give",
                param="choices_method",
                code="unsupported",
            )
        before = transcript.text
        body = {
            "model": self.model,
            "prompt": [before + choice for choice in select.choices],
            "max_tokens": 1,  # not all endpoints take 0
            "temperature": 0.0,
            "logprobs": 1,
            "echo": True,
        }
        answer = self._http.post("/completions", body, call)
        found = sorted(answer.get("choices", ()), key=lambda one: int(one.get("index", 0)))
        if len(found) != len(select.choices):
            raise RuntimeFailed(f"{len(found)} answers for {len(select.choices)} choices")
        values = [
            scores_of(one.get("logprobs"), before, choice) for one, choice in zip(found, select.choices, strict=True)
        ]
        logprobs = [[TokenLogprob(value, UNKNOWN_ID) for value in part] for part in values]
        return choices.choose(select, logprobs, prompt_tokens=(answer.get("usage") or {}).get("prompt_tokens", 0))

    def decide(self, transcript: Transcript, questions: tuple[Question, ...], call: ModelCall) -> list[DecisionAnswer]:
        raise RequestError(
            "an OpenAI-compatible endpoint answers no decisions; use gen or select",
            param="questions",
            code="unsupported",
        )

    def answer_call(self, method: Method, number: int) -> session.Reply:
        if method == "flush_cache":
            raise RequestError("an OpenAI-compatible endpoint has no cache to flush", code="unsupported")
        return session.Reply(number)

    # Requests

    def _speculate(
        self, transcript: Transcript, gen: session.Gen, on_text: OnText, call: ModelCall
    ) -> ModelOutput | None:
        """Make one over-long call. Return None if its text does not show where `gen` ends."""
        assert self._num_speculative is not None
        length = max(self._num_speculative, gen.sampling.max_new_tokens)
        sampling = msgspec.structs.replace(gen.sampling, stop=(), max_new_tokens=length)
        written, path, prompt = "", *self._prompt(transcript, fresh_message=True)
        if "messages" in prompt and not self._continues:
            written = _open_message(transcript)
        [sequence] = sequences_of(self._http.post(path, self._body(prompt, sampling, 1), call), 1)
        if not sequence.text.startswith(written):
            return None
        text = sequence.text[len(written) :]
        ahead = SpeculatedText(text, sampling_without_stop(gen.sampling), ended=sequence.finish.type == "stop")
        if (taken := take(ahead, gen)) is not None:
            return _taken(*taken, sequence, on_text)
        is_all = length == gen.sampling.max_new_tokens and not any(stop in text for stop in gen.sampling.stop)
        return _taken(text, sequence.finish, None, sequence, on_text) if is_all and not written else None

    def _prompt(self, transcript: Transcript, *, fresh_message: bool = False) -> tuple[str, dict[str, Any]]:
        """Return the route, and the fields of the body that hold the transcript.

        Raises RequestError for a chat whose open message the endpoint cannot continue; `fresh_message` leaves it out.
        """
        if not transcript.has_roles:
            return "/completions", {"prompt": transcript.text}
        messages = transcript.messages()
        if transcript.open_role != "assistant":
            raise RequestError(
                f"in a chat only the assistant's messages can be generated, and "
                f"{'none' if transcript.open_role is None else repr(transcript.open_role)} is open",
                param="role",
            )
        if not messages[-1]["content"]:
            return "/chat/completions", {"messages": messages[:-1]}
        if self._continues:
            extra = {"continue_final_message": True, "add_generation_prompt": False}
            return "/chat/completions", {"messages": messages, **extra}
        if fresh_message:
            return "/chat/completions", {"messages": messages[:-1]}
        raise RequestError(
            f"the assistant's message has begun with {messages[-1]['content'][-80:]!r}, and the endpoint begins "
            "messages only: let the gen stand first, or set continues_messages, or num_speculative_tokens and stop",
            param="role",
            code="unsupported",
        )

    def _body(self, prompt: dict[str, Any], sampling: SamplingParams, n: int) -> dict[str, Any]:
        in_chat = "messages" in prompt
        body = {"model": self.model, **prompt, **sampling_body(sampling, self._dialect, in_chat=in_chat)}
        body[self._max_tokens_field if in_chat else "max_tokens"] = sampling.max_new_tokens
        return body | ({"n": n} if n > 1 else {})

    def _streamed(self, path: str, body: dict[str, Any], on_text: OnText, call: ModelCall) -> session.Sequence:
        pieces: list[str] = []
        usage: dict[str, Any] = {}
        last: dict[str, Any] = {}

        def on_event(event: dict[str, Any]) -> None:
            usage.update(event.get("usage") or {})
            for choice in event.get("choices", ())[:1]:
                piece = (choice.get("delta") or {}).get("content") if "delta" in choice else choice.get("text")
                if piece:
                    pieces.append(piece)
                    on_text(piece)
                if choice.get("finish_reason"):
                    last.update(choice)

        options = {"stream": True, "stream_options": {"include_usage": True}}
        self._http.stream(path, body | options, call, on_event)
        return sequence_of({**last, "text": "".join(pieces)}, usage)


def _taken(
    text: str, finish: Finish, rest: SpeculatedText | None, call: session.Sequence | None, on_text: OnText
) -> ModelOutput:
    """Return a gen's output taken from a speculated text. `call` is the call that was made for it, if there was one."""
    on_text(text)
    sequence = session.Sequence(
        text=text,
        ids=[],
        prompt_tokens=0 if call is None else call.prompt_tokens,
        completion_tokens=0 if call is None else call.completion_tokens,
        cached_tokens=0 if call is None else call.cached_tokens,
        finish=finish,
    )
    return ModelOutput([sequence], (TranscriptPart("generated", text),), rest)


def _open_message(transcript: Transcript) -> str:
    return transcript.messages()[-1]["content"]
