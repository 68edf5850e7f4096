"""The sequential run that every schedule must equal: one request alone, in a loop without pages or chunks."""

from __future__ import annotations

import json
import re

import numpy as np

from ramiform.runtime.protocol.core import Finish, Generate
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.scheduler.rows.sampling_inputs import random_bits

from .fake_grammars import next_in
from .fake_model import EOS, TOKEN_BYTES, VOCABULARY, choose, hidden, logprob
from .harness import Answer


def language_of(params: SamplingParams) -> list[list[int]] | None:
    return None if params.constraint is None else json.loads(params.constraint.source)


def sequential(message: Generate, *, context_length: int = 200, num_slots: int = 1 << 30) -> Answer:
    """Run the request alone, in a loop without pages, chunks or increments."""
    params = message.sampling
    prompt = list(message.tokens)
    answer = Answer(finish=Finish("length"))
    if len(prompt) + min(1, params.max_new_tokens) > min(context_length, num_slots):
        answer.error = "context_length_exceeded"
        return answer
    num_top, of = (0, ()) if message.logprobs is None else (message.logprobs.num_top, message.logprobs.of)
    if message.logprobs is not None:
        answer.logprobs = []
        start = message.logprobs.prompt_from
        if start is not None:
            positions = range(start, len(prompt))
            answer.prompt_logprobs = [logprob(prompt[:p], prompt[p], num_top, of) if p else None for p in positions]
    if message.pooling is not None:
        states = [hidden(prompt[: place + 1]) for place in range(len(prompt))]
        pooled = sum(states, np.zeros(3, "<f4")) / len(states) if message.pooling == "mean" else states[-1]
        answer.embedding = pooled.astype("<f4").tolist()
    language = language_of(params)
    before = prompt[len(prompt) - message.continued :]  # output of an earlier request
    if language is not None:
        refused = [n for n, token in enumerate(before) if token == EOS] or [
            n for n, token in enumerate(before) if token not in next_in(language, before[:n])
        ]
        if refused:
            token, place = before[refused[0]], len(prompt) - len(before) + refused[0]
            about = f"token {token} at position {place} of the prompt"
            answer.error = (
                f"{about} ends the constrained output"
                if token == EOS
                else f"the constraint refuses {about}, which continued_tokens counts to the output"
            )
            return answer
    eos = set() if params.ignore_eos else {EOS}
    while len(answer.ids) < params.max_new_tokens and len(prompt) + len(answer.ids) < min(context_length, num_slots):
        history, output = prompt + answer.ids, before + answer.ids
        young = len(answer.ids) < params.min_new_tokens
        base = set(range(VOCABULARY.vocab_size)) if language is None else next_in(language, output)
        avoided = eos | set(params.stop_token_ids) if young else set()
        avoided |= {EOS} if language is not None and params.ignore_eos else set()
        how = (
            params.temperature,
            0 if params.seed is None else random_bits(params.seed, len(history)),
            len(output) if params.penalised else None,
        )
        base &= set(params.allowed_token_ids or base)
        base -= {ids[-1] for ids in message.banned if [*output, ids[-1]][-len(ids) :] == ids}
        if not base:
            answer.error = "dead_end"
            return answer
        token = choose(history, base - avoided or base, how)
        if answer.logprobs is not None:
            answer.logprobs.append(logprob(history, token, num_top, of))
        answer.ids.append(token)
        if language is not None and token == EOS:
            answer.finish = Finish("stop", EOS)
            return answer
        if young:
            continue
        if token in eos | set(params.stop_token_ids):
            answer.finish = Finish("stop", token)
            return answer
        stop = first_stop([*output, token], params)
        if stop is not None:
            answer.finish = Finish("stop", stop)
            return answer
    return answer


def first_stop(ids: list[int], params: SamplingParams) -> str | None:
    """The stop string or match that ends first in the last token, searched in the whole output."""
    between = b"" if params.skip_special_tokens else b"\xff"
    pieces = [between if TOKEN_BYTES[t] is None else TOKEN_BYTES[t] or b"" for t in ids]
    text = b"".join(pieces)
    for end in range(len(text) - len(pieces[-1]) + 1, len(text) + 1):
        ending = [stop for stop in params.stop if text[:end].endswith(stop.encode())]
        ending += [
            found
            for start in range(end)
            if (found := _text(text[start:end])) and any(re.fullmatch(p, found) for p in params.stop_regex)
        ]
        if ending:
            return max(ending, key=lambda stop: len(stop.encode()))
    return None


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def assert_equal(answer: Answer, expected: Answer) -> None:
    if expected.error is not None:
        assert answer.error is not None
        assert expected.error in (answer.error.code, answer.error.message)
        return
    assert answer.error is None
    assert (answer.ids, answer.finish) == (expected.ids, expected.finish)
    assert answer.logprobs == expected.logprobs
    assert answer.prompt_logprobs == expected.prompt_logprobs
    assert answer.embedding == expected.embedding
