"""A backend for a ramiform runtime that is reached over its native HTTP routes.

A state keeps token ids: the runtime tokenises its text once, and generated text is sent back as the generated ids.
Each gen is one request, and one more when there is new text to tokenise.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from ...runtime.programs.common_prefix import common_prefix_length
from ...runtime.protocol import choices, session
from ...runtime.protocol.core import CoreStats, ModelInfo
from ...runtime.protocol.decisions import DecisionAnswer, Question
from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.sampling import TokenLogprob
from .channel import LazyChannel, LocalChannel
from .http_client import HttpClient
from .model import Method, ModelCall, ModelOutput, OnText
from .native_format import native_sampling_body, native_sequence
from .transcript import Transcript, TranscriptPart

MAX_THREADS = 256  # requests at once
MAX_CACHED_TEXTS = 4096  # texts whose ids are kept


class HttpRuntime:
    """Runs programs on the runtime at `url`.

    The results are those over ZMQ, with these differences: every gen is a round trip; the runtime does not know which
    prefixes a program still needs; a special token's name in any text means that token; `decide` is refused.

    The routes apply no chat template, so roles need `roles`: for each the text before and after a message's content.
    Raises RequestError for an invalid `url`. Programs fail when they run and nothing listens there.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        roles: Mapping[str, tuple[str, str]] | None = None,
        timeout: float = 600.0,
    ) -> None:
        self._http = HttpClient(url, api_key, timeout)
        self._roles = dict(roles or {})
        self._lock = threading.Lock()
        self._channel = LazyChannel(self, MAX_THREADS)
        self._cached_ids: dict[tuple[str, bool], list[int]] = {}

    def connection(self) -> LocalChannel:
        return self._channel.get()

    def close(self) -> None:
        """End every program that runs on it."""
        self._channel.close()
        self._http.close()

    def server_info(self) -> dict[str, Any]:
        """Return the facts of `/get_server_info`.

        Raises RequestError if there is no such route, RuntimeFailed if the runtime cannot be reached.
        """
        facts = self._http.get("/get_server_info")
        return facts if isinstance(facts, dict) else {}

    # Methods of `Model`

    def begin_role(self, role: str) -> str:
        return self._role(role)[0]

    def end_role(self, role: str) -> str:
        return self._role(role)[1]

    def generate(self, transcript: Transcript, gen: session.Gen, on_text: OnText, call: ModelCall) -> ModelOutput:
        ids = self._ids(transcript.parts, call)
        body: dict[str, Any] = {"input_ids": ids, "sampling_params": {**native_sampling_body(gen.sampling), "n": gen.n}}
        if gen.logprobs is not None:
            body |= {
                "return_logprob": True,
                "top_logprobs_num": gen.logprobs.num_top,
                "return_text_in_logprobs": gen.token_texts,
                "logprob_start_len": -1 if gen.logprobs.prompt_from is None else gen.logprobs.prompt_from,
            }
        if gen.stream and gen.n == 1:
            answers = [self._streamed(body, on_text, call)]
        else:
            answer = self._http.post("/generate", body, call)
            answers = answer if isinstance(answer, list) else [answer]
        ended = [self._whole_tokens(native_sequence(answer, gen), call) for answer in answers]
        first, rest = ended[0]
        parts = [TranscriptPart("generated", first.text[: len(first.text) - len(rest)], tuple(first.ids))]
        parts += [TranscriptPart("text", rest)] * bool(rest)
        return ModelOutput([sequence for sequence, _ in ended], tuple(parts))

    def select(self, transcript: Transcript, select: session.Select, call: ModelCall) -> session.Choice:
        """Score all choices in one batch. As in the runtime, a choice's tokens are those after the common prefix."""
        before, text = self._split(transcript.parts, call)
        at_start = not before
        alone = self._tokenize([text], at_start, call)[0]
        encoded = self._tokenize([text + choice for choice in select.choices], at_start, call)
        start = common_prefix_length(alone, *encoded)
        for choice, ids in zip(select.choices, encoded, strict=True):
            if len(ids) == start:
                raise RequestError(f"choice {choice!r} adds no token", param="choices")
        logprobs, asked, cached = self._scored([before + ids for ids in encoded], len(before) + start, call)
        unconditional = None
        if select.method == "unconditional_likelihood_normalized":
            bos = self._tokenize([""], True, call)[0]
            unconditional, more, _ = self._scored([bos + ids[start:] for ids in encoded], len(bos), call)
            asked += more
        return choices.choose(select, logprobs, unconditional, prompt_tokens=asked, cached_tokens=cached)

    def decide(self, transcript: Transcript, questions: tuple[Question, ...], call: ModelCall) -> list[DecisionAnswer]:
        raise RequestError(
            "the runtime's native HTTP routes answer no decisions; connect by ZMQ",
            param="questions",
            code="unsupported",
        )

    def answer_call(self, method: Method, number: int) -> session.Reply:
        match method:
            case "info":
                return session.Reply(number, info=msgspec.convert(self._http.get("/get_model_info"), ModelInfo))
            case "stats":
                return session.Reply(number, stats=msgspec.convert(self._http.get("/get_server_info"), CoreStats))
            case "flush_cache":
                self._http.post("/flush_cache", None, ModelCall())
                return session.Reply(number)

    # Texts and ids

    def _ids(self, parts: tuple[TranscriptPart, ...], call: ModelCall) -> list[int]:
        before, text = self._split(parts, call)
        return before + self._tokenize([text], not before, call)[0] if text or not before else before

    def _split(self, parts: tuple[TranscriptPart, ...], call: ModelCall) -> tuple[list[int], str]:
        """Return the ids up to the last generated one, and the text after them."""
        ids: list[int] = []
        text = ""
        for part in parts:
            if part.ids is None:
                text += part.text
                continue
            if text or not ids:
                ids += self._tokenize([text], not ids, call)[0]
            ids += part.ids
            text = ""
        return ids, text

    def _tokenize(self, texts: list[str], at_start: bool, call: ModelCall) -> list[list[int]]:
        """Return the ids of texts. Those that are not cached take one request together."""
        with self._lock:
            known = {text: ids for text in texts if (ids := self._cached_ids.get((text, at_start))) is not None}
        unknown = [text for text in dict.fromkeys(texts) if text not in known]
        if unknown:
            answer = self._http.post("/tokenize", {"prompt": unknown, "add_special_tokens": at_start}, call)
            fresh = dict(zip(unknown, answer["tokens"], strict=True))
            known |= fresh
            with self._lock:
                for text, ids in fresh.items():
                    if len(self._cached_ids) >= MAX_CACHED_TEXTS:
                        del self._cached_ids[next(iter(self._cached_ids))]
                    self._cached_ids[text, at_start] = ids
        return [known[text] for text in texts]

    def _whole_tokens(self, sequence: session.Sequence, call: ModelCall) -> tuple[session.Sequence, str]:
        """If a stop string cut a token, end the ids before it and return the rest of the text as text."""
        matched, ids = sequence.finish.matched, sequence.ids
        if not isinstance(matched, str):
            return sequence, ""
        ends = [0, *range(max(1, len(ids) - len(matched.encode()) - 1), len(ids) + 1)]
        texts = self._http.post("/detokenize", {"tokens": [ids[:end] for end in ends]}, call)["text"]
        end, text = max((end, text) for end, text in zip(ends, texts, strict=True) if sequence.text.startswith(text))
        logprobs = None if sequence.logprobs is None else sequence.logprobs[:end]
        return msgspec.structs.replace(sequence, ids=ids[:end], logprobs=logprobs), sequence.text[len(text) :]

    def _role(self, role: str) -> tuple[str, str]:
        if role not in self._roles:
            raise RequestError(
                f"the runtime's native HTTP routes know no chat template, and HttpRuntime(roles=...) has no text of "
                f"role {role!r}: give the text before and after its messages, or connect by ZMQ",
                param="roles",
                code="unsupported",
            )
        return self._roles[role]

    # Requests

    def _streamed(self, body: dict[str, Any], on_text: OnText, call: ModelCall) -> dict[str, Any]:
        last: dict[str, Any] = {"text": ""}

        def on_event(event: dict[str, Any]) -> None:
            nonlocal last
            if piece := event["text"][len(last["text"]) :]:
                on_text(piece)
            last = event

        self._http.stream("/generate", {**body, "stream": True}, call, on_event)
        return last

    def _scored(
        self, prompts: list[list[int]], start: int, call: ModelCall
    ) -> tuple[list[list[TokenLogprob]], int, int]:
        """Return the log-probabilities from `start` on, the number of prompt tokens, and of cached ones."""
        body = {
            "input_ids": prompts,
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": start,
        }
        answers = self._http.post("/generate", body, call)
        entries = [answer["meta_info"]["input_token_logprobs"] for answer in answers]
        # Only the very first token of a sequence has no probability: it counts the same for all.
        logprobs = [[TokenLogprob(entry[0] or 0.0, entry[1]) for entry in tokens] for tokens in entries]
        metas = [answer["meta_info"] for answer in answers]
        return logprobs, sum(meta["prompt_tokens"] for meta in metas), sum(meta["cached_tokens"] for meta in metas)
