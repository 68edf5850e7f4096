"""Builds the plan's rows: a request's next tokens, its sampling, scores and draft."""

from __future__ import annotations

import msgspec

from ..batch import Batch, ScheduledRequest
from ..plan import PENDING, DraftSpec, Penalties, Row, RowSampling, Sample, Score
from ..request import Request
from .pictures import rope_offset, row_pictures
from .sampling_inputs import next_temperature, random_bits, request_mask


def build_row(item: ScheduledRequest, vocab_size: int, page_size: int, want: DraftSpec | None, batch: Batch) -> Row:
    """Build the row that computes `item`. `want` is the draft for the request's next step, `batch` knows its memory.
    Raises RequestError when the grammar is at a dead end."""
    request, draft, samples = item.request, item.draft, item.samples
    lease, message = request.lease, request.message
    assert lease is not None
    first = request.next_position
    end = first + item.num_tokens
    num_pages = -(-(first + item.num_slots) // page_size)
    mask = request_mask(request, vocab_size) if samples else None
    return Row(
        rid=request.rid,
        tokens=request.tokens[first:end] if draft is None else request.tokens[first:end] + draft.tree.tokens,
        first_position=first,
        pages=lease.pages[:num_pages],
        window_pages=batch.window_table(lease, num_pages),
        sample=_sample(request) if samples else None,
        mask=mask,
        score=None if message.logprobs is None else _score(request, first, end),
        pool_from=None if request.pooling is None else request.pooling.first_pooled(first, end),
        parents=None if draft is None else draft.tree.parents,
        nodes=[] if draft is None else draft.nodes,
        draft=want,
        state=None if lease.states is None else batch.row_state(item),
        adapter=message.adapter_number,
        rope_length=request.rope_length,
        pictures=row_pictures(message.pictures, first, end) if message.pictures else [],
        rope_offset=rope_offset(message.pictures, first) if message.pictures else 0,
        draws=[] if item.num_decodes == 1 else _further_draws(item),
        widened=item.is_widened,
        routes_from=_routes_from(request, first, end),
    )


def build_following_row(request: Request, follows: int, page_size: int, batch: Batch) -> Row:
    """Build the row that computes the token in flight, which row `follows` of the plan in flight samples."""
    assert request.lease is not None
    first = request.next_position
    return Row(
        rid=request.rid,
        tokens=[PENDING],
        first_position=first,
        pages=request.lease.pages[: first // page_size + 1],
        window_pages=batch.window_table(request.lease, first // page_size + 1),
        follows=follows,
        adapter=request.message.adapter_number,
        rope_length=request.rope_length,
        rope_offset=rope_offset(request.message.pictures, first) if request.message.pictures else 0,
        routes_from=_routes_from(request, first, first + 1),
    )


def _routes_from(request: Request, first: int, end: int) -> int | None:
    if request.routes is None:
        return None
    return request.routes.wanted_from(first if request.num_in_flight else 0, end)


def build_sampling(request: Request, vocab_size: int) -> RowSampling:
    """Build the sampling after the request's tokens. Raises RequestError when its grammar is at a dead end."""
    mask = request_mask(request, vocab_size)
    return RowSampling(_sample(request), mask)


def _sample(request: Request) -> Sample:
    """Return the sampling after the request's tokens, whose mask has been made."""
    if request.samples_alike and request.matcher is None:
        return request.sample
    params = request.message.sampling
    penalties = None
    if params.penalised:
        penalties = Penalties(
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
            repetition=params.repetition_penalty,
            prompt=request.message.tokens[: request.output_start],
            output=request.tokens[request.output_start :],
        )
    bits = 0 if params.seed is None else random_bits(params.seed, len(request.tokens))
    temperature = request.sample.temperature if request.matcher is None else next_temperature(request)
    if request.samples_alike and temperature == request.sample.temperature:
        return request.sample
    dry = {} if request.repeats is None else request.repeats.after(request.tokens)
    return msgspec.structs.replace(request.sample, draw=bits, penalties=penalties, dry=dry, temperature=temperature)


def _further_draws(item: ScheduledRequest) -> list[int]:
    """Return the random bits of the decode steps after the first."""
    params, num_tokens = item.request.message.sampling, len(item.request.tokens)
    if params.seed is None:
        return []
    return [random_bits(params.seed, num_tokens + number) for number in range(1, item.num_decodes)]


def _score(request: Request, first: int, end: int) -> Score | None:
    target = request.next_scored
    if target is None or target > end:
        return None
    assert target > first, "the position before a scored token was taken from the cache"
    assert request.message.logprobs is not None
    return Score(
        first=target - 1 - first,
        targets=request.tokens[target : end + 1],
        num_top=request.message.logprobs.num_top,
        of=request.message.logprobs.of,
        details=request.message.logprobs.details,
    )
