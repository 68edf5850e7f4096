"""The native API's answers: what a sample has generated, as the JSON that clients read. Source: SGLang's native API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...protocol.core import Finish
from ...protocol.sampling import LogprobParams, TokenLogprob
from ...tokenizer.interface import Tokenizer
from ..text.generation import Prompt, SampleStream

LogprobEntry = list[Any]  # [log-probability, token id, text or null]


def answer(
    tokenizer: Tokenizer, prompt: Prompt, sample: SampleStream, text: str, *, rid: str, texts: bool
) -> dict[str, Any]:
    """What there is of `sample`, whose text so far is `text`. `texts`: log-probabilities come with tokens' text."""
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": None,
        "prompt_tokens": len(prompt.tokens),
        "completion_tokens": len(sample.output_ids),
        "cached_tokens": sample.num_cached,
    }
    if prompt.logprobs is not None:
        meta |= _logprobs(tokenizer, prompt, prompt.logprobs, sample, texts)
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
    tokenizer: Tokenizer, prompt: Prompt, wanted: LogprobParams, sample: SampleStream, texts: bool
) -> dict[str, list[Any]]:
    def entry(logprob: float | None, token: int) -> LogprobEntry:
        return [logprob, token, tokenizer.decode([token], skip_special_tokens=False) if texts else None]

    def tops(values: Sequence[TokenLogprob | None]) -> list[Any]:
        return [None if value is None else [entry(*top) for top in value.top] for value in values]

    def asked(values: Sequence[TokenLogprob | None]) -> list[Any]:
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
        meta |= {"input_token_ids_logprobs": asked(given), "output_token_ids_logprobs": asked(output)}
    return meta
