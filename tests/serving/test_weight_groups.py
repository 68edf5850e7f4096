"""Tensors that a trainer broadcasts to a runtime. The trainer makes its group as SGLang's do, by torch's own calls."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file

import ramiform
from ramiform.runtime.core.weight_groups import MAX_GROUPS, WeightGroups
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.sampling import InitWeightsGroup, ReceiveWeights

from .prompts import CAPITAL

GREEDY: dict[str, Any] = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
TRAINER = """
import sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.distributed_c10d import PrefixStore, _new_process_group_helper, _world
from torch.distributed.rendezvous import rendezvous

port, world, file, num_sent = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
timeout = timedelta(seconds=60)
store, rank, size = next(rendezvous(f"tcp://127.0.0.1:{port}", 0, world, timeout=timeout))
store = PrefixStore("sync", store)
group, _ = _new_process_group_helper(size, rank, [], "gloo", store, group_name="sync", timeout=timeout)
_world.pg_group_ranks[group] = {number: number for number in range(size)}
names = [name for name in sorted(load_file(file)) if "q_proj" in name]
for name in names[:num_sent]:
    dist.broadcast(1.3 * load_file(file)[name], src=0, group=group)
sys.stdin.read()  # until the test has what it wants
"""
TENSORS = load_file(SHIPPED_MODEL / "model.safetensors")
NAMES = [name for name in sorted(TENSORS) if "q_proj" in name]
DTYPES = [str(TENSORS[name].dtype) for name in NAMES]
SHAPES = [list(TENSORS[name].shape) for name in NAMES]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def start_trainer(port: int, *, world: int = 2, num_sent: int = 1000) -> subprocess.Popen[bytes]:
    file = str(SHIPPED_MODEL / "model.safetensors")
    command = [sys.executable, "-P", "-c", TRAINER, str(port), str(world), file, str(num_sent)]
    trainer = subprocess.Popen(command, stdin=subprocess.PIPE)
    while trainer.poll() is None:  # until it listens
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            break
        time.sleep(0.05)
    return trainer


def end(trainer: subprocess.Popen[bytes]) -> None:
    assert trainer.stdin is not None
    trainer.stdin.close()
    trainer.wait(30)


def logprobs(engine: ramiform.Engine) -> list[float]:
    """Return the log-probabilities of a greedy answer."""
    result = engine.generate(CAPITAL, GREEDY, return_logprob=True)
    return [value for value, _, _ in result["meta_info"]["output_token_logprobs"]]


def message_of(port: int, group: str = "sync", *, offset: int = 1, world: int = 2) -> InitWeightsGroup:
    return InitWeightsGroup(1, group, "127.0.0.1", port, offset, world)


def receive_of(names: list[str]) -> ReceiveWeights:
    shapes = [list(TENSORS[name].shape) for name in names]
    return ReceiveWeights(1, "sync", names, [DTYPES[0].removeprefix("torch.")] * len(names), shapes, "finish")


@pytest.fixture(scope="module")
def engine() -> Iterator[ramiform.Engine]:
    with ramiform.Engine(port=0, dtype="float32", num_pages=256, speculative="off", log_level="error") as made:
        yield made


@pytest.mark.exhaustive
def test_a_trainer_s_tensors_serve_as_those_of_a_file_do(engine: ramiform.Engine) -> None:
    port = free_port()
    trainer = start_trainer(port)
    before = logprobs(engine)
    with httpx.Client(base_url=engine.runtime.url, timeout=120) as http:
        body = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2}
        for wrong, param in (({"backend": "nccl"}, "backend"), ({"world_size": 1}, "world_size")):
            refused = http.post("/init_weights_update_group", json=body | wrong)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert http.post("/init_weights_update_group", json=body | {"group_name": "sync"}).json()["success"]
        again = http.post("/init_weights_update_group", json=body | {"group_name": "sync"})
        assert (again.status_code, again.json()["error"]["param"]) == (400, "group_name")
        update = {"names": NAMES, "dtypes": DTYPES, "shapes": SHAPES, "group_name": "sync", "weight_version": "one"}
        answer = http.post("/update_weights_from_distributed", json=update).json()
        assert (answer["success"], answer["weight_version"]) == (True, "one")
        assert engine.generate(CAPITAL, GREEDY)["meta_info"]["weight_version"] == "one"
        got = logprobs(engine)
        assert http.post("/destroy_weights_update_group", json={"group_name": "sync"}).json()["success"]
        assert http.post("/destroy_weights_update_group", json={"group_name": "sync"}).status_code == 400
    end(trainer)
    engine.update_weights({name: 1.3 * TENSORS[name] for name in NAMES})
    assert logprobs(engine) == pytest.approx(got, abs=1e-3)
    assert got != pytest.approx(before, abs=1e-3)


@pytest.mark.exhaustive
def test_a_refused_or_broken_transfer_leaves_the_old_weights_and_ends_the_group(engine: ramiform.Engine) -> None:
    before = logprobs(engine)
    wrong: list[tuple[list[str], list[str], list[list[int]], str]] = [
        (["model.no.weight"], ["float32"], [[1]], "none of the served model's"),
        (NAMES[:1], DTYPES[:1], [[1, 2]], "shape"),
        (NAMES[:1], ["int64"], SHAPES[:1], "dtype"),
        (NAMES[:1] * 2, DTYPES[:2], SHAPES[:2], "named twice"),
    ]
    for names, dtypes, shapes, reason in wrong:
        with pytest.raises(RequestError, match=reason):
            engine.update_weights_from_distributed(names, dtypes, shapes, "sync")
    with pytest.raises(RequestError, match=r"2 and 1|1, 2 and"):
        engine.update_weights_from_distributed(NAMES[:1], DTYPES[:2], SHAPES[:1], "sync")
    with pytest.raises(RequestError, match="no group 'sync'"):
        engine.update_weights_from_distributed(NAMES, DTYPES, SHAPES, "sync")
    port = free_port()
    trainer = start_trainer(port, num_sent=2)
    engine.init_weights_update_group("127.0.0.1", port, 1, 2, "sync")
    trainer.kill()
    end(trainer)
    with pytest.raises(RequestError, match=r"[0-2] of \d+ tensors came over the group 'sync', which has ended"):
        engine.update_weights_from_distributed(NAMES, DTYPES, SHAPES, "sync")
    with pytest.raises(RequestError, match="no group 'sync'"):
        engine.destroy_weights_update_group("sync")
    assert logprobs(engine) == pytest.approx(before, abs=1e-3)


@pytest.mark.slow
def test_a_trainer_that_never_comes_is_given_up() -> None:
    groups = WeightGroups(1, seconds=1.0)
    with pytest.raises(RequestError, match="did not come together"):
        groups.join(message_of(free_port())).result(60)
    with pytest.raises(RequestError, match="no group 'sync'"):
        groups.receive(receive_of(NAMES))


@pytest.mark.exhaustive
def test_a_runtime_of_two_ranks_has_two_members_and_a_silent_trainer_is_given_up() -> None:
    groups, port = WeightGroups(2, seconds=30.0), free_port()
    with pytest.raises(RequestError, match="world_size 2 has no place"):
        groups.join(message_of(port))
    trainer = start_trainer(port, world=3, num_sent=2)
    groups.join(message_of(port, world=3)).result(120)
    found = groups.receive(receive_of(NAMES[:2])).result(120)
    assert list(found) == NAMES[:2]
    for name, tensor in found.items():
        assert torch.equal(tensor, 1.3 * TENSORS[name])
    with pytest.raises(RequestError, match="0 of 1 tensors came"):
        groups.receive(receive_of(NAMES[2:3])).result(120)
    end(trainer)


def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = WeightGroups(1)
    monkeypatch.setattr(groups, "_join", lambda message: None)
    for number in range(MAX_GROUPS):
        groups.join(message_of(1, str(number))).result(10)
    with pytest.raises(RequestError, match="destroy one first"):
        groups.join(message_of(1))


@pytest.mark.slow
def test_a_process_that_waits_for_a_trainer_can_end() -> None:
    code = f"""
from ramiform.runtime.core.weight_groups import WeightGroups
from ramiform.runtime.protocol.sampling import InitWeightsGroup
begun = WeightGroups(2).join(InitWeightsGroup(1, "sync", "127.0.0.1", {free_port()}, 1, 3))
print(begun.done())
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr
