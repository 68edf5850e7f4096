"""Cache events as the readers of other projects decode them. Their layouts are written down from their sources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import zmq

from ramiform.radix.events import Cleared, Removed, Stored
from ramiform.runtime.core.cache_events import CacheEventPublisher, replay_address

TOKENS = list(range(32))
EVENTS = [
    Stored("tenant", None, [1 << 63, 2], TOKENS, "device", adapter="style"),
    Stored("tenant", 2, [3], TOKENS[:16], "device"),
    Stored("", None, [4], TOKENS[:16], "host"),
    Removed([2, 3], "device"),
    Cleared(),
]
Layout = Literal["sglang", "vllm"]


# SGLang's, and vLLM's before 0.26: `kv_events.py` of both.
class ArrayEvent(msgspec.Struct, array_like=True, omit_defaults=True, tag=lambda name: name.removeprefix("Array")):
    pass


class ArrayBlockStored(ArrayEvent):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    lora_name: str | None = None


class ArrayBlockRemoved(ArrayEvent):
    block_hashes: list[int]
    medium: str | None = None


class ArrayAllBlocksCleared(ArrayEvent):
    pass


class ArrayBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[ArrayBlockStored | ArrayBlockRemoved | ArrayAllBlocksCleared]
    data_parallel_rank: int | None = None


# vLLM's from 0.26 on, and TensorRT-LLM's: the batch is an array, its events are maps.
class MapEvent(msgspec.Struct, omit_defaults=True, tag=lambda name: name.removeprefix("Map")):
    pass


class MapBlockStored(MapEvent):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None


class MapBlockRemoved(MapEvent):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None


class MapAllBlocksCleared(MapEvent):
    pass


class MapBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[MapBlockStored | MapBlockRemoved | MapAllBlocksCleared]
    data_parallel_rank: int | None = None


@dataclass
class Index:
    """Index that a router keeps of one worker: the key of each held block, by the worker's hash."""

    blocks: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    def store(self, hashes: list[int], parent: int | None, tokens: list[int], size: int, *salts: Any) -> None:
        above = () if parent is None else self.blocks[parent]
        for number, name in enumerate(hashes):
            above = (*above, (*tokens[number * size :][:size], *(salt[number] for salt in salts if salt)))
            self.blocks[name] = above


def dynamo(payload: bytes) -> Index:
    """Decode as `zmq_wire/` of Dynamo's kv-router does: a batch of exactly three elements, events as arrays or maps."""
    _, events, rank = msgspec.msgpack.decode(payload, type=tuple[float, list[Any], int | None])
    assert rank is not None
    index = Index()
    for event in events:
        if isinstance(event, dict):
            namespace = event.get("cache_salt")
            values = [event.get(name) for name in ("block_hashes", "parent_block_hash", "token_ids", "block_size")]
            tag, lora_name = event["type"], event.get("lora_name")
        else:
            tag, *values = event
            namespace, lora_name = None, values[6] if tag == "BlockStored" else None
        if tag == "BlockStored":
            index.store(*values[:4], [lora_name] * len(values[0]), [namespace] * len(values[0]))
        elif tag == "BlockRemoved":
            for name in values[0]:
                del index.blocks[name]
        else:
            assert tag == "AllBlocksCleared"
            index.blocks.clear()
    return index


def llm_d(payload: bytes, *, at_least: dict[str, int]) -> Index:
    """Decode as `engineadapter/` of llm-d's router does: arrays of at least so many fields, or maps by field name."""
    stored = "block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx".split()
    order = {"BlockStored": stored, "BlockRemoved": ["block_hashes", "medium", "group_idx"], "AllBlocksCleared": []}
    batch = msgspec.msgpack.decode(payload)
    assert len(batch) >= 2
    assert isinstance(batch[0], float)
    index = Index()
    for event in batch[1]:
        if isinstance(event, dict):
            event = [event["type"], *(event.get(name) for name in order[event["type"]])]
        assert len(event) >= at_least[event[0]]
        event += [None] * (9 - len(event))
        if event[0] == "BlockStored":
            _, hashes, parent, tokens, size, _, medium, _, extra_keys = event[:9]
            assert medium in ("GPU", "CPU")
            index.store(
                hashes, parent, tokens, size, None if extra_keys is None else [tuple(k or ()) for k in extra_keys]
            )
        elif event[0] == "BlockRemoved":
            assert event[2] in ("GPU", "CPU")
            for name in event[1]:
                del index.blocks[name]
        else:
            index.blocks.clear()
    return index


class Publication:
    """A publisher, and a subscriber that has missed nothing."""

    def __init__(self, folder: Path, layout: Layout, topic: str) -> None:
        self.address = f"ipc://{folder}/events"
        self.publisher = CacheEventPublisher(self.address, page_size=16, topic=topic, layout=layout)
        self.context = zmq.Context()
        self.subscriber = self.context.socket(zmq.SUB)
        self.subscriber.linger, self.subscriber.rcvtimeo = 0, 200
        self.subscriber.subscribe(topic.encode())
        self.subscriber.connect(self.address)
        while True:  # until the subscription has arrived
            self.publisher.publish([Removed([], "device")])
            try:
                self.next_number = self._number(self.subscriber.recv_multipart()) + 1
                break
            except zmq.Again:
                continue
        self.subscriber.rcvtimeo = 60_000

    def send(self, events: list[Any]) -> list[bytes]:
        """Publish events as one batch and return the frames that the subscriber receives."""
        self.publisher.publish(events)
        while True:
            frames = self.subscriber.recv_multipart()
            if len(msgspec.msgpack.decode(frames[2])[1]) == len(events) and self._number(frames) >= self.next_number:
                self.next_number = self._number(frames) + 1
                return list(frames)

    def replay(self, first: int) -> list[list[bytes]]:
        """Ask for the batches from `first` on and return the frames of each answer, the last one included."""
        dealer = self.context.socket(zmq.DEALER)
        dealer.linger, dealer.rcvtimeo = 0, 60_000
        dealer.connect(replay_address(self.address))
        dealer.send_multipart([b"", first.to_bytes(8, "big")])
        answers: list[list[bytes]] = []
        while not answers or answers[-1][-1]:
            answers.append(list(dealer.recv_multipart()))
        dealer.close()
        return answers

    def close(self) -> None:
        self.subscriber.close()
        self.context.term()
        self.publisher.close()

    @staticmethod
    def _number(frames: list[bytes]) -> int:
        return int.from_bytes(frames[1], "big")


@pytest.fixture(params=["sglang", "vllm"])
def published(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Layout, Publication]]:
    made = Publication(tmp_path, request.param, "kv@pod-1@the-model")
    yield request.param, made
    made.close()


def test_every_reader_decodes_what_is_published(published: tuple[Layout, Publication]) -> None:
    layout, publication = published
    topic, number, payload = publication.send(EVENTS)
    assert topic.split(b"@") == [b"kv", b"pod-1", b"the-model"]
    assert len(number) == 8
    kind: Any = ArrayBatch if layout == "sglang" else MapBatch
    batch = msgspec.msgpack.decode(payload, type=kind)
    assert msgspec.msgpack.decode(payload)[2] == batch.data_parallel_rank == 0
    first, second, third, removed, _ = batch.events
    assert (first.block_hashes, first.parent_block_hash, first.token_ids) == ([1 << 63, 2], None, TOKENS)
    assert (first.block_size, first.lora_id, first.lora_name, first.medium) == (16, None, "style", "GPU")
    assert (second.parent_block_hash, third.medium) == (2, "CPU")
    assert (removed.block_hashes, removed.medium) == ([2, 3], "GPU")
    if layout == "vllm":
        assert [event.extra_keys for event in batch.events[:3]] == [[("style", "tenant"), ("style",)], None, None]
    _, _, before = publication.send(EVENTS[:4])
    for stored, gone in ((5, 2), (7, 3)):  # llm-d's reader for vLLM, and the one for SGLang
        fewest = {"BlockStored": stored, "BlockRemoved": gone, "AllBlocksCleared": 1}
        assert set(llm_d(before, at_least=fewest).blocks) == {1 << 63, 4}
        assert llm_d(payload, at_least=fewest).blocks == {}
    assert set(dynamo(before).blocks) == {1 << 63, 4}
    assert dynamo(payload).blocks == {}


def test_a_router_predicts_hits_for_the_same_namespace_and_adapter_only(published: tuple[Layout, Publication]) -> None:
    _, publication = published
    same = [
        Stored(namespace, None, [number], TOKENS[:16], "device", adapter=adapter)
        for number, (namespace, adapter) in enumerate([("", None), ("a", None), ("b", None), ("", "x"), ("a", "x")])
    ]
    _, _, payload = publication.send(same)
    fewest = {"BlockStored": 7, "BlockRemoved": 3, "AllBlocksCleared": 1}
    assert len(set(llm_d(payload, at_least=fewest).blocks.values())) == len(same)
    if publication.publisher._layout == "vllm":  # Dynamo reads a namespace only where it has a name
        assert len(set(dynamo(payload).blocks.values())) == len(same)


def test_a_subscriber_that_reconnects_is_replayed_what_it_missed(published: tuple[Layout, Publication]) -> None:
    layout, publication = published
    topic, number, payload = publication.send(EVENTS)
    answers = publication.replay(int.from_bytes(number, "big"))
    end = (-1).to_bytes(8, "big", signed=True)
    if layout == "vllm":  # what llm-d expects too: the frames of the publication
        assert answers == [[b"", topic, number, payload], [b"", b"", end, b""]]
    else:
        assert answers == [[b"", number, payload], [b"", end, b""]]
