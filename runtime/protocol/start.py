"""What a frontend started as a child tells its parent, in one line of JSON on its standard output."""

from __future__ import annotations

import msgspec

from .core import ModelInfo
from .errors import ErrorInfo


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The runtime answers: its model, and the HTTP port when there is one."""

    info: ModelInfo
    http_port: int | None


class StartFailed(msgspec.Struct, frozen=True, tag="failed"):
    """It could not start; the process ends."""

    error: ErrorInfo


StartReport = Started | StartFailed
