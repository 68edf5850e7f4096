"""Text to token ids with trust: what a chat template says may name special tokens, what is said inside it may not.

Knows the tokenizer; nothing of states or requests.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

from ..tokenizer.interface import Tokenizer

LONG = 1 << 16  # characters, or tokens, above which the work on them would be felt by others on the event loop
T = TypeVar("T")


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
        """The same; nobody else waits for it."""
        return await _aside(sum(len(text) for text, _ in segments), lambda: self.encode(segments, at_start=at_start))

    async def encode_prompt(self, prompt: str, *, with_bos: bool = True) -> list[int]:
        """The ids of a client's whole prompt, in which special tokens may be named; nobody else waits for it. With
        `with_bos`, BOS comes first where the tokenizer wants one; without, where the text has it."""
        if with_bos:
            return await self.encode_aside([Segment(prompt, trusted=True)], at_start=True)
        return await _aside(len(prompt), lambda: self._tokenizer.encode(prompt))

    async def decode_aside(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids that a client gave; nobody else waits for it."""
        return await _aside(len(ids), lambda: self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

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


async def _aside(size: int, work: Callable[[], T]) -> T:
    """What is long is done in a thread; of thousands of short ones, nobody else waits for more than one."""
    await asyncio.sleep(0)
    return work() if size <= LONG else await asyncio.to_thread(work)


def _stretches(segments: Iterable[Segment]) -> list[Segment]:
    """Neighbours of equal trust joined."""
    written = (segment for segment in segments if segment.text)
    return [
        Segment("".join(text for text, _ in group), trusted)
        for trusted, group in groupby(written, key=lambda segment: segment.trusted)
    ]
