"""Routes that change the weights of the served model, in SGLang's form."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from ....protocol.sampling import RunningRequests
from ...api.bodies import Body, Text, example
from ...core.client import CoreClient
from ..middleware.auth import require_admin
from ..transport.body_route import BodyRoute
from ..transport.streaming import json_response


class UpdateWeightsBody(Body):
    """SGLang's body. `model_path` is a folder of safetensors files, or one file, of the server's machine.

    `mode` says what becomes of running requests: "finish" first, "abort", "retract" (compute them again from their
    tokens), or "keep" (go on with the keys and values that they have). Prefixes of other weights are never reused, so
    `flush_cache` changes nothing.
    """

    model_config = example({"model_path": "/checkpoints/step-100", "weight_version": "100"})
    model_path: Annotated[Text, Field(min_length=1, max_length=4096)]
    load_format: Literal["auto", "safetensors"] | None = None
    mode: RunningRequests | None = None
    abort_all_requests: bool = False
    weight_version: Annotated[Text, Field(min_length=1, max_length=200)] | None = None
    flush_cache: bool = True
    is_async: Literal[False] = False
    keep_pause: Literal[True] = True
    torch_empty_cache: bool = False

    @property
    def running(self) -> RunningRequests:
        """Return the mode, or that which SGLang's older field asks for."""
        return self.mode or ("abort" if self.abort_all_requests else "finish")


class WeightsApi:
    """Changes the weights of all frontends' model."""

    def __init__(self, core: CoreClient) -> None:
        self._core = core

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["native"], route_class=BodyRoute)
        routes: tuple[tuple[str, Any, str], ...] = (
            ("/update_weights_from_disk", self.update, "POST"),
            ("/get_weight_version", self.version, "GET"),
            ("/weight_version", self.version, "GET"),
        )
        for path, endpoint, method in routes:
            router.add_api_route(path, endpoint, methods=[method], response_model=None, response_class=JSONResponse)
        return router

    async def update(self, body: UpdateWeightsBody, request: Request) -> Response:
        """Serve other weights of the same model, all or some. A refused update leaves the old ones serving. Needs an
        admin key."""
        require_admin(request, "changing the weights")
        self._core.require_info()
        version = await self._core.update_weights(body.model_path, body.running, body.weight_version)
        message = f"serving the weights of {body.model_path}"
        return json_response({"success": True, "message": message, "weight_version": version, "num_paused_requests": 0})

    async def version(self) -> Response:
        """Return the version of the weights that serve, as the last update named it; "default" before the first."""
        return json_response({"weight_version": self._core.require_info().weight_version})
