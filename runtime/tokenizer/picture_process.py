"""Process that decodes images of requests and prepares them for the model, bounded in pixels, time and memory.

Decoders are old C code that reads data of strangers, and a file of some bytes may stand for gigabytes of pixels. So a
header's size is checked before anything is decoded, and the limits on the rest are the kernel's (child_frames.py).
transformers, which has the image processors, takes seconds to import: here, and not in the frontend.
"""

from __future__ import annotations

import binascii
import sys
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import msgspec
from PIL import Image, ImageFile, ImageOps

from ..protocol.errors import RamiformError, RequestError
from .child_frames import answer_frames
from .errors import TokenizerError
from .image_processors import PictureProcessor, PreparedPicture
from .tokenizer_config import read_json

CPU_SECONDS = 30.0  # for one image
MEMORY_BYTES = 1 << 30  # beyond what the process has when it starts
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")


class PictureRequest(msgspec.Struct, frozen=True):
    """An image file, perhaps in base64, to be prepared for requests of a namespace."""

    data: bytes
    is_base64: bool
    namespace: bytes


class PictureAnswer(msgspec.Struct, frozen=True):
    """The picture, or what is wrong with the image. `is_ours`: the checkpoint cannot prepare any."""

    prepared: PreparedPicture | None = None
    error: str | None = None
    is_ours: bool = False


class PictureLimits(msgspec.Struct, frozen=True):
    """The largest images that are decoded: bytes of the file, and pixels."""

    max_bytes: int
    max_pixels: int


def opened_image(data: bytes, limits: PictureLimits) -> Image.Image:
    """Return an image in mode RGB, turned as its camera was held; of an animation, the first frame.

    Raises RequestError for another format, a size beyond `limits`, and a broken file.
    """
    if len(data) > limits.max_bytes:
        raise RequestError(f"it has {len(data)} bytes, the most are {limits.max_bytes}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(BytesIO(data), formats=FORMATS)
            width, height = image.size
            if width * height > limits.max_pixels:
                raise RequestError(f"it has {width} x {height} pixels, the most are {limits.max_pixels}")
            image.load()
            turned: Image.Image = ImageOps.exif_transpose(image)
            return turned.convert("RGB")
    except Image.UnidentifiedImageError:
        raise RequestError(f"it is no image in a format that is read: {', '.join(FORMATS)}") from None
    except (RequestError, MemoryError):
        raise
    except Exception as error:  # decoders raise errors of many kinds
        raise RequestError(f"the file is broken: {error}") from None


def _decoded(text: bytes) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"it is not in base64: {error}") from None


def main() -> None:
    """Answer requests until standard input ends. Arguments: the checkpoint's folder, and limits as JSON."""
    path, limits = Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=PictureLimits)
    Image.MAX_IMAGE_PIXELS = None  # `limits` has it
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    make = _preparer(path)
    decoder, encoder = msgspec.msgpack.Decoder(PictureRequest), msgspec.msgpack.Encoder()
    answer_frames(
        lambda request: encoder.encode(_prepared(decoder.decode(request), limits, make)),
        cpu_seconds=CPU_SECONDS,
        memory_bytes=MEMORY_BYTES,
    )


def _preparer(path: Path) -> PictureProcessor | str:
    """Return the checkpoint's image processor, or why there is none."""
    try:
        return PictureProcessor(path, read_json(path / "config.json")["architectures"][0])
    except ImportError as error:
        return f"images need the package transformers (pip install 'ramiform[transformers]'): {error}"
    except (LookupError, TypeError, TokenizerError) as error:
        return f"{path} has no image processor that is known: {error}"


def _prepared(request: PictureRequest, limits: PictureLimits, make: PictureProcessor | str) -> PictureAnswer:
    if isinstance(make, str):
        return PictureAnswer(error=make, is_ours=True)
    try:
        image = opened_image(_decoded(request.data) if request.is_base64 else request.data, limits)
        return PictureAnswer(_of_image(make.prepare, image, request.namespace))
    except TokenizerError as error:
        return PictureAnswer(error=str(error), is_ours=True)
    except RamiformError as error:
        return PictureAnswer(error=str(error))
    except MemoryError:
        return PictureAnswer(error="it takes more memory than an image may")


def _of_image(prepare: Callable[..., PreparedPicture], image: Image.Image, namespace: bytes) -> PreparedPicture:
    try:
        return prepare(image, namespace)
    except (RamiformError, MemoryError):
        raise
    except Exception as error:  # of sides such as 1 x 100,000
        raise RequestError(f"the model cannot take an image of {image.width} x {image.height}: {error}") from None


if __name__ == "__main__":
    main()
