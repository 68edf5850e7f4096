"""Publishes prefix cache events over ZMQ, in the layout that vLLM's and SGLang's subscribers read.

A PUB socket sends [topic, sequence number, batch]. The number is 8 bytes, big-endian, and increases by one, so that a
subscriber sees a gap; the batch is msgpack. A ROUTER socket replays: asked [b"", number], it sends [b"", number, batch]
for every kept batch from that number on, then the number -1 with an empty batch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from ...radix.events import Cleared, Removed, Stored
from ..protocol.errors import RequestError

MAX_KEPT_BATCHES = 10_000  # batches kept for replay
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_MEDIUM_NAMES = {"device": "GPU", "host": "CPU"}  # the subscribers' names, whatever the device is
_STOP = b""


def replay_address(address: str) -> str:
    """Address of the replay socket: the next TCP port, or a path beside an ipc path."""
    transport, _, place = address.partition("://")
    host, colon, port = place.rpartition(":")
    if transport == "tcp" and colon and port.isdigit():
        return f"tcp://{host}:{int(port) + 1}"
    if transport == "ipc" and place:
        return f"{address}.replay"
    raise RequestError(f"kv_events must be tcp://HOST:PORT or ipc://PATH, got {address!r}", param="kv_events")


class _PublishedEvent(msgspec.Struct, omit_defaults=True, tag=True):
    """Base of published events: a map with the class name under "type"."""


class BlockStored(_PublishedEvent):
    """Whole pages. `block_hashes[i]` stands for page i of `token_ids` and everything before it."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    cache_salt: str | None = None  # the namespace


class BlockRemoved(_PublishedEvent):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(_PublishedEvent):
    pass


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float  # seconds since the epoch
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class CacheEventPublisher:
    """Publishes at `address`, and replays at `replay_address(address)`, in a thread: slow subscribers do not delay the
    core.

    Raises RequestError when an address cannot be bound.
    """

    def __init__(self, address: str, *, page_size: int, topic: str = "") -> None:
        self._page_size = page_size
        self._topic = topic.encode()
        self._context = zmq.Context()
        self._inbox = self._socket(zmq.PAIR, "inproc://events")
        self._pub = self._socket(zmq.PUB, address)
        self._replay = self._socket(zmq.ROUTER, replay_address(address))
        self._outbox = self._context.socket(zmq.PAIR)
        self._outbox.sndhwm = 0
        self._outbox.connect("inproc://events")
        self._thread = threading.Thread(target=self._run, name="cache events", daemon=True)
        self._thread.start()

    def publish(self, events: Sequence[Stored | Removed | Cleared]) -> None:
        """Publish the events as one batch. Does not block."""
        if events:
            batch = EventBatch(time.time(), [self._wire(event) for event in events])
            self._outbox.send(msgspec.msgpack.encode(batch))

    def close(self) -> None:
        self._outbox.send(_STOP)
        self._thread.join()
        self._outbox.close(linger=0)
        self._context.term()

    def _socket(self, kind: int, address: str) -> Any:
        socket = self._context.socket(kind)
        socket.linger = 0
        # Beyond this limit a PUB socket drops messages to a slow subscriber, which sees the gap; a ROUTER would drop
        # the end of a replay, and its client would wait for ever. Messages to the thread have no limit.
        socket.sndhwm = MAX_KEPT_BATCHES + 1
        socket.rcvhwm = 0
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise RequestError(f"cannot publish events at {address!r}: {error}", param="kv_events") from None
        return socket

    def _wire(self, event: Stored | Removed | Cleared) -> BlockStored | BlockRemoved | AllBlocksCleared:
        match event:
            case Stored():
                return BlockStored(
                    block_hashes=list(event.hashes),
                    parent_block_hash=event.parent,
                    token_ids=list(event.tokens),
                    block_size=self._page_size,
                    lora_id=None,
                    medium=_MEDIUM_NAMES[event.tier],
                    cache_salt=event.namespace or None,
                )
            case Removed():
                return BlockRemoved(block_hashes=list(event.hashes), medium=_MEDIUM_NAMES[event.tier])
            case Cleared():
                return AllBlocksCleared()

    def _run(self) -> None:
        kept: deque[tuple[bytes, bytes]] = deque(maxlen=MAX_KEPT_BATCHES)
        number = 0
        poller = zmq.Poller()
        for socket in (self._inbox, self._replay):
            poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._inbox in ready:
                batch = self._inbox.recv()
                if batch == _STOP:
                    break
                kept.append((number.to_bytes(8, "big"), batch))
                self._pub.send_multipart([self._topic, *kept[-1]])
                number += 1
            if self._replay in ready:
                self._answer(self._replay.recv_multipart(), kept)
        for socket in (self._inbox, self._replay, self._pub):
            socket.close()

    def _answer(self, frames: list[bytes], kept: deque[tuple[bytes, bytes]]) -> None:
        if len(frames) != 3 or len(frames[2]) != 8:
            return  # not this protocol
        client, empty, start = frames
        for number, batch in kept:
            if number >= start:
                self._replay.send_multipart([client, empty, number, batch])
        self._replay.send_multipart([client, empty, END_OF_REPLAY, b""])
