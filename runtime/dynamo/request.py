"""Translates between Dynamo's requests and chunks, which are dicts of token ids, and the core's messages.

Knows nothing of the package `dynamo`. Sources: `PreprocessedRequest` and `LLMEngineOutput` of its llm library.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from ..frontend.api.bodies import json_text
from ..frontend.core.client import new_rid
from ..protocol.core import Generate, ModelInfo, SoftPin, Tokens
from ..protocol.errors import RequestError, context_exceeded
from ..protocol.sampling import PARAMETERS, Constraint, ConstraintKind, LogprobParams, SamplingParams, TokenLogprob

# Fields that would change the answer and are not supported. None, and these values, are neutral. Dynamo's adapter ends
# a request at its first finished output, so there can be one.
_REFUSED: dict[str, dict[str, tuple[Any, ...]]] = {
    "": {"multi_modal_data": ({},), "prompt_embeds": (), "mm_processor_kwargs": ({},)},
    "sampling_options": {"n": (0, 1), "best_of": (0, 1), "use_beam_search": (False,), "length_penalty": (1.0,)},
    "stop_conditions": {"max_thinking_tokens": ()},
    "routing": {"lora_name": ("",)},
}
_CONSTRAINTS: dict[str, ConstraintKind] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choices",
    "grammar": "grammar",
    "structural_tag": "structural_tag",
}
# Drawn filters: a value that Dynamo's clients send for "off", beside None.
_OFF: dict[str, tuple[float, ...]] = {"top_k": (0, -1)}
_DRAW_FIELDS = (
    *(row.name for row in PARAMETERS.values() if row.stage == "draw"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty"),
)
_FINISH_REASONS = {"stop": "stop", "length": "length", "abort": "cancelled"}


def session_of(request: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Return the agent session that the request belongs to, and whether this is its last request."""
    context = request.get("agent_context") or {}
    session = context.get("session_id")
    return (session.strip() or None if isinstance(session, str) else None), context.get("session_final") is True


def generate_of(request: Mapping[str, Any], info: ModelInfo) -> Generate:
    """Translate a request. A session is a program whose state is expected to go on after its output.

    Raises RequestError naming Dynamo's field.
    """
    _refuse_unsupported(request)
    tokens = list(request["token_ids"])
    sampling = _sampling(request, info, len(tokens))
    session, _ = session_of(request)
    return Generate(
        rid=new_rid(),
        tokens=tokens,
        sampling=msgspec.structs.replace(
            sampling, seed=secrets.randbits(63) if sampling.seed is None else sampling.seed
        ),
        logprobs=_logprobs(request.get("output_options") or {}),
        priority=_priority(request),
        namespace=_namespace(request),
        program=None if session is None else f"session {session}",
        soft_pins=[] if session is None else [SoftPin(0)],
    )


def chunk_of(tokens: Tokens, num_prompt: int, num_output: int) -> dict[str, Any]:
    """Translate tokens into a chunk. `num_output` counts the output's tokens, these included."""
    chunk: dict[str, Any] = {"token_ids": tokens.ids, "index": 0}
    if tokens.logprobs:
        chunk["log_probs"] = [value.logprob for value in tokens.logprobs]
        chunk["top_logprobs"] = [_top(value) for value in tokens.logprobs]
    if tokens.prompt_logprobs is not None:
        chunk["engine_data"] = {"prompt_logprobs": [_prompt_entry(value) for value in tokens.prompt_logprobs]}
    if tokens.finish is not None:
        chunk["finish_reason"] = _FINISH_REASONS[tokens.finish.type]
        chunk["completion_usage"] = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": tokens.num_cached},
        }
    return chunk


def _refuse_unsupported(request: Mapping[str, Any]) -> None:
    for group, fields in _REFUSED.items():
        values = request if not group else request.get(group) or {}
        for name, neutral in fields.items():
            value = values.get(name)
            if value is not None and value not in neutral:
                field = f"{group}.{name}" if group else name
                raise RequestError(f"{field} is not supported, got {str(value)[:80]}", param=field)


def _priority(request: Mapping[str, Any]) -> int:
    value = (request.get("routing") or {}).get("priority")
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1 << 31:
        raise RequestError(f"routing.priority must be a number, got {str(value)[:80]!r}", param="routing.priority")
    return int(value)


def _sampling(request: Mapping[str, Any], info: ModelInfo, num_prompt: int) -> SamplingParams:
    options, stops = request.get("sampling_options") or {}, request.get("stop_conditions") or {}
    room = info.max_request_tokens - num_prompt
    if room < 1:
        raise context_exceeded(info.max_request_tokens, num_prompt)
    values = {name: options.get(name) for name in _DRAW_FIELDS}
    drawn = {name: value for name, value in values.items() if value is not None and value not in _OFF.get(name, ())}
    longest = stops.get("max_tokens")
    hidden = {*(stops.get("stop_token_ids") or ()), *(stops.get("stop_token_ids_hidden") or ())}
    try:
        return SamplingParams(
            **drawn,
            logit_bias={int(token): float(bias) for token, bias in (options.get("logit_bias") or {}).items()},
            max_new_tokens=room if longest is None else min(int(longest), room),
            min_new_tokens=int(stops.get("min_tokens") or 0),
            stop=tuple(stops.get("stop") or ()),
            stop_token_ids=tuple(sorted(hidden)),
            ignore_eos=bool(stops.get("ignore_eos")),
            constraint=_constraint(options.get("guided_decoding") or {}, request),
        )
    except (TypeError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"sampling_options or stop_conditions: {error}", param="sampling_options") from None


def _constraint(guided: Mapping[str, Any], request: Mapping[str, Any]) -> Constraint | None:
    given = [name for name in _CONSTRAINTS if guided.get(name) is not None]
    if not given:
        return None
    if len(given) > 1:
        raise RequestError(
            f"{' and '.join(given)} exclude one another: an output has one constraint", param="guided_decoding"
        )
    if guided.get("whitespace_pattern") is not None:
        raise RequestError("whitespace_pattern is not supported", param="guided_decoding.whitespace_pattern")
    if request.get("require_reasoning"):
        raise RequestError("guided_decoding after reasoning is not supported", param="guided_decoding")
    [name] = given
    return Constraint(_CONSTRAINTS[name], json_text(guided[name], name, param=f"guided_decoding.{name}"))


def _logprobs(options: Mapping[str, Any]) -> LogprobParams | None:
    num_top, of_prompt = options.get("logprobs"), options.get("prompt_logprobs")
    if num_top is None and of_prompt is None:
        return None
    return LogprobParams(
        num_top=max(int(num_top or 0), int(of_prompt or 0)), prompt_from=None if of_prompt is None else 0
    )


def _namespace(request: Mapping[str, Any]) -> str:
    """Return the cache salt, by which the router too tells prefixes apart."""
    places = (request.get("routing"), request.get("nvext"), (request.get("extra_args") or {}).get("nvext"))
    for place in places:
        if isinstance(place, Mapping):
            for name in ("cache_salt", "cache_namespace"):
                if isinstance(place.get(name), str) and place[name]:
                    return str(place[name])
    return ""


def _top(value: TokenLogprob) -> list[dict[str, Any]]:
    """List the alternatives of a position, the token itself among them. The frontend adds their texts."""
    ranked = [(rank, logprob, token) for rank, (logprob, token) in enumerate(value.top, 1)]
    if value.id not in [token for _, _, token in ranked]:
        ranked.append((len(ranked) + 1, value.logprob, value.id))
    return [{"rank": rank, "token_id": token, "token": None, "logprob": logprob} for rank, logprob, token in ranked]


def _prompt_entry(value: TokenLogprob | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {str(entry["token_id"]): {"logprob": entry["logprob"], "rank": entry["rank"]} for entry in _top(value)}
