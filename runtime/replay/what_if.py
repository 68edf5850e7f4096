"""Replay a logged run under another eviction, as a process of its own that prints one line of JSON.

    python -m ramiform.runtime.replay.what_if FILE EVICTION

Replaying takes memory and time, which a server's own processes need for themselves.
"""

from __future__ import annotations

import os
import sys

import msgspec

from ..protocol.core import Generate
from ..protocol.errors import ErrorInfo, RamiformError, RequestError
from ..scheduler.plan_log import LogEntry, LoggedMessage, LogHeader, read_log
from . import replay as replays


class ReplayTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens of a replayed run. `recomputed` of the `computed` ones had been computed before, and were evicted:
    with a cache without bound they would not have been computed."""

    eviction: str
    prompt_tokens: int
    computed: int
    recomputed: int
    recomputed_share: float  # of the prompt tokens
    evicted_pages: int
    retractions: int


class WhatIfAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The run as it was, and as it would have been. `error`: it cannot be told."""

    logged: ReplayTotals | None = None
    what_if: ReplayTotals | None = None
    error: ErrorInfo | None = None


def compare(entries: list[LogEntry], eviction: str) -> WhatIfAnswer:
    """Replay a log as it was, with another eviction, and with room for everything."""
    if not entries or not isinstance(entries[0], LogHeader):
        raise RequestError("the plan log is empty", param="file")
    header = entries[0]
    logged = replays.what_if(entries)
    assert logged.stats is not None
    prompts = [entry.message.tokens for entry in entries if _is_request(entry)]  # type: ignore[union-attr]
    num_tokens = sum(len(prompt) for prompt in prompts) + logged.stats.num_output_tokens
    # Each request has an unfinished page, and a copy of one.
    room = header.num_pages + num_tokens // header.page_size + 2 * len(prompts)
    least = _computed(replays.what_if(entries, num_pages=room))
    other = replays.what_if(entries, eviction=eviction)
    return WhatIfAnswer(logged=_totals(header.config.eviction, logged, least), what_if=_totals(eviction, other, least))


def _is_request(entry: LogEntry) -> bool:
    return isinstance(entry, LoggedMessage) and isinstance(entry.message, Generate)


def _totals(eviction: str, figures: replays.ReplayFigures, least: int) -> ReplayTotals:
    computed, stats = _computed(figures), figures.stats
    assert stats is not None
    recomputed = max(0, computed - least)
    return ReplayTotals(
        eviction=eviction,
        prompt_tokens=stats.num_prompt_tokens,
        computed=computed,
        recomputed=recomputed,
        recomputed_share=recomputed / max(1, stats.num_prompt_tokens),
        evicted_pages=stats.num_evicted_pages,
        retractions=stats.num_retractions,
    )


def _computed(figures: replays.ReplayFigures) -> int:
    assert figures.stats is not None
    return figures.stats.num_prompt_tokens - figures.stats.num_cached_tokens


def main() -> None:
    os.nice(10)  # the server goes first
    path, eviction = sys.argv[1:]
    try:
        with open(path, "rb") as lines:
            answer = compare(list(read_log(lines)), eviction)
    except (RamiformError, OSError) as error:
        answer = WhatIfAnswer(error=ErrorInfo.of(error))
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main()
