"""Forced text as token ids: what a grammar leaves no choice about is appended without asking the model.

Knows bytes and a tokenizer's `encode`; knows no grammar and no request. The ids are those that the tokenizer gives the
text, so that the model sees what it was trained on: at the seam with what is there already, and at the end, where a
token that reaches into the text to come may be the right one.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Callable, Sequence

CONTEXT = 4  # tokens before the seam that are tokenised along, at most


class Retokeniser:
    """`encode` gives the ids of a text that follows other text, names of special tokens being ordinary text."""

    def __init__(self, token_bytes: Sequence[bytes | None], encode: Callable[[str], list[int]]) -> None:
        self._token_bytes = token_bytes
        self._encode = encode
        self._sorted = sorted({data for data in token_bytes if data})
        self._longest = max(map(len, self._sorted), default=0)

    def ids(self, before: Sequence[int], data: bytes) -> list[int]:
        """The tokens for the beginning of `data`, which follows the tokens `before`; often not for all of it.

        None at all when the tokenizer would join the last token before the seam with the first one after it. At the
        end, tokens are held back where some longer token could stand in their place.
        """
        following = self._following(before, data)
        kept = len(following)
        rest = data[sum(len(self._bytes_of(token)) for token in following) :]
        for place in reversed(range(len(following))):
            rest = self._bytes_of(following[place]) + rest
            if len(rest) >= self._longest:
                break
            if self._begins_a_longer_token(rest):
                kept = place
        return following[:kept]

    def _following(self, before: Sequence[int], data: bytes) -> list[int]:
        text = _text(data)
        near = self._near(before)
        if not near:
            return self._encode(text) if text else []
        while near:
            known = _text_or_none(b"".join(map(self._bytes_of, near)))
            if known is not None:
                ids = self._encode(known + text)
                if ids[: len(near)] == near:
                    return ids[len(near) :]
            near = near[1:]
        return []

    def _near(self, before: Sequence[int]) -> list[int]:
        """The last tokens before the seam that are text, with nothing in between."""
        near: list[int] = []
        for token in reversed(before[-CONTEXT:]):
            if not self._bytes_of(token):
                break
            near.insert(0, token)
        return near

    def _begins_a_longer_token(self, data: bytes) -> bool:
        # Sorted, whatever begins with `data` comes right after it.
        at = bisect_left(self._sorted, data)
        at += at < len(self._sorted) and self._sorted[at] == data
        return at < len(self._sorted) and self._sorted[at].startswith(data)

    def _bytes_of(self, token: int) -> bytes:
        return self._token_bytes[token] or b""


def _text(data: bytes) -> str:
    """Its whole characters: what is forced may end inside one."""
    return codecs.getincrementaldecoder("utf-8")().decode(data)


def _text_or_none(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
