"""What every HTTP request passes first: its id, its key, its size; and last: what went wrong on our side.

Plain ASGI; knows no routes.
"""

from __future__ import annotations

import hmac
import logging
import re
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import bug_message, error_response

logger = logging.getLogger("ramiform.frontend")

KEY = "ramiform.key"  # in the scope: the API key that was given; None when none is asked for
OPEN_PATHS = frozenset(
    {
        "/health",  # for supervisors, which have no key
        # For browsers, which cannot send one before they have a page. They say the same on every server.
        "/",
        "/docs",
        "/docs/favicon-32x32.png",
        "/docs/swagger-ui-bundle.js",
        "/docs/swagger-ui.css",
        "/openapi.json",
    }
)
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")


class Guard:
    """Echoes or makes `x-request-id`, asks for `Authorization: Bearer KEY` when there are keys, bounds the body, and
    answers a 500 when the app fails."""

    def __init__(self, app: ASGIApp, *, api_keys: Sequence[str], max_body_bytes: int) -> None:
        self._app = app
        self._keys = [(key, f"Bearer {key}".encode()) for key in api_keys]
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = scope[KEY] = self._key(headers)
        may_enter = not self._keys or key is not None or scope["path"] in OPEN_PATHS
        if scope["type"] == "websocket":
            if may_enter:
                await self._app(scope, receive, send)
            else:  # before it is accepted: an HTTP 403
                await send({"type": "websocket.close", "code": 1008, "reason": "wrong or missing API key"})
            return
        request_id = headers.get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex

        has_begun = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        refusal = None
        if not may_enter:
            refusal = error_response(
                401, "wrong or missing API key", code="invalid_api_key", headers={"www-authenticate": "Bearer"}
            )
        elif self._is_too_long(headers):
            refusal = error_response(413, self._too_long, code="request_too_large", headers={"connection": "close"})
        if refusal is None:
            try:
                await self._app(scope, self._bounded(receive), send_with_id)
            except Exception as error:
                logger.exception("request %s failed on an error of ours", request_id)
                if has_begun:
                    raise  # the connection is closed: half an answer must not look like a whole one
                refusal = error_response(500, bug_message(error), code="internal_error")
        if refusal is not None:
            await refusal(scope, receive, send_with_id)

    def _key(self, headers: Headers) -> str | None:
        """The one that is given, if it is known."""
        given = headers.get("authorization", "").encode("latin-1")
        # All are compared, in the same time whichever it is.
        return next(iter([key for key, known in self._keys if hmac.compare_digest(given, known)]), None)

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
