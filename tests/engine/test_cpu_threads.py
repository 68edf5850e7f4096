"""Judge: torch's own number of threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ramiform.runtime.engine import build_engine
from ramiform.runtime.engine.cpu_threads import CpuThreads, usable_cpus
from ramiform.runtime.protocol.config import CoreConfig


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_small_steps_use_one_thread_and_large_ones_all() -> None:
    torch.set_num_threads(3)
    threads = CpuThreads(num_parameters=5_000_000)
    seen = []
    for num_tokens in (1, 64, 1024, 1024, 32):
        threads.choose(num_tokens)
        seen.append(torch.get_num_threads())
    assert seen == [1, 1, 3, 3, 1]


def test_a_small_deterministic_model_always_uses_one_thread() -> None:
    torch.set_num_threads(2)
    threads = CpuThreads(num_parameters=5_000_000, fixed=True)
    for num_tokens in (4096, 1):
        threads.choose(num_tokens)
        assert torch.get_num_threads() == 1


def test_a_model_of_billions_uses_all_threads_for_a_single_token() -> None:
    torch.set_num_threads(2)
    threads = CpuThreads(num_parameters=8_000_000_000)
    threads.choose(1)
    assert torch.get_num_threads() == 2


def test_small_steps_of_packed_weights_use_one_thread_whatever_their_number() -> None:
    """The products have threads of their own; torch's would wait for each other in hundreds of small operators."""
    torch.set_num_threads(2)
    threads = CpuThreads(num_parameters=8_000_000_000, packed=True)
    seen = []
    for num_tokens in (1, 63, 64):
        threads.choose(num_tokens)
        seen.append(torch.get_num_threads())
    assert seen == [1, 1, 2]


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({}, "", 8),
        ({"cpu.max": "max 100000"}, "0::/", 8),
        ({"cpu.max": "250000 100000"}, "0::/", 3),
        (
            {"cpu.max": "max 100000", "pod/cpu.max": "400000 100000", "pod/own/cpu.max": "600000 100000"},
            "0::/pod/own",
            4,
        ),
        ({"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu:/", 2),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu:/", 8),
        ({"cpu.max": "50000 100000"}, "0::/", 1),
        ({"cpu.max": "1600000 100000"}, "0::/", 8),
        ({"cpu.max": "new form"}, "0::/", 8),
    ],
)
def test_a_quota_bounds_the_processors_of_the_affinity_mask(
    files: dict[str, str], own: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "list of groups").write_text(own + "\n")
    assert usable_cpus(tmp_path, tmp_path / "list of groups") == expected


@pytest.mark.parametrize("wanted", [1, 3])
def test_the_setting_chooses_the_threads(wanted: int, checkpoint: Path) -> None:
    build_engine(CoreConfig(device="cpu", dtype="float32", num_pages=16, cpu_threads=wanted), checkpoint)
    assert torch.get_num_threads() == wanted
