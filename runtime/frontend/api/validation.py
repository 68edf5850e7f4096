"""Validate bodies, and say in the client's terms what is wrong with one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from ...protocol.errors import RequestError, did_you_mean
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
        message, param = explain_validation_error(details, values, kind)
        raise RequestError(message, param=param) from None


def explain_validation_error(errors: Iterable[dict[str, Any]], body: Any, kind: Any = None) -> tuple[str, str | None]:
    """Return a message about a wrong body, and the parameter at fault. `kind` is the type of the body, whose fields are
    suggested for an unknown one."""
    # Each alternative of a union reports errors. The deepest path belongs to the alternative that the client meant, and
    # of those a value of the right type.
    detail, path = max(
        ((detail, _body_path(detail, body)) for detail in errors),
        key=lambda pair: (len(pair[1]), not pair[0]["type"].endswith("_type")),
    )
    if detail["type"] == "json_invalid":
        reason = detail.get("ctx", {}).get("error", detail["msg"])
        return f"the body is no JSON: {reason}{_place_in(body, detail['loc'][-1])}", None
    param = printable(_field_name(path)) or None
    if detail["type"] == "extra_forbidden":
        # Fields of other servers occur in a body itself and in `sampling_params` only.
        is_outer = all(part == "sampling_params" or isinstance(part, int) for part in path[:-1])
        message = unsupported_reason(str(path[-1])) if is_outer else None
        return message or f"unknown parameter {param}{did_you_mean(path[-1], _fields_beside(kind, path))}", param
    return f"{param or 'body'}: {printable(_validator_message(detail))}", param


def _place_in(text: Any, index: int) -> str:
    """Return the line and column of an index into a text."""
    if not isinstance(text, str):
        return ""
    return f" (line {text.count(chr(10), 0, index) + 1}, column {index - text.rfind(chr(10), 0, index)})"


def _fields_beside(kind: Any, path: Sequence[str | int]) -> set[str]:
    """Return the fields that a body of type `kind` may have where the path ends."""
    models = _models_in(kind)
    for part in path[:-1]:
        if not isinstance(part, int):
            fields = (model.model_fields[part] for model in models if part in model.model_fields)
            models = [inner for field in fields for inner in _models_in(field.annotation)]
    return {name for model in models for name in model.model_fields}


def _models_in(kind: Any) -> list[type[BaseModel]]:
    """Return the models that a type is, or is made of."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [model for part in get_args(kind) for model in _models_in(part)]


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
