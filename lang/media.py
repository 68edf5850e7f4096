"""Images and videos, which SGLang's programs may hold and no model that runs here reads: refused where they stand.

Knows their names only.
"""

from __future__ import annotations

from typing import NoReturn

from ..runtime.protocol.errors import RequestError


def image(path: object) -> NoReturn:
    """Raises RequestError."""
    _refuse("image", path)


def video(path: object, num_frames: object = None) -> NoReturn:
    """Raises RequestError."""
    _refuse("video", path)


def _refuse(kind: str, path: object) -> NoReturn:
    raise RequestError(f"no model reads anything but text here: {kind}({path!r})", param=kind, code="unsupported")
