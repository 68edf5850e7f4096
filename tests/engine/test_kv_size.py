"""Number of KV pages from the device's memory. Judge: arithmetic on the bytes of a device that is not there."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ramiform.kernels import SamplingTensors
from ramiform.runtime.engine import ForwardEngine, build_engine, kv_size
from ramiform.runtime.engine.kv_pool import PAGE_SIZE, KvMemory, bytes_per_page
from ramiform.runtime.engine.kv_size import (
    MemoryUse,
    available_memory,
    choose_max_running,
    largest_plan,
    measure_memory,
    pages_from_memory,
)
from ramiform.runtime.engine.window_size import window_share
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.parallel.group import SINGLE_RANK
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.errors import RequestError

CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")
GIB = 1 << 30
LLAMA_PAGE = 2 * 32 * 16 * 8 * 128 * 2  # Llama-3-8B in bfloat16: 128 KiB a token


def h100(*, max_running: int) -> MemoryUse:
    """80 GB with the weights of an 8B model on it."""
    assert max_running == 256
    return MemoryUse(total=79 * GIB, free=63 * GIB, transient=GIB, graphs=GIB)


def test_weights_graphs_and_kv_take_the_fraction_of_a_cuda_device() -> None:
    for fraction in (None, 0.5, 1.0):
        pages = pages_from_memory(CoreConfig(mem_fraction=fraction), CUDA, 8192, LLAMA_PAGE, measure=h100)
        use = h100(max_running=256)
        taken = use.total - use.free + use.transient + use.graphs + pages * LLAMA_PAGE
        assert 0 <= (fraction or 0.9) * use.total - taken < LLAMA_PAGE + 1
    assert pages * 16 > 400_000


def test_a_device_without_room_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match=r"are left for KV with mem_fraction 0\.2") as caught:
        pages_from_memory(CoreConfig(mem_fraction=0.2), CUDA, 8192, LLAMA_PAGE, measure=h100)
    assert caught.value.param == "mem_fraction"


def test_less_memory_than_a_context_is_served_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ramiform.engine"):
        pages = pages_from_memory(CoreConfig(), CUDA, 10_000_000, LLAMA_PAGE, measure=h100)
    assert f"holds {pages * 16:,} tokens, fewer than the context of 10,000,000" in caplog.text


@pytest.mark.parametrize(("num_pages", "running"), [(4, 8), (64 * 40 + 5, 40), (64 * 100, 96), (1 << 20, 256)], ids=str)
def test_a_cuda_device_runs_as_many_requests_as_its_pages_hold(num_pages: int, running: int) -> None:
    assert choose_max_running(CoreConfig(), CUDA, num_pages) == running
    assert choose_max_running(CoreConfig(max_running=7), CUDA, num_pages) == 7
    assert choose_max_running(CoreConfig(), CPU, num_pages) == 64


def test_a_cpu_takes_a_quarter_of_what_is_free_but_no_more_than_is_of_use(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_size, "available_memory", lambda: 8 * GIB)
    assert pages_from_memory(CoreConfig(), CPU, 1 << 17, 1 << 20) == 2048
    assert pages_from_memory(CoreConfig(), CPU, 1 << 17, 1 << 20, num_sharing=2) == 1024
    assert pages_from_memory(CoreConfig(mem_fraction=0.5), CPU, 1 << 17, 1 << 20) == 4096
    info = build_engine(CoreConfig(device="cpu", max_running=3), checkpoint).info
    assert (info.num_pages, info.max_running) == (3 * 128 // 16, 3)
    assert info.kv_bytes == info.num_pages * 2 * 2 * 16 * 2 * 12 * 4


def test_available_memory_is_no_more_than_the_host_has() -> None:
    lines = Path("/proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal:"))
    assert 0 < available_memory() <= total


@pytest.mark.parametrize("group", ["/", "/system.slice/a.service"])
@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_control_group_bounds_the_available_memory(
    version: int, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a container, which sees its group as the root, and of a systemd unit."""
    memberships, mount = tmp_path / "cgroup", tmp_path / "mounted"
    memberships.write_text(f"0::{group}\n" if version == 2 else f"5:cpu,cpuacct:/x\n4:memory:{group}\n0::/\n")
    folder = (mount if version == 2 else mount / "memory") / group.lstrip("/")
    folder.mkdir(parents=True)
    limit, used = (
        ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    (folder / limit).write_text(f"{5 << 20}\n")
    (folder / used).write_text(f"{3 << 20}\n")
    cached = "inactive_file" if version == 2 else "inactive_file 5\ntotal_inactive_file"
    (folder / "memory.stat").write_text(f"anon 7\n{cached} {1 << 20}\n")
    assert list(kv_size._groups_memory(memberships, mount)) == [(5 << 20, 3 << 20, 1 << 20)]
    real = kv_size._groups_memory
    monkeypatch.setattr(kv_size, "_groups_memory", lambda *_: real(memberships, mount))
    assert available_memory() == 3 << 20


@pytest.mark.slow
def test_the_largest_step_and_the_largest_graphs_are_measured(
    engine: ForwardEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judge: a device whose memory is said to change as a step and graphs would change it."""
    reserved, free = iter([5 * GIB, 5 * GIB]), iter([60 * GIB, 59 * GIB, 58 * GIB])
    fakes = {
        "empty_cache": lambda: None,
        "synchronize": lambda device: None,
        "reset_peak_memory_stats": lambda device: None,
        "memory_reserved": lambda device: next(reserved),
        "max_memory_reserved": lambda device: 7 * GIB,
        "mem_get_info": lambda device: (next(free), 80 * GIB),
        "get_device_properties": lambda device: SimpleNamespace(total_memory=80 * GIB),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(kv_size.StepGraphs, "supports", lambda model, kv: True)
    asked: list[tuple[int, int | None]] = []

    class Graphs:
        shapes = (None,) * 13

        def __init__(self, pool: object, *, max_rows: int) -> None:
            self.max_rows = max_rows

        def capture_all(self, most: int | None = None) -> int:
            asked.append((self.max_rows, most))
            return 3

    model = engine._runner.model
    use = measure_memory(
        model,
        torch.float32,
        None,
        SINGLE_RANK,
        num_tokens=64,
        num_rows=8,
        make_graphs=Graphs,  # type: ignore[arg-type]
    )
    assert asked == [(8, 3)]
    assert use == MemoryUse(80 * GIB, 58 * GIB, 2 * GIB, GIB + 10 * (4 << 20))


@pytest.mark.parametrize("num_drafts", [0, 3, 40])
def test_the_measured_step_draws_after_each_draft_token_too(engine: ForwardEngine, num_drafts: int) -> None:
    """Logits of a large vocabulary are most of what a step takes."""
    sampled: list[int] = []
    ops = engine._runner.model.ops

    class Counted:
        def __getattr__(self, name: str) -> object:
            return getattr(ops, name)

        def sample_tokens(self, logits_RV: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
            sampled.append(len(logits_RV))
            return ops.sample_tokens(logits_RV, sampling)

    engine._runner.model.ops = Counted()  # type: ignore[assignment]
    engine.run(largest_plan(64, 8, num_drafts))
    assert sampled == [8 * (1 + min(num_drafts, 7))]


@pytest.mark.parametrize(("num_tokens", "num_rows"), [(1024, 64), (1000, 7), (16, 16)])
def test_the_measured_step_has_all_tokens_in_pages_of_their_rows(num_tokens: int, num_rows: int) -> None:
    plan = largest_plan(num_tokens, num_rows)
    pages = [page for row in plan.rows for page in row.pages]
    assert (plan.num_tokens, len(plan.rows)) == (num_tokens, num_rows)
    assert pages == list(range(len(pages)))
    assert len(pages) <= num_tokens // 16 + num_rows
    assert all(-(-len(row.tokens) // 16) == len(row.pages) and row.sample is not None for row in plan.rows)


MIXED = (None, 64, 64, 64)


@pytest.mark.parametrize(
    ("windows", "settings", "ratio"),
    [
        (MIXED, {}, 0.5),
        (MIXED, {"window_ratio": 0.25}, 0.25),
        ((64,) * 4, {}, 0.125),
        (MIXED, {"window_ratio": 1.0}, None),
        (MIXED, {"host_kv_memory": 1.0}, None),
        (MIXED, {"transfer_bind": "ipc:///tmp/x"}, None),
        ((None,) * 4, {}, None),
        ((512,) * 4, {}, None),
    ],
)
def test_models_with_shorter_windows_than_their_context_have_window_pages(
    windows: tuple[int | None, ...], settings: dict[str, Any], ratio: float | None, checkpoint: Path
) -> None:
    model = replace(read_config(checkpoint), windows=windows, num_layers=4)
    share = window_share(CoreConfig(**settings), model, SINGLE_RANK, torch.device("cpu"), 512)
    assert (None if share is None else share.ratio) == ratio
    if share is not None and ratio is not None:
        whole = bytes_per_page(model, torch.float32)
        num_full = windows.count(None)
        assert share.page_bytes(model, torch.float32) == whole * (num_full + ratio * (4 - num_full)) / 4
        # A window of 64 tokens, a step of 1,024 and what lies at their ends.
        assert not share.suffices(int((70 if num_full else 35) / share.ratio))
        assert share.suffices(int(71 / share.ratio))


def test_one_endless_sequence_gets_its_window_and_a_step(checkpoint: Path) -> None:
    model = replace(read_config(checkpoint), windows=(2048,) * 4, num_layers=4)
    share = window_share(CoreConfig(max_running=1), model, SINGLE_RANK, torch.device("cpu"), 1 << 18)
    assert share is not None
    # A 128th of the pages of one context would not hold the step of 1,024 tokens beside the window.
    assert share.suffices((1 << 18) // 16)
    assert share.num_window_pages((1 << 18) // 16) == 127 + 64 + 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.uint8])
def test_pages_are_read_and_written_as_bytes(dtype: torch.dtype) -> None:
    memory = KvMemory(read_config(SHIPPED_MODEL), 12, device=CPU, dtype=dtype, is_scaled=dtype == torch.int8)
    for part in memory.parts:
        part.view(torch.uint8).random_(256)
    pages = [7, 2, 11]
    found = memory.read(pages)
    for at, page in enumerate(pages):
        for number, part in enumerate(memory.parts):
            own = part[:, page * PAGE_SIZE : (page + 1) * PAGE_SIZE].contiguous().view(torch.uint8)
            assert torch.equal(found[at, number], own)
    for part in memory.parts:
        part.zero_()
    memory.write(pages, found)
    assert torch.equal(memory.read(pages), found)
