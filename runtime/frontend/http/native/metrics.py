"""`/metrics`: all frontends' measures and the core's, as Prometheus scrapes them."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse, Response

from ....protocol.errors import RuntimeFailed
from ...core.client import CoreClient
from ...core.frontend_peers import FrontendPeers
from ..exposition import exposition
from ..transport.body_route import BodyRoute


class MetricsApi:
    def __init__(self, core: CoreClient, siblings: FrontendPeers) -> None:
        self._core = core
        self._siblings = siblings

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["operations"], route_class=BodyRoute)
        router.add_api_route(
            "/metrics", self.metrics, methods=["GET"], response_model=None, response_class=PlainTextResponse
        )
        return router

    async def metrics(self) -> Response:
        """Prometheus' text format. Before the model is loaded, the frontends' part alone."""
        try:
            info = self._core.require_info()
            core = info, *await self._core.measures()
        except RuntimeFailed:
            core = None
        return Response(exposition(await self._siblings.total(), core), media_type=CONTENT_TYPE_LATEST)
