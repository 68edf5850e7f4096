"""Programs in event loops: awaited, streamed, in batches, cancelled; and the budgets of programs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, RuntimeFailed, gen
from ramiform.runtime.protocol import session, wire
from ramiform.runtime.protocol.errors import ErrorInfo

pytestmark = pytest.mark.usefixtures("endpoint")


@ramiform.function
async def chat(s: ProgramState, name: str) -> str:
    s += f"Hello {name}: " + gen("x")
    first = await s.get("x")
    s += " and " + gen("y")
    return f"{first}, {await s.get('y')}"


@ramiform.function
def plain(s: ProgramState, name: str) -> str:
    s += f"Hello {name}: " + gen("x")
    return str(s["x"])


def arun(coroutine: Any) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await coroutine

    return asyncio.run(bounded())


def test_an_async_program_runs_in_the_loop_that_awaits_it() -> None:
    async def main() -> None:
        state = await chat.arun("Ada")
        assert state.ret_value == "<11>, <20>"
        assert state["x"] == "<11>"
        assert state.text() == "Hello Ada: <11> and <20>"

    arun(main())


def test_a_sync_program_can_be_awaited_and_an_async_one_called() -> None:
    async def main() -> str:
        return (await plain.arun("Ada")).text()

    assert arun(main()) == "Hello Ada: <11>"
    assert chat.run("Ada").ret_value == "<11>, <20>"


def test_a_text_travels_with_the_generation_after_it_and_at_the_end_of_the_turn_without_one(frontend: Any) -> None:
    @ramiform.function
    async def program(s: ProgramState) -> None:
        s += "a" + gen("x")
        await s.get("x")
        s += "b"
        s += "c" + gen("y")
        await s.get("y")
        s += "d"
        await asyncio.to_thread(frontend.wait_until, lambda: session.Text("d") in frontend.operations())

    async def main() -> None:
        state = await program.arun()
        assert state.text() == "a<1>bc<6>d"

    arun(main())
    [together] = frontend.messages(session.Play)
    assert [[type(one) for one in part.operations] for part in together.messages] == [
        [session.Text],
        [session.Text, session.Gen],
    ]


def test_a_text_that_cannot_be_sent_is_refused_where_it_is_appended() -> None:
    @ramiform.function
    async def program(s: ProgramState) -> str:
        s += "a"
        with pytest.raises(RequestError, match="not valid Unicode") as refused:
            s += "\ud800"
        assert "test_async.py" in str(refused.value)
        s += "b"
        await s.wait()
        return s.text()

    async def main() -> None:
        assert (await program.arun()).ret_value == "ab"

    arun(main())


def test_texts_that_are_too_long_for_one_message_are_sent_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 20_000)

    @ramiform.function
    async def program(s: ProgramState) -> str:
        for _ in range(5):
            s += "a" * 5_000
        s += gen("x")
        await s.get("x")
        for _ in range(5):
            s += "b" * 5_000
        await s.wait()
        return s.text()

    async def main() -> None:
        assert (await program.arun()).ret_value == "a" * 25_000 + "<25000>" + "b" * 25_000

    arun(main())


def test_running_an_async_program_in_a_running_loop_names_arun() -> None:
    async def main() -> None:
        with pytest.raises(RequestError, match=r"await program\.arun"):
            chat.run("Ada")

    arun(main())


def test_reading_that_would_block_the_loop_is_refused_with_its_line(frontend: Any) -> None:
    frontend.script = lambda text, operation: frontend.HOLD

    @ramiform.function
    async def reads(s: ProgramState) -> None:
        s += gen("x")
        for read in (lambda: s["x"], s.text, s.messages, s.sync, lambda: next(s.text_iter("x"))):
            with pytest.raises(RequestError, match=r"await s\.get") as caught:
                read()
            assert str(caught.value).startswith(__file__)
        frontend.play_on(lambda text, operation: "now")
        await s.wait()
        assert s["x"] == s.text() == "now"

    arun(reads.arun())


def test_reading_one_variable_waits_for_that_one_only(frontend: Any) -> None:
    frontend.script = lambda text, operation: "first" if text == "1" else frontend.HOLD

    @ramiform.function
    async def body(s: ProgramState) -> list[str]:
        s += "1" + gen("x") + "2" + gen("y")
        seen = [await s.get("x")]
        frontend.play_on(lambda text, operation: "second")
        return [*seen, await s.get("y")]

    assert arun(body.arun()).ret_value == ["first", "second"]


def test_branches_of_an_async_program_join() -> None:
    @ramiform.function
    async def body(s: ProgramState) -> Any:
        branches = s.fork(3)
        branches += lambda index: "x" * index + gen("x")
        branches.join()
        return await s.get("x")

    assert arun(body.arun()).ret_value == ["<0>", "<1>", "<2>"]


@pytest.mark.parametrize("program", [chat, plain])
def test_a_stream_is_followed_with_async_for(frontend: Any, program: Any) -> None:
    frontend.script = lambda text, operation: ["one ", frontend.HOLD]

    async def main() -> None:
        state = await program.arun("Ada", stream=True)
        pieces = []
        async for piece in state.text_async_iter("x"):
            pieces.append(piece)
            if len(pieces) == 1:
                frontend.play_on(lambda text, operation: ["one ", "two ", "three"])
        assert pieces[0] == "one "
        assert "".join(pieces) == "one two three"
        whole = "".join([piece async for piece in state.text_async_iter()])
        assert whole.startswith("Hello Ada: one two three")
        await state.wait()
        assert whole == state.text()

    arun(main())


def test_tasks_that_a_body_starts_are_part_of_it() -> None:
    @ramiform.function
    async def body(s: ProgramState) -> None:
        async def read() -> None:
            with pytest.raises(KeyError, match="never"):
                await s.get("never")  # were it a follower, it would wait for the body, which waits for it

        await asyncio.gather(read())

    async def main() -> None:
        state = await body.arun(stream=True)
        await state.wait()

    arun(main())


@pytest.mark.exhaustive
def test_thousands_of_programs_run_in_one_loop(frontend: Any) -> None:
    names: set[str] = set()

    @ramiform.function
    async def body(s: ProgramState, number: int) -> None:
        names.add(threading.current_thread().name)
        s += f"{number}:" + gen("x")
        await s.get("x")

    threads = threading.active_count()
    states = body.run_batch([{"number": number} for number in range(2000)])
    assert [state.text().split(":")[0] for state in states] == [str(number) for number in range(2000)]
    assert names == {"ramiform-batch"}
    assert threading.active_count() <= threads + 2  # beside the connection's


def test_errors_of_an_async_batch_are_as_those_of_threads(frontend: Any) -> None:
    frontend.script = lambda text, operation: ErrorInfo(kind="request", message="no good") if "Bob" in text else "ok"
    batch = [{"name": "Ada"}, {"name": "Bob"}, {"name": "Cy"}]
    with pytest.raises(RequestError, match="no good"):
        chat.run_batch(batch)
    results = chat.run_batch(batch, return_exceptions=True)
    assert isinstance(results[1].error, RequestError)
    assert results[2]["x"] == "ok"
    assert str(results[1]).startswith(__file__)


@pytest.mark.parametrize("how", ["async", "sync", "compiled"])
def test_cancelling_a_program_ends_it_in_the_runtime_at_once(frontend: Any, how: str) -> None:
    frontend.script = lambda text, operation: frontend.HOLD
    program = ramiform.function((chat if how == "async" else plain).function)
    if how == "compiled":

        @ramiform.function
        def whole(s: ProgramState, name: str) -> None:
            branches = s.fork(2)
            branches += name + gen("x")
            branches.join()

        program = whole
        program.compile(name="x")

    async def main() -> None:
        task = asyncio.create_task(program.arun("Ada"))
        await asyncio.to_thread(frontend.wait_until, lambda: frontend.operations(session.Gen))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(
            frontend.wait_until, lambda: any(message.programs for message in frontend.messages(session.Close))
        )

    arun(main())


def test_closing_a_program_closes_its_branches_too(frontend: Any) -> None:
    frontend.script = lambda text, operation: frontend.HOLD

    @ramiform.function
    def body(s: ProgramState) -> None:
        branches = s.fork(2)
        branches += gen("x")
        frontend.wait_until(lambda: len(frontend.operations(session.Gen)) == 2)
        s.sync()
        s.close()
        for branch in branches:
            with pytest.raises(RuntimeFailed, match="closed"):
                branch["x"]

    body.run()
    frontend.wait_until(lambda: any(message.programs for message in frontend.messages(session.Close)))


# Budgets


def test_budgets_travel_with_the_program_and_are_no_arguments_of_it(frontend: Any) -> None:
    plain.run("Ada", timeout=2.5, max_total_tokens=100)
    chat.run_batch([("Bob",)], timeout=3)
    first, second = frontend.messages(session.Open)
    assert first.budget == session.Budget(seconds=2.5, tokens=100)
    assert second.budget == session.Budget(seconds=3)

    @ramiform.function
    def own(s: ProgramState, timeout: str) -> None:
        s += timeout + gen("x")

    assert own.run(timeout="mine").text() == "mine<4>"
    assert frontend.messages(session.Open)[-1].budget is None


@pytest.mark.parametrize(
    "budget", [{"timeout": 0}, {"timeout": "soon"}, {"max_total_tokens": -1}, {"max_total_tokens": 2.5}]
)
def test_a_budget_that_is_none_is_refused(budget: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="must be positive") as caught:
        plain.run("Ada", **budget)
    assert caught.value.param == next(iter(budget))


def test_states_that_the_runtime_took_away_fail_and_the_connection_goes_on(frontend: Any) -> None:
    lost = ErrorInfo(kind="request", message="the budget is spent", param="timeout", code="timeout")
    frontend.script = lambda text, operation: frontend.HOLD
    state = plain.run("Ada", stream=True)
    frontend.wait_until(lambda: frontend.operations(session.Gen))
    frontend.say(session.Lost((1,), lost))
    with pytest.raises(RequestError, match="the budget is spent") as caught:
        state["x"]
    assert str(caught.value).startswith(__file__)
    assert caught.value.param == "timeout"
    frontend.script = lambda text, operation: "fine"
    assert plain.run("Bob")["x"] == "fine"


def test_an_async_body_that_waits_for_something_else_ends_by_its_timeout() -> None:
    @ramiform.function
    async def sleeps(s: ProgramState) -> None:
        s += gen("x")
        await asyncio.Event().wait()

    with pytest.raises(RequestError, match=r"did not end within its 0\.05 s \(timeout\)") as caught:
        arun(sleeps.arun(timeout=0.05))
    assert str(caught.value).startswith(__file__)
    assert caught.value.param == "timeout"
