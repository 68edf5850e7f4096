"""Weights that change: after an update an engine computes the bits of one that started with these tensors.

An update that is refused names what is wrong, and leaves the old weights serving.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.scheduler.plan import ForwardPlan, Row, RowState, Sample

SIZES: dict[str, Any] = {
    "vocab_size": 203,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.12,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
HYBRID = {
    **SIZES,
    **EXPERTS,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 10,
    "head_dim": 16,
    "shared_expert_intermediate_size": 24,
}
CONFIGS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "dense": lambda: transformers.Qwen2Config(**SIZES),
    "tied": lambda: transformers.Qwen3Config(**SIZES | {"tie_word_embeddings": True, "head_dim": 16}),
    "experts": lambda: transformers.Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=16),
    "hybrid": lambda: transformers.Qwen3NextConfig(**HYBRID),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "quantised": {"quantize": "int8"},
    "deterministic": {"deterministic": True},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            torch.manual_seed(3)
            made[kind] = tmp_path_factory.mktemp(kind)
            transformers.AutoModelForCausalLM.from_config(CONFIGS[kind](), dtype=torch.float32).save_pretrained(
                made[kind]
            )
        return made[kind]

    return make


def engine_of(path: Path, **settings: Any) -> ForwardEngine:
    return build_engine(CoreConfig(**{"device": "cpu", "dtype": "float32", "num_pages": 16} | settings), path)


def computed(engine: ForwardEngine) -> list[tuple[float, int]]:
    sample = Sample(temperature=0.0, draw=0, num_top_logprobs=8)
    state = RowState(1, []) if engine.info.num_state_slots else None
    row = Row(rid="a", tokens=list(range(5, 15)), first_position=0, pages=[2], sample=sample, state=state)
    return engine.run(ForwardPlan(step=1, copies=[], rows=[row])).rows[0].logprobs[0].top


def with_tensors(path: Path, changed: dict[str, torch.Tensor], folder: Path) -> Path:
    shutil.copytree(path, folder)
    save_file(load_file(path / "model.safetensors") | changed, folder / "model.safetensors", {"format": "pt"})
    return folder


def changed_tensors(path: Path, wanted: Callable[[str], bool]) -> dict[str, torch.Tensor]:
    tensors = load_file(path / "model.safetensors")
    return {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in tensors.items() if wanted(name)}


def update(engine: ForwardEngine, path: Path) -> None:
    engine.prepare_weights(str(path))
    engine.take_weights()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", CONFIGS)
def test_after_any_update_the_engine_is_one_that_started_so(
    kind: str, setting: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path, settings = checkpoint(kind), SETTINGS[setting]
    engine = engine_of(path, **settings)
    before = computed(engine)
    some = changed_tensors(path, lambda name: "q_proj" in name or "norm" in name or "experts.1" in name)
    save_file(some, tmp_path / "some.safetensors")
    engine.prepare_weights(str(tmp_path / "some.safetensors"))
    assert computed(engine) == before  # until they are taken
    engine.take_weights()
    (tmp_path / "some.safetensors").unlink()
    first = with_tensors(path, some, tmp_path / "first")
    assert computed(engine) == computed(engine_of(first, **settings)) != before
    more = changed_tensors(path, lambda name: "o_proj" in name)
    save_file(more, tmp_path / "more.safetensors")
    update(engine, tmp_path / "more.safetensors")  # what came before stays
    second = with_tensors(first, more, tmp_path / "second")
    assert computed(engine) == computed(engine_of(second, **settings))
    update(engine, path)  # all of them
    assert computed(engine) == before


def test_a_refused_update_names_what_is_wrong_and_changes_nothing(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = checkpoint("tied")
    engine = engine_of(path)
    before = computed(engine)
    name = "model.layers.0.self_attn.q_proj.weight"
    good = load_file(path / "model.safetensors")[name]
    other = with_tensors(path, {}, tmp_path / "other")
    config = (other / "config.json").read_text()
    (other / "config.json").write_text(config.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-03'))
    assert (other / "config.json").read_text() != config
    wrong: list[tuple[dict[str, torch.Tensor], str]] = [
        ({"model.layers.9.mlp.up_proj.weight": good}, "model.layers.9.mlp.up_proj.weight"),
        ({name: good[:3]}, "shape"),
        ({name: good.to(torch.int32)}, "int32"),
        ({name: good * float("nan")}, "no numbers"),
        ({"lm_head.weight": good}, "one matrix"),
    ]
    for number, (tensors, named) in enumerate(wrong):
        file = tmp_path / f"{number}.safetensors"
        save_file(tensors, file)
        with pytest.raises(RequestError, match=named):
            engine.prepare_weights(str(file))
    (tmp_path / "cut.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:5000])
    for given, named in (
        (tmp_path / "cut.safetensors", "truncated"),
        (tmp_path / "no", "neither"),
        (other, "norm_eps"),
    ):
        with pytest.raises(RequestError, match=named):
            engine.prepare_weights(str(given))
    assert computed(engine) == before


def test_an_update_of_some_tensors_is_refused_when_the_others_have_changed(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    served = with_tensors(checkpoint("dense"), {}, tmp_path / "served")
    engine = engine_of(served)
    before = computed(engine)
    save_file(changed_tensors(served, lambda name: "o_proj" in name), tmp_path / "some.safetensors")
    (served / "model.safetensors").unlink()
    with pytest.raises(RequestError, match=r"cannot be read|has changed"):
        engine.prepare_weights(str(tmp_path / "some.safetensors"))
    update(engine, checkpoint("dense"))
    assert computed(engine) == before


def test_models_that_keep_their_weights_say_why(checkpoint: Callable[[str], Path]) -> None:
    through_transformers = engine_of(checkpoint("dense"), model_impl="transformers")
    with pytest.raises(RequestError, match="transformers computes"):
        through_transformers.prepare_weights(str(checkpoint("dense")))
    drafting = engine_of(SHIPPED_MODEL, speculative="eagle")
    with pytest.raises(RequestError, match="speculative eagle"):
        drafting.prepare_weights(str(SHIPPED_MODEL))


def test_statistics_of_quantised_keys_and_values_stay_as_they_were_measured(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = checkpoint("dense")
    engine = engine_of(path, kv_dtype="int8")
    before = engine.read_constants()
    assert before is not None
    some = changed_tensors(path, lambda name: "q_proj" in name or "o_proj" in name)
    save_file(some, tmp_path / "some.safetensors")
    update(engine, tmp_path / "some.safetensors")
    after = engine.read_constants()
    assert after is not None
    assert torch.equal(before, after)
    exact = {token: value for value, token in computed(engine_of(with_tensors(path, some, tmp_path / "new")))}
    assert [exact.get(token) for _, token in computed(engine)[:3]] == pytest.approx(
        [value for value, _ in computed(engine)[:3]], abs=0.1
    )
