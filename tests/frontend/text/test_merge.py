"""Merged streams are complete, keep each source's order, and stay at most one value ahead of the reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from ramiform.runtime.frontend.text.merge import merge
from ramiform.tests.frontend.harness import run


def test_a_slow_reader_keeps_the_sources_from_running_ahead() -> None:
    produced = [0, 0, 0]

    async def source(index: int) -> AsyncIterator[tuple[int, int]]:
        for number in range(50):
            produced[index] += 1
            yield index, number

    async def main() -> None:
        read = []
        async for value in merge([source(index) for index in range(3)]):
            read.append(value)
            for _ in range(10):
                await asyncio.sleep(0)  # the sources go as far as they may
            assert sum(produced) <= len(read) + 6, "each holds one value, and one more waits for each"
        assert [[number for i, number in read if i == index] for index in range(3)] == [list(range(50))] * 3

    run(main())
