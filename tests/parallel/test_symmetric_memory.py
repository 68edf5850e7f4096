"""The choice between symmetric memory and NCCL, and the sums where two CUDA devices see each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.models.parallel.shard import Shard
from ramiform.runtime.models.parallel.stage import Stage
from ramiform.runtime.parallel import collectives
from ramiform.runtime.parallel.placement import RankPlacement
from ramiform.runtime.parallel.symmetric_memory import MAX_SYMMETRIC_BYTES, SymmetricAllReduce, all_reduce_method
from ramiform.runtime.protocol.config import CoreConfig, RuntimeConfig, ServeConfig

BF16 = torch.bfloat16


def test_the_method_depends_on_the_size_of_the_sum() -> None:
    ways = [
        all_reduce_method(num_bytes, BF16, 2, multicast=False)
        for num_bytes in (64, 8192, 1 << 20, MAX_SYMMETRIC_BYTES, MAX_SYMMETRIC_BYTES + 64)
    ]
    assert ways == ["one-shot", "one-shot", "two-shot", "two-shot", None]


def test_the_switch_sums_for_enough_ranks() -> None:
    assert all_reduce_method(8192, BF16, 8, multicast=True) == "multicast"
    assert all_reduce_method(8192, BF16, 8, multicast=False) == "one-shot"
    assert all_reduce_method(8192, BF16, 2, multicast=True) == "one-shot"


@given(st.integers(0, 1 << 27), st.sampled_from([2, 4, 8]), st.booleans())
def test_unaligned_sums_and_other_types_go_by_nccl(num_bytes: int, size: int, multicast: bool) -> None:
    for dtype in (torch.float16, torch.float64, torch.int64):
        assert all_reduce_method(num_bytes, dtype, size, multicast=multicast) is None
    if num_bytes % (16 * size) or not num_bytes:
        assert all_reduce_method(num_bytes, BF16, size, multicast=multicast) is None


class Sums:
    """Stand-in for torch's operators that records its arguments."""

    def __init__(self) -> None:
        self.given: list[tuple[str, list[float]]] = []

    def one_shot_all_reduce(self, x: torch.Tensor, op: str, group: str) -> torch.Tensor:
        self.given.append((f"one-shot {op} {group}", x.flatten().tolist()))
        return 2 * x

    def two_shot_all_reduce_(self, x: torch.Tensor, op: str, group: str) -> torch.Tensor:
        self.given.append((f"two-shot {op} {group}", x.flatten().tolist()[:2]))
        return x.mul_(2)


def test_a_sum_keeps_its_shape_and_frees_the_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = Sums()
    monkeypatch.setattr(torch.ops, "symm_mem", sums)
    total = SymmetricAllReduce(torch.zeros(1 << 20, dtype=torch.uint8), "ranks", 2, multicast=False)
    few, many = torch.arange(8.0).view(2, 4), torch.ones(512, 256)
    first = total(few.clone())
    second = total(many.clone())
    assert first is not None
    assert second is not None
    assert torch.equal(first, 2 * few)
    assert torch.equal(second, 2 * many)
    assert sums.given == [("one-shot sum ranks", list(range(8))), ("two-shot sum ranks", [1.0, 1.0])]
    assert total(torch.ones(3)) is None


def _rank(rank: int, size: int, folder: str) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    config = RuntimeConfig(core=CoreConfig(tp=size), serve=ServeConfig(socket_dir=folder))
    group = collectives.join_group(RankPlacement(rank, Shard(rank, size, size), Stage(), device), config)
    for rows in (1, 3, 64, 4096):
        x = torch.randn(rows, 4096, dtype=BF16, device=device, generator=torch.Generator(device).manual_seed(rank))
        expected = group.all_gather(x).float().sum(0)
        got = group.all_reduce(x.clone())
        assert ((got.float() - expected).norm() / expected.norm()).item() < 1e-2
        assert torch.equal(group.all_gather(got)[0], group.all_gather(got)[1])


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_devices_get_the_same_sum_by_every_method(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_rank, args=(2, str(tmp_path)), nprocs=2)
