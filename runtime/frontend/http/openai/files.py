"""`/v1/files`: files of requests for batches, and the files of their results."""

from __future__ import annotations

import asyncio
import time
from pathlib import PurePath
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.datastructures import FormData, UploadFile
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, Response

from ....protocol.errors import RequestError
from ...api.validation import NotFoundError
from ...batches.records import KEPT_SECONDS, StoredFile
from ...batches.runner import BatchRunner
from ...batches.store import BatchStore
from ...core.tenant import current_tenant
from ..transport.body_route import BodyRoute, is_allowed_origin
from ..transport.streaming import ClientDisconnectedError, json_response

MAX_LISTED_FILES = 10_000
MIN_EXPIRY_SECONDS = 3600
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
_UPLOAD = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "purpose": {"enum": ["batch"]},
                    "expires_after[anchor]": {"enum": ["created_at"]},
                    "expires_after[seconds]": {
                        "type": "integer",
                        "minimum": MIN_EXPIRY_SECONDS,
                        "maximum": KEPT_SECONDS,
                    },
                },
                "required": ["file", "purpose"],
                "additionalProperties": False,
            }
        }
    },
}
_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file's bytes.", "content": {"application/octet-stream": {}}}
}


class StoredFilesApi:
    """Routes of an API key's files."""

    def __init__(self, runner: BatchRunner) -> None:
        self._store: BatchStore = runner.store

    @property
    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/files", tags=["openai"], route_class=BodyRoute)
        router.post("", response_model=None, openapi_extra={"requestBody": _UPLOAD})(self.upload)
        router.get("", response_model=None)(self.list)
        router.get("/{file_id}", response_model=None)(self.retrieve)
        router.delete("/{file_id}", response_model=None)(self.delete)
        router.get("/{file_id}/content", response_model=None, responses=_CONTENT)(self.content)
        return router

    async def upload(self, request: Request) -> Response:
        """Store a file of requests for a batch: a form with `file` and `purpose`."""
        if not is_allowed_origin(request):  # a browser sends such a form for any page, without the server's consent
            message = f"a page of {request.headers['origin'][:100]} may not upload files"
            raise RequestError(message, code="unsupported_media_type")
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            message = "send a form: Content-Type: multipart/form-data, with file and purpose"
            raise RequestError(message, param="file", code="unsupported_media_type")
        try:
            async with request.form(max_files=1, max_fields=len(_FIELDS)) as form:
                upload, seconds = _uploaded(form)
                file = await asyncio.to_thread(
                    self._store.add_file,
                    upload.file,
                    owner=current_tenant.get().owner,
                    filename=_shown_name(upload.filename),
                    purpose="batch",
                    expires_at=int(time.time()) + seconds,
                )
        except ClientDisconnect:
            raise ClientDisconnectedError from None
        return json_response(_file_json(file))

    async def list(
        self,
        purpose: Literal["batch", "batch_output"] | None = None,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED_FILES)] = MAX_LISTED_FILES,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        """Return a page of the files."""
        owner = current_tenant.get().owner
        files = await asyncio.to_thread(self._store.files, owner, purpose, after, limit + 1, order)
        return json_response(paged([_file_json(file) for file in files], limit))

    async def retrieve(self, file_id: str) -> Response:
        """Describe a file."""
        return json_response(_file_json(await self._file(file_id)))

    async def content(self, file_id: str) -> Response:
        """Return the content of a file."""
        file = await self._file(file_id)
        path = self._store.path(file.id)
        if not path.is_file():  # deleted meanwhile
            raise NotFoundError(f"there is no file {file_id!r}", param="file_id", code="not_found")
        headers = {"x-content-type-options": "nosniff"}
        return FileResponse(path, media_type="application/octet-stream", filename=file.filename, headers=headers)

    async def delete(self, file_id: str) -> Response:
        """Delete a file that no batch reads."""
        await asyncio.to_thread(self._store.delete_file, current_tenant.get().owner, file_id)
        return json_response({"id": file_id, "object": "file", "deleted": True})

    async def _file(self, name: str) -> StoredFile:
        return await asyncio.to_thread(self._store.file, current_tenant.get().owner, name)


def paged(items: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Return a page of at most `limit` items; one more says that the list goes on."""
    page = items[:limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": len(items) > limit}


def _uploaded(form: FormData) -> tuple[UploadFile, int]:
    """Return the file of a form, and the seconds that it is kept. Raises RequestError."""
    values = {name: value for name, value in form.multi_items() if name != "file"}
    if unknown := next((name for name in values if name not in _FIELDS), None):
        raise RequestError(f"unknown parameter {unknown[:100]}: the form has file, {', '.join(_FIELDS)}", param="file")
    upload = form.get("file")
    if not isinstance(upload, UploadFile):
        raise RequestError("the form needs file, with the lines of requests", param="file")
    if (purpose := values.get("purpose")) != "batch":
        raise RequestError(f"purpose must be batch, got {str(purpose)[:100]!r}", param="purpose")
    if values.get("expires_after[anchor]", "created_at") != "created_at":
        raise RequestError("expires_after[anchor] must be created_at", param="expires_after[anchor]")
    given = values.get("expires_after[seconds]", str(KEPT_SECONDS))
    if not (isinstance(given, str) and given.isdecimal() and len(given) < 10):
        raise RequestError("expires_after[seconds] must be a number", param="expires_after[seconds]")
    return upload, checked_seconds(int(given), "expires_after[seconds]")


def checked_seconds(seconds: int, param: str) -> int:
    if not MIN_EXPIRY_SECONDS <= seconds <= KEPT_SECONDS:
        raise RequestError(f"{param} must be {MIN_EXPIRY_SECONDS} to {KEPT_SECONDS}, got {seconds}", param=param)
    return seconds


def _shown_name(given: str | None) -> str:
    """Return the client's name of a file, without folders and control characters."""
    name = PurePath((given or "").replace("\\", "/")).name
    return "".join(char for char in name if char.isprintable())[:255] or "file.jsonl"


def _file_json(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.num_bytes,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }
