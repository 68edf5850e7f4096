"""Scores given continuations: log-probabilities of many prompts in one batch, which share their common prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec

from ...protocol.core import Generate, RequestOptions, Timings
from ...protocol.errors import RequestError
from ...protocol.sampling import LogprobParams, SamplingParams, TokenLogprob
from ..core.client import CoreClient, TokenStream, new_rid
from .offload import cooperative_iter

_SCORE_ONLY = SamplingParams(max_new_tokens=0, temperature=0.0, seed=0)


@dataclass(frozen=True)
class Continuation:
    """A prompt whose tokens from `start` on are scored."""

    tokens: list[int]
    start: int


@dataclass(frozen=True)
class Scored:
    logprobs: list[TokenLogprob]
    prompt_tokens: int
    cached_tokens: int
    timings: Timings | None = None


def slowest(scored: Sequence[Scored]) -> Timings | None:
    """Return the timings of the request that took the longest in the core, if they are known."""
    known = [each.timings for each in scored if each.timings is not None]
    return max(known, key=lambda one: one.total, default=None)


async def score(core: CoreClient, batch: Sequence[Continuation], options: RequestOptions) -> list[Scored]:
    """Score a batch of requests with the same options, submitted together. The first one carries the soft pins.

    Raises RamiformError and aborts the others when one fails.
    """
    others = msgspec.structs.replace(options, soft_pins=[])
    with ExitStack() as stack:
        answers = [
            stack.enter_context(
                core.submit(
                    Generate.of(
                        msgspec.structs.replace(
                            others if index else options, logprobs=LogprobParams(prompt_from=each.start)
                        ),
                        rid=new_rid(),
                        tokens=each.tokens,
                        sampling=_SCORE_ONLY,
                    )
                )
            )
            async for index, each in cooperative_iter(enumerate(batch))
        ]
        return [await _read(answer, each) for answer, each in zip(answers, batch, strict=True)]


def unify_shared_prefixes(choices: list[list[TokenLogprob]]) -> list[list[TokenLogprob]]:
    """Give each token of a shared prefix one value.

    Forwards of different shapes round differently, which would decide ties.
    """
    first: dict[tuple[int, int], tuple[int, TokenLogprob]] = {}  # (node, token) -> (node after it, its value)
    unified = []
    for choice in choices:
        node = 0
        values = []
        for token in choice:
            node, value = first.setdefault((node, token.id), (len(first) + 1, token))
            values.append(value)
        unified.append(values)
    return unified


async def _read(answer: TokenStream, asked: Continuation) -> Scored:
    logprobs: list[TokenLogprob | None] = []
    cached = 0
    timings = None
    async for tokens in answer:
        logprobs += tokens.prompt_logprobs or []
        cached, timings = tokens.num_cached, tokens.timings
        if tokens.finish is not None and tokens.finish.type == "abort":
            raise RequestError("the scoring was aborted", code="aborted")
    ids = asked.tokens[asked.start :]
    # Only the very first token of a sequence has no probability: it counts the same for all.
    known = [TokenLogprob(0.0, ids[0]) if entry is None else entry for entry in logprobs]
    assert [entry.id for entry in known] == ids, "the core scored other tokens than were asked for"
    return Scored(known, len(asked.tokens), cached, timings)
