"""FastAPI routes that read and validate large JSON bodies in a thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ....protocol.errors import RequestError
from ...api.schema_warnings import HEADER, NOTED
from ...text.offload import CancellationToken, offload
from .large_json import LARGE, MAX_NUMBERS, read_json
from .streaming import ClientDisconnectedError, cancel_on_disconnect

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class BodyRoute(APIRoute):
    """Read and validate large bodies in a thread; FastAPI would block the event loop with them."""

    def get_route_handler(self) -> _Handler:
        handle = super().get_route_handler()

        async def handle_request(request: Request) -> Response:
            if self.body_field is None:
                return await handle(request)
            try:
                data = await request.body()
            except ClientDisconnect:
                raise ClientDisconnectedError from None
            if data and not _is_json(request):
                # Clients forget the type. Web pages may send other types to any server without its consent (CORS), so
                # theirs are not read.
                if not is_allowed_origin(request):
                    given = request.headers.get("content-type", "none")[:100]
                    raise RequestError(
                        f"a page of {request.headers['origin'][:100]} must send the body as Content-Type: "
                        f"application/json; its type is {given}",
                        code="unsupported_media_type",
                    )
                request = _JsonRequest(request, data)
            noted: list[str] = []
            NOTED.set(noted)
            response = await self._answer(handle, request, data)
            if noted:
                response.headers[HEADER] = " ".join(noted)
            return response

        return handle_request

    async def _answer(self, handle: _Handler, request: Request, data: bytes) -> Response:
        if len(data) <= LARGE:
            return await handle(request)
        max_numbers = max(MAX_NUMBERS, request.app.state.core.require_info().context_length)
        validation = offload(lambda cancellation: self._validated(data, max_numbers, cancellation))
        body = await cancel_on_disconnect(request, validation)
        return await handle(_ReadRequest(request, body))

    def _validated(self, data: bytes, max_numbers: int, cancellation: CancellationToken) -> Any:
        """Return the validated body. Raises RequestError, RequestValidationError and HTTPException."""
        assert self.body_field is not None
        try:
            text = data.decode(json.detect_encoding(data), "surrogatepass")
            value = read_json(text, cancellation, max_numbers=max_numbers)
        except RequestError:
            raise
        except json.JSONDecodeError as error:
            detail = {"type": "json_invalid", "loc": ("body", error.pos), "msg": error.msg, "ctx": {"error": error.msg}}
            raise RequestValidationError([detail], body=error.doc) from None
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, "the body cannot be read") from error
        cancellation.check()
        body, errors = self.body_field.validate(value, {}, loc=("body",))
        if errors:
            raise RequestValidationError(errors, body=value)
        return body


class _ReadRequest(Request):
    """Request whose body is already read and validated."""

    def __init__(self, request: Request, body: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._validated_body = body

    async def body(self) -> bytes:
        return b"{}"  # FastAPI only tests that a body exists; the value comes from `json`

    async def json(self) -> Any:
        return self._validated_body


class _JsonRequest(Request):
    """Request with a body that is read as JSON, whatever its type."""

    def __init__(self, request: Request, data: bytes) -> None:
        headers = [pair for pair in request.scope["headers"] if pair[0] != b"content-type"]
        typed = (b"content-type", b"application/json")
        super().__init__({**request.scope, "headers": [*headers, typed]}, request.receive)
        self._data = data

    async def body(self) -> bytes:
        return self._data


def is_allowed_origin(request: Request) -> bool:
    """Return False for a web page's request whose origin is neither the server's own nor allowed by --cors-origins."""
    origin = request.headers.get("origin")
    own = f"//{request.headers.get('host', '')}"
    return origin is None or origin.endswith(own) or not {origin, "*"}.isdisjoint(request.app.state.cors_origins)


def _is_json(request: Request) -> bool:
    message = Message()
    message["content-type"] = request.headers.get("content-type", "")
    kind = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (kind == "json" or kind.endswith("+json"))
