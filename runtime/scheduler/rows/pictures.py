"""Pictures in a request's tokens: ids by which the cache tells them apart, and the parts of them that a row computes.

All placeholder tokens of a prompt have one id of the vocabulary, whichever picture they stand for. So the cache knows
them by ids beyond every vocabulary, which are the digest of the picture, 31 bits in each. They are the same in every
process, so pages of pictures can travel and lie on disk as others do. A part of a picture has
a part of the digest only: so whatever is reused ends before a picture or after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from ...protocol.pictures import Picture, RowPicture

FIRST_ID = 1 << 31  # the cache packs a token into 32 bits


def with_ids(tokens: Sequence[int], pictures: Sequence[Picture]) -> list[int]:
    """Return a prompt's tokens with ids of the pictures in place of their placeholders."""
    known = list(tokens)
    for picture in pictures:
        # shake_256 has no length in it: a shorter picture's digest would be the start of a longer one's.
        count = picture.num_features
        stream = hashlib.shake_256(b"%d:%b" % (count, picture.key)).digest(4 * count)
        ids = (np.frombuffer(stream, "<u4") | FIRST_ID).tolist()
        for run in picture.runs:
            known[run.first : run.first + run.count], ids = ids[: run.count], ids[run.count :]
    return known


def before_part(pictures: Sequence[Picture], num_tokens: int) -> int:
    """Return the largest number of tokens up to `num_tokens` that end in no picture."""
    for picture in pictures:
        if picture.runs[0].first < num_tokens < picture.end:
            return picture.runs[0].first
    return num_tokens


def whole_pages(pictures: Sequence[Picture], num_tokens: int, page_size: int) -> int:
    """Return the number of whole pages of the first `num_tokens` tokens that end in no picture."""
    whole = num_tokens // page_size * page_size
    while (cut := before_part(pictures, whole)) < whole:
        whole = cut // page_size * page_size
    return whole // page_size


def whole_chunk(pictures: Sequence[Picture], first: int, num_tokens: int) -> int:
    """Return the number of tokens from position `first` on, at most `num_tokens` where possible, after which a chunk
    can end: in no run of a picture that attends both ways. With 0 it is 0, else 1 at least."""
    end = first + num_tokens
    for run in (run for picture in pictures if picture.attends_both_ways for run in picture.runs):
        if num_tokens and run.first < end < run.first + run.count:
            return run.first - first if run.first > first else run.first + run.count - first
    return num_tokens


def rope_offset(pictures: Sequence[Picture], first: int) -> int:
    """Return the `Row.rope_offset` of a row that begins at position `first`."""
    return sum(each.rope_shift for each in pictures if each.end <= first)


def row_pictures(pictures: Sequence[Picture], first: int, end: int) -> list[RowPicture]:
    """Return the parts of the pictures that the tokens [first, end) of a prompt stand for."""
    found = []
    for picture in pictures:
        feature = 0  # of the run's first token
        for run in picture.runs:
            part = RowPicture(picture, feature, run.first, run.count).within(first, end)
            found += [] if part is None else [part]
            feature += run.count
    return found
