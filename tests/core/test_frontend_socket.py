"""The core's socket to the frontends, with bare sockets and a frontend's own client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from ramiform.runtime.core.frontend_socket import FrontendSocket
from ramiform.runtime.frontend.core.client import CoreClient
from ramiform.runtime.protocol import wire
from ramiform.runtime.protocol.core import (
    Abort,
    Answers,
    Attach,
    Finish,
    FromCore,
    Generate,
    RequestFailed,
    TakeSessions,
    Tokens,
)
from ramiform.runtime.protocol.errors import ErrorInfo, RequestError
from ramiform.runtime.protocol.sampling import SamplingParams


def asks(rid: str) -> Generate:
    return Generate(rid=rid, tokens=[1], sampling=SamplingParams(seed=0))


def says(rid: str, *ids: int, last: bool = False) -> Tokens:
    return Tokens(rid=rid, ids=list(ids), num_cached=0, finish=Finish("stop") if last else None)


class Frontend:
    """A bare socket that waits at most a minute."""

    def __init__(self, address: str) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        wire.set_options(self.socket)
        self.socket.setsockopt(zmq.RCVTIMEO, 60_000)
        self.socket.connect(address)

    def send(self, message: Any) -> None:
        self.socket.send(wire.encode(message))

    def receive(self) -> Any:
        return msgspec.msgpack.Decoder(FromCore).decode(self.socket.recv())


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/core"


@pytest.fixture
def link(address: str) -> Iterator[FrontendSocket]:
    never, writer = os.pipe()
    made = FrontendSocket(address, never)
    yield made
    made.fail(RequestError("over"))
    os.close(never)
    os.close(writer)


@pytest.fixture
def frontends(link: FrontendSocket, address: str) -> Iterator[list[Frontend]]:
    """Two. The first has asked for a and b, the second for c."""
    made = [Frontend(address), Frontend(address)]
    for rid, frontend in (("a", made[0]), ("b", made[0]), ("c", made[1])):
        frontend.send(asks(rid))
        assert [message.rid for _, message in link.receive(60_000) if isinstance(message, Generate)] == [rid]
    yield made
    for frontend in made:
        frontend.socket.close()


def test_the_answers_of_a_step_to_one_frontend_are_one_message(link: FrontendSocket, frontends: list[Frontend]) -> None:
    first, second = frontends
    failed = RequestFailed("b", ErrorInfo.of(RequestError("no")))
    link.send([says("a", 1), says("c", 2), failed])
    assert first.receive() == Answers([says("a", 1), failed])
    assert second.receive() == says("c", 2)
    link.send([says("a", 3, last=True), says("b", 4), says("c", 5)])  # b is over
    assert first.receive() == says("a", 3, last=True)
    assert second.receive() == says("c", 5)


def test_answers_that_are_too_long_together_come_one_by_one(
    link: FrontendSocket, frontends: list[Frontend], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = [says("a", *range(400)), says("b", *range(400))]
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 1500)
    link.send([*long])
    assert [frontends[0].receive(), frontends[0].receive()] == long


def test_an_answer_too_long_by_itself_fails_its_request_alone(
    link: FrontendSocket, frontends: list[Frontend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the client's who asked for so much, and no reason for the core to end."""
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 1500)
    unsent = link.send([says("a", *range(2000)), says("b", 1), says("c", *range(2000), last=True)])
    assert [(type(message), message.rid) for _, message in unsent] == [(Abort, "a")]  # c has ended by itself
    failed, other = frontends[0].receive(), frontends[0].receive()
    assert isinstance(failed, RequestFailed)
    assert (failed.rid, failed.error.code) == ("a", "too_long")
    assert other == says("b", 1)
    assert frontends[1].receive().error.code == "too_long"
    frontends[0].send(asks("a"))  # it is forgotten
    assert [message.rid for _, message in link.receive(10_000) if isinstance(message, Generate)] == ["a"]


def test_a_message_is_there_from_its_arrival_until_it_is_received(
    link: FrontendSocket, frontends: list[Frontend]
) -> None:
    assert not link.has_messages()
    frontends[0].send(asks("x"))
    while not link.has_messages():
        pass
    assert link.has_messages()
    assert [message for _, message in link.receive(0)] == [asks("x")]
    assert not link.has_messages()


def test_a_frontend_that_attaches_late_hears_why_the_core_cannot_start(address: str) -> None:
    never, writer = os.pipe()
    failing = FrontendSocket(address, never)
    early, late = Frontend(address), Frontend(address)
    early.send(Attach())
    ending = Thread(
        target=failing.fail, args=(RequestError("no such model"),), kwargs={"num_frontends": 2, "seconds": 60.0}
    )
    ending.start()
    assert early.receive().error.message == "no such model"  # without waiting for the other
    assert ending.is_alive()
    late.send(Attach())
    assert late.receive().error.message == "no such model"
    ending.join()
    for frontend in (early, late):
        frontend.socket.close()
    os.close(never)
    os.close(writer)


def test_each_waiter_of_a_frontend_gets_its_own_part_of_a_message(link: FrontendSocket, address: str) -> None:
    async def main() -> None:
        context = zmq.asyncio.Context()
        client = CoreClient(context, address)
        client.start()
        streams = {rid: client.submit(asks(rid)) for rid in "xyz"}
        num_asked = 0
        while num_asked < 3:
            num_asked += sum(isinstance(message, Generate) for _, message in link.receive(60_000))
        link.send([says(rid, index) for index, rid in enumerate(streams)])
        link.send([says("x", 7, last=True), RequestFailed("y", ErrorInfo.of(RequestError("no"))), says("z", 9, 9)])
        link.send([says("z", last=True)])
        async with asyncio.timeout(60):
            assert [answer.ids async for answer in streams["x"]] == [[0], [7]]
            assert (await anext(streams["y"])).ids == [1]
            with pytest.raises(RequestError, match="no"):
                await anext(streams["y"])
            assert [answer.ids async for answer in streams["z"]] == [[2], [9, 9], []]
        assert client.num_live == 0
        await client.close()
        context.term()

    asyncio.run(main())


def test_sessions_of_another_runtime_go_to_a_frontend_that_can_take_them(link: FrontendSocket, address: str) -> None:
    worker, frontend = Frontend(address), Frontend(address)
    for each, message in ((worker, Attach(takes_sessions=False)), (frontend, Attach())):
        each.send(message)
        assert [message for _, message in link.receive(60_000)] == [message]
    link.deliver([("sessions", TakeSessions(b"saved"))])
    assert frontend.receive() == TakeSessions(b"saved")
    worker.socket.close()
    frontend.socket.close()


def test_a_request_that_a_service_refuses_is_forgotten(link: FrontendSocket, address: str) -> None:
    frontend, failed = Frontend(address), RequestFailed("a", ErrorInfo.of(RequestError("no")))
    for _ in range(2):
        frontend.send(asks("a"))
        [(owner, message)] = link.receive(60_000)
        assert message == asks("a")
        link.deliver([(owner, failed)])
        assert frontend.receive() == failed
    frontend.socket.close()
