"""Validate bodies, and say in the client's terms what is wrong with one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ...protocol.errors import RequestError
from .peer_fields import unsupported_reason

MAX_MESSAGE_CHARACTERS = 2000  # the offending text may be megabytes long
B = TypeVar("B", bound=BaseModel)


class NotFoundError(RequestError):
    """The request names something that does not exist."""


def validated(kind: type[B], values: Any) -> B:
    """Validate `values` as the body of a route is. Raises RequestError naming the parameter at fault."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        details = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        message, param = explain_validation_error(details, values)
        raise RequestError(message, param=param) from None


def explain_validation_error(errors: Iterable[dict[str, Any]], body: Any) -> tuple[str, str | None]:
    """Return a message about a wrong body, and the parameter at fault."""
    # Each alternative of a union reports errors. The deepest path belongs to the alternative that the client meant, and
    # of those a value of the right type.
    detail, path = max(
        ((detail, _body_path(detail, body)) for detail in errors),
        key=lambda pair: (len(pair[1]), not pair[0]["type"].endswith("_type")),
    )
    if detail["type"] == "json_invalid":
        return f"the body is no JSON: {detail.get('ctx', {}).get('error', detail['msg'])}", None
    param = printable(_field_name(path)) or None
    if detail["type"] == "extra_forbidden":
        # Fields of other servers occur in a body itself and in `sampling_params` only.
        is_outer = all(part == "sampling_params" or isinstance(part, int) for part in path[:-1])
        message = unsupported_reason(str(path[-1])) if is_outer else None
        return message or f"unknown parameter {param}", param
    return f"{param or 'body'}: {printable(_validator_message(detail))}", param


def _validator_message(detail: dict[str, Any]) -> str:
    """Return the validator's message without names of Python classes."""
    context = detail.get("ctx", {})
    match detail["type"]:
        case "value_error":
            return str(context["error"])
        case "union_tag_invalid":
            return f"the type {context['tag']!r} is none of {context['expected_tags']}"
        case _:
            return str(detail["msg"])


def _body_path(detail: dict[str, Any], body: Any) -> list[str | int]:
    """Return the path through the body to the fault. The validator's own path also names alternatives of unions."""
    path: list[str | int] = []
    value = body
    source, *location = detail["loc"]
    if source in ("query", "path"):
        return [*location]
    for index, part in enumerate(location, start=1):
        if (isinstance(value, dict) and part in value) or (
            isinstance(value, list) and isinstance(part, int) and part < len(value)
        ):
            value = value[part]
            path.append(part)
        elif detail["type"] == "missing" and index == len(location):
            path.append(part)
    return path


def _field_name(path: Sequence[str | int]) -> str:
    """Format a path as OpenAI does: `messages[0].role`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def printable(text: str) -> str:
    """Escape lone surrogates, which JSON can express and UTF-8 cannot, and truncate long text."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else f"{text[:MAX_MESSAGE_CHARACTERS]}..."
