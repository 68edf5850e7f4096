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
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import AdminKeyError, error_response, internal_error_message
from ..scope import PUBLIC_PATHS, SCOPE_API_KEY, SCOPE_IS_ADMIN

logger = logging.getLogger("ramiform.frontend")

INVALID_API_KEY = "wrong or missing API key"
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")


def require_admin(request: Request, action: str) -> None:
    """Refuse a request that would act on others' work without an admin key. Raises AdminKeyError."""
    if not request.scope[SCOPE_IS_ADMIN]:
        raise AdminKeyError(action, has_key=request.scope[SCOPE_API_KEY] is not None)


class AuthMiddleware:
    """Echoes or makes `x-request-id`, asks for `Authorization: Bearer KEY` when there are keys, bounds the body, and
    answers a 500 when the app fails.

    `admin_keys` are keys too. Where there are none, a server that one user has, with one key or none, is that user's
    to administer; of several users none may.
    """

    def __init__(
        self, app: ASGIApp, *, api_keys: Sequence[str], max_body_bytes: int, admin_keys: Sequence[str] = ()
    ) -> None:
        self._app = app
        self._requires_key = bool(api_keys)
        self._keys = [(key, f"Bearer {key}".encode()) for key in {*api_keys, *admin_keys}]
        self._admin_keys = frozenset(admin_keys)
        self._all_may_administer = not admin_keys and len(set(api_keys)) <= 1
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = scope[SCOPE_API_KEY] = self._find_key(headers)
        scope[SCOPE_IS_ADMIN] = self._all_may_administer or key in self._admin_keys
        is_allowed = not self._requires_key or key is not None or scope["path"] in PUBLIC_PATHS
        if scope["type"] == "websocket":
            if is_allowed:
                await self._app(scope, receive, send)
            else:  # before it is accepted: an HTTP 403
                await send({"type": "websocket.close", "code": 1008, "reason": INVALID_API_KEY})
            return
        request_id = headers.get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex

        has_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        error_answer = None
        if not is_allowed:
            error_answer = error_response(401, INVALID_API_KEY, code="invalid_api_key")
        elif self._is_too_long(headers):
            error_answer = error_response(
                413, self._too_long, code="request_too_large", headers={"connection": "close"}
            )
        if error_answer is None:
            try:
                await self._app(scope, self._bounded_receive(receive), send_with_id)
            except Exception as error:
                logger.exception("request %s failed on an error of ours", request_id)
                if has_started:
                    raise  # the connection is closed: half an answer must not look like a whole one
                error_answer = error_response(500, internal_error_message(error), code="internal_error")
        if error_answer is not None:
            await error_answer(scope, receive, send_with_id)

    def _find_key(self, headers: Headers) -> str | None:
        """The one that is given, if it is known."""
        given = headers.get("authorization", "").encode("latin-1")
        # All are compared, in the same time whichever it is.
        return next(iter([key for key, known in self._keys if hmac.compare_digest(given, known)]), None)

    def _is_too_long(self, headers: Headers) -> bool:
        length = headers.get("content-length", "").lstrip("0")
        # A number of thousands of digits is not converted: Python refuses to.
        return length.isdecimal() and (len(length) > 19 or int(length) > self._max_body_bytes)

    @property
    def _too_long(self) -> str:
        return f"the body is longer than {self._max_body_bytes} bytes"

    def _bounded_receive(self, receive: Receive) -> Receive:
        """For bodies that do not say how long they are."""
        num_bytes = 0

        async def receive_bounded() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body_bytes:
                raise HTTPException(413, self._too_long)
            return message

        return receive_bounded
