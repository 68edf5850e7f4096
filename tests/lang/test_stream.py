"""Streaming to the end or to the error, in threads and event loops, without polling."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, RuntimeFailed, gen
from ramiform.runtime.protocol import session
from ramiform.runtime.protocol.errors import ErrorInfo

pytestmark = pytest.mark.usefixtures("endpoint")

PIECES = ["Once ", "upon ", "a ", "time"]


@ramiform.function
def story(s: ProgramState) -> str:
    s += "Tell: " + gen("tale") + " The end."
    s["title"] = "mine"
    return "told"


def collect(state: ProgramState, var: str | None, into: list[str]) -> None:
    for piece in state.text_iter(var):
        into.append(piece)


def test_pieces_come_while_the_rest_is_still_being_generated(frontend: Any) -> None:
    frontend.script = lambda text, operation: [*PIECES[:2], frontend.HOLD, *PIECES[2:]]
    state = story.run(stream=True)
    tale = state.text_iter("tale")
    whole = state.text_iter()
    first = next(tale)
    while first != "Once upon ":
        first += next(tale)
    assert next(whole) == "Tell: "
    frontend.play_on(lambda text, operation: PIECES)
    # What was held counts as sent: the script goes on behind it.
    assert first + "".join(tale) == "".join(PIECES)
    assert "Tell: " + "".join(whole) == "Tell: " + "".join(PIECES) + " The end."
    assert state["tale"] == "".join(PIECES)
    assert state.ret_value == "told"


def test_a_finished_program_can_be_followed_again_and_again() -> None:
    state = story.run()
    for _ in range(2):
        assert "".join(state.text_iter()) == "Tell: <6> The end."
        assert "".join(state.text_iter("tale")) == "<6>"
        assert "".join(state.text_iter("title")) == "mine"


def test_only_a_streamed_run_asks_the_runtime_for_pieces(frontend: Any) -> None:
    story.run().sync()
    story.run(stream=True).sync()
    assert [operation.stream for operation in frontend.operations(session.Gen)] == [False, True]


def test_reading_a_streamed_program_waits_for_operations_still_to_come(frontend: Any) -> None:
    gate = threading.Event()

    @ramiform.function
    def program(s: ProgramState) -> None:
        gate.wait(30)
        s += "a" + gen("x")
        s["y"] = 1

    state = program.run(stream=True)
    got: list[Any] = []
    readers = [
        threading.Thread(target=lambda: got.append(state["x"])),
        threading.Thread(target=lambda: got.append(state["y"])),
        threading.Thread(target=lambda: got.append(state.text())),
        threading.Thread(target=lambda: got.append("".join(state.text_iter("x")))),
    ]
    for reader in readers:
        reader.start()
    gate.set()
    for reader in readers:
        reader.join()
    assert sorted(map(str, got)) == ["1", "<1>", "<1>", "a<1>"]
    with pytest.raises(KeyError, match="no variable 'z'"):
        state["z"]


def test_the_body_may_follow_its_own_state() -> None:
    @ramiform.function
    def program(s: ProgramState) -> str:
        s += "a" + gen("x")
        return "".join(s.text_iter()) + s.text()

    state = program.run(stream=True)
    state.sync()
    assert state.ret_value == "a<1>a<1>"


def test_a_failing_stream_yields_the_earlier_text_and_then_its_error(frontend: Any) -> None:
    error = ErrorInfo(kind="request", message="no more")
    frontend.script = lambda text, operation: [*PIECES[:2], error]
    for var, before in ((None, "Tell: Once upon "), ("tale", "Once upon ")):
        state = story.run(stream=True)
        got: list[str] = []
        with pytest.raises(RequestError, match="no more"):
            collect(state, var, got)
        assert "".join(got) == before
        assert isinstance(state.error(), RequestError)


def test_a_body_that_raises_ends_the_stream_with_that(frontend: Any) -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += "a"
        raise ZeroDivisionError("mine")

    state = program.run(stream=True)
    got = []
    with pytest.raises(ZeroDivisionError):
        got.extend(state.text_iter())
    for read in (state.text, state.sync, lambda: state["x"], lambda: list(state.text_iter("x"))):
        with pytest.raises(ZeroDivisionError):
            read()
    assert isinstance(state.error(), ZeroDivisionError)


def test_a_stream_ends_when_the_runtime_dies(frontend: Any) -> None:
    frontend.script = lambda text, operation: ["Once ", frontend.HOLD]
    state = story.run(stream=True)
    pieces = state.text_iter("tale")
    assert next(pieces) == "Once "
    frontend.die()
    with pytest.raises(RuntimeFailed, match="is gone"):
        next(pieces)


def test_event_loops_follow_many_streams_at_once(frontend: Any) -> None:
    frontend.script = lambda text, operation: [*PIECES[:2], frontend.HOLD, *PIECES[2:]]

    async def follow(state: ProgramState) -> str:
        return "".join([piece async for piece in state.text_async_iter("tale")])

    async def main() -> list[str]:
        states = [story.run(stream=True) for _ in range(10)]
        tasks = [asyncio.create_task(follow(state)) for state in states]
        first = [await anext(state.text_async_iter()) for state in states]
        assert set(first) == {"Tell: "}
        frontend.play_on(lambda text, operation: PIECES)
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == ["".join(PIECES)] * 10


def test_meta_data_come_with_the_last_piece(frontend: Any) -> None:
    frontend.script = lambda text, operation: PIECES

    async def main() -> list[Any]:
        state = story.run(stream=True)
        pairs = [pair async for pair in state.text_async_iter("tale", return_meta_data=True)]
        with pytest.raises(RequestError, match="needs var_name"):
            await anext(state.text_async_iter(return_meta_data=True))
        return pairs

    pairs = asyncio.run(main())
    assert "".join(text for text, _ in pairs) == "".join(PIECES)
    assert pairs[-1][1]["finish_reason"] == {"type": "stop", "matched": "\n"}
    assert all(meta == {"finish_reason": None} for _, meta in pairs[:-1])


def test_meta_data_wait_for_the_last_piece_where_all_has_come_before(
    frontend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend.script = lambda text, operation: PIECES
    state = story.run(stream=True)
    assert state["tale"] == "".join(PIECES)
    monkeypatch.setattr(state._reader, "follow", lambda var: iter(PIECES))  # as who reads slowly gets them

    async def main() -> list[Any]:
        return [pair async for pair in state.text_async_iter("tale", return_meta_data=True)]

    pairs = asyncio.run(main())
    assert [text for text, _ in pairs] == PIECES
    assert [meta["finish_reason"] is None for _, meta in pairs] == [True] * (len(PIECES) - 1) + [False]


def test_an_event_loop_gets_the_error_too(frontend: Any) -> None:
    frontend.script = lambda text, operation: ["Once ", frontend.HOLD]

    async def main() -> None:
        pieces = story.run(stream=True).text_async_iter("tale")
        assert await anext(pieces) == "Once "
        frontend.die()
        with pytest.raises(RuntimeFailed, match="is gone"):
            await anext(pieces)

    asyncio.run(main())


def test_a_variable_that_is_not_text_cannot_be_followed() -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s["number"] = 3

    with pytest.raises(RequestError, match="is not one piece of text: 3"):
        list(program.run().text_iter("number"))


def test_waiting_for_text_wakes_once_per_change_and_not_otherwise(
    frontend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramiform.lang.operations.operation_log import OperationLog

    waits = 0
    wait_for_change = OperationLog.wait_for_change

    def count(self: OperationLog, version: int) -> None:
        nonlocal waits
        waits += 1
        wait_for_change(self, version)

    monkeypatch.setattr(OperationLog, "wait_for_change", count)
    frontend.script = lambda text, operation: frontend.HOLD
    state = story.run(stream=True)
    frontend.wait_until(lambda: len(frontend.operations(session.Gen)) == 1)
    done = threading.Event()
    got: list[str] = []
    reader = threading.Thread(target=lambda: (got.extend(state.text_iter("tale")), done.set()))
    reader.start()
    frontend.play_on(lambda text, operation: PIECES)
    reader.join()
    assert "".join(got) == "".join(PIECES)
    assert waits <= state._log.version
