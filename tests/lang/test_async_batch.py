"""Batches in event loops, and sync runs that block them."""

from __future__ import annotations

import asyncio
import threading
import warnings
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, gen
from ramiform.runtime.protocol import session
from ramiform.runtime.protocol.errors import ErrorInfo

pytestmark = pytest.mark.usefixtures("endpoint")


def plain(s: ProgramState, name: str) -> str:
    s += name + gen("x")
    return str(s["x"])


async def awaits(s: ProgramState, name: str) -> str:
    s += name + gen("x")
    return str(await s.get("x"))


def whole(s: ProgramState, name: str) -> None:
    s += name + gen("x")


def program_of(kind: str) -> ramiform.Program[..., Any]:
    program: ramiform.Program[..., Any] = ramiform.function({"sync": plain, "async": awaits, "compiled": whole}[kind])
    if kind == "compiled":
        program.compile(name="x")
    return program


kinds = pytest.mark.parametrize("kind", ["sync", "async", "compiled"])
NAMES = [f"n{number}" for number in range(20)]


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 60))


@kinds
def test_states_come_in_order_and_the_loop_goes_on_meanwhile(frontend: Any, kind: str) -> None:
    frontend.script = lambda text, operation: frontend.HOLD
    program = program_of(kind)

    async def main() -> list[Any]:
        batch = asyncio.create_task(program.arun_batch([{"name": name} for name in NAMES]))
        await asyncio.to_thread(frontend.wait_until, lambda: len(frontend.operations(session.Gen)) == len(NAMES))
        frontend.play_on(lambda text, operation: text.upper())
        return await batch

    assert [state["x"] for state in run(main())] == [name.upper() for name in NAMES]
    assert run(program.arun_batch([])) == []


@kinds
def test_num_threads_bounds_how_many_run(frontend: Any, kind: str) -> None:
    frontend.script = lambda text, operation: frontend.HOLD

    async def main() -> None:
        batch = asyncio.create_task(program_of(kind).arun_batch([(name,) for name in NAMES], num_threads=3))
        await asyncio.to_thread(frontend.wait_until, lambda: len(frontend.operations(session.Gen)) >= 3)
        assert len(frontend.operations(session.Gen)) == 3
        frontend.play_on(lambda text, operation: "x")
        await batch

    run(main())
    with pytest.raises(RequestError, match="num_threads"):
        program_of(kind).arun_batch([], num_threads=0)


@kinds
def test_errors_are_as_those_of_run_batch(frontend: Any, kind: str) -> None:
    bad = ErrorInfo(kind="request", message="no good")
    frontend.script = lambda text, operation: bad if text in ("n3", "n5") else "fine"
    program, batch = program_of(kind), [(name,) for name in NAMES]
    with pytest.raises(RequestError, match="no good") as caught:
        run(program.arun_batch(batch))
    assert caught.value.arguments == {"name": "n3"}
    assert len(frontend.operations(session.Gen)) == len(NAMES), "the others run to their end"
    results = run(program.arun_batch(batch, return_exceptions=True))
    failed = [result for result in results if isinstance(result, ramiform.BatchError)]
    assert [(one.index, one.arguments) for one in failed] == [(3, {"name": "n3"}), (5, {"name": "n5"})]
    assert len(failed) + sum(isinstance(result, ProgramState) for result in results) == len(NAMES)


@kinds
def test_the_iterator_gives_states_as_they_end_and_closing_it_ends_the_rest(frontend: Any, kind: str) -> None:
    frontend.script = lambda text, operation: "fast" if text in ("n0", "n1") else frontend.HOLD

    async def main() -> None:
        states = program_of(kind).arun_batch([(name,) for name in NAMES], generator_style=True)
        assert (await anext(states))["x"] == "fast"
        assert (await anext(states))["x"] == "fast"
        await states.aclose()  # type: ignore[attr-defined]
        held = len(NAMES) - 2
        await asyncio.to_thread(frontend.wait_until, lambda: len(frontend.messages(session.Close)) >= held)

    run(main())


@kinds
def test_cancelling_a_batch_ends_its_programs(frontend: Any, kind: str) -> None:
    frontend.script = lambda text, operation: frontend.HOLD

    async def main() -> None:
        task = asyncio.create_task(program_of(kind).arun_batch([("a",), ("b",)]))
        await asyncio.to_thread(frontend.wait_until, lambda: len(frontend.operations(session.Gen)) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(frontend.wait_until, lambda: len(frontend.messages(session.Close)) >= 2)

    run(main())


def test_a_sync_run_in_a_running_loop_warns_once_for_its_line() -> None:
    program = ramiform.function(plain)

    async def main() -> list[str]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("default")
            for _ in range(3):
                program.run("a")
            program.run_batch([("a",)])
            await program.arun("a")
            await program.arun_batch([("a",)])
            await asyncio.to_thread(program.run, "a")
            program.run("a", stream=True)
        assert {one.category for one in seen} == {RuntimeWarning}
        assert {one.filename for one in seen} == {__file__}
        return [str(one.message) for one in seen]

    first, second = asyncio.run(main())
    assert "await plain.arun(...)" in first
    assert "await plain.arun_batch(...)" in second
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program.run("a")
        thread = threading.Thread(target=program.run, args=("a",))
        thread.start()
        thread.join()
