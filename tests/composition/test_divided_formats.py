"""Quantised weights and quantised KV on several ranks: every format is cut along whole groups, each rank reads its
part, and together they say what one says. Ranks are threads here. Judge: one rank on the same files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.tests.models.packing import STORED, changed
from ramiform.tests.models.test_quantised import SIZES, logits
from ramiform.tools.quantize.write import write_quantised

from .alone import Got, run
from .test_ranks import ORDERED
from .test_speculation import REQUESTS, check
from .threads import RanksEngine, groups, on_each

# All experts for every token: nearly equal scores would let rounding choose another.
EXPERTS: dict[str, Any] = {"num_experts": 3, "num_experts_per_tok": 3, "moe_intermediate_size": 64}
MODELS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "mixtral": lambda: transformers.MixtralConfig(**SIZES, num_local_experts=2),
    "qwen2 moe": lambda: transformers.Qwen2MoeConfig(
        **SIZES, **EXPERTS, shared_expert_intermediate_size=128, sliding_window=None
    ),
}
FEW = REQUESTS[:16]


def model_of(name: str) -> transformers.PreTrainedModel:
    torch.set_num_threads(1)
    torch.manual_seed(len(name))
    return transformers.AutoModelForCausalLM.from_config(MODELS[name](), dtype=torch.float32)


@pytest.fixture(scope="module", params=MODELS)
def dense(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dense")
    model_of(request.param).save_pretrained(path)
    return path


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


def on_two(path: Path, **options: Any) -> torch.Tensor:
    mine, other = on_each(groups(path, 2), lambda group: logits(path, group=group, **options))
    assert torch.equal(mine, other)
    return mine


@pytest.mark.exhaustive
@pytest.mark.parametrize("stored", list(STORED))
def test_four_bit_checkpoints(stored: str, dense: Path, tmp_path: Path) -> None:
    pack, config = STORED[stored]
    path = changed(dense, tmp_path / "packed", pack, quantization_config=config)
    alone = logits(path)
    # The numbers are the same; sums of products and partial sums are rounded to bfloat16.
    assert difference(on_two(path), alone) < 0.02
    assert difference(logits(dense), alone) > 0.1


@pytest.mark.parametrize("method", ["int8", "fp8"])
def test_eight_bit_checkpoints(method: Any, dense: Path, tmp_path: Path) -> None:
    write_quantised(dense, tmp_path / "out", method)
    alone = logits(tmp_path / "out")
    # Each rank's part of a row has scales of its own, by group of inputs with int8.
    assert difference(on_two(tmp_path / "out"), alone) < (0.05 if method == "int8" else 0.1)
    assert difference(logits(dense), alone) > 1e-3


@pytest.mark.parametrize(("quantize", "bound"), [("int8", 0.05), ("int4", 0.5), ("fp8", 0.2)])
def test_rounded_while_loading(quantize: str, bound: float, dense: Path) -> None:
    """Each rank's part of a row of attention's output and down has its own scale: no worse than the whole row's."""
    exact = logits(dense)
    alone, divided = (difference(of(dense, quantize=quantize), exact) for of in (logits, on_two))
    assert 0 < divided < bound
    assert divided < 1.3 * alone


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1"])
@pytest.mark.parametrize("name", MODELS)
def test_gguf_files(name: str, kind: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    from ramiform.tests.models.gguf_files import write_gguf

    model = model_of(name)
    model.config.architectures = [type(model).__name__]
    path = write_gguf(model, tmp_path / "model.gguf", lambda _: gguf.GGMLQuantizationType[kind])
    alone = logits(path)
    # The head is packed alone, where its product rounds inputs to int8, and dense in parts; blocks that parts cut are
    # dense too. Rounding to 127 steps of a group's largest number, in groups of 32 normal ones 2.2 deviations, changes
    # a product by 2.2 / 127 / sqrt(12) = 0.5 %, and nine products, those of two layers and the head, by 1.5 %.
    assert difference(on_two(path), alone) < 0.02


@pytest.mark.slow
def test_groups_that_ranks_would_cut_are_computed_as_dense_ones(tmp_path: Path) -> None:
    config = transformers.Qwen2Config(**SIZES | {"intermediate_size": 96})
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "dense")
    pack, stored = STORED["awq"]
    path = changed(tmp_path / "dense", tmp_path / "packed", pack, quantization_config=stored)
    assert difference(on_two(path), logits(path)) < 0.1  # alone, inputs are rounded to int8


@pytest.fixture(scope="module", params=["int8", "fp8"])
def kv_dtype(request: pytest.FixtureRequest) -> Any:
    return request.param


def said(kv_dtype: str, size: int, **settings: Any) -> dict[str, Got]:
    settings = {"device": "cpu", "dtype": "float32", "num_pages": 60, "kv_dtype": kv_dtype, **settings}
    return run(FEW, engine=RanksEngine(CoreConfig(**settings, tp=size), SHIPPED_MODEL, size), **settings)[0]


@pytest.mark.exhaustive
def test_quantised_kv_gives_the_same_tokens(kv_dtype: str) -> None:
    """In a sum's last bit a number may move to the code beside its own: log-probabilities feel that."""
    check(said(kv_dtype, 2, speculative="off"), said(kv_dtype, 1, speculative="off"), tolerance=0.1)


@pytest.mark.exhaustive
def test_in_order_quantised_kv_gives_the_same_bits(kv_dtype: str) -> None:
    assert said(kv_dtype, 2, **ORDERED) == said(kv_dtype, 1, **ORDERED)
