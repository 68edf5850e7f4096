"""Prompts in answers: their ids, and for the routes `.../render` the request as it would go to the core, in
vLLM's form."""

from __future__ import annotations

from typing import Any

from ...protocol.sampling import SamplingParams
from ..text.generation import Prompt
from .fields import GenerationFields

_SAME = (
    "temperature top_p min_p seed stop stop_token_ids bad_words ignore_eos presence_penalty frequency_penalty "
    "repetition_penalty skip_special_tokens allowed_token_ids logit_bias"
).split()


def prompt_ids(prompt: Prompt) -> dict[str, Any]:
    """Return a prompt's ids, and [first, end) of the tokens of each of its images."""
    pictures = prompt.options.pictures
    places = [[picture.runs[0].first, picture.end] for picture in pictures]
    return {"prompt_token_ids": prompt.tokens} | ({"prompt_image_places": places} if pictures else {})


def rendered_request(request_id: str, model: str, body: GenerationFields, prompt: Prompt) -> dict[str, Any]:
    """Return a prompt's tokens and its sampling parameters by vLLM's names."""
    return {
        "request_id": request_id,
        "token_ids": prompt.tokens,
        "features": None,  # of images, which are not told
        "sampling_params": _params(prompt.sampling, body.n),
        "model": model,
        "stream": body.stream,
        "stream_options": None if body.stream_options is None else body.stream_options.model_dump(),
        "cache_salt": body.cache_salt or None,
        "priority": body.queue_priority,
        "kv_transfer_params": None,
    }


def _params(sampling: SamplingParams, n: int) -> dict[str, Any]:
    structured = None
    if (constraint := sampling.constraint) is not None:
        structured = {_STRUCTURED.get(constraint.kind, constraint.kind): constraint.source}
    return {
        "n": n,
        **{name: getattr(sampling, name) for name in _SAME},
        "top_k": -1 if sampling.top_k is None else sampling.top_k,
        "max_tokens": sampling.max_new_tokens,
        "min_tokens": sampling.min_new_tokens,
        "include_stop_str_in_output": sampling.no_stop_trim,
        "structured_outputs": structured,
    }


_STRUCTURED = {"json_schema": "json", "choices": "choice"}  # vLLM's names of constraints, where they differ
