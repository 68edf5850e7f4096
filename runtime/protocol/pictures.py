"""Pictures of a prompt, as values that travel from the frontend to the core and on to a step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from .errors import RequestError


class PictureRun(msgspec.Struct, frozen=True):
    """`count` placeholder tokens of a prompt from position `first` on. They stand for features of a picture."""

    first: int
    count: int


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A preprocessed picture and its places in the prompt.

    `pixels` are uint8 [F, C, H, W], `shape`, of F frames: tiles of the picture and a smaller view of the whole. `runs`
    ascend; together they have one token for each feature. `key` is a digest of the pixels and of the namespace, so that
    what is kept of a picture is one client's. With `attends_both_ways` the tokens of a run see each other, so that one
    step computes them all. With a `grid` of rows and columns, its features, all in one run, have rotary positions of
    three numbers: one for the picture, the row and the column (M-RoPE, Wang et al. 2024, Qwen2-VL, section 2.1). The
    text after it goes on behind the largest of these.
    """

    key: bytes
    pixels: bytes
    shape: tuple[int, int, int, int]
    attends_both_ways: bool = False
    grid: tuple[int, int] | None = None
    runs: list[PictureRun] = []

    @property
    def num_features(self) -> int:
        """Number of placeholder tokens."""
        return sum(run.count for run in self.runs)

    @property
    def end(self) -> int:
        """Position behind its last placeholder."""
        return self.runs[-1].first + self.runs[-1].count

    @property
    def rope_shift(self) -> int:
        """Rotary positions that the text after the picture is ahead of those of its tokens; below 0: behind."""
        return 0 if self.grid is None else max(self.grid) - self.num_features


class RowPicture(msgspec.Struct, frozen=True):
    """Features [first, first + count) of a picture, for a row's tokens from index `start` on."""

    picture: Picture
    first: int
    start: int
    count: int

    def without_pixels(self) -> RowPicture:
        """Return the part with what its features are known by."""
        return replace(self, picture=replace(self.picture, pixels=b""))

    def ends_within(self, end: int) -> bool:
        """Return True if the picture's last feature is here, for a token of the row before `end`."""
        return self.first + self.count == self.picture.num_features and self.start + self.count <= end

    def within(self, start: int, end: int) -> RowPicture | None:
        """Return the part for the tokens [start, end) of the row, by their indices from `start` on; None: there is
        none."""
        low, high = max(start, self.start), min(end, self.start + self.count)
        if low >= high:
            return None
        return RowPicture(self.picture, self.first + low - self.start, low - start, high - low)


def check_pictures(pictures: Sequence[Picture], num_tokens: int) -> None:
    """Raise RequestError unless pixels, shapes and runs of a prompt of `num_tokens` tokens fit each other."""
    end = 0
    for index, picture in enumerate(pictures):
        whole = min(picture.shape) > 0 and math.prod(picture.shape) == len(picture.pixels) and len(picture.key) == 32
        fits = picture.grid is None or (math.prod(picture.grid) == picture.num_features and len(picture.runs) == 1)
        if not (whole and fits and picture.runs):
            raise RequestError(f"image {index}: its pixels are not of the shape {picture.shape}", param="images")
        for run in picture.runs:
            if run.first < end or run.count < 1:
                raise RequestError(f"image {index}: its places overlap", param="images")
            end = run.first + run.count
    if end > num_tokens:
        raise RequestError(f"an image's places end at token {end}, the prompt has {num_tokens}", param="images")
