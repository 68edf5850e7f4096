"""How often one API key may ask: so many requests a minute. Plain ASGI; knows no routes.

A process's own account. Several frontends share a limit in equal parts, rounded up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import error_response
from ..scope import SCOPE_API_KEY

MINUTE = 60.0


@dataclass
class TokenBucket:
    """One key's. `allowance` refills steadily, up to a minute's worth."""

    allowance: float
    refilled: float  # on the clock


class RateLimitMiddleware:
    """Counts requests that make something (POST, PUT); looking is free. All that have no key are one."""

    def __init__(self, app: ASGIApp, *, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._per_minute = per_minute
        self._clock = clock
        self._accounts: dict[str | None, TokenBucket] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("POST", "PUT"):
            await self._app(scope, receive, send)
            return
        account = self._account(scope.get(SCOPE_API_KEY))
        if account.allowance < 1:
            message = f"this key may make {self._per_minute} requests a minute"
            wait = math.ceil((1 - account.allowance) * MINUTE / self._per_minute)
            refusal = error_response(
                429, message, code="rate_limit_exceeded", headers={"retry-after": str(wait), **self._headers(account)}
            )
            await refusal(scope, receive, send)
            return
        account.allowance -= 1
        headers = self._headers(account)

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        await self._app(scope, receive, send_with_limits)

    def _headers(self, account: TokenBucket) -> dict[str, str]:
        return {
            "x-ratelimit-limit-requests": str(self._per_minute),
            "x-ratelimit-remaining-requests": str(int(account.allowance)),
        }

    def _account(self, key: str | None) -> TokenBucket:
        now = self._clock()
        account = self._accounts.setdefault(key, TokenBucket(self._per_minute, now))
        gained = (now - account.refilled) * self._per_minute / MINUTE
        account.allowance = min(self._per_minute, account.allowance + gained)
        account.refilled = now
        return account
