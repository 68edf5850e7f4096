"""Publishes prefix cache events over ZMQ, in SGLang's or vLLM's layout, which the routers of others read.

A PUB socket sends [topic, sequence number, batch]. The number is 8 bytes, big-endian, and increases by one, so that a
subscriber sees a gap; the batch is msgpack. A ROUTER socket replays: asked [b"", number], it sends [b"", number, batch]
for every kept batch from that number on, then the number -1 with an empty batch. In vLLM's layout the topic precedes
the number in a replay too, and b"" the number -1.

A batch is an array in both layouts. An event is an array with the class name first in SGLang's, and a map with the
class name under "type" in vLLM's (0.26 and later; before, vLLM's was SGLang's).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import zmq

from ...radix.cache import PrefixCache
from ...radix.events import Cleared, Removed, Stored
from ..protocol.config import KvEventsFormat
from ..protocol.errors import RequestError
from ..protocol.transport import bind_leaving_no_file
from .service import Reply, Service

MAX_KEPT_BATCHES = 10_000  # batches kept for replay
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_MEDIUM_NAMES = {"device": "GPU", "host": "CPU"}  # the subscribers' names, whatever the device is
_STOP = b""


def replay_address(address: str) -> str:
    """Return the address of the replay socket: the next TCP port, or a path beside an ipc path."""
    transport, _, place = address.partition("://")
    host, colon, port = place.rpartition(":")
    if transport == "tcp" and colon and port.isdigit():
        return f"tcp://{host}:{int(port) + 1}"
    if transport == "ipc" and place:
        return f"{address}.replay"
    raise RequestError(f"kv_events must be tcp://HOST:PORT or ipc://PATH, got {address!r}", param="kv_events")


class _PublishedEvent(msgspec.Struct, array_like=True, tag=True):
    """Base of published events: an array of the class name and the fields, none left out."""


class BlockStored(_PublishedEvent):
    """Whole pages. `block_hashes[i]` stands for page i of `token_ids` and everything before it.

    `extra_keys[i]` is what page i's hash depends on beside tokens: the adapter's name, and the namespace for the first
    page of a prefix. None: nothing.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None] | None


class BlockRemoved(_PublishedEvent):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(_PublishedEvent):
    pass


class EventBatch(msgspec.Struct, array_like=True):
    ts: float  # seconds since the epoch
    events: list[Any]
    data_parallel_rank: int = 0  # sent always: some readers require it


class CacheEventPublisher:
    """Publishes at `address`, and replays at `replay_address(address)`, in a thread: slow subscribers do not delay the
    core.

    Raises RequestError when an address cannot be bound.
    """

    def __init__(self, address: str, *, page_size: int, topic: str = "", layout: KvEventsFormat = "sglang") -> None:
        self._page_size = page_size
        self._layout = layout
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
            self._outbox.send(msgspec.msgpack.encode(EventBatch(time.time(), [self._wire(event) for event in events])))

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
            bind_leaving_no_file(socket, address)
        except zmq.ZMQError as error:
            raise RequestError(f"cannot publish events at {address!r}: {error}", param="kv_events") from None
        return socket

    def _wire(self, event: Stored | Removed | Cleared) -> _PublishedEvent | dict[str, Any]:
        match event:
            case Stored():
                published = self._stored(event)
            case Removed():
                published = BlockRemoved(block_hashes=list(event.hashes), medium=_MEDIUM_NAMES[event.tier])
            case Cleared():
                published = AllBlocksCleared()
        if self._layout == "sglang":
            return published
        fields = {"type": type(published).__name__, **msgspec.structs.asdict(published)}
        if isinstance(event, Stored) and event.namespace:
            fields["cache_salt"] = event.namespace  # Dynamo reads the namespace here
        return fields

    def _stored(self, event: Stored) -> BlockStored:
        extra_keys = [[event.adapter] if event.adapter else [] for _ in event.hashes]
        if event.parent is None and event.namespace:
            extra_keys[0].append(event.namespace)
        return BlockStored(
            block_hashes=list(event.hashes),
            parent_block_hash=event.parent,
            token_ids=list(event.tokens),
            block_size=self._page_size,
            lora_id=None,  # adapters have names
            medium=_MEDIUM_NAMES[event.tier],
            lora_name=event.adapter,
            extra_keys=[keys or None for keys in extra_keys] if any(extra_keys) else None,
        )

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
        topic, no_topic = ([self._topic], [b""]) if self._layout == "vllm" else ([], [])
        for number, batch in kept:
            if number >= start:
                self._replay.send_multipart([client, empty, *topic, number, batch])
        self._replay.send_multipart([client, empty, *no_topic, END_OF_REPLAY, b""])


class CacheEventService(Service):
    """Publishes a cache's events after each step."""

    def __init__(self, cache: PrefixCache, publisher: CacheEventPublisher) -> None:
        self._cache, self._publisher = cache, publisher

    def after_step(self) -> Iterable[Reply]:
        self._publisher.publish(self._cache.take_events())
        return ()
