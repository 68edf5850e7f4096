"""Routes for health, server facts and the cache. Source: SGLang's native API."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from ....protocol.core import RequestOptions
from ....protocol.sampling import SamplingParams
from ....protocol.version import __version__
from ...core.tenant import current_tenant
from ...text.embedding import embed
from ...text.generation import Generator, Prompt
from ..errors import error_response
from ..middleware.auth import require_admin
from ..transport.body_route import BodyRoute
from ..transport.streaming import cancel_on_disconnect, json_response


class AdminApi:
    """Routes of health, facts and the cache. `program_address` is where programs of this machine connect."""

    def __init__(self, generator: Generator, program_address: str) -> None:
        self._generator = generator
        self._program_address = program_address
        self._core = generator.core

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["native"], route_class=BodyRoute)
        routes: tuple[tuple[str, Any, list[str], type[Response]], ...] = (
            ("/health", self.health, ["GET"], Response),
            ("/health_generate", self.health_generate, ["GET"], Response),
            ("/get_model_info", self.model_info, ["GET"], JSONResponse),
            ("/model_info", self.model_info, ["GET"], JSONResponse),
            ("/get_server_info", self.server_info, ["GET"], JSONResponse),
            ("/server_info", self.server_info, ["GET"], JSONResponse),
            ("/flush_cache", self.flush_cache, ["GET", "POST"], PlainTextResponse),
            ("/version", self.version, ["GET"], JSONResponse),
            ("/v1/health", self.health, ["GET"], Response),
            ("/ping", self.health, ["GET", "POST"], Response),
            ("/load", self.load, ["GET"], JSONResponse),
            ("/get_load", self.get_load, ["GET"], JSONResponse),
            ("/reset_prefix_cache", self.flush_cache, ["POST"], PlainTextResponse),
        )
        for path, endpoint, methods, kind in routes:
            for method in methods:  # one route each, so that operation ids are unique
                router.add_api_route(path, endpoint, methods=[method], response_model=None, response_class=kind)
        return router

    async def health(self) -> Response:
        """Return 200 while the model is loaded, else 503, and while the replica is drained."""
        self._core.require_info()
        if self._core.is_draining:
            return error_response(503, "the replica is drained")
        return Response(status_code=200)

    async def health_generate(self, request: Request) -> Response:
        """Return 200 after generating one token, or embedding one where nothing is generated, 503 while paused."""
        info = self._core.require_info()
        if (await self._core.stats()).is_paused:
            return error_response(503, "generation is paused")
        tokenizer = self._generator.tokenizer
        token = 0 if tokenizer.bos_id is None else tokenizer.bos_id
        sampling = SamplingParams(max_new_tokens=1, temperature=0.0)
        # The server's own request: a supervisor with an ordinary key may ask for it before others' requests.
        current_tenant.set(current_tenant.get()._replace(is_admin=True))
        options = RequestOptions(priority=1)
        if not info.generates:
            await cancel_on_disconnect(request, embed(self._core, [[token]], info.encoder or "last", options))
            return Response(status_code=200)
        with self._generator.start(Prompt(tokens=[token], sampling=sampling, options=options)) as samples:
            await cancel_on_disconnect(request, samples[0].result())
        return Response(status_code=200)

    async def model_info(self) -> Response:
        """Describe the served model."""
        info = self._core.require_info()
        return json_response(
            {
                "model_path": info.path,
                "tokenizer_path": info.path,
                "is_generation": info.generates,
                **msgspec.structs.asdict(info),
            }
        )

    async def server_info(self) -> Response:
        """Describe the model, the capacity, the current load and the address for programs of this machine."""
        info = self._core.require_info()
        stats = await self._core.stats()
        facts: dict[str, Any] = {
            "model_path": info.path,
            "max_total_num_tokens": info.num_slots,
            "program_address": self._program_address,
            "wants_notes": self._generator.log is not None,
        }
        shares = {"cache_hit_rate": stats.cache_hit_rate, "kv_use": stats.kv_use}
        return json_response({**facts, **msgspec.structs.asdict(info), **msgspec.structs.asdict(stats), **shares})

    async def load(self) -> Response:
        """Return the number of requests that run or wait, in vLLM's form."""
        stats = await self._core.stats()
        return json_response({"server_load": stats.num_running + stats.num_waiting})

    async def get_load(self) -> Response:
        """Return the requests and the tokens that they hold, in SGLang's form."""
        info = self._core.require_info()
        stats = await self._core.stats()
        load = {
            "dp_rank": 0,
            "num_reqs": stats.num_running + stats.num_waiting,
            "num_waiting_reqs": stats.num_waiting,
            "num_tokens": stats.num_held_pages * info.page_size,
        }
        return json_response([load])

    async def version(self) -> Response:
        """Return the version of the runtime."""
        return json_response({"version": __version__})

    async def flush_cache(self, request: Request) -> Response:
        """Drop every cached prefix that is not in use. Needs an admin key."""
        require_admin(request, "flushing the cache")
        self._core.require_info()
        await self._core.flush_cache()
        return PlainTextResponse("The cache is flushed.\n")
