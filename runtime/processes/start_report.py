"""Report of a frontend started as a child, one line of JSON on its standard output."""

from __future__ import annotations

import msgspec

from ..protocol.core import ModelInfo
from ..protocol.errors import ErrorInfo


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The runtime serves: its model, the HTTP port and the TCP address for programs, where there are any."""

    info: ModelInfo
    http_port: int | None
    tcp_address: str | None = None


class StartFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The runtime could not start; the process ends."""

    error: ErrorInfo


StartReport = Started | StartFailed
