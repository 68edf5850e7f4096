"""Weights that change on ranks and stages: after an update they compute the bits of ranks that started with these
tensors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.scheduler.plan import ForwardPlan, Row, Sample

from .architectures import SIZES, checkpoint_maker
from .threads import RanksEngine

MODELS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "dense": lambda: transformers.Qwen2Config(**SIZES),
    "tied": lambda: transformers.Qwen3Config(**SIZES | {"tie_word_embeddings": True, "head_dim": 16}),
    "experts": lambda: transformers.Qwen3MoeConfig(
        **SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, head_dim=16
    ),
}
CELLS: list[tuple[str, dict[str, Any]]] = [
    ("dense", {"tp": 2}),
    ("dense", {"tp": 2, "quantize": "int8"}),
    ("tied", {"pp": 2}),
    ("tied", {"tp": 2, "deterministic": True}),
    ("experts", {"tp": 2}),
    ("experts", {"tp": 2, "ep": 2}),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(MODELS, tmp_path_factory.mktemp)


def engine_of(path: Path, settings: dict[str, Any]) -> RanksEngine:
    config = CoreConfig(**{"device": "cpu", "dtype": "float32", "num_pages": 16} | settings)
    return RanksEngine(config, path, config.tp, stages=config.pp)


def computed(engine: RanksEngine) -> list[tuple[float, int]]:
    sample = Sample(temperature=0.0, draw=0, num_top_logprobs=8)
    row = Row(rid="a", tokens=list(range(5, 15)), first_position=0, pages=[2], sample=sample)
    return engine.run(ForwardPlan(step=1, copies=[], rows=[row])).rows[0].logprobs[0].top


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "settings"), CELLS, ids=str)
def test_after_an_update_ranks_are_those_that_started_so(
    kind: str, settings: dict[str, Any], checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = checkpoint(kind)
    engine = engine_of(path, settings)
    before = computed(engine)
    tensors = load_file(path / "model.safetensors")
    some = {
        name: tensor + 0.1 * torch.randn_like(tensor)
        for name, tensor in tensors.items()
        if "q_proj" in name or "norm" in name or "experts.1" in name or "embed" in name
    }
    save_file(some, tmp_path / "some.safetensors")
    assert len({one.prepare_weights(str(tmp_path / "some.safetensors")) for one in engine.engines}) == 1
    assert computed(engine) == before
    for one in engine.engines:
        one.take_weights()
    (tmp_path / "some.safetensors").unlink()
    fresh = tmp_path / "fresh"
    shutil.copytree(path, fresh)
    save_file(tensors | some, fresh / "model.safetensors", {"format": "pt"})
    assert computed(engine) == computed(engine_of(fresh, settings)) != before
