"""Choosing: each choice scored as a continuation of a state, all at once, and the one a method prefers.

Knows a state's content; the scores come from `scoring`, the arithmetic is in `protocol.choices`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from ...protocol import choices as methods
from ...protocol.errors import RequestError
from ...protocol.sampling import TokenLogprob
from ...protocol.session import Choice, Select
from ..text.common_prefix import common_prefix_length
from ..text.generation import Generator
from ..text.scoring import Continuation, RequestContext, score, unify_shared_prefixes
from .content import TokenContent

MAX_CHOICES = 1024


async def select(
    generator: Generator,
    content: TokenContent,
    op: Select,
    *,
    asker: Callable[[list[int], int], RequestContext] | None = None,
) -> Choice:
    """The choice that `op` makes as the continuation of `content`, which is not changed. `asker` says on whose behalf,
    given a prompt of which the state will keep the first so many tokens.

    A choice's tokens are those after the longest run that the text alone and the text with each choice have in
    common, so that a token which spans the seam counts in full. Raises RequestError.
    """
    _check(op)
    encoder, bos_id = generator.encoder, generator.tokenizer.bos_id
    encoded = [await encoder.encode_async(content.with_pending(text), at_start=not content.ids) for text in op.choices]
    alone = await encoder.encode_async(content.pending, at_start=not content.ids)
    start = common_prefix_length(alone, *encoded)
    for text, ids in zip(op.choices, encoded, strict=True):
        if len(ids) == start:
            raise RequestError(f"choice {text!r} adds no token", param="choices")
    prompts = [content.ids + ids for ids in encoded]
    start += len(content.ids)
    if start == 0 and bos_id is None and not content.pending:
        raise RequestError("a select needs text before it: this model has no token to begin with", param="choices")

    batch = [Continuation(ids, start) for ids in prompts]
    by_context = op.method == "unconditional_likelihood_normalized"
    if by_context:
        prefix = [] if bos_id is None else [bos_id]
        batch += [Continuation(prefix + ids[start:], len(prefix)) for ids in prompts]
    scored = await score(generator.core, batch, RequestContext() if asker is None else asker(prompts[0], start))
    logprobs = unify_shared_prefixes([part.logprobs for part in scored[: len(prompts)]])
    unconditional = unify_shared_prefixes([part.logprobs for part in scored[len(prompts) :]]) if by_context else None

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


def _values(choices: list[list[TokenLogprob]]) -> list[list[float]]:
    return [[token.logprob for token in choice] for choice in choices]
