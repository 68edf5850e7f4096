"""Make errors name the field of the request that is at fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...protocol.errors import RequestError


@contextmanager
def name_prompt_field(field: str) -> Iterator[None]:
    """Make prompt errors name the request field of the prompt."""
    try:
        yield
    except RequestError as error:
        if error.param != "prompt":
            raise
        raise RequestError(str(error), param=field, code=error.code) from None


@contextmanager
def name_constraint_field(field: str | None) -> Iterator[None]:
    """Make errors of a constraint name the request field of the constraint, and those of tokens whose log-probabilities
    are asked for OpenAI's field of them."""
    try:
        yield
    except RequestError as error:
        if field is not None and error.code == "invalid_grammar":
            raise RequestError(str(error), param=field, code=error.code) from None
        if error.param == "token_ids_logprob":
            raise RequestError(str(error), param="logprob_token_ids", code=error.code) from None
        raise
