"""`/completion`, `/completions` and `/infill` as llama-server answers them, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ....protocol.core import Finish, ModelInfo, RequestOptions
from ....protocol.errors import RequestError
from ....protocol.sampling import LogprobParams, SamplingParams, TokenLogprob
from ...api.fields import require_model
from ...api.logprobs import MIN_LOGPROB, TokenTexts
from ...api.usage import Stopwatch, Usage
from ...text.encoding import PromptSegment, TokenLimit, completion_token_limit
from ...text.generation import Generator, Prompt, SampleStream
from ...text.merge import merge
from ...text.named_fields import name_constraint_field
from ..dialects import LLAMA_CPP
from ..transport.body_route import BodyRoute
from ..transport.streaming import STREAM_RESPONSES, EventStream, cancel_on_disconnect, json_response
from .body import CompletionOptions, InfillBody, LlamaCompletionBody
from .infill import infill_prompt, infill_tokens
from .settings import generation_settings


@dataclass(frozen=True)
class Asked:
    """A request's prompts, with what its answers say of all of them."""

    prompts: list[Prompt]
    texts: list[str]
    model: str
    constraint_field: str | None


class LlamaCompletionsApi:
    """Routes that continue prompts in llama-server's form."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._texts = TokenTexts(generator.tokenizer)

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["llama.cpp"], route_class=BodyRoute)
        for path, endpoint in (
            ("/completion", self.complete),
            ("/completions", self.complete),
            ("/infill", self.infill),
        ):
            router.add_api_route(
                path,
                endpoint,
                methods=["POST"],
                response_model=None,
                responses=STREAM_RESPONSES,
                include_in_schema=path != "/completions",
            )
        return router

    async def complete(self, body: LlamaCompletionBody, request: Request) -> Response:
        """Continue one prompt or several: texts, token ids, or both after one another."""
        return await self._answer(body, request, self._prompt_ids(body))

    async def infill(self, body: InfillBody, request: Request) -> Response:
        """Write the text between two others. Needs a model with tokens for that."""
        infill_tokens(self._generator.tokenizer)
        return await self._answer(body, request, self._infill_ids(body))

    async def _answer(self, body: CompletionOptions, request: Request, ids: Any) -> Response:
        asked = await cancel_on_disconnect(request, self._asked(body, ids))
        if not body.stream:
            return json_response(await cancel_on_disconnect(request, self._whole(body, asked)))
        events = self._events(body, asked)
        return EventStream(await cancel_on_disconnect(request, anext(events)), events, dialect=LLAMA_CPP)

    async def _prompt_ids(self, body: LlamaCompletionBody) -> list[list[int]]:
        encoder = self._generator.encoder
        bound = await encoder.prompt_bound("prompt", body.num_tokens()[0])
        found = []
        for prompt in body.prompts():
            parts = [prompt] if isinstance(prompt, str) else prompt
            ids: list[int] = []
            for index, part in enumerate(parts):
                if isinstance(part, int):
                    ids.append(part)
                    continue
                segments = [PromptSegment(part, trusted=True)]
                ids += await encoder.encode_async(segments, at_start=index == 0, bound=bound)
            if bound is not None and len(ids) > bound.most:
                raise bound.error(len(ids))
            found.append(ids)
        return found

    async def _infill_ids(self, body: InfillBody) -> list[list[int]]:
        encoder = self._generator.encoder
        bound: TokenLimit | None = await encoder.prompt_bound("input_prefix", body.num_tokens()[0])
        return [await infill_prompt(body, self._generator.tokenizer, encoder, bound)]

    async def _asked(self, body: CompletionOptions, ids: Any) -> Asked:
        """Return what is asked. Raises RequestError."""
        try:
            info = self._generator.core.require_info()
            adapter = require_model(info, body.model)
            constraint, bias = body.constraint(), self._bias(body)
        except Exception:
            ids.close()
            raise
        options = msgspec.structs.replace(
            body.delivery(),
            logprobs=LogprobParams(num_top=body.n_probs) if body.n_probs else None,
            namespace=body.cache_salt,
            adapter=adapter,
        )
        limit, field = body.num_tokens()
        prompts, texts = [], []
        for tokens in await ids:
            sampling = body.sampling(
                _limit(info, tokens, limit, field), None if constraint is None else constraint[0], bias
            )
            prompts.append(_prompt(tokens, sampling, options, body.request_id))
            texts.append(await self._generator.encoder.decode_async(tokens, skip_special_tokens=False))
        return Asked(prompts, texts, adapter or info.name, None if constraint is None else constraint[1])

    def _bias(self, body: CompletionOptions) -> dict[int, float]:
        """Return the biases by token; that of a text is added to each of its tokens."""
        found: dict[int, float] = {}
        for token, value in body.biases():
            encode = self._generator.tokenizer.encode
            ids = [token] if isinstance(token, int) else encode(token, parse_special=False, continues=True)
            for number in ids:
                found[number] = found.get(number, 0.0) + value
        return found

    async def _whole(self, body: CompletionOptions, asked: Asked) -> Any:
        watch, answers = Stopwatch(), []
        with ExitStack() as stack, name_constraint_field(asked.constraint_field):
            samples = self._start(body, asked, stack)
            for index, (number, sample) in enumerate(samples):
                generated = await sample.result()
                watch.tick(sample.first_at)
                answer = self._last(body, asked, number, index, sample, watch)
                answer["content"] = generated.sequence.text
                answer["tokens"] = generated.output_ids if body.return_tokens else []
                if body.n_probs:
                    answer["completion_probabilities"] = self._probabilities(
                        body, generated.output_ids, sample.logprobs
                    )
                answers.append(answer)
        return answers if len(answers) > 1 else answers[0]

    def _start(self, body: CompletionOptions, asked: Asked, stack: ExitStack) -> list[tuple[int, SampleStream]]:
        """Submit all outputs; return each with the number of its prompt."""
        return [
            (number, sample)
            for number, prompt in enumerate(asked.prompts)
            for sample in stack.enter_context(self._generator.start(prompt, body.n_cmpl))
        ]

    async def _events(self, body: CompletionOptions, asked: Asked) -> AsyncGenerator[dict[str, Any]]:
        watch = Stopwatch()
        with ExitStack() as stack, name_constraint_field(asked.constraint_field):
            samples = self._start(body, asked, stack)
            sources = [
                self._parts(body, asked, number, index, sample, watch) for index, (number, sample) in enumerate(samples)
            ]
            parts = merge(sources) if len(sources) > 1 else sources[0]
            try:
                async for part in parts:
                    yield part
            finally:
                await parts.aclose()

    async def _parts(
        self, body: CompletionOptions, asked: Asked, number: int, index: int, sample: SampleStream, watch: Stopwatch
    ) -> AsyncGenerator[dict[str, Any]]:
        num_prompt = len(asked.prompts[number].tokens)
        async for piece in sample:
            watch.tick(sample.first_at)
            if piece.text or piece.ids:
                part = {
                    "index": index,
                    "content": piece.text,
                    "tokens": piece.ids,
                    "stop": False,
                    "id_slot": -1,
                    "tokens_predicted": len(sample.output_ids),
                    "tokens_evaluated": num_prompt,
                }
                if body.n_probs:
                    part["completion_probabilities"] = self._probabilities(body, piece.ids, piece.logprobs)
                yield part
        yield self._last(body, asked, number, index, sample, watch)

    def _last(
        self, body: CompletionOptions, asked: Asked, number: int, index: int, sample: SampleStream, watch: Stopwatch
    ) -> dict[str, Any]:
        """Return what the last part of an answer says, without text."""
        assert sample.generated is not None
        prompt, sequence = asked.prompts[number], sample.generated.sequence
        usage = Usage(prompt=len(prompt.tokens), completion=len(sample.output_ids), cached=sample.num_cached)
        kind, word = stop_type(sequence.finish, self._generator.tokenizer.eos_ids)
        timings = watch.timings(usage)
        for name in ("prompt", "predicted"):
            timings[f"{name}_per_token_ms"] = timings[f"{name}_ms"] / max(1, timings[f"{name}_n"])
        return {
            "index": index,
            "content": "",
            "tokens": [],
            "id_slot": -1,  # there are no slots
            "stop": True,
            "model": asked.model,
            "tokens_predicted": usage.completion,
            "tokens_evaluated": usage.prompt,
            "generation_settings": {
                **generation_settings(prompt.sampling, stream=body.stream, n_probs=body.n_probs),
                **_lazy_settings(body),
            },
            "prompt": asked.texts[number],
            "has_new_line": "\n" in sequence.text,
            "truncated": False,  # a prompt that does not fit is refused
            "stop_type": kind,
            "stopping_word": word,
            "tokens_cached": usage.prompt + max(0, usage.completion - 1),
            "timings": timings,
        }

    def _probabilities(
        self, body: CompletionOptions, ids: list[int], values: list[TokenLogprob] | None
    ) -> list[dict[str, Any]]:
        """Return the tokens with their alternatives."""
        return [
            self._entry(token, value.logprob)
            | {"top_logprobs": [self._entry(other, logprob) for logprob, other in value.top[: body.n_probs]]}
            for token, value in zip(ids, values or [], strict=False)
        ]

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        data = b"" if self._texts.is_special(token) else self._texts.data(token)
        text = data.decode("utf-8", "ignore")
        return {"id": token, "token": text, "bytes": list(data), "logprob": max(logprob, MIN_LOGPROB)}


def stop_type(finish: Finish, eos_ids: Any) -> tuple[str, str]:
    """Return llama-server's kind of an end, and the text that ended it."""
    if finish.type != "stop":
        return ("limit" if finish.type == "length" else "none"), ""
    if isinstance(finish.matched, str):
        return "word", finish.matched
    return "eos", ""


def _limit(info: ModelInfo, tokens: list[int], limit: int | None, field: str) -> int:
    if not tokens:
        raise RequestError("the prompt has no tokens", param="prompt")
    return completion_token_limit(info, len(tokens), limit, prompt="prompt", limit=field)


def _prompt(tokens: list[int], sampling: SamplingParams, options: RequestOptions, name: str | None) -> Prompt:
    return Prompt(tokens=tokens, sampling=sampling, options=options, name=name)


def _lazy_settings(body: CompletionOptions) -> dict[str, Any]:
    """Return a lazy grammar as the client gave it: the sampler's has free text before it."""
    if not body.grammar_lazy:
        return {}
    triggers = [
        trigger.model_dump(include={"type", "value", "token"}, exclude_none=True) for trigger in body.grammar_triggers
    ]
    return {"grammar": body.grammar, "grammar_lazy": True, "grammar_triggers": triggers}
