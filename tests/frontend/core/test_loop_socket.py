"""Sockets that the event loop reads. Judge: plain sockets of the same context."""

from __future__ import annotations

import asyncio

import pytest
import zmq
import zmq.asyncio

from ramiform.runtime.frontend.core.loop_socket import MESSAGES_PER_TURN, LoopSocket


def test_every_message_is_read_in_order_and_each_read_ends_with_a_pause() -> None:
    num = 2 * MESSAGES_PER_TURN + 7
    read: list[bytes] = []
    pauses: list[int] = []

    async def main() -> None:
        with zmq.asyncio.Context() as context, zmq.Context.shadow(context.underlying).socket(zmq.PAIR) as peer:
            peer.bind("inproc://peer")
            socket = LoopSocket(context, zmq.PAIR, lambda frames: read.extend(frames), lambda: pauses.append(len(read)))
            socket.raw.connect("inproc://peer")
            for number in range(num):
                peer.send(b"%d" % number)
            socket.start()
            async with asyncio.timeout(60):
                while len(read) < num:
                    await asyncio.sleep(0)
                peer.send(b"later")  # signalled by the descriptor alone
                while len(read) == num:
                    await asyncio.sleep(0.001)
            socket.close(linger=0)

    asyncio.run(main())
    assert read == [*(b"%d" % number for number in range(num)), b"later"]
    assert pauses[-2:] == [num, num + 1]


def test_a_closed_socket_refuses_to_send_though_another_has_its_address_in_memory() -> None:
    async def main() -> None:
        with zmq.asyncio.Context() as context:
            socket = LoopSocket(context, zmq.DEALER, lambda frames: None)
            socket.start()
            address = socket.raw.underlying
            socket.close(linger=0)
            socket.close(linger=0)
            others = []
            while len(others) < 300 and (not others or others[-1].underlying != address):
                others.append(context.socket(zmq.DEALER))
                await asyncio.sleep(0.001)  # ZMQ frees the closed one in a thread of its own
            with pytest.raises(zmq.ZMQError) as refused:
                socket.send(b"for nobody")
            assert refused.value.errno == zmq.ENOTSOCK
            for other in others:
                other.close(linger=0)

    asyncio.run(main())
