"""Answers of `/generate`: outputs of one prompt or of a batch. Source: SGLang's native API."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from ...protocol.core import Finish
from ...protocol.errors import RequestError
from ...protocol.sampling import LogprobParams, TokenLogprob
from ...tokenizer.image_processors import PreparedPicture
from ...tokenizer.interface import Tokenizer
from ..core.client import new_rid
from ..core.sessions import requested_session
from ..text.encoding import PromptSegment
from ..text.generation import Generator, Prompt, SampleStream
from ..text.merge import merge
from ..text.named_fields import name_prompt_field
from ..text.offload import cooperative_iter
from ..text.pictures import ImageSource, placed, with_pictures
from .bodies import MAX_BATCH, GenerateBody, logprob_params, require_adapter
from .logprobs import TokenTexts, token_entry
from .usage import DraftCounts

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
        **({"image_tokens": prompt.num_image_tokens} if prompt.options.pictures else {}),
    }
    if (wanted := prompt.options.logprobs) is not None:
        meta |= _logprobs(tokenizer, prompt, wanted, sample, with_texts)
    if wanted is not None and wanted.details:
        texts, asked = TokenTexts(tokenizer), wanted.of
        meta["output_token_details"] = [token_entry(texts, value, asked=asked) for value in sample.logprobs or []]
    if sample.generated is not None:
        sequence = sample.generated.sequence
        meta["finish_reason"] = _finish_reason(sequence.finish, sequence.completion_tokens)
        meta |= sequence.finish.named_captures
        meta["e2e_latency"] = sequence.seconds
        meta |= sequence.version_facts
        meta["num_retractions"] = sequence.num_retractions
        meta["spec_verify_ct"] = sequence.num_passes
        meta["spec_accept_length"] = sequence.accept_length
        meta["spec_accept_histogram"] = sequence.accepted_lengths
        drafts = DraftCounts.of([sequence])
        meta |= {"spec_draft_token_num": drafts.guessed, "spec_accept_token_num": drafts.accepted}
        if (routes := sequence.routes) is not None:
            experts = np.frombuffer(routes.experts, "<i2").astype("<i4")
            meta["routed_experts"] = base64.b64encode(experts).decode()
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
    """An output that a request asks for."""

    rid: str
    prompt: Prompt
    sample: SampleStream


class GenerateAnswers:
    """Answers native requests."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

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
        continued, extra_keys = (body.per_prompt(name, num) for name in ("continued_tokens", "extra_key"))
        # Before tokenisation: the check is cheap, and often fails.
        params = [part.params(after) for part, after in zip(sampling, continued, strict=True)]
        images = [await self._pictures(each, key) for each, key in zip(body.images(num), extra_keys, strict=True)]
        tokens = [await self.tokens(prompt, each) for prompt, each in zip(prompts, images, strict=True)]
        fallback_rid = new_rid()
        session = body.session_id or (None if body.session_params is None else body.session_params.id)
        return [
            (
                fallback_rid if rid is None else rid,
                Prompt(
                    tokens=ids,
                    sampling=drawn,
                    options=msgspec.structs.replace(
                        body.delivery(),
                        logprobs=logprob_params(wanted, start, num_top, of, len(ids), details=body.token_details),
                        priority=priority,
                        namespace=key or "",
                        continued=after,
                        adapter=lora,
                        routed_from=routed,
                        pictures=placed(shown, ids, self._generator.tokenizer),
                    ),
                    session=requested_session(session),
                    name=rid,
                ),
                part.n,
            )
            for (ids, shown), drawn, part, after, wanted, start, num_top, of, rid, priority, key, lora, routed in zip(
                zip(tokens, images, strict=True),
                params,
                sampling,
                continued,
                *settings,
                body.logprob_token_ids(num),
                body.per_prompt("rid", num),
                body.per_prompt("priority", num),
                extra_keys,
                body.per_prompt("lora_path", num),
                body.routed_from(num),
                strict=True,
            )
        ]

    async def tokens(self, prompt: str | list[int], pictures: Sequence[PreparedPicture] = ()) -> list[int]:
        """Return the ids of a prompt with pictures. Raises RequestError."""
        if isinstance(prompt, list):
            return prompt
        segments = with_pictures([PromptSegment(prompt, trusted=True)], pictures)
        return await self._generator.encoder.encode_async(segments, at_start=True, param="text")

    async def _pictures(self, sources: Sequence[ImageSource], extra_key: str | None) -> list[PreparedPicture]:
        if not sources:
            return []
        return await self._generator.pictures("image_data").prepare(sources, extra_key or "")
