"""Routes of the records of programs and requests: a list, and each with its states, spans and critical path."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ....programs.records.view import hidden_error, without_texts
from ...core.frontend_peers import FrontendPeers
from ...records.log import OwnedRow, OwnedView, Owner, ProgramLog
from ..errors import error_response
from ..scope import SCOPE_API_KEY, SCOPE_IS_ADMIN
from ..transport.body_route import BodyRoute
from ..transport.streaming import json_response

MAX_ROWS = 1000

SeesRecord = Callable[[Request, Owner], bool]  # tells whether a request may see the texts of that owner's records


def shows_own(request: Request, owner: Owner) -> bool:
    """Return whether the record is of the key that asks. Who may administer the server sees all."""
    return bool(request.scope[SCOPE_IS_ADMIN]) or owner == Owner("http", request.scope[SCOPE_API_KEY])


class RecordPage(msgspec.Struct, frozen=True):
    """Rows of one frontend, and how many records it keeps and has dropped."""

    rows: list[OwnedRow]
    kept: int
    dropped: int


class RecordsApi:
    """Routes of the records of all frontends. `shows_texts(request, owner)` decides whether texts are shown."""

    def __init__(self, log: ProgramLog, peers: FrontendPeers, shows_texts: SeesRecord = shows_own) -> None:
        self._log = log
        self._peers = peers
        self._shows_texts = shows_texts
        peers.on("record_rows", self._rows_asked)
        peers.on("record_view", self._view_asked)

    @property
    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/ramiform", tags=["page"], route_class=BodyRoute)
        router.add_api_route("/programs", self.list, methods=["GET"], response_model=None, response_class=Response)
        router.add_api_route("/programs/{id}", self.show, methods=["GET"], response_model=None, response_class=Response)
        return router

    async def list(
        self,
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MAX_ROWS, description="rows at most")] = 200,
        before: Annotated[int | None, Query(description="only rows whose `seq` is lower")] = None,
    ) -> Response:
        """List programs and requests that generate, newest first."""
        page = self._page(limit, before)
        pages = [page, *await self._peers.ask("record_rows", json.dumps([limit, before]), RecordPage)]
        rows = sorted((one for each in pages for one in each.rows), key=lambda one: -one.row.seq)[:limit]
        return json_response(
            {
                "programs": [self._shown_row(request, one) for one in rows],
                "kept": sum(each.kept for each in pages),
                "dropped": sum(each.dropped for each in pages),
            }
        )

    async def show(self, id: str, request: Request) -> Response:
        """Return the record of one program or request: states, spans, critical path and totals by source line."""
        found = self._log.view(id)
        if found is None:
            found = next(iter(await self._peers.ask("record_view", id, OwnedView)), None)
        if found is None:
            return error_response(404, f"no record has the id {id!r}: it was dropped, or never was", param="id")
        return json_response(found.view if self._shows_texts(request, found.owner) else without_texts(found.view))

    def _shown_row(self, request: Request, one: OwnedRow) -> Any:
        if one.row.error is None or self._shows_texts(request, one.owner):
            return one.row
        return msgspec.structs.replace(one.row, error=hidden_error(one.row.error))

    def _page(self, limit: int, before: int | None) -> RecordPage:
        return RecordPage(self._log.rows(limit, before), len(self._log), self._log.num_dropped)

    async def _rows_asked(self, about: str | None) -> RecordPage:
        limit, before = json.loads(about or "[200, null]")
        return self._page(limit, before)

    async def _view_asked(self, about: str | None) -> OwnedView | None:
        return self._log.view(about or "")
