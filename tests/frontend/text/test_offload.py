"""Work in threads beside the event loop: how its callers wait, and how it ends."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from pydantic import BaseModel

from ramiform.runtime.frontend.text.offload import (
    CancellationToken,
    WorkCancelledError,
    cooperative_iter,
    is_large,
    offload,
    offload_if_large,
)
from ramiform.tests.frontend.harness import run


def test_the_caller_gets_the_result_or_the_error() -> None:
    def fails(cancellation: CancellationToken) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        assert await offload(lambda _: threading.current_thread()) is not threading.main_thread()
        with pytest.raises(ZeroDivisionError):
            await offload(fails)

    run(main())


def test_cancelled_work_is_notified_and_its_caller_goes_on_after_its_end() -> None:
    entered, may_go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def work(cancellation: CancellationToken) -> None:
        entered.set()
        assert may_go_on.wait(60)
        seen.append("ended")
        cancellation.check()
        seen.append("went on")

    async def main() -> None:
        task = asyncio.create_task(offload(work))
        while not entered.is_set():
            await asyncio.sleep(0)
        for _ in range(3):  # also when the caller is cancelled again
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not task.done()
        may_go_on.set()
        await asyncio.wait({task})
        assert task.cancelled()
        assert seen == ["ended"]

    run(main())


def test_work_without_cancellation_goes_on() -> None:
    CancellationToken().check()
    cancelled = CancellationToken()
    cancelled.cancel()
    with pytest.raises(WorkCancelledError):
        cancelled.check()


class Nested(BaseModel):
    inner: Any


@pytest.mark.parametrize(
    ("value", "large"),
    [
        ("a" * 1000, False),
        ("a" * 70_000, True),
        (["a"] * 100, False),
        (["a"] * 5000, True),
        ({"a": {"b": ["c" * 70_000]}}, True),
        ({str(n): n for n in range(5000)}, True),
        ([[]] * 5000, True),
        (Nested(inner=Nested(inner="a" * 70_000)), True),
        (Nested(inner=Nested(inner="a")), False),
        (None, False),
        ([list(range(100))] * 100, True),
    ],
)
def test_values_are_large_by_their_text_and_their_number(value: Any, large: bool) -> None:
    assert is_large(value) == large

    async def main() -> None:
        thread = await offload_if_large(lambda _: threading.current_thread(), value)
        assert (thread is not threading.main_thread()) == large

    run(main())


def test_others_have_their_turns_between_many_items() -> None:
    seen: list[int] = []
    done: list[int] = []

    async def other() -> None:
        while len(done) < 1000:
            seen.append(len(done))
            await asyncio.sleep(0)

    async def main() -> None:
        task = asyncio.create_task(other())
        async for item in cooperative_iter(range(1000)):
            done.append(item)
        await task
        assert done == list(range(1000))
        assert len(seen) > 20

    run(main())
