"""`/props` and `/slots`: facts of the server in llama-server's form."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from ....protocol.version import __version__
from ...text.generation import Generator
from ..errors import error_response
from ..transport.body_route import BodyRoute
from ..transport.streaming import json_response
from .body import CompletionOptions
from .settings import generation_settings


class LlamaStateApi:
    """Routes of the server's properties. A slot is room for one request: none keeps a cache of its own."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._core = generator.core

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["llama.cpp"], route_class=BodyRoute)
        router.add_api_route("/props", self.props, methods=["GET"], response_model=None)
        router.add_api_route("/slots", self.slots, methods=["GET"], response_model=None)
        return router

    async def props(self) -> Response:
        """Describe the model, its template and the defaults of `/completion`."""
        info, tokenizer = self._core.require_info(), self._generator.tokenizer
        names = {token: name for name, token in tokenizer.special_ids.items()}
        sampling = CompletionOptions().sampling(0, None, {})
        settings = generation_settings(sampling, stream=False, n_probs=0)
        settings |= {"seed": -1, "n_predict": -1, "max_tokens": -1}
        facts: dict[str, Any] = {
            "default_generation_settings": {"params": settings, "n_ctx": info.max_request_tokens},
            "total_slots": max(1, info.max_running),
            "model_alias": info.name,
            "model_ftype": info.quantisation or info.dtype,
            "model_path": info.path,
            "modalities": {"vision": False, "video": False, "audio": False},
            "endpoint_slots": True,
            "endpoint_props": False,
            "endpoint_metrics": True,
            "chat_template": "" if tokenizer.chat is None else tokenizer.chat.source,
            "bos_token": "" if tokenizer.bos_id is None else names.get(tokenizer.bos_id, ""),
            "eos_token": names.get(tokenizer.eos_ids[0], "") if tokenizer.eos_ids else "",
            "build_info": f"ramiform-{__version__}",
            "is_sleeping": False,
        }
        return json_response(facts)

    async def slots(self, fail_on_no_slot: Annotated[str, Query()] = "") -> Response:
        """Say of each slot whether a request runs in it; with `fail_on_no_slot`, 503 if none is free."""
        info, stats = self._core.require_info(), await self._core.stats()
        total = max(1, info.max_running)
        running = min(total, stats.num_running)
        if fail_on_no_slot and running == total:
            return error_response(503, "no slot available")
        return json_response(
            [
                {
                    "id": number,
                    "n_ctx": info.max_request_tokens,
                    "speculative": False,
                    "is_processing": number < running,
                }
                for number in range(total)
            ]
        )
