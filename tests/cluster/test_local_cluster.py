"""The plan of a cluster on this machine, without Dynamo: where it listens, its broker, and which deaths end it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import zmq

from ramiform.runtime.processes.supervisor import ChildProcess
from ramiform.runtime.protocol.errors import RequestError, RuntimeFailed
from ramiform.tools.cluster.local_cluster import ClusterPlan, _part_died


def made(**others: Any) -> ClusterPlan:
    return ClusterPlan.make(None, {"num_pages": 64}, replicas=2, prefill=0, **{"port": 0, "keep_going": True} | others)


@pytest.fixture
def plan() -> Iterator[ClusterPlan]:
    value = made()
    yield value
    shutil.rmtree(value.folder)
    for config in value.replicas.values():
        shutil.rmtree(config.serve.socket_dir)


def test_nothing_listens_beyond_this_machine_whatever_the_environment_says(
    plan: ClusterPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYN_HTTP_HOST", "0.0.0.0")
    monkeypatch.setenv("DYN_EVENT_PLANE_HOST", "10.0.0.1")
    monkeypatch.setenv("DYN_ZMQ_BROKER_URL", "xsub=tcp://*:1 , xpub=tcp://*:2")
    monkeypatch.setenv("DYN_ROUTER_MODE", "round-robin")
    environment = plan.environment()
    assert {value for name, value in environment.items() if name.endswith("_HOST") and name.startswith("DYN_")} == {
        "127.0.0.1"
    }
    assert environment["DYN_ROUTER_MODE"] == "round-robin"
    ends = [end.partition("=")[2] for end in environment["DYN_ZMQ_BROKER_URL"].split(" , ")]
    assert all(end.startswith(f"ipc://{plan.folder}/") for end in ends)
    assert plan.folder.stat().st_mode & 0o777 == 0o700
    for config in plan.replicas.values():
        assert (config.serve.engine, config.serve.host, config.serve.port) == ("dynamo", "127.0.0.1", 0)
        assert config.core.kv_events == f"ipc://{config.serve.socket_dir}/events"
        assert config.core.kv_events_format == "vllm"


def test_the_broker_gives_events_of_every_publisher_to_every_subscriber(plan: ClusterPlan) -> None:
    broker, context = plan.start_broker(), zmq.Context()
    incoming, outgoing = (end.partition("=")[2] for end in plan.environment()["DYN_ZMQ_BROKER_URL"].split(" , "))
    subscribers, publishers = [context.socket(zmq.SUB) for _ in range(2)], [context.socket(zmq.PUB) for _ in range(2)]
    for socket, address in [(each, outgoing) for each in subscribers] + [(each, incoming) for each in publishers]:
        socket.linger, socket.rcvtimeo = 0, 100
        socket.connect(address)
    try:
        for subscriber in subscribers:
            subscriber.subscribe(b"kv")
            received: set[bytes] = set()
            while received != {b"0", b"1"}:  # until the subscription has arrived at both
                for number, publisher in enumerate(publishers):
                    publisher.send_multipart([b"kv", str(number).encode()])
                try:
                    received.add(subscriber.recv_multipart()[1])
                except zmq.Again:
                    continue
    finally:
        context.destroy(linger=0)
        broker.term()


def test_a_part_that_dies_ends_the_cluster_unless_another_can_answer(plan: ClusterPlan) -> None:
    parts = cast(dict[str, ChildProcess], dict.fromkeys(["replica 0", "replica 1", "router"]))
    death, shown = RuntimeFailed("it was killed"), list[str]()
    for keep_going, has_started, name in (
        (True, True, "router"),
        (True, False, "replica 0"),
        (False, True, "replica 0"),
    ):
        changed = ClusterPlan(plan.replicas, {}, 1, plan.folder, keep_going)
        with pytest.raises(RuntimeFailed, match="killed"):
            _part_died(changed, name, death, dict(parts), has_started=has_started, show=shown.append)
    _part_died(plan, "replica 0", death, parts, has_started=True, show=shown.append)
    assert shown == ["replica 0 is gone, going on with 1 runtime: it was killed"]
    with pytest.raises(RuntimeFailed):
        _part_died(plan, "replica 1", death, parts, has_started=True, show=shown.append)


def test_a_wrong_setting_leaves_nothing_behind() -> None:
    def folders() -> set[Path]:
        return set(Path(tempfile.gettempdir()).glob("ramiform-cluster-*"))

    before = folders()
    with pytest.raises(RequestError, match="num_pages"):
        ClusterPlan.make(None, {"num_pages": 1}, replicas=1, prefill=0, port=0, keep_going=False)
    assert folders() <= before
