"""Map errors to HTTP responses: a JSON shape for each API, and a status that tells client errors from server errors."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...protocol.errors import ErrorInfo, RamiformError
from ...protocol.sampling import ASLEEP
from ..api.validation import NotFoundError, explain_validation_error, printable
from .dialects import ANTHROPIC, dialect_of


class AdminKeyError(RamiformError):
    """The request affects other users and has no admin key. `has_key`: it has a valid API key."""

    def __init__(self, action: str, *, has_key: bool) -> None:
        super().__init__(f"{action} affects other users and needs an admin key (--admin-key)")
        self.has_key = has_key


ERROR_TYPES = {
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
ERROR_STATUS = {"request": 400, "busy": 429, "runtime": 503, "model": 500}


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    error: ErrorDetail


_DESCRIPTIONS = {
    400: "The request is wrong; `param` says where.",
    401: "The API key is wrong or missing.",
    403: "The action affects other users, and the API key is not an admin key.",
    404: "The resource does not exist.",
    408: "The body did not arrive in time.",
    413: "The body is too long.",
    429: "Too many requests wait, or run for this key. See Retry-After.",
    500: "An internal error. The log has the details.",
    503: "The model is loading, sleeps, or has ended. See Retry-After.",
    504: "The answer took longer than the server's time limit.",
}


def error_responses(answer: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return the responses that every route may give besides its own, whose body is an `answer`.

    They name its schema, which `install_openapi` adds: of a `model` FastAPI would make a validator for each response of
    each route, which took the first request a tenth of a second.
    """
    schema = {"$ref": f"#/components/schemas/{answer.__name__}"}
    return {
        status: {"description": text, "content": {"application/json": {"schema": schema}}}
        for status, text in _DESCRIPTIONS.items()
    }


ERROR_RESPONSES = error_responses(ErrorAnswer)


def error_body(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, dict[str, str | None]]:
    kind = ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "internal_error")
    return {"error": {"message": printable(message), "type": kind, "param": param, "code": code}}


def error_status(error: RamiformError) -> tuple[int, ErrorInfo]:
    info = ErrorInfo.of(error)
    if isinstance(error, NotFoundError):
        return 404, info
    return 503 if info.code == ASLEEP else ERROR_STATUS[info.kind], info


def error_event(error: Exception) -> tuple[int, dict[str, dict[str, str | None]]]:
    """Build status and body of the error of a stream that has begun, where the status itself cannot be sent."""
    if not isinstance(error, RamiformError):
        return 500, error_body(500, internal_error_message(error), code="internal_error")
    status, info = error_status(error)
    return status, error_body(status, info.message, param=info.param, code=info.code)


def anthropic_error_event(error: Exception) -> tuple[int, dict[str, Any]]:
    """Build the same in Anthropic's form."""
    status, body = error_event(error)
    return status, ANTHROPIC.error(status, body)


class ErrorResponse(Response):
    """An error, in the shape of the API whose route was asked."""

    media_type = "application/json"

    def __init__(self, status: int, body: dict[str, Any], headers: Mapping[str, str]) -> None:
        super().__init__(status_code=status, headers=headers)
        self._error = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        dialect = dialect_of(scope["path"])
        is_models = scope["path"].startswith("/v1/models")  # which OpenAI's and Anthropic's clients ask alike
        if is_models and any(name == b"anthropic-version" for name, _ in scope["headers"]):
            dialect = ANTHROPIC
        shaped = dialect.error(self.status_code, self._error)
        headers = {name: value for name, value in self.headers.items() if name != "content-length"}
        await JSONResponse(shaped, self.status_code, headers)(scope, receive, send)


def internal_error_message(error: Exception) -> str:
    """Name the exception's class only: its text may hold another client's data."""
    return f"internal server error ({type(error).__name__})"


def error_response(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> ErrorResponse:
    headers = dict(headers or {})
    if status == 401:
        headers.setdefault("www-authenticate", "Bearer")
    if status in (429, 503):
        headers.setdefault("retry-after", "1")
    return ErrorResponse(status, error_body(status, message, param=param, code=code), headers)


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error of `app` in the shape of the API that was asked."""

    async def ramiform_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RamiformError)
        status, info = error_status(error)
        return error_response(status, info.message, param=info.param, code=info.code)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message, code = error.detail, HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        if error.status_code in (404, 405):
            message = f"{message}: {request.method} {request.url.path}"
        elif isinstance(error.__cause__, (ValueError, RecursionError)):  # raised by the JSON parser
            message, code = f"the body cannot be read as JSON: {_json_problem(error.__cause__)}", "invalid_value"
        return error_response(error.status_code, message, code=code, headers=error.headers)

    async def invalid_body(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        body_field = getattr(request.scope.get("route"), "body_field", None)
        kind = None if body_field is None else body_field.field_info.annotation
        message, param = explain_validation_error(error.errors(), error.body, kind)
        return error_response(400, message, param=param, code="invalid_value")

    async def admin_key_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, AdminKeyError)
        status, code = (403, "admin_key_required") if error.has_key else (401, "invalid_api_key")
        return error_response(status, str(error), code=code)

    app.add_exception_handler(AdminKeyError, admin_key_error)
    app.add_exception_handler(RamiformError, ramiform_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, invalid_body)


def _json_problem(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not {error.encoding} at byte {error.start}"
    return "it has a number of too many digits"  # Python limits the digits of an int
