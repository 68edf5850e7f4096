"""ASGI middleware that limits requests per minute and API key with a token bucket.

Each process counts for itself. Several frontends share a limit in equal parts, rounded up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import error_response
from ..scope import HEALTH_PATHS, SCOPE_API_KEY

MINUTE = 60.0


@dataclass
class TokenBucket:
    """Bucket of one key. `allowance` refills steadily, up to one minute's requests."""

    allowance: float
    refilled: float  # time of the last refill


class RateLimitMiddleware:
    """Limit POST and PUT requests per key. Requests without a key share one bucket."""

    def __init__(self, app: ASGIApp, *, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: dict[str | None, TokenBucket] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_limited = scope["type"] == "http" and scope["method"] in ("POST", "PUT")
        if not is_limited or scope["path"] in HEALTH_PATHS:
            await self._app(scope, receive, send)
            return
        bucket = self._bucket(scope.get(SCOPE_API_KEY))
        if bucket.allowance < 1:
            message = f"this key may make {self._per_minute} requests a minute"
            wait = math.ceil((1 - bucket.allowance) * MINUTE / self._per_minute)
            answer = error_response(
                429, message, code="rate_limit_exceeded", headers={"retry-after": str(wait), **self._headers(bucket)}
            )
            await answer(scope, receive, send)
            return
        bucket.allowance -= 1
        headers = self._headers(bucket)

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        await self._app(scope, receive, send_with_limits)

    def _headers(self, bucket: TokenBucket) -> dict[str, str]:
        return {
            "x-ratelimit-limit-requests": str(self._per_minute),
            "x-ratelimit-remaining-requests": str(int(bucket.allowance)),
        }

    def _bucket(self, key: str | None) -> TokenBucket:
        now = self._clock()
        bucket = self._buckets.setdefault(key, TokenBucket(self._per_minute, now))
        refill = (now - bucket.refilled) * self._per_minute / MINUTE
        bucket.allowance = min(self._per_minute, bucket.allowance + refill)
        bucket.refilled = now
        return bucket
