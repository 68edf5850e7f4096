"""Selects one of several choices: scores each as a continuation of a state, in one batch."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ...programs.common_prefix import common_prefix_length
from ...protocol import choices
from ...protocol.core import RequestOptions
from ...protocol.errors import RequestError
from ...protocol.session import Choice, Select
from ..text.generation import Generator
from ..text.scoring import Continuation, score, slowest, unify_shared_prefixes
from .content import TokenContent

MAX_CHOICES = 1024


async def select(
    generator: Generator,
    content: TokenContent,
    op: Select,
    *,
    options_for: Callable[[list[int], int], RequestOptions],
) -> Choice:
    """Score the choices of `op` as continuations of `content`, which is not changed, and decide.

    `options_for(tokens, num_kept)` gives the options of the requests; the state keeps the first `num_kept` tokens.
    A choice's tokens are those after the longest common prefix of the text alone and the text with each choice, so a
    token that spans the boundary counts in full. Raises RequestError for invalid choices or temperature.
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
    options = options_for(prompts[0], start)
    by_context = op.method == "unconditional_likelihood_normalized"
    if by_context:
        prefix = [] if bos_id is None else [bos_id]
        alone_batch = [Continuation(prefix + ids[start:], len(prefix)) for ids in prompts]
        scored = [
            *await score(generator.core, batch, options),
            *await score(generator.core, alone_batch, msgspec.structs.replace(options, soft_pins=[], pictures=[])),
        ]
    else:
        scored = await score(generator.core, batch, options)
    logprobs = unify_shared_prefixes([part.logprobs for part in scored[: len(prompts)]])
    unconditional = unify_shared_prefixes([part.logprobs for part in scored[len(prompts) :]]) if by_context else None
    choice = choices.choose(
        op,
        logprobs,
        unconditional,
        prompt_tokens=sum(part.prompt_tokens for part in scored),
        cached_tokens=sum(part.cached_tokens for part in scored),
    )
    return msgspec.structs.replace(choice, timings=slowest(scored))


def _check(op: Select) -> None:
    if not 1 <= len(op.choices) <= MAX_CHOICES or not all(op.choices):
        raise RequestError(f"choices must be 1 to {MAX_CHOICES} non-empty strings", param="choices")
    choices.decide([0.0], op.temperature)  # raises for a bad temperature, before anything is computed
