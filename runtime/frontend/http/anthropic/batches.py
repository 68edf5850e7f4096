"""`/v1/messages/batches`: Anthropic's message batches, on the machinery of `/v1/batches`."""

from __future__ import annotations

import asyncio
import io
import time
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import FileResponse, Response

from ....protocol.errors import RequestError
from ...api.bodies import Body, Many, Text, example
from ...api.validation import NotFoundError
from ...batches.lines import MAX_ROWS
from ...batches.records import StoredBatch, new_name
from ...batches.runner import BatchRunner
from ...core.tenant import current_tenant
from ...text.offload import offload_if_large
from ..transport.body_route import BodyRoute
from ..transport.streaming import json_response
from .messages import RESPONSES

MESSAGES_URL = "/v1/messages"
WINDOW_SECONDS = 86400  # as Anthropic's
RESULTS_SECONDS = 29 * 86400  # since the end of a batch; as Anthropic's since its creation
MAX_LISTED_BATCHES = 1000


class BatchedMessage(Body):
    """A request of a batch. What its `params` have wrong is its result."""

    custom_id: Annotated[Text, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    params: dict[str, Any]


class MessageBatchBody(Body):
    model_config = example(
        {
            "requests": [
                {
                    "custom_id": "row-1",
                    "params": {"model": "", "max_tokens": 16, "messages": [{"role": "user", "content": "Hi!"}]},
                }
            ]
        }
    )
    requests: Annotated[Many[BatchedMessage], Field(min_length=1, max_length=MAX_ROWS)]

    def lines(self) -> bytes:
        """Return the requests as lines of a batch. Raises RequestError for two of one name, or no text."""
        names: set[str] = set()
        for index, each in enumerate(self.requests):
            if each.custom_id in names:
                message = f"custom_id {each.custom_id!r} is another request's too"
                raise RequestError(message, param=f"requests[{index}].custom_id")
            names.add(each.custom_id)
        try:
            return b"\n".join(
                msgspec.json.encode({"custom_id": each.custom_id, "url": MESSAGES_URL, "body": each.params})
                for each in self.requests
            )
        except (UnicodeEncodeError, RecursionError, OverflowError) as error:
            raise RequestError(f"requests cannot be written as JSON: {error}", param="requests") from None


class MessageBatchesApi:
    """Routes of an API key's message batches."""

    def __init__(self, runner: BatchRunner) -> None:
        self._runner = runner
        self._store = runner.store

    @property
    def router(self) -> APIRouter:
        router = APIRouter(prefix=f"{MESSAGES_URL}/batches", tags=["anthropic"], route_class=BodyRoute)
        lines: dict[int | str, dict[str, Any]] = {200: {"content": {"application/x-jsonl": {}}}, **RESPONSES}
        router.post("", response_model=None, responses=RESPONSES)(self.create)
        router.get("", response_model=None, responses=RESPONSES)(self.list)
        router.get("/{batch_id}", response_model=None, responses=RESPONSES)(self.retrieve)
        router.delete("/{batch_id}", response_model=None, responses=RESPONSES)(self.delete)
        router.post("/{batch_id}/cancel", response_model=None, responses=RESPONSES)(self.cancel)
        router.get("/{batch_id}/results", response_model=None, responses=lines)(self.results)
        return router

    async def create(self, body: MessageBatchBody, request: Request) -> Response:
        """Begin to answer requests of `/v1/messages`."""
        owner, now = current_tenant.get().owner, int(time.time())
        data = await offload_if_large(lambda _: body.lines(), body.requests)
        file = await asyncio.to_thread(
            self._store.add_file,
            io.BytesIO(data),
            owner=owner,
            filename="requests.jsonl",
            purpose="messages",
            expires_at=now + WINDOW_SECONDS,
        )
        batch = StoredBatch(
            id=new_name("msgbatch_"),
            owner=owner,
            kind="anthropic",
            endpoint=MESSAGES_URL,
            input_file=file.id,
            output_file=new_name("file-"),
            error_file=new_name("file-"),
            expires_at=now + WINDOW_SECONDS,
            results_seconds=RESULTS_SECONDS,
            times={"validating": now},
            num_rows=len(body.requests),
        )
        try:
            await asyncio.to_thread(self._store.add_batch, batch)
        except BaseException:
            await asyncio.to_thread(self._store.delete_file, owner, file.id)
            raise
        self._runner.wake()
        return json_response(_batch_json(batch, request))

    async def list(
        self,
        request: Request,
        after_id: str | None = None,
        before_id: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED_BATCHES)] = 20,
    ) -> Response:
        """Return a page of the batches, newest first: those behind `after_id`, or just before `before_id`."""
        if after_id is not None and before_id is not None:
            raise RequestError("after_id and before_id exclude each other", param="before_id")
        owner = current_tenant.get().owner
        found = await asyncio.to_thread(
            self._store.batches, owner, "anthropic", limit + 1, after=after_id, before=before_id
        )
        page = [_batch_json(each, request) for each in (found[:limit] if before_id is None else found[-limit:])]
        ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
        return json_response({"data": page, "has_more": len(found) > limit, **ends})

    async def retrieve(self, batch_id: str, request: Request) -> Response:
        """Return a batch in its current state."""
        return json_response(_batch_json(await self._batch(batch_id), request))

    async def cancel(self, batch_id: str, request: Request) -> Response:
        """End a batch; its results say which requests were answered."""
        batch = await asyncio.to_thread(self._store.cancel, current_tenant.get().owner, "anthropic", batch_id)
        self._runner.wake()
        return json_response(_batch_json(batch, request))

    async def delete(self, batch_id: str) -> Response:
        """Delete a batch that has ended, with its results."""
        await asyncio.to_thread(self._store.delete_batch, current_tenant.get().owner, "anthropic", batch_id)
        return json_response({"id": batch_id, "type": "message_batch_deleted"})

    async def results(self, batch_id: str) -> Response:
        """Return the results of a batch that has ended, a line for each request."""
        batch = await self._batch(batch_id)
        if not batch.is_over:
            raise RequestError(f"the batch {batch_id!r} has not ended", param="batch_id")
        path = self._store.path(batch.output_file)
        if not path.is_file():
            raise NotFoundError(f"the results of the batch {batch_id!r} have expired", param="batch_id")
        return FileResponse(path, media_type="application/x-jsonl", headers={"x-content-type-options": "nosniff"})

    async def _batch(self, name: str) -> StoredBatch:
        return await asyncio.to_thread(self._store.batch, current_tenant.get().owner, "anthropic", name)


def _batch_json(batch: StoredBatch, request: Request) -> dict[str, Any]:
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    if batch.is_over:
        counts |= {
            "succeeded": batch.num_completed,
            "errored": batch.num_failed,
            "canceled": batch.num_cancelled,
            "expired": batch.num_expired,
        }
    else:
        counts["processing"] = batch.num_rows  # they move at the end, as the API says
    status = "canceling" if batch.status == "cancelling" else "in_progress"
    results = f"{request.base_url}{MESSAGES_URL.removeprefix('/')}/batches/{batch.id}/results"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "ended" if batch.is_over else status,
        "request_counts": counts,
        "created_at": _timestamp(batch.created_at),
        "expires_at": _timestamp(batch.expires_at),
        "ended_at": _timestamp(batch.times.get(batch.status)) if batch.is_over else None,
        "cancel_initiated_at": _timestamp(batch.times.get("cancelling")),
        "archived_at": None,
        "results_url": results if batch.is_over else None,
    }


def _timestamp(seconds: int | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
