"""`/v1/batches`: requests of a file, answered beside live traffic into files of results."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from ....protocol.errors import RequestError
from ...api.bodies import Body, Text, example
from ...batches.records import KEPT_SECONDS, StoredBatch, new_name
from ...batches.runner import BatchRunner
from ...core.tenant import current_tenant
from ..transport.body_route import BodyRoute
from ..transport.streaming import json_response
from .files import MIN_EXPIRY_SECONDS, paged
from .responses.conversation_routes import Metadata

MAX_LISTED_BATCHES = 100
EACH_ITS_OWN = "*"  # each line may name another route
BatchEndpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/score", "*"]
_UNITS = {"m": 60, "h": 3600, "d": 86400}
_STAMPS = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


class ExpiresAfter(Body):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_EXPIRY_SECONDS, le=KEPT_SECONDS)]


class BatchBody(Body):
    model_config = example({"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"})
    input_file_id: Text
    endpoint: BatchEndpoint
    completion_window: Annotated[Text, Field(pattern=r"^[1-9][0-9]{0,4}[mhd]$")] = "24h"
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None

    @property
    def seconds(self) -> int:
        """The completion window. Raises RequestError for one that is longer than files are kept."""
        seconds = int(self.completion_window[:-1]) * _UNITS[self.completion_window[-1]]
        if seconds > KEPT_SECONDS:
            raise RequestError("completion_window must be at most 30d", param="completion_window")
        return seconds


class BatchesApi:
    """Routes of an API key's batches."""

    def __init__(self, runner: BatchRunner) -> None:
        self._runner = runner
        self._store = runner.store

    @property
    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/batches", tags=["openai"], route_class=BodyRoute)
        router.post("", response_model=None)(self.create)
        router.get("", response_model=None)(self.list)
        router.get("/{batch_id}", response_model=None)(self.retrieve)
        router.post("/{batch_id}/cancel", response_model=None)(self.cancel)
        return router

    async def create(self, body: BatchBody) -> Response:
        """Begin to answer the requests of a file."""
        owner, now = current_tenant.get().owner, int(time.time())
        expires_at = now + body.seconds
        file = await asyncio.to_thread(self._store.file, owner, body.input_file_id, param="input_file_id")
        if file.purpose != "batch":
            raise RequestError(f"the file {file.id!r} was not uploaded for batches", param="input_file_id")
        after = body.output_expires_after
        batch = StoredBatch(
            id=new_name("batch_"),
            owner=owner,
            kind="openai",
            endpoint=None if body.endpoint == EACH_ITS_OWN else body.endpoint,
            input_file=file.id,
            output_file=new_name("file-"),
            error_file=new_name("file-"),
            window=body.completion_window,
            expires_at=expires_at,
            results_seconds=KEPT_SECONDS if after is None else after.seconds,
            metadata=body.metadata,
            times={"validating": now},
        )
        await asyncio.to_thread(self._store.add_batch, batch)
        self._runner.wake()
        return json_response(_batch_json(batch))

    async def list(
        self, after: str | None = None, limit: Annotated[int, Query(ge=1, le=MAX_LISTED_BATCHES)] = 20
    ) -> Response:
        """Return a page of the batches, newest first."""
        owner = current_tenant.get().owner
        found = await asyncio.to_thread(self._store.batches, owner, "openai", limit + 1, after=after)
        return json_response(paged([_batch_json(batch) for batch in found], limit))

    async def retrieve(self, batch_id: str) -> Response:
        """Return a batch in its current state."""
        owner = current_tenant.get().owner
        return json_response(_batch_json(await asyncio.to_thread(self._store.batch, owner, "openai", batch_id)))

    async def cancel(self, batch_id: str) -> Response:
        """End a batch; what was answered is in its files."""
        owner = current_tenant.get().owner
        batch = await asyncio.to_thread(self._store.cancel, owner, "openai", batch_id)
        self._runner.wake()
        return json_response(_batch_json(batch))


def _batch_json(batch: StoredBatch) -> dict[str, Any]:
    errors = None
    if batch.errors:
        errors = {"object": "list", "data": [msgspec.structs.asdict(error) for error in batch.errors]}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint or EACH_ITS_OWN,
        "errors": errors,
        "input_file_id": batch.input_file,
        "completion_window": batch.window,
        "status": batch.status,
        "output_file_id": batch.output_file if batch.is_over and batch.output_bytes else None,
        "error_file_id": batch.error_file if batch.is_over and batch.error_bytes else None,
        "created_at": batch.created_at,
        "expires_at": batch.expires_at,
        **{f"{name}_at": batch.times.get(name) for name in _STAMPS},
        "request_counts": {
            "total": batch.num_rows,
            "completed": batch.num_completed,
            "failed": batch.num_failed + batch.num_expired,
        },
        "metadata": batch.metadata,
    }
