"""What every HTTP request passes first: its id, its key, its size. Plain ASGI; knows no routes."""

from __future__ import annotations

import hmac
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import error_response

MAX_BODY_BYTES = 32 << 20
OPEN_PATHS = frozenset({"/health"})  # for supervisors, which have no key
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")


class Guard:
    """Echoes or makes `x-request-id`, asks for `Authorization: Bearer KEY` when there is one, bounds the body."""

    def __init__(self, app: ASGIApp, *, api_key: str | None, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._authorization = None if api_key is None else f"Bearer {api_key}".encode()
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = headers.get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        refusal = None
        if not self._may_enter(scope["path"], headers):
            refusal = error_response(
                401, "wrong or missing API key", code="invalid_api_key", headers={"www-authenticate": "Bearer"}
            )
        elif self._is_too_long(headers):
            refusal = error_response(413, self._too_long, code="request_too_large", headers={"connection": "close"})
        if refusal is not None:
            await refusal(scope, receive, send_with_id)
        else:
            await self._app(scope, self._bounded(receive), send_with_id)

    def _may_enter(self, path: str, headers: Headers) -> bool:
        if self._authorization is None or path in OPEN_PATHS:
            return True
        given = headers.get("authorization", "").encode("latin-1")
        return hmac.compare_digest(given, self._authorization)

    def _is_too_long(self, headers: Headers) -> bool:
        length = headers.get("content-length", "")
        return length.isdecimal() and int(length) > self._max_body_bytes

    @property
    def _too_long(self) -> str:
        return f"the body is longer than {self._max_body_bytes} bytes"

    def _bounded(self, receive: Receive) -> Receive:
        """For bodies that do not say how long they are."""
        num_bytes = 0

        async def receive_some() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body_bytes:
                raise HTTPException(413, self._too_long)
            return message

        return receive_some
