"""What a frontend started as a child tells its parent, in one line of JSON on its standard output."""

from __future__ import annotations

import msgspec

from .core import ModelInfo
from .errors import ErrorInfo


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The runtime answers: its model, the HTTP port when there is one, and where programs come by TCP when they may."""

    info: ModelInfo
    http_port: int | None
    tcp_address: str | None = None


class StartFailed(msgspec.Struct, frozen=True, tag="failed"):
    """It could not start; the process ends."""

    error: ErrorInfo


StartReport = Started | StartFailed
