"""Text to token ids with trust: what a chat template says may name special tokens, what is said inside it may not.

Knows the tokenizer; nothing of states or requests.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from ..tokenizer.interface import Tokenizer

LONG = 1 << 16  # characters above which tokenising would be felt by others on the event loop


class Segment(NamedTuple):
    text: str
    trusted: bool  # whether a special token's name in it means that token


class Encoder:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        names = sorted(tokenizer.special_ids, key=len, reverse=True)
        # A lookahead, so that matches may overlap: each could reach into untrusted text.
        self._special = re.compile(f"(?=({'|'.join(map(re.escape, names))}))") if names else None

    def encode(self, segments: Iterable[Segment], *, at_start: bool) -> list[int]:
        """The ids of adjacent texts. `at_start`: nothing precedes them, so that BOS comes first where the tokenizer
        wants one and the text did not bring it.

        As long as no untrusted text takes part in a special token's name, these are the ids of the whole text;
        otherwise each stretch of equal trust is tokenised by itself.
        """
        stretches = _stretches(segments)
        if self._is_harmless(stretches):
            stretches = [Segment("".join(text for text, _ in stretches), trusted=True)]
        ids: list[int] = []
        for text, trusted in stretches:
            ids += self._tokenizer.encode(text, parse_special=trusted, continues=not at_start or bool(ids))
        bos = self._tokenizer.bos_id
        if at_start and self._tokenizer.adds_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    async def encode_aside(self, segments: Sequence[Segment], *, at_start: bool) -> list[int]:
        """The same; long texts are tokenised in a thread, so that nobody else waits for them."""
        await asyncio.sleep(0)  # of thousands of short ones, nobody else waits for more than one
        if sum(len(text) for text, _ in segments) <= LONG:
            return self.encode(segments, at_start=at_start)
        return await asyncio.to_thread(self.encode, segments, at_start=at_start)

    def _is_harmless(self, stretches: Sequence[Segment]) -> bool:
        if self._special is None or all(trusted for _, trusted in stretches):
            return True
        text = "".join(text for text, _ in stretches)
        matches = [match.span(1) for match in self._special.finditer(text)]
        start = 0
        for part, trusted in stretches:
            end = start + len(part)
            if not trusted and any(first < end and last > start for first, last in matches):
                return False
            start = end
        return True


def _stretches(segments: Iterable[Segment]) -> list[Segment]:
    """Neighbours of equal trust joined."""
    written = (segment for segment in segments if segment.text)
    return [
        Segment("".join(text for text, _ in group), trusted)
        for trusted, group in groupby(written, key=lambda segment: segment.trusted)
    ]
