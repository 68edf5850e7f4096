"""Build the chunks of a completion stream, with usage as `stream_options` asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .fields import StreamOptions
from .usage import Stopwatch, Usage


class ChunkBuilder:
    """`head` holds the fields that all chunks share; `usage` returns the usage so far."""

    def __init__(
        self, head: dict[str, Any], options: StreamOptions | None, watch: Stopwatch, usage: Callable[[], Usage]
    ) -> None:
        self._head = head
        self._shows_usage = options is not None and options.include_usage
        self._always_shows_usage = options is not None and options.continuous_usage_stats
        self._watch = watch
        self._usage = usage

    def chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        """Build the chunk of one choice's change."""
        self._watch.tick()
        chunk = {**self._head, "choices": [choice]}
        if self._always_shows_usage:
            chunk["usage"] = self._usage().as_json()
        elif self._shows_usage:
            chunk["usage"] = None
        return chunk

    def last(self) -> Iterator[dict[str, Any]]:
        """Yield the chunks after the choices."""
        if self._shows_usage:
            usage = self._usage()
            yield {**self._head, "choices": [], "usage": usage.as_json(), "timings": self._watch.timings(usage)}
