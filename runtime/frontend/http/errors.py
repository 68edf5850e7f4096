"""Errors as HTTP answers: one JSON shape for all, and a status that says who can act. Knows no routes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from ...protocol.errors import ErrorInfo, RamiformError, RequestError
from .peer_fields import refusal


class NotFoundError(RequestError):
    """The client names something that there is not."""


class AdminKeyError(RamiformError):
    """The client may not do what acts on others' work. `has_key`: it has shown an API key, though not an admin's."""

    def __init__(self, action: str, *, has_key: bool) -> None:
        super().__init__(f"{action} acts on the work of others, and needs an admin key (--admin-key)")
        self.has_key = has_key


TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "internal_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
MAX_MESSAGE = 2000  # characters: what a client gets wrong may be megabytes long
STATUS = {"request": 400, "busy": 429, "runtime": 503}


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    error: ErrorDetail


# What every route may answer besides its own.
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "The request is wrong; `param` says where."},
    401: {"model": ErrorAnswer, "description": "A wrong API key, or none."},
    403: {"model": ErrorAnswer, "description": "It acts on the work of others, and the API key is no admin key."},
    404: {"model": ErrorAnswer, "description": "There is no such thing."},
    408: {"model": ErrorAnswer, "description": "The body did not come in time."},
    413: {"model": ErrorAnswer, "description": "The body is too long."},
    429: {"model": ErrorAnswer, "description": "Too many requests wait, or run for this key. See Retry-After."},
    500: {"model": ErrorAnswer, "description": "An error of ours. The log says more."},
    503: {"model": ErrorAnswer, "description": "The model is loading, or gone. See Retry-After."},
    504: {"model": ErrorAnswer, "description": "The answer took longer than the server allows."},
}


def error_body(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, dict[str, str | None]]:
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "internal_error")
    return {"error": {"message": _printable(message), "type": kind, "param": param, "code": code}}


def error_status(error: RamiformError) -> tuple[int, ErrorInfo]:
    info = ErrorInfo.of(error)
    return 404 if isinstance(error, NotFoundError) else STATUS[info.kind], info


def error_event(error: Exception) -> dict[str, dict[str, str | None]]:
    """The same for a stream that has begun, where no status can be sent any more."""
    if not isinstance(error, RamiformError):
        return error_body(500, internal_error_message(error), code="internal_error")
    status, info = error_status(error)
    return error_body(status, info.message, param=info.param, code=info.code)


def internal_error_message(error: Exception) -> str:
    """No more than its kind: what it says may be another client's."""
    return f"an error of ours: {type(error).__name__}"


def error_response(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    headers = dict(headers or {})
    if status == 401:
        headers.setdefault("www-authenticate", "Bearer")
    if status in (429, 503):
        headers.setdefault("retry-after", "1")
    return JSONResponse(error_body(status, message, param=param, code=code), status_code=status, headers=headers)


def install(app: FastAPI) -> None:
    """Answer every error of `app` in the one shape."""

    async def ramiform_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RamiformError)
        status, info = error_status(error)
        return error_response(status, info.message, param=info.param, code=info.code)

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        message, code = error.detail, HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        if error.status_code in (404, 405):
            message = f"{message}: {request.method} {request.url.path}"
        elif isinstance(error.__cause__, (ValueError, RecursionError)):  # of the reader of JSON
            message, code = f"the body cannot be read as JSON: {_unread(error.__cause__)}", "invalid_value"
        return error_response(error.status_code, message, code=code, headers=error.headers)

    async def invalid_body(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        message, param = explain_validation_error(error)
        return error_response(400, message, param=param, code="invalid_value")

    async def no_admin(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, AdminKeyError)
        status, code = (403, "admin_key_required") if error.has_key else (401, "invalid_api_key")
        return error_response(status, str(error), code=code)

    app.add_exception_handler(AdminKeyError, no_admin)
    app.add_exception_handler(RamiformError, ramiform_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, invalid_body)


@contextmanager
def name_prompt_field(field: str) -> Iterator[None]:
    """Make errors about the prompt name the field that it came in."""
    try:
        yield
    except RequestError as error:
        if error.param != "prompt":
            raise
        raise RequestError(str(error), param=field, code=error.code) from None


def explain_validation_error(error: RequestValidationError) -> tuple[str, str | None]:
    """A sentence about what is wrong with a body, and the parameter that it is in."""
    # Of a union each alternative complains: the complaint that got furthest into the body is the one that is meant.
    detail, path = max(
        ((detail, _path(detail, error.body)) for detail in error.errors()), key=lambda pair: len(pair[1])
    )
    if detail["type"] == "json_invalid":
        return f"the body is no JSON: {detail.get('ctx', {}).get('error', detail['msg'])}", None
    param = _printable(_name(path)) or None
    if detail["type"] == "extra_forbidden":
        # Only a body itself and `sampling_params` have what other servers have there.
        is_outer = all(part == "sampling_params" or isinstance(part, int) for part in path[:-1])
        told = refusal(str(path[-1])) if is_outer else None
        return told or f"unknown parameter {param}", param
    return f"{param or 'body'}: {_printable(_complaint(detail))}", param


def _complaint(detail: dict[str, Any]) -> str:
    """What the validator says, without the names of our code."""
    context = detail.get("ctx", {})
    match detail["type"]:
        case "value_error":
            return str(context["error"])
        case "union_tag_invalid":
            return f"the type {context['tag']!r} is none of {context['expected_tags']}"
        case _:
            return str(detail["msg"])


def _unread(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not {error.encoding} at byte {error.start}"
    return "it has a number of too many digits"  # the one thing that is JSON and that Python does not read


def _path(detail: dict[str, Any], body: Any) -> list[str | int]:
    """The way through the body to what is wrong: the validator's own way also names the alternatives of unions."""
    path: list[str | int] = []
    value = body
    way = detail["loc"][1:]
    for index, part in enumerate(way, start=1):
        if (isinstance(value, dict) and part in value) or (
            isinstance(value, list) and isinstance(part, int) and part < len(value)
        ):
            value = value[part]
            path.append(part)
        elif detail["type"] == "missing" and index == len(way):
            path.append(part)
    return path


def _name(path: Sequence[str | int]) -> str:
    """As OpenAI writes it: `messages[0].role`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _printable(text: str) -> str:
    """Without half characters, which JSON can say and UTF-8 cannot; and no longer than a person reads."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}..."
