"""Files of images: formats, bounds that the header tells, and broken files. Judge: Pillow on the whole file."""

from __future__ import annotations

from contextlib import suppress
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.tokenizer import picture_process
from ramiform.runtime.tokenizer.picture_process import PictureLimits, opened_image

LIMITS = PictureLimits(max_bytes=1 << 20, max_pixels=1 << 12)
IMAGE = Image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 40, 3), np.uint8))


def file_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_formats_are_read_as_pillow_reads_them(kind: str) -> None:
    data = file_of(IMAGE, kind)
    assert np.array_equal(opened_image(data, LIMITS), Image.open(BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "1", "I;16"])
def test_pixels_of_any_mode_become_rgb(mode: str) -> None:
    image = Image.new(mode, (4, 3), 1) if mode == "I;16" else IMAGE.convert(mode)
    opened = opened_image(file_of(image, "PNG"), LIMITS)
    assert (opened.mode, opened.size) == ("RGB", image.size)


def test_of_an_animation_the_first_frame_counts() -> None:
    frames = [Image.new("RGB", (5, 5), colour) for colour in ("red", "green", "blue")]
    data = file_of(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert opened_image(data, LIMITS).getpixel((2, 2)) == (255, 0, 0)


def test_a_photograph_is_turned_as_its_camera_was_held() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert opened_image(file_of(IMAGE, "JPEG", exif=exif), LIMITS).size == (30, 40)


def test_a_size_beyond_the_bound_is_refused_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    opened_image(file_of(Image.new("L", (64, 64)), "PNG"), LIMITS)
    decoded: list[int] = []
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: decoded.append(1))
    with pytest.raises(RequestError, match="it has 65 x 64 pixels, the most are 4096"):
        opened_image(file_of(Image.new("L", (65, 64)), "PNG"), LIMITS)
    assert not decoded


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "ICO", "PPM"])
def test_other_formats_are_refused(kind: str) -> None:
    with pytest.raises(RequestError, match="no image in a format that is read"):
        opened_image(file_of(IMAGE, kind), LIMITS)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_any_beginning_of_a_file_is_refused(kind: str) -> None:
    data = file_of(IMAGE, kind)
    for size in range(0, len(data) - 40, max(1, len(data) // 40)):
        with pytest.raises(RequestError):
            opened_image(data[:size], LIMITS)


def test_any_changed_byte_is_read_or_refused() -> None:
    random = np.random.default_rng(2)
    for kind in ("PNG", "JPEG", "WEBP", "GIF"):
        whole = file_of(IMAGE, kind)
        for _ in range(60):
            changed = bytearray(whole)
            changed[int(random.integers(len(whole)))] = int(random.integers(256))
            with suppress(RequestError):
                assert opened_image(bytes(changed), LIMITS).mode == "RGB"


def test_base64_that_is_none_is_refused() -> None:
    with pytest.raises(RequestError, match="not in base64"):
        picture_process._decoded(b"a!b=")
