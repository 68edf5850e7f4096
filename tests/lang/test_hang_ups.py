"""A program whose reader is gone ends: a cancelled task, a dropped stream, `close()`."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RuntimeFailed, gen

BUSY = ("num_running", "num_waiting", "num_held_pages")
LENGTH = 1900  # tokens of a story, which takes longer than ending it


@ramiform.function
def story(s: ProgramState) -> None:
    s += "Once upon a time" + gen("tale", max_tokens=LENGTH, ignore_eos=True)


@ramiform.function
async def story_async(s: ProgramState) -> str:
    s += "Once upon a time" + gen("tale", max_tokens=LENGTH, ignore_eos=True)
    return await s.get("tale")  # type: ignore[no-any-return]


@ramiform.function
def outer(s: ProgramState) -> None:
    story()


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it goes on")


def is_idle(runtime: Any, drawn: int) -> bool:
    """Nothing runs, and what ran was ended before its last token."""
    info = ramiform.get_server_info(runtime)
    if any(info[name] for name in BUSY):
        return False
    assert info["num_output_tokens"] - drawn < LENGTH
    return True


@pytest.mark.parametrize("program", [story, story_async, outer])
@pytest.mark.parametrize("way", ["drop", "collect", "close"])
def test_a_stream_without_a_reader_ends_its_program(runtime: Any, program: Any, way: str) -> None:
    gc.freeze()  # else a collection walks for seconds what other tests have left
    drawn = ramiform.get_server_info(runtime)["num_output_tokens"]
    state = program.run(stream=True, backend=runtime)
    pieces = state.text_iter() if program is not outer else iter(("",))
    assert next(pieces) is not None
    wait_until(lambda: ramiform.get_server_info(runtime)["num_running"] > 0)
    if way == "close":
        state.close()
        with pytest.raises(RuntimeFailed, match="closed"):
            state.text()
    elif way == "collect":
        cycle: list[Any] = [state, pieces]
        cycle.append(cycle)
        del cycle, state, pieces
        gc.collect()
    else:
        del state
        next(pieces, None)  # the stream alone is held, and goes on
        assert ramiform.get_server_info(runtime)["num_running"] > 0 or program is outer
        del pieces
    gc.unfreeze()
    wait_until(lambda: is_idle(runtime, drawn))


@pytest.mark.parametrize("program", [story, story_async, outer])
def test_a_cancelled_task_ends_its_program(runtime: Any, program: Any) -> None:
    drawn = ramiform.get_server_info(runtime)["num_output_tokens"]

    async def main() -> None:
        task = asyncio.create_task(program.arun(backend=runtime))
        await asyncio.to_thread(wait_until, lambda: ramiform.get_server_info(runtime)["num_running"] > 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    wait_until(lambda: is_idle(runtime, drawn))


def test_a_stream_in_an_event_loop_ends_with_the_task_that_reads_it(runtime: Any) -> None:
    drawn = ramiform.get_server_info(runtime)["num_output_tokens"]

    async def read(pieces: list[str]) -> None:
        state = await story_async.arun(stream=True, backend=runtime)
        async for piece in state.text_async_iter():
            pieces.append(piece)

    async def main() -> None:
        pieces: list[str] = []
        task = asyncio.create_task(read(pieces))
        while len(pieces) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        await asyncio.to_thread(wait_until, lambda: is_idle(runtime, drawn))

    asyncio.run(main())
