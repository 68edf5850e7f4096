"""`/v1/completions`: continue prompts, as a whole or as a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from ....protocol.core import ModelInfo
from ....protocol.errors import RequestError
from ....protocol.sampling import LogprobParams
from ....protocol.version import __version__
from ...api.bodies import MAX_BATCH, Many, Text, TokenIds, described, example
from ...api.chunks import ChunkBuilder
from ...api.fields import MAX_TOP, CompletionFields
from ...api.finish import finish_fields
from ...api.logprobs import CompletionLogprobs, TokenTexts, prompt_logprobs
from ...api.rendered import prompt_ids, rendered_request
from ...api.usage import DraftCounts, Stopwatch, Usage
from ...core.sessions import core_retention
from ...text.encoding import completion_token_limit
from ...text.generation import MAX_SAMPLES, Generator, Piece, Prompt, SampleStream
from ...text.merge import merge
from ...text.named_fields import name_constraint_field
from ...text.offload import cooperative_iter
from ...text.pictures import ImageSource, placed
from ..transport.body_route import BodyRoute
from ..transport.streaming import STREAM_RESPONSES, EventStream, cancel_on_disconnect, json_response


class CompletionBody(CompletionFields):
    model_config = example({"prompt": "The capital of France is", "max_tokens": 8})
    prompt: Annotated[Text | Many[Text] | TokenIds | Many[TokenIds], described(minItems=1)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = None
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    add_special_tokens: bool = True
    continued_tokens: Annotated[int, Field(ge=0)] = 0
    image_data: Many[Text] | None = None  # data URLs, base64 or URLs, for the placeholders of a prompt of token ids

    def images(self) -> list[ImageSource]:
        """Return the prompt's images."""
        return [ImageSource(given, f"image_data[{index}]") for index, given in enumerate(self.image_data or [])]

    def prompts(self) -> list[str] | list[list[int]]:
        """Return the prompts. Raises RequestError for none, and for too many."""
        is_single = isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int))
        prompts: Any = [self.prompt] if is_single else self.prompt
        if not 1 <= len(prompts) <= MAX_BATCH:
            raise RequestError(f"give 1 to {MAX_BATCH} prompts, got {len(prompts)}", param="prompt")
        checked: list[str] | list[list[int]] = prompts
        return checked

    def check(self, info: ModelInfo) -> None:
        super().check(info)
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise RequestError(
                "max_tokens may be 0 with echo or prompt_logprobs only: there is nothing to answer", param="max_tokens"
            )
        if self.best_of is not None and self.best_of < self.n:
            raise RequestError(f"best_of must be at least n, {self.n}; got {self.best_of}", param="best_of")
        if self.best_of is not None and self.stream and self.best_of > self.n:
            raise RequestError("the best of several cannot be streamed", param="best_of")
        if self.continued_tokens and self.truncate_prompt_tokens is not None:
            raise RequestError(
                "continued_tokens and truncate_prompt_tokens exclude each other", param="continued_tokens"
            )
        if self.continued_tokens and any(isinstance(prompt, str) for prompt in self.prompts()):
            raise RequestError("continued_tokens needs a prompt of token ids", param="continued_tokens")
        if self.image_data and (len(prompts := self.prompts()) > 1 or isinstance(prompts[0], str)):
            message = "image_data needs one prompt of token ids; texts with images go to /generate or in a chat"
            raise RequestError(message, param="image_data")
        if self.image_data and self.truncate_prompt_tokens is not None:
            raise RequestError("image_data and truncate_prompt_tokens exclude each other", param="image_data")

    @property
    def num_continued(self) -> int:
        return self.continued_tokens

    def logprob_params(self) -> LogprobParams | None:
        """Return the log-probabilities that the answer needs."""
        is_ranked = (self.best_of or self.n) > self.n
        if self.logprobs is None and self.prompt_logprobs is None and not is_ranked:
            return None
        of_prompt = self.prompt_logprobs is not None or (self.echo and self.logprobs is not None)
        return LogprobParams(
            num_top=max(self.logprobs or 0, self.prompt_logprobs or 0),
            prompt_from=0 if of_prompt else None,
            of=tuple(self.logprob_token_ids),
            details=self.token_details,
        )


DEFAULT_COMPLETION_TOKENS = 16


@dataclass(frozen=True)
class CompletionPrompt:
    """A prompt of a body: the text to echo, the prompt for the core, and its outputs."""

    text: str
    prompt: Prompt
    samples: list[SampleStream]


class CompletionsApi:
    """Route for completions of prompts."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._texts = TokenTexts(generator.tokenizer)
        self._id_texts = TokenTexts(generator.tokenizer, as_ids=True)

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["openai"], route_class=BodyRoute)
        router.add_api_route(
            "/v1/completions", self.create, methods=["POST"], response_model=None, responses=STREAM_RESPONSES
        )
        router.add_api_route("/v1/completions/render", self.render, methods=["POST"], response_model=None)
        return router

    async def render(self, body: CompletionBody, request: Request) -> Response:
        """Return the tokens of each prompt and its sampling parameters, without an answer."""
        head = self._head(body)
        prompts = await cancel_on_disconnect(request, self._prompts(body, self._generator.core.require_info()))
        return json_response([rendered_request(head["id"], head["model"], body, prompt) for _, prompt in prompts])

    async def create(self, body: CompletionBody, request: Request) -> Response:
        """Continue one prompt or several: texts or token ids."""
        if not body.stream:
            return json_response(await cancel_on_disconnect(request, self.answer(body)))
        head = self._head(body)
        prompts = await cancel_on_disconnect(request, self._prompts(body, self._generator.core.require_info()))
        chunks = self._stream(body, prompts, head)
        return EventStream(await cancel_on_disconnect(request, anext(chunks)), chunks)

    async def answer(self, body: CompletionBody) -> dict[str, Any]:
        """Return the whole answer, as JSON values. Raises RamiformError."""
        head = self._head(body)
        return head | await self._whole(body, await self._prompts(body, self._generator.core.require_info()))

    async def prompt(self, body: CompletionBody) -> tuple[list[int], int]:
        """Return the token ids of the first prompt, and how many its output may have. Raises RamiformError."""
        info = self._generator.core.require_info()
        body.check(info)
        [(_, prompt), *_] = await self._prompts(body, info)
        return prompt.tokens, prompt.sampling.max_new_tokens

    def _head(self, body: CompletionBody) -> dict[str, Any]:
        info = self._generator.core.require_info()
        body.check(info)
        return {
            "id": body.response_id("cmpl"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.answering(info),
            "system_fingerprint": f"ramiform-{__version__}",
        }

    async def _prompts(self, body: CompletionBody, info: ModelInfo) -> list[tuple[str, Prompt]]:
        """Return the text and the Prompt of each prompt. Raises RequestError."""
        encoder, constraint = self._generator.encoder, body.constraint()
        given = body.prompts()
        if len(given) * (body.best_of or body.n) > MAX_BATCH:
            raise RequestError(f"{len(given)} prompts may have at most {MAX_BATCH} outputs in all", param="n")
        options, sources = body.request_options(info), body.images()
        shown = await self._generator.pictures("image_data").prepare(sources, options.namespace) if sources else []
        truncation = body.truncation(info, body.max_tokens)
        bound = truncation.bound if truncation else await encoder.prompt_bound("prompt", body.max_tokens)
        prompts = []
        for prompt in given:
            if isinstance(prompt, str):
                text, ids = prompt, await encoder.encode_prompt(prompt, with_bos=body.add_special_tokens, bound=bound)
            else:
                text, ids = await encoder.decode_async(prompt) if body.echo else "", prompt
            if truncation is not None and len(ids) > truncation.num_tokens:
                ids = truncation.cut(ids)
                text = await encoder.decode_async(ids) if body.echo else ""
            num_tokens = completion_token_limit(
                info, len(ids), body.max_tokens, prompt="prompt", limit="max_tokens", default=DEFAULT_COMPLETION_TOKENS
            )
            prompts.append(
                (
                    text,
                    Prompt(
                        tokens=ids,
                        sampling=body.sampling(num_tokens, None if constraint is None else constraint[0]),
                        options=msgspec.structs.replace(
                            options,
                            retain=core_retention(body.retention, "", len(ids)),
                            pictures=placed(shown, ids, self._generator.tokenizer),
                        ),
                        session=body.session,
                        name=body.name,
                    ),
                )
            )
        return prompts

    @asynccontextmanager
    async def _submit(
        self, body: CompletionBody, prompts: list[tuple[str, Prompt]]
    ) -> AsyncIterator[list[CompletionPrompt]]:
        """Submit all prompts; abort what still runs at the end of the block."""
        constraint = body.constraint()
        with ExitStack() as stack, name_constraint_field(None if constraint is None else constraint[1]):
            yield [
                CompletionPrompt(
                    text, prompt, list(stack.enter_context(self._generator.start(prompt, body.best_of or body.n)))
                )
                async for text, prompt in cooperative_iter(prompts)
            ]

    async def _whole(self, body: CompletionBody, prompts: list[tuple[str, Prompt]]) -> dict[str, Any]:
        watch = Stopwatch()
        async with self._submit(body, prompts) as questions:
            choices: list[dict[str, Any]] = []
            async for question in cooperative_iter(questions):
                for sample in question.samples:
                    async for _ in sample:
                        watch.tick(sample.first_at)
                for sample in _best(question.samples, body.n):
                    choices.append(self._choice(body, question, sample, len(choices)))
            usage = _usage(questions)
            return {"choices": choices, "usage": usage.as_json(), "timings": watch.timings(usage)}

    def _choice(
        self, body: CompletionBody, question: CompletionPrompt, sample: SampleStream, index: int
    ) -> dict[str, Any]:
        assert sample.generated is not None
        sequence = sample.generated.sequence
        columns = None
        if body.logprobs is not None:
            echoed = question.prompt.tokens if body.echo else []
            echoed_logprobs = (sample.prompt_logprobs or []) if body.echo else []
            values = (sequence.logprobs or [])[: len(sequence.ids)]
            writer = self._logprobs(body, body.logprobs)
            columns = writer.columns([*echoed, *sequence.ids], [*echoed_logprobs, *values])
        ids: dict[str, Any] = {}
        if body.return_token_ids:
            ids = prompt_ids(question.prompt) | {"token_ids": sample.output_ids}
        if body.prompt_logprobs is not None:
            ids["prompt_logprobs"] = prompt_logprobs(self._texts, sample.prompt_logprobs, body.prompt_logprobs)
        return {
            "index": index,
            "text": question.text + sequence.text if body.echo else sequence.text,
            "logprobs": columns,
            **finish_fields(sequence.finish, question.prompt.sampling),
            **ids,
        }

    def _logprobs(self, body: CompletionBody, num_top: int) -> CompletionLogprobs:
        texts = self._id_texts if body.return_tokens_as_token_ids else self._texts
        return CompletionLogprobs(texts, num_top, asked=body.logprob_token_ids, detailed=body.token_details)

    async def _stream(
        self, body: CompletionBody, prompts: list[tuple[str, Prompt]], head: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any]]:
        watch = Stopwatch()
        async with self._submit(body, prompts) as questions:
            chunks = ChunkBuilder(head, body.stream_options, watch, lambda: _usage(questions))
            outputs = [(question, sample) for question in questions for sample in question.samples]
            sources = [self._stream_output(body, *output, index) for index, output in enumerate(outputs)]
            choices = merge(sources) if len(sources) > 1 else sources[0]
            try:
                async for choice in choices:
                    yield chunks.chunk(choice)
            finally:
                await choices.aclose()
            for chunk in chunks.last():
                yield chunk

    async def _stream_output(
        self, body: CompletionBody, question: CompletionPrompt, sample: SampleStream, index: int
    ) -> AsyncGenerator[dict[str, Any]]:
        writer = None if body.logprobs is None else self._logprobs(body, body.logprobs)
        is_first = True
        num_given = 0  # token ids
        async for piece in sample:
            if is_first and body.echo:
                echoed_logprobs = sample.prompt_logprobs
                columns = None
                if writer is not None and echoed_logprobs is not None:
                    columns = writer.columns(question.prompt.tokens, echoed_logprobs)
                yield _chunk(index, question.text, columns)
            ids = {}
            if body.return_token_ids:
                ids = prompt_ids(question.prompt) if is_first else {"prompt_token_ids": None}
            is_first = False
            over = sample.generated
            if not (piece.text or piece.ids or over):
                continue
            chunk = _chunk(index, piece.text, None if writer is None else _columns(writer, piece))
            if over is not None:
                chunk |= finish_fields(over.sequence.finish, question.prompt.sampling)
            if body.return_token_ids:
                chunk |= ids | {"token_ids": sample.output_ids[num_given:]}
                num_given = len(sample.output_ids)
            yield chunk


def _chunk(index: int, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None, "stop_reason": None}


def _columns(writer: CompletionLogprobs, piece: Piece) -> dict[str, Any]:
    return writer.columns(piece.ids, (piece.logprobs or [])[: len(piece.ids)])


def _best(samples: list[SampleStream], n: int) -> list[SampleStream]:
    """Return the `n` samples of highest mean log-probability, best first; all in order when there are just `n`."""
    if len(samples) == n:
        return samples

    def mean(sample: SampleStream) -> float:
        values = sample.logprobs or []
        return sum(value.logprob for value in values) / max(1, len(values))

    return sorted(samples, key=mean, reverse=True)[:n]


def _usage(questions: list[CompletionPrompt]) -> Usage:
    return Usage(
        prompt=sum(len(question.prompt.tokens) for question in questions),
        completion=sum(len(sample.output_ids) for question in questions for sample in question.samples),
        cached=sum(question.samples[0].num_cached for question in questions),
        drafts=DraftCounts.of(
            sample.generated.sequence
            for question in questions
            for sample in question.samples
            if sample.generated is not None
        ),
    )
