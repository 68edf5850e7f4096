"""Routes that give the runtime's memory back to the system and take it again, in SGLang's and vLLM's forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from ....protocol.sampling import MemoryTag, RunningRequests
from ...api.bodies import Body, example
from ...core.client import CoreClient
from ..middleware.auth import require_admin
from ..transport.body_route import BodyRoute
from ..transport.streaming import json_response

ALL_TAGS: tuple[MemoryTag, ...] = ("weights", "kv_cache")
_MODES: dict[str, RunningRequests] = {"abort": "abort", "wait": "finish", "keep": "retract"}  # vLLM's


class ResumeBody(Body):
    """SGLang's body. `tags` are what takes memory again: "weights", "kv_cache"; without them both do."""

    model_config = example({"tags": ["kv_cache"]})
    tags: list[MemoryTag] | None = None


class ReleaseBody(ResumeBody):
    """SGLang's body. `tags` are what gives its memory back; without them both do. `mode` says what becomes of running
    requests: "finish" first, "abort", or "retract": they go on from their tokens when all memory is there again."""

    mode: Literal["finish", "abort", "retract"] = "finish"


class MemoryApi:
    """Lets the runtime of all frontends sleep. While it does, requests are refused with status 503."""

    def __init__(self, core: CoreClient) -> None:
        self._core = core

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["native"], route_class=BodyRoute)
        routes: tuple[tuple[str, Any, str], ...] = (
            ("/release_memory_occupation", self.release, "POST"),
            ("/resume_memory_occupation", self.resume, "POST"),
            ("/sleep", self.sleep, "POST"),
            ("/wake_up", self.wake_up, "POST"),
            ("/is_sleeping", self.is_sleeping, "GET"),
        )
        for path, endpoint, method in routes:
            router.add_api_route(path, endpoint, methods=[method], response_model=None, response_class=JSONResponse)
        return router

    async def release(self, body: ReleaseBody, request: Request) -> Response:
        """Give memory of weights, or of keys and values, back to the system. Needs an admin key."""
        require_admin(request, "releasing memory")
        await self._release(tags := body.tags or ALL_TAGS, body.mode)
        return json_response({"success": True, "message": f"released {' and '.join(tags)}"})

    async def resume(self, body: ResumeBody, request: Request) -> Response:
        """Take memory again; weights are loaded from where they came. Needs an admin key."""
        require_admin(request, "resuming")
        await self._resume(tags := body.tags or ALL_TAGS)
        return json_response({"success": True, "message": f"resumed {' and '.join(tags)}"})

    async def sleep(
        self,
        request: Request,
        level: Annotated[Literal["1", "2"], Query()] = "1",
        mode: Annotated[Literal["abort", "wait", "keep"], Query()] = "abort",
    ) -> Response:
        """Give the memory of weights, keys and values back: abort running requests, wait for their end, or let them go
        on from their tokens after `/wake_up`. Both levels do the same. Needs an admin key."""
        require_admin(request, "sleeping")
        await self._release(ALL_TAGS, _MODES[mode])
        return json_response({"status": "sleeping"})

    async def wake_up(self, request: Request, tags: Annotated[list[MemoryTag] | None, Query()] = None) -> Response:
        """Take memory again; weights are loaded from where they came, unless an update has brought others. Needs an
        admin key."""
        require_admin(request, "waking up")
        await self._resume(tags or ALL_TAGS)
        return json_response({"status": "awake" if not (await self._core.stats()).released else "sleeping"})

    async def is_sleeping(self) -> Response:
        """Return whether memory is given back, and which."""
        released = (await self._core.stats()).released
        return json_response({"is_sleeping": bool(released), "released": released})

    async def _release(self, tags: Sequence[MemoryTag], running: RunningRequests) -> None:
        self._core.require_info()
        await self._core.release_memory(tags, running)

    async def _resume(self, tags: Sequence[MemoryTag]) -> None:
        self._core.require_info()
        await self._core.resume_memory(tags)
