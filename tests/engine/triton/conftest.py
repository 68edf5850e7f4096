"""Without a GPU the kernels run in Triton's interpreter, which must be chosen before they are imported."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

pytest.importorskip("triton", reason="the extra 'gpu' is not installed")


@pytest.fixture(autouse=True)
def few_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program of the interpreter takes milliseconds, even one without work."""
    from ramiform.kernels.triton import launch_configs

    monkeypatch.setattr(launch_configs, "ASSUMED_MULTIPROCESSORS", 1)
    launch_configs._num_multiprocessors.cache_clear()
    yield
    launch_configs._num_multiprocessors.cache_clear()
