"""The HTTP application: its routes, and what every request passes on the way to them."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from ...protocol.version import __version__
from ..generation import Generator
from . import errors
from .admin import AdminApi
from .connection import ClientLeftError
from .guard import MAX_BODY_BYTES, Guard
from .native import NativeApi


def create_app(generator: Generator, *, api_key: str | None = None, max_body_bytes: int = MAX_BODY_BYTES) -> FastAPI:
    app = FastAPI(title="ramify", version=__version__, redirect_slashes=False)
    errors.install(app)
    app.add_exception_handler(ClientLeftError, _nobody_listens)
    app.include_router(NativeApi(generator).router)
    app.include_router(AdminApi(generator).router)
    app.add_middleware(Guard, api_key=api_key, max_body_bytes=max_body_bytes)
    return app


async def _nobody_listens(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # for the log alone
