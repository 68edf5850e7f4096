"""Quantised KV with static scales. Judge: transformers with a cache whose keys and values are rounded by a table of all
codes.

Both compute in float64, since in float32 a sum's last bit may move a number to the neighbouring code. transformers'
norms are float32 even so, hence the comparison with the size of the quantisation's effect.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from ramiform.runtime.engine import KvMemory, KvPool
from ramiform.runtime.engine.kv_ranges import measure
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.stored.kv_scales import KvScales

from .test_decoder_equals_transformers import NAMES, forward, page_tables, rows_of, tokens

QUANTISED = pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.int8], ids=str)
LARGEST = {torch.float8_e4m3fn: 448, torch.int8: 127}


class Coarse(DynamicCache):
    """A transformers cache whose keys and values are multiples of their heads' scales by codes."""

    def __init__(self, scales: KvScales, stored: torch.dtype) -> None:
        super().__init__()
        codes = torch.arange(-128, 128, dtype=torch.int8).view(stored).double()
        self.scales, self.codes = scales, codes[codes.abs() <= LARGEST[stored]]

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        key_states = self.nearest(key_states, self.scales.k_LK[layer_idx])
        value_states = self.nearest(value_states, self.scales.v_LK[layer_idx])
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def nearest(self, x_BKTD: torch.Tensor, scale_K: torch.Tensor) -> torch.Tensor:
        scale = scale_K.double()[:, None, None]
        return self.codes[((x_BKTD / scale)[..., None] - self.codes).abs().argmin(-1)] * scale


def load(path: Path, stored: torch.dtype) -> tuple[Decoder, KvPool, KvScales]:
    model = load_model(path, device=torch.device("cpu"), dtype=torch.float64)
    scales = measure(model, [tokens(80, seed=9)]).scales(stored)
    memory = KvMemory(model.config, 64, device=model.device, dtype=stored)
    return model, KvPool(memory, constants=scales), scales


# Experts have no product in float64, and attention of their own neither.
FAMILIES = [name for name in NAMES if not any(part in name for part in ("moe", "mixtral"))]


@pytest.mark.slow
@QUANTISED
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_computes_with_dequantised_kv(
    name: str, stored: torch.dtype, checkpoint: Callable[[str], Path], judge: Callable[[str], PreTrainedModel]
) -> None:
    model, pool, scales = load(checkpoint(name), stored)
    prompt = tokens(60, seed=1)
    [pages] = page_tables(60)
    got = torch.cat([forward(model, pool, [row])[0] for row in rows_of(prompt, pages, [37, 1, 15, 7])])
    with torch.inference_mode():
        want = judge(name).double()(torch.tensor([prompt]), past_key_values=Coarse(scales, stored)).logits[0]
        exact = judge(name).double()(torch.tensor([prompt])).logits[0]
    changed = float((got - exact).abs().mean())
    assert changed > 1e-4
    assert float((got - want).abs().mean()) < 0.05 * changed
