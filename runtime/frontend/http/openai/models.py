"""`/v1/models`: describe the served model."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ....protocol.core import ModelInfo
from ....protocol.errors import RequestError
from ...api.fields import require_model
from ...text.generation import Generator
from ..transport.body_route import BodyRoute
from ..transport.streaming import json_response

MAX_LISTED = 1000  # models of a page


class ModelsApi:
    """Routes for the list of models."""

    def __init__(self, generator: Generator) -> None:
        self._core = generator.core
        self._created = int(time.time())

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["openai"], route_class=BodyRoute)
        router.add_api_route("/v1/models", self.list, methods=["GET"], response_model=None)
        router.add_api_route("/models", self.list, methods=["GET"], response_model=None, include_in_schema=False)
        router.add_api_route("/v1/models/{model:path}", self.retrieve, methods=["GET"], response_model=None)
        return router

    async def list(
        self,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = MAX_LISTED,
        after_id: str | None = None,
        before_id: str | None = None,
    ) -> Response:
        """List the one served model under each of its names, then its LoRA adapters; in pages, as Anthropic's API."""
        info = self._core.require_info()
        names = [*info.names, *(adapter.name for adapter in info.adapters)]
        for param, name in (("after_id", after_id), ("before_id", before_id)):
            if name is not None and name not in names:
                raise RequestError(f"{param}: there is no model {name!r}", param=param)
        begin = 0 if after_id is None else names.index(after_id) + 1
        end = len(names) if before_id is None else names.index(before_id)
        if before_id is not None and after_id is None:
            page, has_more = names[max(0, end - limit) : end], end > limit
        else:
            page, has_more = names[begin:end][:limit], end - begin > limit
        listed = [self._entry(info, name) for name in page]
        ends = {"first_id": page[0] if page else None, "last_id": page[-1] if page else None}
        return json_response({"object": "list", "data": listed, "has_more": has_more, **ends})

    async def retrieve(self, model: str) -> Response:
        """Return the served model by its name or path, or a LoRA adapter by its name."""
        info = self._core.require_info()
        if not model:
            raise HTTPException(404, "Not Found")
        require_model(info, model)
        return json_response(self._entry(info, info.name if model == info.path else model))

    def _entry(self, info: ModelInfo, name: str) -> dict[str, Any]:
        adapter = next((adapter for adapter in info.adapters if adapter.name == name), None)
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "ramiform",
            "root": info.path if adapter is None else adapter.path,
            "parent": None if adapter is None else info.name,
            "max_model_len": info.context_length,
            # A rolling window is not the model's own attention.
            **({"streaming_window": info.streaming_window, "approximate": True} if info.streaming_window else {}),
            # The same in Anthropic's terms.
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(self._created, UTC).isoformat(),
            "lifecycle": "active",
            "max_input_tokens": info.max_request_tokens,
            "max_tokens": info.max_request_tokens,
        }
