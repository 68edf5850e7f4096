"""Files of images, made of what programs have: paths, bytes, PIL images and arrays."""

from __future__ import annotations

import base64
import os
from io import BytesIO
from typing import Any

from ...runtime.protocol.errors import RequestError

THUMBNAIL_SIZE = 160  # pixels of its longer side
MAX_THUMBNAIL_PIXELS = 40_000_000  # of the image, as its header says


def image_file(source: Any) -> bytes:
    """Return the bytes of an image's file. Raises RequestError for a value that is no image."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str | os.PathLike):
        try:
            with open(source, "rb") as file:
                return file.read()
        except (OSError, ValueError) as error:
            raise RequestError(f"image {str(source)!r} cannot be read: {error}", param="image") from None
    from PIL import Image  # here: programs without images do not wait for it

    if not isinstance(source, Image.Image):
        if not hasattr(source, "__array_interface__"):
            raise RequestError(
                f"image takes a path, bytes, a PIL image or an array, got {type(source).__name__}", param="image"
            )
        try:
            source = Image.fromarray(source)
        except (TypeError, ValueError, KeyError) as error:
            message = f"image takes arrays of uint8 with the shape [H, W], [H, W, 3] or [H, W, 4]: {error}"
            raise RequestError(message, param="image") from None
    data = BytesIO()
    try:
        source.save(data, "PNG")
    except (OSError, ValueError) as error:
        raise RequestError(f"the image cannot be written as PNG: {error}", param="image") from None
    return data.getvalue()


def thumbnail(data: bytes) -> str | None:
    """Return a small view of an image's file, as a data URL; None: it is none, or too large, or Pillow is missing."""
    try:
        from PIL import Image

        with Image.open(BytesIO(data), formats=("PNG", "JPEG", "WEBP", "GIF")) as image:
            if image.width * image.height > MAX_THUMBNAIL_PIXELS:
                return None
            image.thumbnail((THUMBNAIL_SIZE, THUMBNAIL_SIZE))
            small = BytesIO()
            image.convert("RGB").save(small, "JPEG", quality=80)
    except Exception:  # Pillow raises many kinds of a broken file, which the runtime has refused
        return None
    return f"data:image/jpeg;base64,{base64.b64encode(small.getvalue()).decode()}"
