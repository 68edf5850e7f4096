"""Suffix decoding: drafts from what followed the longest match of a text's end, in the text itself and in outputs."""

from __future__ import annotations

from .drafts import SuffixDrafts
from .index import SuffixIndex

__all__ = ["SuffixDrafts", "SuffixIndex"]
