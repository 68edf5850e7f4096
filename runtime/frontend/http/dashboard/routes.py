"""The page at `/` with its files, the facts of the server, and all of the page's routes together."""

from __future__ import annotations

import hashlib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ....protocol.config import CoreConfig, ServeConfig
from ....protocol.version import __version__
from ...api.validation import NotFoundError
from ...core.frontend_peers import FrontendPeers
from ...records.log import Owner
from ...text.generation import Generator
from ..scope import PAGE_FILES
from ..transport.streaming import json_response
from .access import PageAccess, Viewer, liveness
from .health import HealthApi, HealthHistory
from .live import LiveApi, MakeTopic
from .topics import HealthTopic, LogPeers, ProgramsTopic, ProgramTopic, TreeTopic
from .tree import TreeApi
from .what_if import WhatIfApi

# Every file comes from this server, and no script or style stands in HTML. `element.style` stays allowed.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # Kept, and asked for again: a new version has new files under the same names.
    "cache-control": "no-cache",
}
_MEDIA_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
}
# Secrets, what may hold one, and what is known already.
_HIDDEN_SETTINGS = frozenset(
    "model port socket_dir api_key admin_key keys node_keys ssl_certfile ssl_keyfile otlp_endpoint".split()
)


class StaticFile(NamedTuple):
    data: bytes
    media_type: str
    etag: str


def read_files(folder: Traversable) -> dict[str, StaticFile]:
    """Read all files below a folder, by their paths in it."""
    found: dict[str, StaticFile] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found |= {f"{entry.name}/{name}": file for name, file in read_files(entry).items()}
        else:
            data = entry.read_bytes()
            media_type = _MEDIA_TYPES.get(PurePosixPath(entry.name).suffix, "text/plain")
            found[entry.name] = StaticFile(data, media_type, f'"{hashlib.sha256(data).hexdigest()[:20]}"')
    return found


class FilesApi:
    """The page's files, from `folder` (default: the package's), and the facts of the server."""

    def __init__(
        self,
        generator: Generator,
        access: PageAccess,
        core_config: CoreConfig,
        serve_config: ServeConfig,
        folder: Traversable | None = None,
    ) -> None:
        self._generator = generator
        self._access = access
        self._configs = core_config, serve_config
        self._files = read_files(resources.files(__package__) / "static" if folder is None else folder)

    @property
    def router(self) -> APIRouter:
        router = APIRouter()
        for method in ("GET", "HEAD"):
            router.add_api_route("/", self.index, methods=[method], include_in_schema=False)
            router.add_api_route(PAGE_FILES + "{name:path}", self.file, methods=[method], include_in_schema=False)
        router.add_api_route("/v1/ramiform/about", self.about, methods=["GET"], response_model=None, tags=["page"])
        return router

    async def index(self, request: Request) -> Response:
        return liveness(request) or self._respond(request, "index.html")

    async def file(self, name: str, request: Request) -> Response:
        return self._respond(request, name)

    async def about(self, request: Request) -> Response:
        """Describe the model, the version and the settings that differ from their defaults."""
        info, viewer = self._generator.core.require_info(), Viewer.of(request)
        core_config, serve_config = self._configs
        return json_response(
            {
                "version": __version__,
                "model": msgspec.structs.asdict(info),
                "has_chat": self._generator.tokenizer.chat is not None,
                "images": {"max_bytes": serve_config.max_image_bytes} if info.reads_pictures else None,
                "texts": self._access.reads(viewer, Owner("http", viewer.key)),
                "flags": self._flags(),
                "plan_log": core_config.log_plans is not None and viewer.is_admin,
            }
        )

    def _flags(self) -> dict[str, Any]:
        return {
            field.encode_name: getattr(config, field.name)
            for config in self._configs
            for field in msgspec.structs.fields(config)
            if field.name not in _HIDDEN_SETTINGS and getattr(config, field.name) not in (field.default, [])
        }

    def _respond(self, request: Request, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            raise NotFoundError(f"the page has no file {name!r}", code="not_found")
        headers = _HEADERS | {"etag": file.etag}
        known = [etag.strip().removeprefix("W/") for etag in request.headers.get("if-none-match", "").split(",")]
        if file.etag in known or known == ["*"]:
            return Response(status_code=304, headers=headers)
        return Response(file.data, media_type=file.media_type, headers=headers)


class Page:
    """The routes of the page, and what runs behind them from `start` to `stop`. `origins`: of other web pages that may
    connect."""

    def __init__(
        self,
        generator: Generator,
        peers: FrontendPeers,
        access: PageAccess,
        core_config: CoreConfig,
        serve_config: ServeConfig,
        origins: list[str],
    ) -> None:
        core = generator.core
        self._history = history = HealthHistory(core, peers)
        topics: dict[str, MakeTopic] = {
            "health": lambda viewer, options: HealthTopic(history),
            "tree": lambda viewer, options: TreeTopic(core, options),
        }
        if generator.log is not None:
            records = LogPeers(generator.log, peers, access)
            topics["programs"] = lambda viewer, options: ProgramsTopic(records, viewer)
            topics["program"] = lambda viewer, options: ProgramTopic(records, viewer, options)
        self.live = LiveApi(access, topics, origins=origins)
        self.routers = [
            FilesApi(generator, access, core_config, serve_config).router,
            HealthApi(history).router,
            TreeApi(generator, access).router,
            self.live.router,
        ]
        if core_config.log_plans is not None:
            self.routers.append(WhatIfApi(core_config.log_plans).router)

    def start(self) -> None:
        self._history.start()

    async def stop(self) -> None:
        await self._history.stop()
