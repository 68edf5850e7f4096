"""The kernels of `--deterministic`: the same bits in any batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ramify.kernels.triton import paged_attention
from ramify.runtime.engine import build_engine
from ramify.runtime.protocol.config import CoreConfig

from ..same_bits import check_same_bits


def test_a_request_has_the_same_bits_in_any_company(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "FIXED_SPLIT", 64)  # so that there is something to combine
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = CoreConfig(device=device, dtype="float32", num_pages=40, kernels="triton", deterministic=True)
    check_same_bits(build_engine(config, checkpoint))
