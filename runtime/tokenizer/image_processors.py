"""Image processors: transformers' own classes with Pillow, and the text that stands for a picture in a prompt.

A row of `READERS` describes an architecture's pictures. Nothing here needs torchvision.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from ..protocol.errors import RequestError
from ..protocol.pictures import Picture, PictureRun
from .errors import TokenizerError


class PreparedPicture(NamedTuple):
    """A picture, the text that stands for it in a prompt, and the text of a chat template that this one replaces.

    The tokens `placeholder` in `text` stand for the picture's features, one each.
    """

    picture: Picture  # without its places
    text: str
    replaces: str
    placeholder: str

    @property
    def num_features(self) -> int:
        """Number of placeholders."""
        return self.text.count(self.placeholder)


class _Frames(NamedTuple):
    """The output of an image processor for one picture: pixels uint8 [F, C, H, W], and all the rest."""

    pixels: np.ndarray
    own: Any
    output: Mapping[str, Any]
    settings: Mapping[str, Any]  # config.json


class PictureReader(NamedTuple):
    """Where transformers has an architecture's image processor, and how its pictures stand in a prompt."""

    module: str  # model_type of the image processor's module
    processor: str
    placeholder: str
    text: Callable[[_Frames, str], str]  # of the frames and the placeholder
    replaces: str | None = None  # None: the placeholder
    attends_both_ways: bool = False  # as of `Picture`
    is_grid: bool = False  # it has a `Picture.grid`, and the tower reads patches
    is_deep: bool = False  # features are added behind several layers
    calls: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda settings: {}  # arguments, by config.json


def _tiles(frames: _Frames, placeholder: str) -> str:
    """Return rows of tiles, then the whole picture; a picture of one frame has no tiles."""
    vision, scale = frames.settings["vision_config"], int(frames.settings["scale_factor"])
    own = placeholder * (int(vision["image_size"]) // int(vision["patch_size"]) // scale) ** 2
    around = "<fake_token_around_image>"
    rows, columns = (range(1, frames.output[name][0][0] + 1) for name in ("rows", "cols"))
    tiles = ["".join(f"{around}<row_{row}_col_{column}>{own}" for column in columns) + "\n" for row in rows]
    return "".join([*tiles, "\n" if tiles else "", f"{around}<global-img>{own}{around}"])


def _gemma(frames: _Frames, placeholder: str) -> str:
    """Return the picture, then crops of it if its settings ask for them."""
    own = f"\n\n<start_of_image>{placeholder * int(frames.settings['mm_tokens_per_image'])}<end_of_image>\n\n"
    crops = int(frames.output["num_crops"][0])
    if not crops:
        return own
    return f"Here is the original image {own} and here are some crops to help you see better {' '.join([own] * crops)}"


def _grid(frames: _Frames) -> tuple[int, int]:
    """Return the rows and columns of features."""
    size = frames.own.patch_size * frames.own.merge_size
    return frames.pixels.shape[2] // size, frames.pixels.shape[3] // size


def _rows_and_columns(frames: _Frames, placeholder: str) -> str:
    rows, columns = _grid(frames)
    return placeholder * (rows * columns)


def _patches(frames: _Frames, placeholder: str) -> str:
    """Return one feature for each patch, and for the tower's class token where all are selected."""
    vision = frames.settings["vision_config"]
    is_clip = vision.get("model_type", "clip_vision_model") == "clip_vision_model"
    is_default = frames.settings.get("vision_feature_select_strategy", "default") == "default"
    size = int(vision["patch_size"])
    num = (frames.pixels.shape[2] // size) * (frames.pixels.shape[3] // size)
    return placeholder * (num + is_clip - is_default)


def _merged_patch(settings: Mapping[str, Any]) -> int:
    return int(settings["vision_config"]["patch_size"]) * int(settings.get("spatial_merge_size", 2))


def _lines(frames: _Frames, placeholder: str) -> str:
    """Return lines of features, each with its end."""
    size = _merged_patch(frames.settings)
    rows, columns = frames.pixels.shape[2] // size, frames.pixels.shape[3] // size
    return "[IMG_BREAK]".join([placeholder * columns] * rows) + "[IMG_END]"


def _squares(frames: _Frames, placeholder: str) -> str:
    """Return the same number of features for each tile."""
    vision, ratio = frames.settings["vision_config"], float(frames.settings.get("downsample_ratio", 0.5))
    size, patch = (own[0] if isinstance(own, list) else own for own in (vision["image_size"], vision["patch_size"]))
    return f"<img>{placeholder * (int(size // patch * ratio) ** 2 * len(frames.pixels))}</img>"


_QWEN2 = PictureReader("qwen2_vl", "Qwen2VLImageProcessorPil", "<|image_pad|>", _rows_and_columns, is_grid=True)
READERS = {
    "Qwen2VLForConditionalGeneration": _QWEN2,
    "Qwen2_5_VLForConditionalGeneration": _QWEN2,
    "Qwen3VLForConditionalGeneration": _QWEN2._replace(is_deep=True),
    "Qwen3VLMoeForConditionalGeneration": _QWEN2._replace(is_deep=True),
    "LlavaForConditionalGeneration": PictureReader("llava", "LlavaImageProcessorPil", "<image>", _patches),
    "Mistral3ForConditionalGeneration": PictureReader(
        "pixtral",
        "PixtralImageProcessorPil",
        "[IMG]",
        _lines,
        calls=lambda settings: {"patch_size": dict.fromkeys(("height", "width"), _merged_patch(settings))},
    ),
    "InternVLForConditionalGeneration": PictureReader(
        "got_ocr2",
        "GotOcr2ImageProcessorPil",
        "<IMG_CONTEXT>",
        _squares,
        calls=lambda _: {"crop_to_patches": True},
    ),
    "Gemma3ForConditionalGeneration": PictureReader(
        "gemma3", "Gemma3ImageProcessorPil", "<image_soft_token>", _gemma, "<start_of_image>", attends_both_ways=True
    ),
    "Idefics3ForConditionalGeneration": PictureReader(
        "idefics3", "Idefics3ImageProcessorPil", "<image>", _tiles, calls=lambda _: {"return_row_col_info": True}
    ),
    "SmolVLMForConditionalGeneration": PictureReader(
        "smolvlm", "SmolVLMImageProcessorPil", "<image>", _tiles, calls=lambda _: {"return_row_col_info": True}
    ),
}


class PictureProcessor:
    """The image processor of a checkpoint. It imports transformers, which takes seconds."""

    def __init__(self, path: Path, architecture: str) -> None:
        """Read the settings in directory `path`. Raises TokenizerError when it has none, or wrong ones."""
        self._reader = READERS[architecture]
        name = f"transformers.models.{self._reader.module}.image_processing_pil_{self._reader.module}"
        self.own: Any
        try:
            self.own = getattr(importlib.import_module(name), self._reader.processor).from_pretrained(
                path, local_files_only=True
            )
            self._settings = json.loads((path / "config.json").read_text(encoding="utf-8"))
        except ImportError as error:
            raise TokenizerError(
                f"images need transformers and Pillow: install ramiform[transformers]: {error}"
            ) from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise TokenizerError(f"{path}: its image processor cannot be read: {error}") from None

    def prepare(self, image: Any, namespace: bytes = b"") -> PreparedPicture:
        """Return what a request needs of a PIL image in mode RGB. What is kept of it is of `namespace` alone.

        Raises RequestError when the image processor refuses the image, as one that is too narrow.
        """
        try:
            output = self.own(
                image, do_rescale=False, do_normalize=False, return_tensors="np", **self._reader.calls(self._settings)
            )
        except ValueError as error:
            raise RequestError(f"the model cannot take this image: {error}", param="images") from None
        frames = _Frames(self._pixels(output), self.own, output, self._settings)
        reader = self._reader
        try:
            text = reader.text(frames, reader.placeholder)
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise TokenizerError(f"config.json does not say how many tokens an image has: {error!r}") from None
        pixels = frames.pixels.tobytes()
        shape: Any = frames.pixels.shape
        own = self.own
        settings = own.do_rescale, own.rescale_factor, own.do_normalize, own.image_mean, own.image_std
        digest = hashlib.sha256(b"%d:%b%b:" % (len(namespace), namespace, repr((shape, settings)).encode()))
        digest.update(pixels)
        picture = Picture(
            key=digest.digest(),
            pixels=pixels,
            shape=shape,
            attends_both_ways=reader.attends_both_ways,
            grid=_grid(frames) if reader.is_grid else None,
        )
        return PreparedPicture(picture, text, reader.replaces or reader.placeholder, reader.placeholder)

    def _pixels(self, output: Mapping[str, Any]) -> np.ndarray:
        """Return the pixels uint8 [F, C, H, W]."""
        values = np.asarray(output["pixel_values"])
        if self._reader.is_grid:  # patches [rows and columns of features, patches of each, C, twice, height, width]
            own, (_, rows, columns) = self.own, output["image_grid_thw"][0]
            merged, size = own.merge_size, own.patch_size
            patches = values.reshape(
                rows // merged, columns // merged, merged, merged, 3, own.temporal_patch_size, size, size
            )[..., 0, :, :].astype(np.uint8)
            values = patches.transpose(4, 0, 2, 5, 1, 3, 6).reshape(1, 3, rows * size, columns * size)
        return values.reshape(-1, *values.shape[-3:]).astype(np.uint8, copy=False)

    def values(self, picture: Picture) -> np.ndarray:
        """Return the pixels as a vision tower takes them, scaled and normalised: float32 [F, C, H, W], or patches of a
        picture with a grid."""
        own = self.own
        pixels_FCHW: np.ndarray = np.frombuffer(picture.pixels, np.uint8).reshape(picture.shape)
        if own.do_rescale:
            pixels_FCHW = own.rescale(pixels_FCHW, own.rescale_factor)
        if own.do_normalize:
            pixels_FCHW = np.stack([own.normalize(frame, own.image_mean, own.image_std) for frame in pixels_FCHW])
        if self._reader.is_grid:
            patches, _, _ = own.patchify(
                pixels_FCHW[0],
                patch_size=own.patch_size,
                merge_size=own.merge_size,
                temporal_patch_size=own.temporal_patch_size,
            )
            return np.ascontiguousarray(patches, np.float32)
        return np.ascontiguousarray(pixels_FCHW, np.float32)


def placed_pictures(prepared: Sequence[PreparedPicture], tokens: Sequence[int], placeholder: int) -> list[Picture]:
    """Return the pictures of a prompt with their places: the tokens `placeholder` stand for them in order.

    Raises RequestError when the prompt has more or fewer of these tokens.
    """
    is_placeholder = np.asarray(tokens) == placeholder
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_placeholder, [False]]).astype(np.int8)))
    runs = [PictureRun(int(first), int(end - first)) for first, end in edges.reshape(-1, 2)]
    placed, missing = [], 0
    for each in prepared:
        own, missing = [], missing + each.num_features
        while missing and runs:
            first, count = runs[0].first, min(runs[0].count, missing)
            own.append(PictureRun(first, count))
            missing -= count
            runs[:1] = [PictureRun(first + count, runs[0].count - count)] if count < runs[0].count else []
        placed.append(replace(each.picture, runs=own))
    if runs or missing:
        named = prepared[0].placeholder if prepared else "an image"
        raise RequestError(
            f"the prompt has {int(is_placeholder.sum())} tokens {named} for images, its images have "
            f"{sum(each.num_features for each in prepared)}: a text may not contain this token",
            param="images",
        )
    return placed
