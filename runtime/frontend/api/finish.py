"""Finish reasons in the terms of OpenAI and vLLM."""

from __future__ import annotations

from typing import Any

from ...protocol.core import Finish
from ...protocol.sampling import SamplingParams


def finish_reason(finish: Finish) -> str:
    return finish.type  # "abort" is vLLM's value; OpenAI has none


def stop_reason(finish: Finish, sampling: SamplingParams) -> str | int | None:
    """Return the stop string or stop token of the request that matched; None for the model's own end."""
    if isinstance(finish.matched, str):
        return finish.matched
    return finish.matched if finish.matched in sampling.stop_token_ids else None


def finish_fields(finish: Finish, sampling: SamplingParams) -> dict[str, Any]:
    """Return the fields of a choice that say how it ended. `matched_stop`, SGLang's, holds the model's own end too."""
    return {
        "finish_reason": finish_reason(finish),
        "stop_reason": stop_reason(finish, sampling),
        "matched_stop": finish.matched,
        **finish.named_captures,
    }
