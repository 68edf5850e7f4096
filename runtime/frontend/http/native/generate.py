"""`/generate` and `/abort_request`. Source: SGLang's native API."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ....protocol.core import Finish
from ....protocol.errors import RequestError
from ....protocol.sampling import LogprobParams, TokenLogprob
from ....tokenizer.interface import Tokenizer
from ...api.bodies import MAX_BATCH, AbortBody, GenerateBody, SessionParams, logprob_params, require_adapter
from ...api.logprobs import TokenTexts, token_entry
from ...core.client import new_rid
from ...core.frontend_peers import FrontendPeers
from ...core.sessions import requested_session
from ...core.tenant import current_tenant
from ...text.generation import Generator, Prompt, SampleStream
from ...text.merge import merge
from ...text.named_fields import name_prompt_field
from ...text.offload import cooperative_iter
from ..middleware.auth import require_admin
from ..scope import SCOPE_API_KEY
from ..transport.body_route import BodyRoute
from ..transport.streaming import STREAM_RESPONSES, EventStream, cancel_on_disconnect, json_response
from .sessions import SessionStore

LogprobEntry = list[Any]  # [log-probability, token id, text or null]


def answer(
    tokenizer: Tokenizer, prompt: Prompt, sample: SampleStream, text: str, *, rid: str, with_texts: bool
) -> dict[str, Any]:
    """Build the JSON answer of `sample`, with its `text` so far. `with_texts` adds texts to log-probabilities."""
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": None,
        "prompt_tokens": len(prompt.tokens),
        "completion_tokens": len(sample.output_ids),
        "cached_tokens": sample.num_cached,
    }
    if (wanted := prompt.options.logprobs) is not None:
        meta |= _logprobs(tokenizer, prompt, wanted, sample, with_texts)
    if wanted is not None and wanted.details:
        texts, asked = TokenTexts(tokenizer), wanted.of
        meta["output_token_details"] = [token_entry(texts, value, asked=asked) for value in sample.logprobs or []]
    if sample.generated is not None:
        sequence = sample.generated.sequence
        meta["finish_reason"] = _finish_reason(sequence.finish, sequence.completion_tokens)
        meta["e2e_latency"] = sequence.seconds
        meta["num_retractions"] = sequence.num_retractions
        meta["spec_verify_ct"] = sequence.num_passes
        meta["spec_accept_length"] = sequence.accept_length
        meta["spec_accept_histogram"] = sequence.accepted_lengths
        if (timings := sequence.timings) is not None:
            meta |= {"queue_time": timings.queue, "prefill_time": timings.prefill, "decode_time": timings.decode}
            meta |= {"grammar_time": timings.grammar, "retracted_time": timings.retracted}
            meta |= {"transfer_time": timings.transfer}
    return {"text": text, "output_ids": list(sample.output_ids), "meta_info": meta}


def _finish_reason(finish: Finish, num_output: int) -> dict[str, Any]:
    match finish.type:
        case "stop":
            return {"type": "stop", "matched": finish.matched}
        case "length":
            return {"type": "length", "length": num_output}
        case "abort":
            return {"type": "abort", "message": "the request was aborted"}


def _logprobs(
    tokenizer: Tokenizer, prompt: Prompt, wanted: LogprobParams, sample: SampleStream, with_texts: bool
) -> dict[str, list[Any]]:
    def entry(logprob: float | None, token: int) -> LogprobEntry:
        return [logprob, token, tokenizer.decode([token], skip_special_tokens=False) if with_texts else None]

    def tops(values: Sequence[TokenLogprob | None]) -> list[Any]:
        return [None if value is None else [entry(*top) for top in value.top] for value in values]

    def of_ids(values: Sequence[TokenLogprob | None]) -> list[Any]:
        return [
            None if value is None else [entry(*each) for each in zip(value.of, wanted.of, strict=True)]
            for value in values
        ]

    first = 0 if wanted.prompt_from is None else wanted.prompt_from
    given = sample.prompt_logprobs or []
    output = sample.logprobs or []
    meta = {
        "input_token_logprobs": [
            entry(None if value is None else value.logprob, token)
            for value, token in zip(given, prompt.tokens[first : first + len(given)], strict=True)
        ],
        "output_token_logprobs": [entry(value.logprob, value.id) for value in output],
    }
    if wanted.num_top:
        meta |= {"input_top_logprobs": tops(given), "output_top_logprobs": tops(output)}
    if wanted.of:
        meta |= {"input_token_ids_logprobs": of_ids(given), "output_token_ids_logprobs": of_ids(output)}
    return meta


@dataclass(frozen=True)
class Job:
    """One requested output."""

    rid: str
    prompt: Prompt
    sample: SampleStream


@dataclass(frozen=True)
class SessionTurn:
    """A request of a session. `body` has the whole prompt, of which `num_before` tokens are of earlier requests."""

    key: str | None
    params: SessionParams
    body: GenerateBody
    num_before: int


class NativeApi:
    """Runs native requests, and indexes their samples by the clients' ids for aborts."""

    def __init__(self, generator: Generator, siblings: FrontendPeers, sessions: SessionStore | None = None) -> None:
        """`sessions` are needed for `session_params`."""
        self._generator = generator
        self._sessions = sessions
        self._siblings = siblings
        siblings.on("abort", self._abort_here)

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["native"], route_class=BodyRoute)
        for method in ("POST", "PUT"):  # one route each, so that operation ids are unique
            router.add_api_route(
                "/generate", self.generate, methods=[method], response_model=None, responses=STREAM_RESPONSES
            )
        router.add_api_route(
            "/abort_request", self.abort, methods=["POST"], response_model=None, response_class=Response
        )
        return router

    async def generate(self, body: GenerateBody, request: Request) -> Response:
        """Continue `text` or `input_ids`, one or a batch, as a whole or as a stream."""
        self._generator.core.require_info()
        turn = None
        if body.session_params is not None:
            turn = await self._begin_turn(request.scope[SCOPE_API_KEY], body, body.session_params)
            body = turn.body
        if body.stream:
            values = self.stream(body) if turn is None else self._record_stream(turn)
            return EventStream(await cancel_on_disconnect(request, anext(values)), values)
        answers = await cancel_on_disconnect(request, self.answers(body))
        if turn is not None:
            await self._record(turn, answers[0])
        return json_response(answers if body.is_batch or len(answers) > 1 else answers[0])

    async def abort(self, body: AbortBody, request: Request) -> Response:
        """Abort the requests named `rid`, or all, which needs an admin key. They return their output so far."""
        if body.abort_all:
            require_admin(request, "aborting all requests")
        tenant = current_tenant.get()
        about = None if body.abort_all else json.dumps([body.rid or "", tenant.key, tenant.is_admin])
        await self._abort_here(about)
        await self._siblings.ask("abort", about, bool)
        return Response(status_code=200)

    async def _abort_here(self, about: str | None) -> bool:
        """Abort this frontend's requests of the given id that the asking key may end, or all when None."""
        if about is None:
            self._generator.core.abort(None)
            return True
        rid, key, is_admin = json.loads(about)
        return self._generator.abort(rid, key, any_key=is_admin)

    async def _begin_turn(self, key: str | None, body: GenerateBody, params: SessionParams) -> SessionTurn:
        """Put the tokens that a request of a session continues before its own. Raises RequestError."""
        assert self._sessions is not None
        prompts = body.prompts()
        if len(prompts) != 1 or isinstance(body.sampling_params, list) or body.sampling_params.n != 1:
            raise RequestError("a request of a session has one prompt and one output", param="session_params")
        own = await self._tokens(prompts[0])
        before = await self._sessions.begin(key, params)
        if before and own[:1] == [self._generator.tokenizer.bos_id]:
            own = own[1:]
        rid = body.rid[0] if isinstance(body.rid, list) else body.rid
        whole = {"text": None, "input_ids": [*before, *own], "rid": new_rid() if rid is None else rid}
        return SessionTurn(key, params, body.model_copy(update=whole), len(before))

    async def _record_stream(self, turn: SessionTurn) -> AsyncGenerator[dict[str, Any]]:
        """Yield a stream of a session; the session knows the request before the client has its end."""
        async with aclosing(self.stream(turn.body)) as values:
            async for value in values:
                if value["meta_info"]["finish_reason"] is not None:
                    await self._record(turn, value)
                yield value

    async def _record(self, turn: SessionTurn, answer: dict[str, Any]) -> None:
        assert self._sessions is not None
        prompt: list[int] = turn.body.input_ids  # type: ignore[assignment]
        tokens = [*prompt, *answer["output_ids"]]
        await self._sessions.record(
            turn.key, turn.params, answer["meta_info"]["id"], tokens, len(prompt), turn.num_before
        )

    async def answers(self, body: GenerateBody) -> list[dict[str, Any]]:
        """Return every output of `body`, in order. Raises RamiformError."""
        async with self._submit(body) as jobs:
            answers = []
            async for job in cooperative_iter(jobs):
                generated = await job.sample.result()
                answers.append(self._answer(body, job, generated.sequence.text))
            return answers

    async def stream(self, body: GenerateBody) -> AsyncGenerator[dict[str, Any]]:
        """Yield each output so far, as it grows. Raises RamiformError."""
        async with self._submit(body) as jobs:
            numbered = len(jobs) > 1 or body.is_batch
            values = merge(
                [self._stream_output(body, job, index if numbered else None) for index, job in enumerate(jobs)]
            )
            try:
                async for value in values:
                    yield value
            finally:
                await values.aclose()

    async def _stream_output(self, body: GenerateBody, job: Job, index: int | None) -> AsyncIterator[dict[str, Any]]:
        text = ""
        async for piece in job.sample:
            text += piece.text
            value = self._answer(body, job, text)
            yield value if index is None else {**value, "index": index}

    def _answer(self, body: GenerateBody, job: Job, text: str) -> dict[str, Any]:
        with_texts = body.return_text_in_logprobs
        return answer(self._generator.tokenizer, job.prompt, job.sample, text, rid=job.rid, with_texts=with_texts)

    @asynccontextmanager
    async def _submit(self, body: GenerateBody) -> AsyncIterator[list[Job]]:
        """Submit all outputs of `body`; abort those that still run at the end of the block."""
        requests = await self._requests(body)
        num_outputs = Counter({rid: 0 for rid, _, _ in requests})
        for rid, _, n in requests:
            num_outputs[rid] += n
        jobs: list[Job] = []
        numbers: Counter[str] = Counter()
        with name_prompt_field("input_ids" if body.text is None else "text"), ExitStack() as stack:
            async for rid, prompt, n in cooperative_iter(requests):
                for sample in stack.enter_context(self._generator.start(prompt, n)):
                    name = rid if num_outputs[rid] == 1 else f"{rid}-{numbers[rid]}"
                    numbers[rid] += 1
                    jobs.append(Job(name, prompt, sample))
            yield jobs

    async def _requests(self, body: GenerateBody) -> list[tuple[str, Prompt, int]]:
        """Return the client's id, the prompt and the number of outputs of each request. Raises RequestError."""
        prompts = body.prompts()
        num = len(prompts)
        sampling = body.per_prompt("sampling_params", num)
        settings = [body.per_prompt(name, num) for name in ("return_logprob", "logprob_start_len", "top_logprobs_num")]
        if sum(part.n for part in sampling) > MAX_BATCH:
            raise RequestError(f"n must be such that {num} prompts make at most {MAX_BATCH} outputs in all", param="n")
        for name in {*body.per_prompt("lora_path", num)} - {None}:
            require_adapter(self._generator.core.require_info(), name)
        continued = body.per_prompt("continued_tokens", num)
        # Before tokenisation: the check is cheap, and often fails.
        params = [part.params(after) for part, after in zip(sampling, continued, strict=True)]
        tokens = [await self._tokens(prompt) for prompt in prompts]
        fallback_rid = new_rid()
        session = body.session_id or (None if body.session_params is None else body.session_params.id)
        return [
            (
                fallback_rid if rid is None else rid,
                Prompt(
                    tokens=ids,
                    sampling=sampling_params,
                    options=msgspec.structs.replace(
                        body.delivery(),
                        logprobs=logprob_params(wanted, start, num_top, of, len(ids), details=body.token_details),
                        priority=priority,
                        namespace=extra_key or "",
                        continued=after,
                        adapter=lora,
                    ),
                    session=requested_session(session),
                    name=rid,
                ),
                part.n,
            )
            for ids, sampling_params, part, after, wanted, start, num_top, of, rid, priority, extra_key, lora in zip(
                tokens,
                params,
                sampling,
                continued,
                *settings,
                body.logprob_token_ids(num),
                body.per_prompt("rid", num),
                body.per_prompt("priority", num),
                body.per_prompt("extra_key", num),
                body.per_prompt("lora_path", num),
                strict=True,
            )
        ]

    async def _tokens(self, prompt: str | list[int]) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        return await self._generator.encoder.encode_prompt(prompt, param="text")
