"""What a request may ask for. Pure: raises the client's mistake, named, before anything is queued."""

from __future__ import annotations

from collections.abc import Iterable

from ..protocol.core import Generate
from ..protocol.errors import RequestError, context_exceeded

MAX_PROMPT_LOGPROBS = 3 << 20  # log-probabilities in one answer, at most 20 bytes each: a message is 64 MiB


def length_limit(message: Generate, *, vocab_size: int, context_length: int, num_slots: int) -> int:
    """How many tokens, prompt and output together, the request ends at. Less than it asks for when the context or the
    KV pool is smaller.

    Raises RequestError when it cannot run at all.
    """
    params = message.sampling
    num_prompt = len(message.tokens)
    if num_prompt == 0:
        raise RequestError("the prompt is empty: there is no token to continue", param="prompt", code="empty_prompt")
    _check_token_ids(message.tokens, vocab_size, "prompt")
    _check_token_ids(params.stop_token_ids, vocab_size, "stop_token_ids")
    _check_token_ids(params.logit_bias, vocab_size, "logit_bias")
    if params.seed is None and not params.greedy:
        raise RequestError("sampling needs a seed", param="seed")
    if message.pooling is not None and params.max_new_tokens:
        raise RequestError("an embedding is of a prompt: max_new_tokens must be 0", param="max_new_tokens")
    if num_prompt > context_length:
        raise context_exceeded(context_length, num_prompt)
    # A KV cache that holds less than the model's context is all the context that there is.
    if num_prompt + (num_new := min(1, params.max_new_tokens)) > num_slots:
        raise context_exceeded(num_slots, num_prompt, num_new)
    if message.logprobs is not None:
        _check_token_ids(message.logprobs.of, vocab_size, "token_ids_logprob")
    if message.logprobs is not None and message.logprobs.prompt_from is not None:
        num_each = 1 + message.logprobs.num_top + len(message.logprobs.of)
        num_listed = max(0, num_prompt - message.logprobs.prompt_from) * num_each
        if num_listed > MAX_PROMPT_LOGPROBS:
            raise RequestError(
                f"{num_listed} log-probabilities of the prompt, with alternatives; at most {MAX_PROMPT_LOGPROBS} fit an answer",
                param="logprob_start_len",
                code="too_long",
            )
    return min(num_prompt + params.max_new_tokens, context_length, num_slots)


def _check_token_ids(ids: Iterable[int], vocab_size: int, param: str) -> None:
    wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise RequestError(f"token id {wrong} is not in the vocabulary of {vocab_size} tokens", param=param)
