"""The socket that programs connect to: greetings, garbage, silence and the end."""

from __future__ import annotations

import asyncio
import time

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.runtime.frontend.programs.server import CLIENT_SILENCE_SECONDS
from ramiform.runtime.protocol import wire
from ramiform.runtime.protocol.errors import ErrorInfo, RequestError, RuntimeFailed
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.protocol.session import (
    Append,
    Bye,
    Call,
    Close,
    Done,
    Failed,
    Fatal,
    Gen,
    Hello,
    Lost,
    Malformed,
    Ping,
    Reply,
    Sync,
    Text,
    Welcome,
)
from ramiform.runtime.protocol.version import __version__
from ramiform.tests.frontend.harness import House, house, run

SAMPLING = SamplingParams(seed=1)


async def lives(built: House) -> None:
    """A new client is served as if nothing had been."""
    client = built.client()
    await client.open(1)
    answers = await client.play(1, Text("a"), Gen(sampling=SAMPLING))
    assert all(isinstance(answer, Done) for answer in answers)


def test_a_client_is_welcomed_once_the_model_is_loaded() -> None:
    async def main() -> None:
        async with house(ready=False) as built:
            client = built.client()
            await client.send(Hello(__version__), Call(1, "stats"))
            assert isinstance(await client.receive(), Reply)  # the stats; the welcome waits
            built.core.loaded.set()
            assert await client.receive() == Welcome(built.core.info)

    run(main())


def test_a_client_of_another_version_is_sent_away() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.send(Hello("0.0.0"))
            message = await client.receive()
            assert isinstance(message, Fatal)
            assert "0.0.0" in message.error.message
            await lives(built)

    run(main())


def test_a_core_that_cannot_start_fails_the_waiting_clients() -> None:
    async def main() -> None:
        async with house(ready=False) as built:
            built.core.failure = RequestError("no such checkpoint", param="model")
            client = built.client()
            await client.send(Hello(__version__))
            built.core.loaded.set()
            with pytest.raises(RequestError, match="no such checkpoint"):
                await built.frontend.core_ready()
            message = await client.receive()
            assert isinstance(message, Fatal)
            assert message.error.message == "no such checkpoint"

    run(main())


def test_questions_are_answered() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.send(Call(1, "info"), Call(2, "flush_cache"), Call(3, "stats"))
            replies = {message.call: message for message in [await client.receive() for _ in range(3)]}
            assert replies[1].info == built.core.info
            assert replies[2] == Reply(2)
            assert replies[3].stats is not None
            assert built.core.num_flushes == 1

    run(main())


@pytest.mark.slow
def test_invalid_messages_are_answered_and_other_clients_go_on() -> None:
    # One house for all examples: what one left behind would show in the next.
    loop = asyncio.new_event_loop()
    context = house()
    built = loop.run_until_complete(context.__aenter__())
    client = built.client()
    some_message = wire.encode(Append(1, 0, [Text("a"), Gen(sampling=SAMPLING)]))
    mutated = st.builds(
        lambda at, byte: some_message[:at] + bytes([byte]) + some_message[at + 1 :],
        st.integers(0, len(some_message) - 1),
        st.integers(0, 255),
    )

    @settings(max_examples=150, deadline=None)
    @given(st.lists(st.binary(max_size=40) | mutated | st.just(some_message[:-3]), max_size=4))
    def throw(frames: list[bytes]) -> None:
        async def example() -> None:
            await client.socket.send_multipart(frames or [b""])
            await client.send(Call(1, "info"))
            async with asyncio.timeout(60):
                while not isinstance(message := await client.receive(), Reply):
                    assert isinstance(message, Malformed | Failed | Done)

        loop.run_until_complete(example())

    try:
        throw()
        loop.run_until_complete(lives(built))
    finally:
        loop.run_until_complete(context.__aexit__(None, None, None))
        loop.close()


@pytest.mark.parametrize(
    "frames",
    [[b"a", b"b"], [], [b"\xc1"], [b"\x91" * 10_000], [b'{"type": "ping"}']],
    ids=["two", "none", "bad", "deep", "json"],
)
def test_a_malformed_message_is_named_so(frames: list[bytes]) -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.socket.send_multipart(frames or [b""])
            message = await client.receive()
            assert isinstance(message, Malformed)
            assert message.error.code == "malformed_message"
            await lives(built)

    run(main())


def test_an_out_of_range_parameter_is_named() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            data = wire.encode(Append(1, 0, [Gen(sampling=SamplingParams(top_p=0.5))]))
            await client.socket.send(data.replace(b"\xa5top_p\xcb?\xe0", b"\xa5top_p\xcb\xbf\xe0"))
            message = await client.receive()
            assert isinstance(message, Malformed)
            assert "top_p must be in (0, 1], got -0.5" in message.error.message

    run(main())


def test_a_message_beyond_the_limit_ends_the_connection_not_the_server() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.socket.send(bytes(wire.MAX_MESSAGE_BYTES + 1))
            await lives(built)

    run(main())


@pytest.mark.parametrize("way", ["bye", "silence"])
def test_a_client_that_is_gone_leaves_nothing_running(way: str) -> None:
    async def main() -> None:
        async with house(lambda request: None) as built:
            client = built.client()
            await client.open(1, 2)
            for state in (1, 2):
                await client.append(state, Text("a"), Gen(sampling=SAMPLING))
            await client.answers(2)
            await built.core.until(lambda: len(built.core.requests) == 2)
            service = built.frontend._program_server
            if way == "bye":
                await client.send(Bye())
            else:
                [received] = [one.last_received for one in service._clients.values()]
                service.forget_silent(received + CLIENT_SILENCE_SECONDS)
                assert service.num_clients == 1
                service.forget_silent(received + CLIENT_SILENCE_SECONDS + 1)
            await built.core.until(lambda: len(built.core.aborted) == 2)
            assert service.num_clients == 0
            if way == "silence":  # it may be alive, and wait
                farewell = await client.receive()
                assert isinstance(farewell, Lost)
                assert set(farewell.states) == {1, 2}
                assert "not heard of" in farewell.error.message
            # Its states are gone: should it come back, it is told so.
            await client.append(1, Sync())
            answers = await client.answers(1)
            assert isinstance(answers[1, 2], Failed)

    run(main())


def test_an_answer_too_long_for_the_wire_fails_its_operation_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1, 2)
            monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 2000)
            [_, failed] = await client.play(1, Text("a"), Gen(sampling=SAMPLING, n=100))
            assert isinstance(failed, Failed)
            assert failed.error.code == "too_long"
            [_, done] = await client.play(2, Text("a"), Gen(sampling=SAMPLING))
            assert isinstance(done, Done)

    run(main())


def test_any_message_resets_the_silence_of_a_client() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1)
            await client.play(1, Sync())
            before = time.monotonic()
            await client.send(Ping(), Call(1, "info"))
            await client.receive()
            built.frontend._program_server.forget_silent(before + CLIENT_SILENCE_SECONDS)
            assert isinstance((await client.play(1, Sync()))[0], Done)

    run(main())


def test_a_client_without_states_may_be_silent() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1)
            await client.play(1, Sync())
            await client.send(Close((1,)), Call(1, "info"))
            assert isinstance(await client.receive(), Reply)
            built.frontend._program_server.forget_silent(time.monotonic() + CLIENT_SILENCE_SECONDS + 1)
            assert built.frontend._program_server.num_clients == 0
            await client.open(2)
            await client.send(Append(2, 0, [Sync()]))
            assert isinstance(await client.receive(), Done)

    run(main())


def test_a_core_that_dies_fails_everything_at_once() -> None:
    async def main() -> None:
        async with house(lambda request: None) as built:
            client = built.client()
            await client.open(1)
            await client.append(1, Text("a"), Gen(sampling=SAMPLING), Sync())
            await built.core.until(lambda: len(built.core.requests) == 1)
            built.core.fail(RuntimeFailed("out of memory"))
            answers = await client.answers(3)
            error = ErrorInfo(kind="runtime", message="out of memory")
            assert answers[1, 1] == Failed(1, 1, error)
            assert answers[1, 2] == Failed(1, 2, error)
            await client.open(2)
            assert (await client.play(2, Text("b"), Gen(sampling=SAMPLING)))[1] == Failed(2, 1, error)
            await client.send(Call(1, "stats"))
            assert (await client.receive()).error == error

    run(main())


def test_at_the_end_every_client_gets_the_reason() -> None:
    async def main() -> None:
        async with house(lambda request: None) as built:
            waiting, idle = built.client(), built.client()
            await waiting.open(1)
            await waiting.append(1, Text("a"), Gen(sampling=SAMPLING))
            await idle.send(Hello(__version__))
            assert isinstance(await idle.receive(), Welcome)
            await built.core.until(lambda: len(built.core.requests) == 1)
            error = ErrorInfo.of(RuntimeFailed("the core was killed"))
            await built.frontend.stop(error)
            assert await idle.receive() == Fatal(error)
            while not isinstance(message := await waiting.receive(), Fatal):
                assert isinstance(message, Done)
            assert message == Fatal(error)
            await built.frontend.wait_closed()
            await built.frontend.stop(None)

    run(main())


def test_at_the_end_the_other_clients_are_notified_though_some_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with house() as built:
            clients = [built.client() for _ in range(3)]
            for client in clients:
                await client.send(Hello(__version__))
                assert isinstance(await client.receive(), Welcome)
            service = built.frontend._program_server
            send = service._socket.send
            gone = list(service._clients)[:2]

            def send_unless_gone(identity: bytes, data: bytes) -> None:
                if identity in gone:
                    raise zmq.ZMQError(zmq.EHOSTUNREACH)
                send(identity, data)

            monkeypatch.setattr(service._socket, "send", send_unless_gone)
            await built.frontend.stop(ErrorInfo.of(RuntimeFailed("over")))
            assert isinstance(await clients[2].receive(), Fatal)

    run(main())


def test_a_client_whose_connection_ends_loses_its_states_at_once_and_others_keep_theirs() -> None:
    async def main() -> None:
        async with house(lambda request: None) as built:
            gone, other = built.client(), built.client()
            for client in (gone, other):
                await client.open(1)
                await client.append(1, Text("a"), Gen(sampling=SAMPLING))
                await client.answers(1)
            await built.core.until(lambda: len(built.core.requests) == 2)
            gone.socket.close(linger=0)  # as a killed process does; no Bye
            await built.core.until(lambda: len(built.core.aborted) == 1)  # long before it would count as silent
            assert built.frontend._program_server.num_clients == 1
            await other.append(1, Sync())
            await built.core.until(lambda: len(built.core.aborted) == 1)

    run(main())
