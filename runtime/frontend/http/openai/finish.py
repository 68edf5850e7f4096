"""Why an output ended, in OpenAI's words and vLLM's, and whose fault a bad constraint is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ....protocol.core import Finish
from ....protocol.errors import RequestError
from ....protocol.sampling import SamplingParams


def finish_reason(finish: Finish) -> str:
    return finish.type  # "abort" is vLLM's word; OpenAI's outputs cannot be aborted


def stop_reason(finish: Finish, sampling: SamplingParams) -> str | int | None:
    """The stop string or the stop token that the client asked for; None for the model's own end."""
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
