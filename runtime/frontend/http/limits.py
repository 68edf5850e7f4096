"""How much one API key may ask: so many requests at once, so many a minute. Plain ASGI; knows no routes.

A process's own account. Several frontends share a limit in equal parts, rounded up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...protocol.measures import FrontendMeasures
from .errors import error_response

MINUTE = 60.0


@dataclass
class Account:
    """One key's. `allowance` refills steadily, up to a minute's worth."""

    allowance: float
    refilled: float  # on the clock
    num_running: int = 0


class _Place:
    """Among the running requests of an account, until it is left."""

    def __init__(self, account: Account) -> None:
        account.num_running += 1
        self._account: Account | None = account

    def leave(self) -> None:
        if self._account is not None:
            self._account.num_running -= 1
            self._account = None


class Limits:
    """Counts requests that change or make something (POST, PUT); looking is free. `by_key`: keys were checked
    before; else all clients share one account."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        by_key: bool,
        max_running: int | None,
        per_minute: int | None,
        measures: FrontendMeasures,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._by_key = by_key
        self._max_running = max_running
        self._per_minute = per_minute
        self._measures = measures
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("POST", "PUT"):
            await self._app(scope, receive, send)
            return
        account = self._account(Headers(scope=scope).get("authorization", "") if self._by_key else "")
        headers = {}
        if self._max_running is not None and account.num_running >= self._max_running:
            message = f"{account.num_running} requests of this key are running, which is the most there may be"
            await self._refuse(message, 1, scope, receive, send)
            return
        if self._per_minute is not None:
            if account.allowance < 1:
                wait = math.ceil((1 - account.allowance) * MINUTE / self._per_minute)
                message = f"this key may make {self._per_minute} requests a minute"
                await self._refuse(message, wait, scope, receive, send)
                return
            account.allowance -= 1
            headers = {
                "x-ratelimit-limit-requests": str(self._per_minute),
                "x-ratelimit-remaining-requests": str(int(account.allowance)),
            }

        place = _Place(account)

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            elif not message.get("more_body", False):
                place.leave()  # before the client has it all, and comes back
            await send(message)

        try:
            await self._app(scope, receive, send_with_limits)
        finally:
            place.leave()

    def _account(self, key: str) -> Account:
        now = self._clock()
        most = 0 if self._per_minute is None else self._per_minute
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(most, now)
        account.allowance = min(most, account.allowance + (now - account.refilled) * most / MINUTE)
        account.refilled = now
        return account

    async def _refuse(self, message: str, wait: int, scope: Scope, receive: Receive, send: Send) -> None:
        self._measures.num_limited += 1
        headers = {"retry-after": str(wait)}
        refusal = error_response(429, message, code="rate_limit_exceeded", headers=headers)
        await refusal(scope, receive, send)
