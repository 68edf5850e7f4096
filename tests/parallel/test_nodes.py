"""Joining of nodes: admission, refusals with their reasons, and reports. Sockets are real; there are no ranks."""

from __future__ import annotations

import json
import queue
import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

import ramiform
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.parallel.fingerprint import NodeFingerprint, files_digest
from ramiform.runtime.parallel.master_address import MasterAddress, interface_name
from ramiform.runtime.parallel.messages import NodeFailed, NodeLeave, NodeReady, NodeWelcome, Rendezvous
from ramiform.runtime.parallel.node_zero import WorkerNodes
from ramiform.runtime.parallel.worker_node import NodeZeroConnection
from ramiform.runtime.processes.launch import make_config
from ramiform.runtime.protocol.config import CoreConfig, RuntimeConfig, ServeConfig
from ramiform.runtime.protocol.errors import ErrorInfo, RamiformError, RequestError, RuntimeFailed
from ramiform.runtime.protocol.keys import make_keys
from ramiform.tests.processes.processes import free_port

PATIENCE = 120.0
RENDEZVOUS = Rendezvous("127.0.0.1", 1234, "prefix")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", "node")
    return tmp_path / "keys"


@pytest.fixture
def first(keys: Path) -> CoreConfig:
    """Node 0 of three."""
    return CoreConfig(tp=3, nnodes=3, master=f"127.0.0.1:{free_port()}", node_keys=str(keys))


class House:
    """Node 0, with a record of the reports it received."""

    def __init__(self, config: CoreConfig) -> None:
        self.heard: queue.Queue[RamiformError | str] = queue.Queue()
        whole = RuntimeConfig(core=config, serve=ServeConfig(socket_dir=""))
        self.nodes = WorkerNodes(whole, RENDEZVOUS, lambda: self.heard.put("ready"), self.heard.put)


@pytest.fixture
def house(first: CoreConfig) -> Iterator[House]:
    made = House(first)
    yield made
    made.nodes.quit()


Come = Callable[..., NodeZeroConnection]


@pytest.fixture
def come(first: CoreConfig) -> Iterator[Come]:
    """Connect node `node` with some settings changed; `reachable=False`: nobody listens for plans any more."""
    made = []

    def join(
        node: int, *, fingerprint: NodeFingerprint | None = None, reachable: bool = True, **changed: Any
    ) -> NodeZeroConnection:
        config = msgspec.structs.replace(first, node_rank=node, **changed)
        link = NodeZeroConnection(config)
        made.append(link)
        if not reachable:
            link.plans.unbind(link.plans.getsockopt_string(zmq.LAST_ENDPOINT))
        assert link.join(node, fingerprint or NodeFingerprint.of(config)) == NodeWelcome(RENDEZVOUS)
        return link

    yield join
    for link in made:
        link.close()


@pytest.mark.slow
def test_all_joined_nodes_get_the_same_messages_and_report(house: House, come: Come) -> None:
    links = [come(2), come(1)]
    house.nodes.wait_joined(lambda: None)
    sent = [b"", b"plan", bytes(1 << 20)]
    for data in sent:
        house.nodes.send(data)
    for link in links:
        for data in sent:
            assert link.plans.poll(PATIENCE * 1000)
            assert link.plans.recv() == data
        link.send(NodeReady())
        assert house.heard.get(timeout=PATIENCE) == "ready"


@pytest.mark.slow
def test_a_failed_node_s_report_comes_before_its_loss(house: House, come: Come) -> None:
    link = come(1)
    link.send(NodeFailed(ErrorInfo.of(RuntimeFailed("rank 1 fell over"))))
    link.close()
    assert str(house.heard.get(timeout=PATIENCE)) == "rank 1 fell over"
    assert "node 1 (tcp://127.0.0.1:" in str(house.heard.get(timeout=PATIENCE))


@pytest.mark.slow
def test_an_unreachable_node_is_reported_lost(house: House, come: Come) -> None:
    come(1, reachable=False)
    assert "node 1 (tcp://127.0.0.1:" in str(house.heard.get(timeout=PATIENCE))


@pytest.mark.parametrize("error", [None, RuntimeFailed("something died")])
def test_nodes_are_told_of_the_end(house: House, come: Come, error: RamiformError | None) -> None:
    link = come(1)
    info = None if error is None else ErrorInfo.of(error)
    house.nodes.end(info)
    assert link.control.poll(PATIENCE * 1000)
    assert link.receive() == NodeLeave(info)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "param", "message"),
    [
        ({"tp": 6}, "tp", "node 1 was started with tp 6, node 0 with 3"),
        ({"deterministic": True}, "deterministic", "deterministic True"),
        ({"kv_memory": 2.0}, "kv_memory", "kv_memory 2.0, node 0 with None"),
        ({"num_pages": 77}, "num_pages", "num_pages 77, node 0 with None"),
    ],
    ids=["tp", "deterministic", "kv_memory", "num_pages"],
)
def test_a_node_of_other_settings_is_refused_by_name(
    house: House, come: Come, changed: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        come(1, **changed)
    assert caught.value.param == param
    come(1)  # in its place comes one that fits


def test_a_node_of_another_model_or_version_is_refused(house: House, come: Come, first: CoreConfig) -> None:
    fingerprint = NodeFingerprint.of(first)
    with pytest.raises(RequestError, match="the model of node 1 differs from node 0") as caught:
        come(1, fingerprint=msgspec.structs.replace(fingerprint, files={"model": "0"}))
    assert caught.value.param == "model"
    with pytest.raises(RequestError, match=r"node 1 runs ramiform 0\.0") as caught:
        come(1, fingerprint=msgspec.structs.replace(fingerprint, version="0.0"))
    assert caught.value.param == "version"


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 2, 3])
def test_a_number_that_is_taken_or_too_high_is_refused(house: House, come: Come, number: int) -> None:
    come(2)
    with pytest.raises(RequestError, match=f"node_rank {number}") as caught:
        come(number)
    assert caught.value.param == "node_rank"


def test_unknown_keys_are_refused(house: House, come: Come, keys: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    make_keys(stranger, "node")
    shutil.copy(keys / "server.key", stranger / "server.key")
    with pytest.raises(RequestError, match="does not know our key") as caught:
        come(1, node_keys=str(stranger))
    assert caught.value.param == "node_keys"


@pytest.mark.slow
def test_connections_without_a_key_are_dropped(house: House, come: Come, first: CoreConfig) -> None:
    context = zmq.Context()
    plain = context.socket(zmq.DEALER)
    plain.connect(f"tcp://{first.master}")
    plain.send(msgspec.msgpack.encode(NodeFailed(ErrorInfo.of(RuntimeFailed("believe me")))))
    link = come(1)
    link.send(NodeReady())
    assert house.heard.get(timeout=PATIENCE) == "ready"
    assert house.heard.empty()
    context.destroy(linger=0)


@pytest.mark.slow
def test_invalid_messages_and_those_of_strangers_are_dropped(house: House, come: Come, first: CoreConfig) -> None:
    link = come(1)
    other = NodeZeroConnection(msgspec.structs.replace(first, node_rank=2))
    other.send(NodeFailed(ErrorInfo.of(RuntimeFailed("nobody knows me"))))
    other.control.send(b"\xff nonsense")
    other.join(2, NodeFingerprint.of(first))  # after which both have been looked at
    other.close()
    assert "node 2 (tcp" in str(house.heard.get(timeout=PATIENCE))
    link.send(NodeReady())
    assert house.heard.get(timeout=PATIENCE) == "ready"


def test_an_address_that_is_taken_or_another_machines_is_refused(first: CoreConfig, house: House) -> None:
    for master in (first.master, "192.0.2.1:4000"):
        with pytest.raises(RequestError, match=f"cannot listen at master {master}") as caught:
            House(msgspec.structs.replace(first, master=master))
        assert caught.value.param == "master"


def test_waiting_ends_with_the_runtime(house: House) -> None:
    def check() -> None:
        raise RuntimeFailed("a rank died")

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(house.nodes.wait_joined, check)
        house.nodes.end(None)
        with pytest.raises(RuntimeFailed, match="a rank died"):
            waiting.result(PATIENCE)


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"master": "127.0.0.1:4000"}, "master"),
        ({"node_rank": 1}, "node_rank"),
        ({"nnodes": 2, "tp": 2, "node_rank": 2, "master": "127.0.0.1:4000"}, "node_rank"),
        ({"nnodes": 2, "tp": 3, "master": "127.0.0.1:4000"}, "nnodes"),
        ({"nnodes": 2, "tp": 2}, "master"),
        ({"nnodes": 2, "tp": 2, "master": "127.0.0.1"}, "master"),
        ({"nnodes": 2, "tp": 2, "master": "127.0.0.1:99999"}, "master"),
        ({"nnodes": 2, "tp": 2, "master": "127.0.0.1:4000"}, "node_keys"),
        ({"nnodes": 2, "tp": 2, "master": "127.0.0.1:4000", "node_keys": "/nowhere"}, "node_keys"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_settings_that_cannot_be_met_are_refused_before_anything_starts(settings: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        make_config(None, settings)
    assert caught.value.param == param


def test_a_program_is_node_0(keys: Path) -> None:
    with pytest.raises(RequestError, match="ramiform serve") as caught:
        ramiform.Runtime(nnodes=2, tp=2, node_rank=1, master="127.0.0.1:4000", node_keys=str(keys))
    assert caught.value.param == "node_rank"


def test_a_digest_depends_on_the_model_and_not_on_its_folder(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(SHIPPED_MODEL, copy)
    assert files_digest(copy) == files_digest(SHIPPED_MODEL)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"rope_theta": 5.0}))
    assert files_digest(copy) != files_digest(SHIPPED_MODEL)


def test_the_interface_of_an_address_is_found() -> None:
    name = interface_name("127.0.0.1")
    assert name in {name for _, name in socket.if_nameindex()}
    assert interface_name("192.0.2.1") is None
    assert MasterAddress("127.0.0.1", 80).own_ip() == "127.0.0.1"
