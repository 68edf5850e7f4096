"""Judge: torch's own number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ramiform.runtime.engine.cpu_threads import CpuThreads


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
