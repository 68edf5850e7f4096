"""Experts over ranks: a mixture whose ranks hold whole experts computes what one rank computes. Ranks are threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    GptOssConfig,
    Llama4TextConfig,
    MixtralConfig,
    MixtralForCausalLM,
    PretrainedConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from ramiform.runtime.engine.build import build_engine
from ramiform.runtime.models.experts.mixture import MixtureMlp
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.parallel.group import Group
from ramiform.runtime.parallel.placement import placement_of
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.errors import RequestError

from .architectures import SIZES, checkpoint_maker
from .test_divided_models import TOKENS, logits
from .test_latent import FIELDS as LATENT
from .threads import groups, on_each

# Seven experts of 27 columns: neither number divides among ranks.
EXPERTS = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 27}
MODELS: dict[str, Callable[[], PretrainedConfig]] = {
    "mixtral": lambda: MixtralConfig(**SIZES, num_local_experts=5, num_experts_per_tok=2),
    "qwen2 moe": lambda: Qwen2MoeConfig(
        **SIZES, **EXPERTS, shared_expert_intermediate_size=40, mlp_only_layers=[0], sliding_window=None
    ),
    "qwen3 moe": lambda: Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=24, norm_topk_prob=True),
    "deepseek v3": lambda: DeepseekV3Config(**LATENT),
    "gpt-oss": lambda: GptOssConfig(**SIZES, num_local_experts=5, num_experts_per_tok=2, head_dim=16),
    "llama 4": lambda: Llama4TextConfig(**SIZES, num_local_experts=5, intermediate_size_mlp=40, head_dim=16),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(MODELS, tmp_path_factory.mktemp)


@pytest.mark.parametrize(
    ("name", "size", "stages"),
    [
        ("mixtral", 4, 1),
        ("mixtral", 1, 1),
        ("qwen2 moe", 2, 1),
        ("qwen3 moe", 4, 1),
        ("deepseek v3", 2, 1),
        ("gpt-oss", 2, 1),
        ("llama 4", 2, 1),
    ],
)
def test_experts_over_ranks_compute_what_one_rank_does(
    checkpoint: Callable[[str], Path], name: str, size: int, stages: int
) -> None:
    path = checkpoint(name)
    whole = logits(path)
    made = groups(path, size, stages=stages, whole_experts=True)
    for mine in on_each(made, lambda group: logits(path, group)):
        torch.testing.assert_close(mine, whole, atol=1e-4, rtol=1e-4)
        assert torch.equal(mine.argmax(1), whole.argmax(1))


def test_quantised_experts_stay_whole(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("mixtral")
    whole = logits(path, quantize="int8")
    made = groups(path, 2, whole_experts=True)
    for mine in on_each(made, lambda group: logits(path, group, quantize="int8")):
        # Experts and queries are the same numbers; attention's output is rounded for each rank's part.
        assert ((mine - whole).norm() / whole.norm()).item() < 0.03


@pytest.mark.slow
def test_experts_of_a_gguf_file_in_mxfp4(tmp_path: Path) -> None:
    kind = pytest.importorskip("gguf").GGMLQuantizationType.MXFP4
    from ramiform.tests.models.gguf_files import write_gguf
    from ramiform.tests.models.test_gguf import dequantised

    torch.manual_seed(1)
    config = MixtralConfig(**SIZES | {"intermediate_size": 64}, num_local_experts=5, num_experts_per_tok=5)
    model = MixtralForCausalLM(config)
    model.config.architectures = ["MixtralForCausalLM"]
    path = write_gguf(model, tmp_path / "model.gguf", lambda _: kind)
    whole = logits(path)
    with torch.inference_mode():
        judge = dequantised(model, path)(torch.tensor([TOKENS])).logits[0]
    assert ((whole - judge).norm() / judge.norm()).item() < 0.03  # inputs are rounded
    for mine in on_each(groups(path, 2, whole_experts=True), lambda group: logits(path, group)):
        assert ((mine - whole).norm() / whole.norm()).item() < 0.03


def test_each_expert_is_on_one_rank(checkpoint: Callable[[str], Path]) -> None:
    path = checkpoint("qwen3 moe")

    def held(group: Group) -> tuple[range, int]:
        model = load_model(path, device=torch.device("cpu"), dtype=torch.float32, group=group)
        mlp = model.parameters.layers[1].mlp
        assert isinstance(mlp, MixtureMlp)
        return mlp.held, sum(linear.nbytes for linear in mlp.linears())

    found = on_each(groups(path, 4, whole_experts=True), held)
    assert [expert for held, _ in found for expert in held] == list(range(7))
    assert {len(held) for held, _ in found} == {1, 2}
    assert found[0][1] * 2 == found[1][1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tp": 2, "ep": 4}, "ep 4 is neither 1 nor tp, 2"),
        ({"tp": 2, "ep": 2, "deterministic": True}, "not with deterministic"),
        ({"tp": 1, "ep": 2}, "ep 2 is neither 1 nor tp, 1"),
    ],
)
def test_what_ep_does_not_divide_is_refused(
    checkpoint: Callable[[str], Path], settings: dict[str, int], message: str
) -> None:
    path, config = checkpoint("mixtral"), CoreConfig(device="cpu", dtype="float32", num_pages=4, **settings)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=message) as refused:
        placement_of(config, path, 0) if config.tp > 1 else build_engine(config, path)
    assert refused.value.param == "ep"


def test_a_model_without_experts_is_refused() -> None:
    from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

    with pytest.raises(RequestError, match="it has 0 experts a layer"):
        placement_of(CoreConfig(device="cpu", tp=2, ep=2), SHIPPED_MODEL, 1)
