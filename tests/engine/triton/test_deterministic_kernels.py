"""The kernels of `--deterministic`: the same bits in any batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from triton.runtime.interpreter import InterpreterBuilder

from ramiform.kernels.triton.attention import paged_attention
from ramiform.runtime.engine import build_engine
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.tests.engine.same_bits import check_same_bits
from ramiform.tests.kernels.triton.interpreter_dtypes import uniform_dot

pytestmark = pytest.mark.exhaustive


def test_a_request_has_the_same_bits_in_any_batch(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "DETERMINISTIC_SPLIT_KEYS", 32)  # so that there is something to combine
    monkeypatch.setattr(InterpreterBuilder, "create_dot", uniform_dot)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = CoreConfig(device=device, dtype="float32", num_pages=40, kernels="triton", deterministic=True)
    check_same_bits(build_engine(config, checkpoint), briefly=device == "cpu")
