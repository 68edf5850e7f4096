"""Finish reasons in the terms of OpenAI and vLLM, and errors that name the constraint's field."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ....protocol.core import Finish
from ....protocol.errors import RequestError
from ....protocol.sampling import SamplingParams


def finish_reason(finish: Finish) -> str:
    return finish.type  # "abort" is vLLM's value; OpenAI has none


def stop_reason(finish: Finish, sampling: SamplingParams) -> str | int | None:
    """Return the stop string or stop token of the request that matched; None for the model's own end."""
    if isinstance(finish.matched, str):
        return finish.matched
    return finish.matched if finish.matched in sampling.stop_token_ids else None


@contextmanager
def name_constraint_field(field: str | None) -> Iterator[None]:
    """Make constraint errors name the request field of the constraint."""
    try:
        yield
    except RequestError as error:
        if field is None or error.code != "invalid_grammar":
            raise
        raise RequestError(str(error), param=field, code=error.code) from None
