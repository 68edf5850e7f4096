"""Routes that pause and resume generation, in vLLM's and SGLang's forms."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from ...api.bodies import Body, example
from ...core.client import CoreClient
from ...core.frontend_peers import FrontendPeers
from ..middleware.auth import require_admin
from ..transport.body_route import BodyRoute
from ..transport.streaming import cancel_on_disconnect, json_response

POLL_INTERVAL = 0.05  # seconds between two looks at the requests that still run

PauseMode = Literal["abort", "wait", "keep"]


class PauseBody(Body):
    """SGLang's body. "in_place" keeps running requests, and their KV, where they are."""

    model_config = example({"mode": "in_place"})
    mode: Literal["abort", "in_place"] = "abort"


class PauseApi:
    """Pauses and resumes generation of all frontends. While it is paused, requests arrive and wait."""

    def __init__(self, core: CoreClient, peers: FrontendPeers) -> None:
        self._core = core
        self._peers = peers

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["native"], route_class=BodyRoute)
        routes: tuple[tuple[str, Any, str], ...] = (
            ("/pause", self.pause, "POST"),
            ("/resume", self.resume, "POST"),
            ("/is_paused", self.is_paused, "GET"),
            ("/pause_generation", self.pause_generation, "POST"),
            ("/continue_generation", self.continue_generation, "POST"),
        )
        for path, endpoint, method in routes:
            router.add_api_route(path, endpoint, methods=[method], response_model=None, response_class=JSONResponse)
        return router

    async def pause(
        self,
        request: Request,
        mode: Annotated[PauseMode, Query()] = "abort",
        clear_cache: Annotated[bool, Query()] = True,
    ) -> Response:
        """Pause generation: abort running requests, wait for their end, or keep them for `/resume`.

        `clear_cache` then drops the prefixes that no request uses. Needs an admin key.
        """
        require_admin(request, "pausing generation")
        await cancel_on_disconnect(request, self._pause(mode, clear_cache=clear_cache))
        return json_response({"status": "paused"})

    async def resume(self, request: Request) -> Response:
        """Resume generation. Needs an admin key."""
        require_admin(request, "resuming generation")
        await self._resume()
        return json_response({"status": "resumed"})

    async def is_paused(self) -> Response:
        """Return whether generation is paused."""
        return json_response({"is_paused": (await self._core.stats()).is_paused})

    async def pause_generation(self, body: PauseBody, request: Request) -> Response:
        """Pause generation: abort running requests, or keep them in place. Needs an admin key."""
        require_admin(request, "pausing generation")
        await self._pause("abort" if body.mode == "abort" else "keep", clear_cache=False)
        return json_response({"status": "ok", "message": "generation is paused"})

    async def continue_generation(self, request: Request) -> Response:
        """Resume generation. Needs an admin key."""
        require_admin(request, "resuming generation")
        await self._resume()
        return json_response({"status": "ok", "message": "generation goes on"})

    async def _resume(self) -> None:
        self._core.require_info()
        await self._core.pause("nothing")

    async def _pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        self._core.require_info()
        await self._core.pause("waiting" if mode == "wait" else "all")
        if mode == "abort":
            self._core.abort(None)
            await self._peers.ask("abort", None, bool)
        while mode == "wait" and (await self._core.stats()).num_running:
            await asyncio.sleep(POLL_INTERVAL)
        if clear_cache:
            await self._core.flush_cache()
