"""The route that drains a replica: cached prefixes and sessions go to another one, which computes nothing again."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from ....protocol import saved_state
from ....protocol.errors import RequestError
from ...core.client import CoreClient
from ...core.frontend_peers import FrontendPeers
from ..middleware.auth import require_admin
from ..transport.body_route import BodyRoute
from ..transport.streaming import cancel_on_disconnect, json_response
from .sessions import SessionStore

POLL_INTERVAL = 0.05  # seconds between two looks at the requests that still run or wait
_ADDRESS = re.compile(r"ipc://\S+|tcp://([^\s:*]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4}")


class DrainApi:
    """Drains all frontends. Until it is stopped, a drained replica answers whoever still asks; `/health` says 503."""

    def __init__(self, core: CoreClient, peers: FrontendPeers, sessions: SessionStore, seconds: float) -> None:
        """`seconds` is how long running and waiting requests may take."""
        self._core = core
        self._peers = peers
        self._sessions = sessions
        self._seconds = seconds
        peers.on("drain", self._asked)
        peers.on("save_sessions", self._asked_to_save)
        peers.on("move_programs", self._asked_to_move)
        core.on_sessions = self._sessions.restore

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["native"], route_class=BodyRoute)
        router.add_api_route("/drain", self.drain, methods=["POST"], response_model=None, response_class=JSONResponse)
        return router

    async def drain(
        self,
        request: Request,
        to: Annotated[str, Query(max_length=1024)],
        programs_to: Annotated[str | None, Query(max_length=1024)] = None,
    ) -> Response:
        """Wait for running and waiting requests, then copy cached prefixes, those used last first, and sessions to the
        runtime whose `--transfer-bind` is `to`.

        Then programs connected by ZMQ are sent to `programs_to`, the other runtime's `--bind` or local address, each
        client when all its states wait.

        From the call on `/health` answers 503, so that routers send requests elsewhere; if the copy fails, it answers
        200 again. Needs an admin key.
        """
        require_admin(request, "draining")
        if programs_to is not None and not _ADDRESS.fullmatch(programs_to):
            raise RequestError(
                f"programs_to must be tcp://HOST:PORT or ipc://PATH, got {programs_to!r}", param="programs_to"
            )
        self._core.require_info()
        await self._set_draining(True)
        try:
            moved = await cancel_on_disconnect(request, self._move(to))
            self._core.on_move_programs(programs_to)
            await self._peers.ask("move_programs", programs_to, bool)
            return json_response(moved)
        except BaseException:
            await self._set_draining(False)
            raise

    async def _move(self, to: str) -> dict[str, int]:
        deadline = time.monotonic() + self._seconds
        stats = await self._core.stats()
        while stats.num_running + stats.num_waiting and time.monotonic() < deadline:
            await asyncio.sleep(POLL_INTERVAL)
            stats = await self._core.stats()
        sessions = self._sessions.save()
        for saved in await self._peers.ask("save_sessions", None, str):
            sessions += saved_state.restore(base64.b64decode(saved))
        moved = await self._core.move_prefixes(to, saved_state.save(sessions) if sessions else None)
        return {**msgspec.structs.asdict(moved), "num_sessions": len(sessions)}

    async def _set_draining(self, is_draining: bool) -> None:
        self._core.is_draining = is_draining
        await self._peers.ask("drain", "on" if is_draining else None, bool)

    async def _asked(self, about: str | None) -> bool:
        self._core.is_draining = about is not None
        return True

    async def _asked_to_move(self, about: str | None) -> bool:
        self._core.on_move_programs(about)
        return True

    async def _asked_to_save(self, about: str | None) -> str:
        return base64.b64encode(saved_state.save(self._sessions.save())).decode()
