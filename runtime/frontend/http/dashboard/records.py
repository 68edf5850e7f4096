"""Routes of the records of programs and requests: a list, and each with its states, spans and critical path."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ...core.frontend_peers import FrontendPeers
from ...records.log import OwnedRow, OwnedView, ProgramLog
from ..errors import error_response
from ..transport.body_route import BodyRoute
from ..transport.streaming import json_response
from .access import PageAccess, Viewer

MAX_ROWS = 1000


class RecordPage(msgspec.Struct, frozen=True):
    """Rows of one frontend, and how many records it keeps and has dropped."""

    rows: list[OwnedRow]
    kept: int
    dropped: int


class RecordsApi:
    """Routes of the records of all frontends, as far as `access` shows them."""

    def __init__(self, log: ProgramLog, peers: FrontendPeers, access: PageAccess) -> None:
        self._log = log
        self._peers = peers
        self._access = access
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
        viewer = Viewer.of(request)
        page = self._page(limit, before, viewer)
        asked = json.dumps([limit, before, viewer.key, viewer.is_admin])
        pages = [page, *await self._peers.ask("record_rows", asked, RecordPage)]
        rows = sorted((one for each in pages for one in each.rows), key=lambda one: -one.row.seq)[:limit]
        return json_response(
            {
                "programs": [self._access.shown_row(viewer, one) for one in rows],
                "kept": sum(each.kept for each in pages),
                "dropped": sum(each.dropped for each in pages),
            }
        )

    async def show(self, id: str, request: Request) -> Response:
        """Return the record of one program or request: states, spans, critical path and totals by source line."""
        found = self._log.view(id)
        if found is None:
            found = next(iter(await self._peers.ask("record_view", id, OwnedView)), None)
        view = None if found is None else self._access.shown_view(Viewer.of(request), found)
        if view is None:
            return error_response(404, f"no record has the id {id!r}: it was dropped, or never was", param="id")
        return json_response(view)

    def _page(self, limit: int, before: int | None, viewer: Viewer) -> RecordPage:
        rows = self._log.rows(limit, before, lambda owner: self._access.sees(viewer, owner))
        return RecordPage(rows, len(self._log), self._log.num_dropped)

    async def _rows_asked(self, about: str | None) -> RecordPage:
        limit, before, key, is_admin = json.loads(about or "[200, null, null, false]")
        return self._page(limit, before, Viewer(key, is_admin))

    async def _view_asked(self, about: str | None) -> OwnedView | None:
        return self._log.view(about or "")
