"""Meta info of generated and selected text: the dicts that `get_meta_info` returns, with the native API's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...runtime.protocol.sampling import TokenLogprob
from ...runtime.protocol.session import Choice, Done, Sequence

LogprobTuple = tuple[float, int, str | None]  # log-probability, token id, and text with return_text_in_logprobs
_NO_TEXTS: dict[int, str] = {}


@dataclass(frozen=True)
class Segment:
    """A piece of a state's text. `meta` is the meta info of generated or selected text, None for the program's own."""

    text: str
    meta: dict[str, Any] | None

    @property
    def generated(self) -> bool:
        """Return whether the model generated or selected the text."""
        return self.meta is not None


def segment_of(done: Done) -> Segment:
    """Return the segment that an answered operation appended."""
    if done.sequences is not None:
        return Segment(done.text, meta_of_sequence(done.sequences[0]))  # of several samples, the first is appended
    return Segment(done.text, None if done.choice is None else meta_of_choice(done.choice))


def meta_of_sequence(sequence: Sequence) -> dict[str, Any]:
    """Return the meta info of a generated sequence."""
    finish: dict[str, Any] = {"type": sequence.finish.type}
    if sequence.finish.matched is not None:
        finish["matched"] = sequence.finish.matched
    elif sequence.finish.type == "length":
        finish["length"] = sequence.completion_tokens
    meta: dict[str, Any] = {
        "finish_reason": finish,
        "prompt_tokens": sequence.prompt_tokens,
        "completion_tokens": sequence.completion_tokens,
        "cached_tokens": sequence.cached_tokens,
        "e2e_latency": sequence.seconds,
        "num_retractions": sequence.num_retractions,
        "spec_verify_ct": sequence.num_passes,
        "spec_accept_length": sequence.accept_length,
        "spec_accept_histogram": sequence.accepted_lengths,
        "output_ids": sequence.ids,
        **sequence.version_facts,
        **sequence.finish.named_captures,
    }
    if (timings := sequence.timings) is not None:
        meta |= {"queue_time": timings.queue, "prefill_time": timings.prefill, "decode_time": timings.decode}
        meta |= {"grammar_time": timings.grammar, "retracted_time": timings.retracted}
        meta |= {"transfer_time": timings.transfer}
    texts = sequence.token_texts or _NO_TEXTS
    if sequence.logprobs is not None:
        meta["output_token_logprobs"] = _tuples(sequence.logprobs, texts)
        meta["output_top_logprobs"] = _tops(sequence.logprobs, texts)
    if sequence.prompt_logprobs is not None:
        meta["input_token_logprobs"] = _tuples(sequence.prompt_logprobs, texts)
        meta["input_top_logprobs"] = _tops(sequence.prompt_logprobs, texts)
    return meta


def meta_of_choice(choice: Choice) -> dict[str, Any]:
    """Return the meta info of a selected choice."""
    meta: dict[str, Any] = {
        "index": choice.index,
        "scores": choice.scores,
        "normalized_prompt_logprobs": choice.normalized_prompt_logprobs,
        "input_token_logprobs": [_tuples(tokens) for tokens in choice.token_logprobs],
        "prompt_tokens": choice.prompt_tokens,
        "cached_tokens": choice.cached_tokens,
    }
    if choice.unconditional_logprobs is not None:
        meta["unconditional_token_logprobs"] = [_tuples(tokens) for tokens in choice.unconditional_logprobs]
    return meta


def _tuples(
    tokens: list[TokenLogprob] | list[TokenLogprob | None], texts: dict[int, str] = _NO_TEXTS
) -> list[LogprobTuple | None]:
    return [None if token is None else (token.logprob, token.id, texts.get(token.id)) for token in tokens]


def _tops(
    tokens: list[TokenLogprob] | list[TokenLogprob | None], texts: dict[int, str]
) -> list[list[LogprobTuple] | None]:
    return [None if token is None else [(logprob, id, texts.get(id)) for logprob, id in token.top] for token in tokens]
