"""Routes that load and unload LoRA adapters, in vLLM's and SGLang's forms."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from ...api.bodies import Body, Text, example
from ...core.client import CoreClient
from ..middleware.auth import require_admin
from ..transport.body_route import BodyRoute
from ..transport.streaming import json_response

Name = Annotated[Text, Field(min_length=1, max_length=200)]
Folder = Annotated[Text, Field(min_length=1, max_length=4096)]


class UnloadAdapterBody(Body):
    """Name of a LoRA adapter. vLLM's number of it has no effect."""

    model_config = example({"lora_name": "sql"})
    lora_name: Name
    lora_int_id: int | None = None


class LoadAdapterBody(Body):
    """A LoRA adapter's name, and its folder on the server. All adapters stay loaded until they are unloaded."""

    model_config = example({"lora_name": "sql", "lora_path": "/adapters/sql"})
    lora_name: Name
    lora_path: Folder
    load_inplace: Literal[False] = False
    pinned: bool = False


class AdaptersApi:
    """Loads and unloads the LoRA adapters of all frontends. Every key sees them, and may name them as its model."""

    def __init__(self, core: CoreClient) -> None:
        self._core = core

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["native"], route_class=BodyRoute)
        text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}  # errors are JSON
        router.post("/v1/load_lora_adapter", response_model=None, responses=text)(self.load)
        router.post("/v1/unload_lora_adapter", response_model=None, responses=text)(self.unload)
        router.post("/load_lora_adapter", response_model=None)(self.load_and_list)
        router.post("/unload_lora_adapter", response_model=None)(self.unload_and_list)
        return router

    async def load(self, body: LoadAdapterBody, request: Request) -> Response:
        """Load a LoRA adapter from a folder of the server. Needs an admin key."""
        await self._load(body, request)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload(self, body: UnloadAdapterBody, request: Request) -> Response:
        """Unload a LoRA adapter; running requests finish with it. Needs an admin key."""
        await self._unload(body, request)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def load_and_list(self, body: LoadAdapterBody, request: Request) -> Response:
        """Load a LoRA adapter as `/v1/load_lora_adapter` does, and list those loaded."""
        await self._load(body, request)
        return self._listed()

    async def unload_and_list(self, body: UnloadAdapterBody, request: Request) -> Response:
        """Unload a LoRA adapter as `/v1/unload_lora_adapter` does, and list those loaded."""
        await self._unload(body, request)
        return self._listed()

    async def _load(self, body: LoadAdapterBody, request: Request) -> None:
        require_admin(request, "loading a LoRA adapter")
        self._core.require_info()
        await self._core.load_adapter(body.lora_name, body.lora_path)

    async def _unload(self, body: UnloadAdapterBody, request: Request) -> None:
        require_admin(request, "unloading a LoRA adapter")
        self._core.require_info()
        await self._core.unload_adapter(body.lora_name)

    def _listed(self) -> Response:
        adapters = self._core.require_info().adapters
        return json_response({"success": True, "loaded_adapters": {adapter.name: adapter.path for adapter in adapters}})
