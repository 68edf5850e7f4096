"""ASGI middleware for request ids, API keys and body size; it also answers unexpected exceptions with a 500."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ....protocol.config import CacheScope
from ...core.sessions import note_headers
from ...core.tenant import Tenant, current_tenant
from ..dialects import ANTHROPIC, dialect_of
from ..errors import AdminKeyError, error_response, internal_error_message
from ..scope import LIVE_PATH, SCOPE_API_KEY, SCOPE_IS_ADMIN, is_public

logger = logging.getLogger("ramiform.frontend")

INVALID_API_KEY = "wrong or missing API key"
# A body that is too long is discarded up to these bounds: many clients read the answer only after sending all of it.
MAX_DISCARDED_BYTES = 1 << 30
DISCARD_SECONDS = 5.0
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")


def require_admin(request: Request, action: str) -> None:
    """Reject a request that affects other users and has no admin key. Raises AdminKeyError."""
    if not request.scope[SCOPE_IS_ADMIN]:
        raise AdminKeyError(action, has_key=request.scope[SCOPE_API_KEY] is not None)


class ApiKeys:
    """The keys of a server. Admin keys are API keys too.

    Without admin keys, a server with at most one API key has one user, who may administer it. With several API keys
    nobody may. `required`: requests need a key. `several`: more than one user may ask.
    """

    def __init__(self, api_keys: Sequence[str], admin_keys: Sequence[str] = ()) -> None:
        self.required = bool(api_keys)
        self.several = len({*api_keys, *admin_keys}) > 1 or (not api_keys and bool(admin_keys))
        self._keys = [(key, f"Bearer {key}".encode()) for key in {*api_keys, *admin_keys}]
        self._admin_keys = frozenset(admin_keys)
        self._all_are_admins = not admin_keys and len(set(api_keys)) <= 1

    def find(self, header: bytes) -> str | None:
        """Return the key of an `Authorization` header if it is valid, else None."""
        # Compare with every key, so that the time does not depend on which one matches.
        return next(iter([key for key, known in self._keys if hmac.compare_digest(header, known)]), None)

    def is_admin(self, key: str | None) -> bool:
        """Return True if the holder of a valid key, or with None somebody without one, may affect other users."""
        return self._all_are_admins or key in self._admin_keys


def tenants(
    api_keys: Sequence[str], admin_keys: Sequence[str] = (), cache_scope: CacheScope = "auto"
) -> dict[str, Tenant]:
    """Return the tenants of a server by their keys. `cache_scope` is AuthMiddleware's."""
    known = ApiKeys(api_keys, admin_keys)
    is_scoped = cache_scope == "key" or (cache_scope == "auto" and len(set(api_keys)) > 1)
    owners = (Tenant(key, known.is_admin(key)) for key in sorted({*api_keys, *admin_keys}))
    # KV events name scopes, and a disk cache keeps prefixes under them: not the key, and the same after a restart with
    # other keys beside it.
    return {each.key: each._replace(cache_scope=f"key {each.owner}" if is_scoped else "") for each in owners}


class AuthMiddleware:
    """Echo or create `x-request-id`, require an API key, bound the body, answer a 500 on failure.

    The key comes as `Authorization: Bearer KEY` or, as Anthropic's clients send it, `x-api-key: KEY`. The WebSocket at
    LIVE_PATH is let through: it asks for the key itself.

    `cache_scope`: "key" separates the prefix cache by API key, "shared" does not, "auto" does with several keys.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_keys: Sequence[str],
        max_body_bytes: int,
        admin_keys: Sequence[str] = (),
        cache_scope: CacheScope = "auto",
    ) -> None:
        self._app = app
        self._keys = ApiKeys(api_keys, admin_keys)
        self._max_body_bytes = max_body_bytes
        self._tenants = tenants(api_keys, admin_keys, cache_scope)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = scope[SCOPE_API_KEY] = self._find_key(headers)
        is_admin = scope[SCOPE_IS_ADMIN] = self._keys.is_admin(key)
        # The server runs each request in a context of its own, so nothing has to be reset.
        current_tenant.set((None if key is None else self._tenants.get(key)) or Tenant(is_admin=is_admin))
        note_headers(headers)
        is_allowed = not self._keys.required or key is not None or is_public(scope["path"])
        if scope["type"] == "websocket":
            if is_allowed or scope["path"] == LIVE_PATH:
                await self._app(scope, receive, send)
            else:  # before acceptance, this is an HTTP 403
                await send({"type": "websocket.close", "code": 1008, "reason": INVALID_API_KEY})
            return
        request_id = headers.get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex

        dialect = dialect_of(scope["path"])
        has_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                answer = MutableHeaders(scope=message)
                answer["x-request-id"] = request_id
                if dialect is ANTHROPIC:
                    answer["request-id"] = request_id  # where its clients look
            await send(message)

        error_answer = None
        if not is_allowed:
            error_answer = error_response(401, INVALID_API_KEY, code="invalid_api_key")
        elif (length := _content_length(headers)) > self._max_body_bytes:
            if length <= MAX_DISCARDED_BYTES and "expect" not in headers:  # such a client waits before it sends
                await _discard_body(receive)
            error_answer = error_response(
                413, self._too_long, code="request_too_large", headers={"connection": "close"}
            )
        if error_answer is None:
            try:
                await self._app(scope, self._bounded_receive(receive), send_with_id)
            except Exception as error:
                logger.exception("request %s failed with an internal error", request_id)
                if has_started:
                    raise  # closes the connection: a partial response must not look complete
                error_answer = error_response(500, internal_error_message(error), code="internal_error")
        if error_answer is not None:
            await error_answer(scope, receive, send_with_id)

    def _find_key(self, headers: Headers) -> str | None:
        """Return the key of the request if it is valid, else None."""
        given = headers.get("authorization") or f"Bearer {headers.get('x-api-key', '')}"
        return self._keys.find(given.encode("latin-1"))

    @property
    def _too_long(self) -> str:
        return f"the body is longer than {self._max_body_bytes} bytes"

    def _bounded_receive(self, receive: Receive) -> Receive:
        """Bound bodies that do not declare their length."""
        num_bytes = 0

        async def receive_bounded() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body_bytes:
                await _discard_body(receive)
                raise HTTPException(413, self._too_long)
            return message

        return receive_bounded


async def _discard_body(receive: Receive) -> None:
    """Read what is left of the body, up to MAX_DISCARDED_BYTES and DISCARD_SECONDS."""
    num_bytes = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while num_bytes <= MAX_DISCARDED_BYTES:
                message = await receive()
                num_bytes += len(message.get("body", b""))
                if not message.get("more_body", False):  # its end, or the client is gone
                    return


def _content_length(headers: Headers) -> int:
    """Return the declared length of the body in bytes; 0 without one."""
    length = headers.get("content-length", "").lstrip("0")
    # Python refuses to convert thousands of digits.
    return int(length[:20]) if length.isdecimal() else 0
