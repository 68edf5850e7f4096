"""Number of KV pages from the device's memory. Judge: arithmetic on the bytes of a device that is not there."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from ramiform.runtime.engine import build_engine, kv_size
from ramiform.runtime.engine.kv_size import (
    MemoryUse,
    available_memory,
    choose_max_running,
    largest_plan,
    pages_from_memory,
)
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


@pytest.mark.parametrize(("num_tokens", "num_rows"), [(1024, 64), (1000, 7), (16, 16)])
def test_the_measured_step_has_all_tokens_in_pages_of_their_rows(num_tokens: int, num_rows: int) -> None:
    plan = largest_plan(num_tokens, num_rows)
    pages = [page for row in plan.rows for page in row.pages]
    assert (plan.num_tokens, len(plan.rows)) == (num_tokens, num_rows)
    assert pages == list(range(len(pages)))
    assert len(pages) <= num_tokens // 16 + num_rows
    assert all(-(-len(row.tokens) // 16) == len(row.pages) and row.sample is not None for row in plan.rows)
