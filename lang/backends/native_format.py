"""Converts sampling parameters to bodies of the runtime's native routes, and their answers to the protocol's values."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from ...runtime.protocol import session
from ...runtime.protocol.core import Finish, Timings
from ...runtime.protocol.sampling import PARAMETERS, Constraint, SamplingParams, TokenLogprob

_CONSTRAINTS = {"regex": "regex", "json_schema": "json_schema", "grammar": "ebnf", "structural_tag": "structural_tag"}


def native_sampling_body(sampling: SamplingParams) -> dict[str, Any]:
    """Return the field `sampling_params` of a body."""
    values = msgspec.to_builtins(sampling, str_keys=True)
    names = {row.name: name for row in PARAMETERS.values() if (name := row.name_in("native")) is not None}
    body = {names[field]: value for field, value in values.items() if field in names and value is not None}
    if sampling.constraint is not None:
        body |= _native_constraint_body(sampling.constraint)
    return body


def _native_constraint_body(constraint: Constraint) -> dict[str, str]:
    if constraint.kind == "choices":
        return {"regex": "|".join(re.escape(choice) for choice in json.loads(constraint.source))}
    body = {_CONSTRAINTS[constraint.kind]: constraint.source}
    if constraint.additional_properties is not None:
        body["additional_properties"] = constraint.additional_properties
    return body


def native_sequence(answer: dict[str, Any], gen: session.Gen) -> session.Sequence:
    """Return the sequence of an answer to `gen`."""
    meta = answer["meta_info"]
    reason = meta["finish_reason"]
    matched = reason.get("matched")
    ids = list(answer["output_ids"])
    if isinstance(matched, int):
        ids = ids[:-1]
    texts: dict[int, str] = {}
    return session.Sequence(
        text=answer["text"],
        ids=ids,
        prompt_tokens=meta["prompt_tokens"],
        completion_tokens=meta["completion_tokens"],
        cached_tokens=meta["cached_tokens"],
        finish=Finish(reason["type"], matched),
        logprobs=_logprobs(meta, "output", texts) if gen.logprobs is not None else None,
        prompt_logprobs=_logprobs(meta, "input", texts)
        if gen.logprobs is not None and gen.logprobs.prompt_from is not None
        else None,
        seconds=meta["e2e_latency"],
        num_retractions=meta["num_retractions"],
        num_passes=meta["spec_verify_ct"],
        accepted_lengths=meta.get("spec_accept_histogram", []),
        timings=Timings(queue=meta["queue_time"], prefill=meta["prefill_time"], decode=meta["decode_time"])
        if "queue_time" in meta
        else None,
        token_texts=texts if gen.token_texts else None,
    )


def _logprobs(meta: dict[str, Any], which: str, texts: dict[int, str]) -> list[Any]:
    """Return the log-probability of each token, None for a prompt's first; add the tokens' texts to `texts`."""
    tokens = meta[f"{which}_token_logprobs"]
    tops = meta.get(f"{which}_top_logprobs") or [None] * len(tokens)
    for _, token, text in [*tokens, *(entry for top in tops for entry in top or ())]:
        if text is not None:
            texts[token] = text
    return [
        None if logprob is None else TokenLogprob(logprob, token, [(value, id) for value, id, _ in top or ()])
        for (logprob, token, _), top in zip(tokens, tops, strict=True)
    ]
