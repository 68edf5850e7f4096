"""Choosing: each choice scored as a continuation of a state, all at once, and the one a method prefers.

Knows token ids and the core; the arithmetic is in `protocol.choices`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from ..protocol import choices as methods
from ..protocol.core import Claim, Generate
from ..protocol.errors import RequestError
from ..protocol.sampling import LogprobParams, SamplingParams, TokenLogprob
from ..protocol.session import Choice, Select
from .content import Content
from .core_client import Answer, CoreClient, new_rid
from .generation import Generator
from .prefix import common_prefix_length

MAX_CHOICES = 1024
_SCORE_ONLY = SamplingParams(max_new_tokens=0, temperature=0.0, seed=0)


@dataclass(frozen=True)
class Scored:
    """Log-probabilities of tokens [start, end) of a prompt."""

    logprobs: list[TokenLogprob]
    prompt_tokens: int
    cached_tokens: int


async def select(
    generator: Generator,
    content: Content,
    op: Select,
    *,
    program: str | None = None,
    claims: Callable[[list[int], int], list[Claim]] | None = None,
) -> Choice:
    """The choice that `op` makes as the continuation of `content`, which is not changed. `claims` gives those of a
    prompt, of which the state will keep the first so many tokens.

    A choice's tokens are those after the longest run that the text alone and the text with each choice have in
    common, so that a token which spans the seam counts in full. Raises RequestError.
    """
    _check(op)
    core, encoder, bos_id = generator.core, generator.encoder, generator.tokenizer.bos_id
    encoded = [await encoder.encode_aside(content.with_pending(text), at_start=not content.ids) for text in op.choices]
    alone = await encoder.encode_aside(content.pending, at_start=not content.ids)
    start = common_prefix_length(alone, *encoded)
    for text, ids in zip(op.choices, encoded, strict=True):
        if len(ids) == start:
            raise RequestError(f"choice {text!r} adds no token", param="choices")
    prompts = [content.ids + ids for ids in encoded]
    start += len(content.ids)
    if start == 0 and bos_id is None and not content.pending:
        raise RequestError("a select needs text before it: this model has no token to begin with", param="choices")

    requests = [(ids, start) for ids in prompts]
    by_context = op.method == "unconditional_likelihood_normalized"
    if by_context:
        prefix = [] if bos_id is None else [bos_id]
        requests += [(prefix + ids[start:], len(prefix)) for ids in prompts]
    scored = await _score(core, requests, program, [] if claims is None else claims(prompts[0], start))
    logprobs = _agree([part.logprobs for part in scored[: len(prompts)]])
    unconditional = _agree([part.logprobs for part in scored[len(prompts) :]]) if by_context else None

    scores = methods.scores(op.method, _values(logprobs), _values(unconditional or []))
    seed = secrets.randbits(63) if op.seed is None else op.seed
    index = methods.decide(scores, op.temperature, seed)
    return Choice(
        index=index,
        text=op.choices[index],
        scores=scores,
        normalized_prompt_logprobs=methods.token_length_normalized(_values(logprobs)),
        token_logprobs=logprobs,
        unconditional_logprobs=unconditional,
        prompt_tokens=sum(part.prompt_tokens for part in scored),
        cached_tokens=sum(part.cached_tokens for part in scored),
    )


def _check(op: Select) -> None:
    if not 1 <= len(op.choices) <= MAX_CHOICES or not all(op.choices):
        raise RequestError(f"choices must be 1 to {MAX_CHOICES} non-empty strings", param="choices")
    methods.decide([0.0], op.temperature)  # raises for a bad temperature, before anything is computed


async def _score(
    core: CoreClient, requests: Sequence[tuple[list[int], int]], program: str | None, claims: list[Claim]
) -> list[Scored]:
    """Score tokens [start, end) of each prompt; submitted together, so that the scheduler shares what they share. The
    first carries the claims."""
    with ExitStack() as stack:
        answers = [
            stack.enter_context(
                core.submit(
                    Generate(
                        rid=new_rid(),
                        tokens=ids,
                        sampling=_SCORE_ONLY,
                        logprobs=LogprobParams(prompt_from=start),
                        program=program,
                        claims=[] if index else claims,
                    )
                )
            )
            for index, (ids, start) in enumerate(requests)
        ]
        return [await _read(answer, *request) for answer, request in zip(answers, requests, strict=True)]


async def _read(answer: Answer, ids: list[int], start: int) -> Scored:
    logprobs: list[TokenLogprob | None] = []
    cached = 0
    async for tokens in answer:
        logprobs += tokens.prompt_logprobs or []
        cached = tokens.num_cached
        if tokens.finish is not None and tokens.finish.type == "abort":
            raise RequestError("the select was aborted", code="aborted")
    # Only the very first token of a sequence has no probability: it counts the same for all.
    known = [TokenLogprob(0.0, ids[start]) if entry is None else entry for entry in logprobs]
    assert [entry.id for entry in known] == ids[start:], "the core scored other tokens than were asked for"
    return Scored(known, len(ids), cached)


def _agree(choices: list[list[TokenLogprob]]) -> list[list[TokenLogprob]]:
    """One value for each shared prefix: forwards of different shapes round differently, which would decide a tie."""
    first: dict[tuple[int, int], tuple[int, TokenLogprob]] = {}  # (node, token) -> (node after it, its value)
    agreed = []
    for choice in choices:
        node = 0
        values = []
        for token in choice:
            node, value = first.setdefault((node, token.id), (len(first) + 1, token))
            values.append(value)
        agreed.append(values)
    return agreed


def _values(choices: list[list[TokenLogprob]]) -> list[list[float]]:
    return [[token.logprob for token in choice] for choice in choices]
