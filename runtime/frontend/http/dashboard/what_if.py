"""Replay the plan log under another eviction strategy, in a process of its own."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from ....processes import parent_watchdog
from ....protocol.config import EvictionName
from ....protocol.errors import BusyError, ErrorInfo, RequestError, RuntimeFailed
from ..middleware.auth import require_admin
from ..transport.body_route import BodyRoute
from ..transport.streaming import cancel_on_disconnect, json_response

_MAX_LOG_BYTES = 64 << 20  # a larger log is for `ramiform bench replay`
REPLAY_SECONDS = 120.0


class WhatIfBody(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"eviction": "lru"}]})

    eviction: EvictionName


class _Answer(msgspec.Struct, frozen=True):
    logged: dict[str, Any] | None = None
    what_if: dict[str, Any] | None = None
    error: ErrorInfo | None = None


class WhatIfApi:
    """The route, for a server that writes a plan log to the file `log`. One replay runs at a time."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._is_running = False

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["page"], route_class=BodyRoute)
        router.add_api_route("/v1/ramiform/what-if", self.what_if, methods=["POST"], response_model=None)
        return router

    async def what_if(self, body: WhatIfBody, request: Request) -> Response:
        """Replay the requests so far under another eviction strategy. Needs an admin key."""
        require_admin(request, "replaying the plan log")
        if (size := os.path.getsize(self._log)) > _MAX_LOG_BYTES:
            raise RequestError(
                f"the plan log has {size >> 20} MiB, the most here is {_MAX_LOG_BYTES >> 20}; "
                "`ramiform bench replay FILE --eviction NAME` has no limit",
                code="too_long",
            )
        if self._is_running:
            raise BusyError("a replay is running already")
        self._is_running = True
        try:
            answer = await cancel_on_disconnect(request, _replay(self._log, body.eviction))
        finally:
            self._is_running = False
        if answer.error is not None:
            raise answer.error.to_exception()
        return json_response({"logged": answer.logged, "what_if": answer.what_if})


async def _replay(log: str, eviction: str) -> _Answer:
    process = await asyncio.create_subprocess_exec(
        *parent_watchdog.child_command("ramiform.runtime.replay.what_if"),
        log,
        eviction,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env=parent_watchdog.child_environment(),
    )
    try:
        async with asyncio.timeout(REPLAY_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        raise RuntimeFailed(f"the replay took longer than {REPLAY_SECONDS:g} s") from None
    finally:
        if process.returncode is None:  # also when the client has left
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise RuntimeFailed(f"the replay ended with status {process.returncode}")
    answer: _Answer = msgspec.json.decode(output, type=_Answer)
    return answer
