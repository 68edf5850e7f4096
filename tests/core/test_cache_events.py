"""Cache events as a subscriber receives them, and the plan log of a real run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from typer.testing import CliRunner

import ramiform
from ramiform.cli import app
from ramiform.radix.events import Removed
from ramiform.runtime.core.cache_events import END_OF_REPLAY, CacheEventPublisher, replay_address
from ramiform.runtime.protocol.errors import RequestError


@ramiform.function
def asks(s: Any, topic: str) -> None:
    s += f"The capital of {topic} is"
    s += ramiform.gen("answer", max_tokens=24, ignore_eos=True, temperature=0)


@pytest.mark.exhaustive
def test_a_subscriber_receives_every_page_and_can_replay_what_it_missed() -> None:
    with tempfile.TemporaryDirectory(prefix="rf") as folder:
        address, log = f"ipc://{folder}/events", Path(folder) / "plans.jsonl"
        with ramiform.Runtime(num_pages=256, kv_events=address, log_plans=str(log), log_level="error") as runtime:
            context = zmq.Context()
            try:
                for topic in ("France", "Peru", "Japan", "France"):
                    asks.run(topic, backend=runtime)
                batches = replayed(context, replay_address(address))
            finally:
                context.term()
        events = [event for batch in batches for event in batch[1]]
        known: set[int] = set()
        for tag, *fields in events:
            if tag != "BlockStored":
                continue
            hashes, parent, token_ids, block_size, *_ = fields
            assert len(token_ids) == len(hashes) * block_size
            assert parent is None or parent in known
            assert not known & set(hashes), "the same prefix is stored once"
            known.update(hashes)
        assert len(known) >= 3
        result = CliRunner().invoke(app, ["bench", "replay", str(log)])
        assert result.exit_code == 0, result.output
        assert "all as logged" in result.output
        changed = CliRunner().invoke(app, ["bench", "replay", str(log), "--no-prefix-cache"])
        assert changed.exit_code == 0, changed.output


@pytest.mark.slow
def test_a_replay_is_whole_however_slowly_it_is_read(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/events"
    publisher = CacheEventPublisher(address, page_size=16)
    num = 5000
    for number in range(num):
        publisher.publish([Removed((number,), "device")])
    context = zmq.Context()
    try:
        batches: list[Any] = []
        while len(batches) < num:  # the last of them may be on their way to the publisher's thread
            batches = replayed(context, replay_address(address), most_waiting=1)
        assert [event[1] for batch in batches for event in batch[1]] == [[n] for n in range(num)]
    finally:
        context.term()
        publisher.close()


def replayed(context: Any, address: str, most_waiting: int = 1000) -> list[Any]:
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.rcvhwm = most_waiting
    socket.rcvtimeo = 120_000
    socket.connect(address)
    socket.send_multipart([b"", (0).to_bytes(8, "big")])
    batches = []
    try:
        while True:
            _, number, batch = socket.recv_multipart()
            if number == END_OF_REPLAY:
                return batches
            assert int.from_bytes(number, "big") == len(batches), "no batch is missing"
            batches.append(msgspec.msgpack.decode(batch))
    finally:
        socket.close()


@pytest.mark.parametrize("address", ["nonsense", "udp://127.0.0.1:1", "tcp://127.0.0.1"])
def test_an_address_that_cannot_be_is_named(address: str) -> None:
    with pytest.raises(RequestError, match="kv_events"):
        replay_address(address)
