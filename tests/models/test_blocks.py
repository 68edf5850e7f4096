"""Decoder blocks described by a row of FAMILIES. Judge: transformers, on random checkpoints in float32."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    Gemma2Config,
    LlamaConfig,
    Olmo2Config,
    PreTrainedModel,
    StableLmConfig,
    Starcoder2Config,
)

from ramiform.kernels import for_device
from ramiform.runtime.engine import KvMemory, KvPool, build_engine
from ramiform.runtime.engine.build import choose_ops
from ramiform.runtime.engine.inputs import decoder_inputs
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.families.row import Family
from ramiform.runtime.models.families.table import FAMILIES
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.parallel.group import Group
from ramiform.runtime.models.parameters import num_parameters
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.models.size import model_size
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.speculation.eagle.target_probe import probe
from ramiform.tests.composition.test_stages import logits as staged_logits
from ramiform.tests.composition.threads import groups, on_each
from ramiform.tests.engine.same_bits import check_same_bits
from ramiform.tests.quantize.test_calibration import SIZES as CALIBRATION_SIZES
from ramiform.tests.quantize.test_calibration import TEXT
from ramiform.tests.quantize.test_calibration import made as with_tokenizer
from ramiform.tools.quantize.write import write_quantised
from ramiform.tools.train_draft.config import head_config
from ramiform.tools.train_draft.initial_head import initial_head

from .test_decoder_equals_transformers import assert_close, forward, load, page_tables, rows_of, tokens

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": 203,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.12,
}
ROWS = {
    "LlamaForCausalLM": FAMILIES["LlamaForCausalLM"]._replace(activations=("silu", "gelu", "gelu_tanh")),
}
CONFIGS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "gemma 2": lambda: Gemma2Config(
        **SIZES, head_dim=24, query_pre_attn_scalar=40, sliding_window=21, attn_logit_softcapping=3.0,
        final_logit_softcapping=4.0,
    ),
    "gemma 2, no caps": lambda: Gemma2Config(
        **SIZES, head_dim=16, sliding_window=21, attn_logit_softcapping=None, final_logit_softcapping=None,
    ),
    "olmo 2": lambda: Olmo2Config(**SIZES, rms_norm_eps=1e-5),
    "starcoder 2": lambda: Starcoder2Config(**SIZES, sliding_window=30, norm_epsilon=1e-5),
    "starcoder 2, gelu, no biases": lambda: Starcoder2Config(**SIZES, hidden_act="gelu", use_bias=False),
    "stablelm": lambda: StableLmConfig(**SIZES, use_qkv_bias=True, partial_rotary_factor=1.0),
    "llama, gelu": lambda: LlamaConfig(**SIZES, hidden_act="gelu", mlp_bias=True),
    "llama, gelu by tanh": lambda: LlamaConfig(**SIZES, hidden_act="gelu_pytorch_tanh"),
}  # fmt: skip
Checkpoint = Callable[[str], Path]
every_block = pytest.mark.parametrize("name", CONFIGS)


@pytest.fixture(autouse=True)
def _rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for architecture, family in ROWS.items():
        monkeypatch.setitem(FAMILIES, architecture, family)


def make_judge(name: str) -> PreTrainedModel:
    """Make a random model in which every parameter matters."""
    torch.manual_seed(len(name))
    model = transformers.AutoModelForCausalLM.from_config(
        CONFIGS[name](), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Directories of the checkpoints by name, made on first use."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("checkpoint")
            make_judge(name).save_pretrained(made[name])
        return made[name]

    return make


def expected(name: str, prompt: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return make_judge(name)(torch.tensor([prompt])).logits[0]


def logits(path: Path, *, group: Group | None = None, **options: Any) -> torch.Tensor:
    """Compute logits of a prompt in chunks and of single tokens after it."""
    model = load_model(path, device=CPU, dtype=torch.float32, **options, **({} if group is None else {"group": group}))
    pool = KvPool(KvMemory(model.config, 8, device=CPU, dtype=model.dtype))
    return torch.cat(
        [forward(model, pool, [row])[0] for row in rows_of(tokens(61, seed=1), [5, 0, 7, 2], [40, 17, 1, 1, 1, 1])]
    )


@pytest.mark.slow
@every_block
def test_prompts_and_decode_steps_equal_the_judge_s(name: str, checkpoint: Checkpoint) -> None:
    model, pool = load(checkpoint(name))
    lengths = (101, 48, 7)
    prompts = [tokens(length, seed=length) for length in lengths]
    parts = [[60, 40, 1], [46, 1, 1], [5, 1, 1]]
    rows = [rows_of(*row) for row in zip(prompts, page_tables(*lengths), parts, strict=True)]
    steps = [forward(model, pool, [row[step] for row in rows]) for step in range(3)]
    for prompt, *found in zip(prompts, *steps, strict=True):
        want = expected(name, prompt)
        assert float(want.std()) > 0.5, "the judge's model must not be trivial"
        assert_close(torch.cat(found), want)


@every_block
def test_parameters_are_counted_as_the_judge_counts_them(name: str, checkpoint: Checkpoint) -> None:
    config = read_config(checkpoint(name))
    assert num_parameters(config) == make_judge(name).num_parameters()
    assert model_size(config).num_parameters == num_parameters(config)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "olmo 2"])
def test_two_ranks_compute_what_one_does(name: str, checkpoint: Checkpoint) -> None:
    path = checkpoint(name)
    for mine in on_each(groups(path, 2), lambda group: logits(path, group=group)):
        torch.testing.assert_close(mine, logits(path), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@every_block
def test_two_stages_compute_what_one_does(name: str, checkpoint: Checkpoint) -> None:
    path = checkpoint(name)
    first, _ = on_each(groups(path, 1, stages=2), lambda group: staged_logits(path, group, (0, 2, 3)))
    torch.testing.assert_close(first, staged_logits(path, captures=(0, 2, 3)), atol=1e-4, rtol=1e-4)


def test_norms_over_all_heads_are_refused_on_two_ranks(checkpoint: Checkpoint) -> None:
    with pytest.raises(RequestError, match="tp 2 does not fit the model: its queries are normalised over all heads"):
        groups(checkpoint("olmo 2"), 2)


@pytest.mark.slow
@every_block
def test_deterministic_mode_gives_the_same_bits(name: str, checkpoint: Checkpoint) -> None:
    path = checkpoint(name)
    config = CoreConfig(device="cpu", num_pages=40, deterministic=True, model=str(path), dtype="float32")
    check_same_bits(build_engine(config, path), briefly=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["olmo 2", "starcoder 2", "gemma 2"])
def test_triton_ops_compute_the_same(name: str, checkpoint: Checkpoint) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    path, row = checkpoint(name), rows_of(tokens(20, seed=1), [5, 0], [19, 1])
    found = []
    for kernels, on in (("triton", device), ("reference", CPU)):
        ops = for_device(on, kernels, attention_cap=read_config(path).attention_cap)
        model = load_model(path, device=on, dtype=torch.float32, ops=ops)
        pool = KvPool(KvMemory(model.config, 8, device=on, dtype=model.dtype))
        found.append(torch.cat([forward(model, pool, [part])[0] for part in row]).cpu())
    torch.testing.assert_close(*found, atol=1e-3, rtol=1e-3)


def test_ops_that_do_not_cap_attention_are_refused(checkpoint: Checkpoint) -> None:
    path = checkpoint("gemma 2")
    with pytest.raises(ValueError, match=r"the model caps attention scores at 3\.0, cpu ops at None"):
        load_model(path, device=CPU, dtype=torch.float32, ops=for_device(CPU))


def test_plain_ops_asked_for_by_name_cap_attention_too(checkpoint: Checkpoint) -> None:
    path = checkpoint("gemma 2")
    config = CoreConfig(device="cpu", dtype="float32", num_pages=8, kernels="reference")
    ops = choose_ops(config, read_config(path), CPU)
    torch.testing.assert_close(logits(path, ops=ops), logits(path))


@pytest.mark.slow
@pytest.mark.parametrize(("quantize", "bound"), [("int8", 0.05), ("int4", 0.6), ("fp8", 0.2)])
@every_block
def test_weights_rounded_while_loading(name: str, quantize: Any, bound: float, checkpoint: Checkpoint) -> None:
    exact = logits(checkpoint(name))
    assert 0 < float((logits(checkpoint(name), quantize=quantize) - exact).norm() / exact.norm()) < bound


@pytest.mark.slow
@every_block
def test_a_written_checkpoint_equals_rounding_while_loading(name: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    write_quantised(checkpoint(name), tmp_path / "int8", "int8")
    torch.testing.assert_close(
        logits(tmp_path / "int8"), logits(checkpoint(name), quantize="int8"), atol=1e-4, rtol=1e-4
    )


def test_compiled_layers_leave_other_blocks_alone(checkpoint: Checkpoint) -> None:
    assert load(checkpoint("llama, gelu"))[0]._compiled is None
    assert load(checkpoint("starcoder 2"))[0]._compiled is not None


def test_norm_weights_stored_less_one_give_the_same_bits(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that bfloat16 holds exactly are used, with compiled layers."""
    torch.manual_seed(1)
    whole = tmp_path / "whole"
    transformers.LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(whole)
    tensors = load_file(whole / "model.safetensors")
    halves = {name: tensor for name, tensor in tensors.items() if "norm" in name}
    for tensor in halves.values():
        tensor.copy_(torch.randint(1, 17, tensor.shape) / 8)
    save_file(tensors, whole / "model.safetensors", metadata={"format": "pt"})
    wanted = logits(whole)
    shutil.copytree(whole, tmp_path / "less")
    save_file(
        tensors | {name: tensor - 1 for name, tensor in halves.items()},
        tmp_path / "less" / "model.safetensors",
        metadata={"format": "pt"},
    )
    monkeypatch.setitem(FAMILIES, "LlamaForCausalLM", FAMILIES["LlamaForCausalLM"]._replace(norm="rms_plus_one"))
    model = load(tmp_path / "less")[0]
    assert model._compiled is not None
    assert torch.equal(logits(tmp_path / "less"), wanted)


def test_logits_are_capped_alone(checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "capped"
    shutil.copytree(checkpoint("llama, gelu"), path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"cap": 2.0}))
    monkeypatch.setitem(FAMILIES, "LlamaForCausalLM", FAMILIES["LlamaForCausalLM"]._replace(logit_cap_field="cap"))
    torch.testing.assert_close(logits(path), 2 * torch.tanh(logits(checkpoint("llama, gelu")) / 2))


def test_a_llama_like_family_is_one_row(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "arcade"
    shutil.copytree(checkpoint("llama, gelu by tanh"), path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"architectures": ["ArcadeForCausalLM"]}))
    with pytest.raises(CheckpointError, match="'ArcadeForCausalLM' is not supported"):
        read_config(path)
    monkeypatch.setitem(FAMILIES, "ArcadeForCausalLM", Family(activations=("gelu_tanh",)))
    assert torch.equal(logits(path), logits(checkpoint("llama, gelu by tanh")))


def test_an_activation_that_the_family_has_not_is_refused(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, "LlamaForCausalLM", Family())
    with pytest.raises(CheckpointError, match="hidden_act: supported: silu, swish; 'gelu' is not supported"):
        read_config(checkpoint("llama, gelu"))


def test_experts_with_another_activation_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = transformers.MixtralConfig(**SIZES, hidden_act="gelu", architectures=["MixtralForCausalLM"])
    config.save_pretrained(tmp_path)
    monkeypatch.setitem(FAMILIES, "MixtralForCausalLM", FAMILIES["MixtralForCausalLM"]._replace(activations=("gelu",)))
    with pytest.raises(CheckpointError, match="hidden_act: experts with gelu or without a gate are not supported"):
        read_config(tmp_path)


@pytest.mark.parametrize("name", ["gemma 2", "olmo 2", "starcoder 2"])
def test_awq_is_refused_for_blocks_that_it_does_not_know(name: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="awq scales a pre-norm block of RMS norms and gated MLPs"):
        write_quantised(checkpoint(name), tmp_path / "out", "awq", text="any")


def test_draft_heads_are_not_trained_for_capped_logits(checkpoint: Checkpoint) -> None:
    model, _ = load(checkpoint("gemma 2"))
    config = head_config("eagle", model.config, model.config.vocab_size, probe(model))
    with pytest.raises(RequestError, match="the model caps its logits at 4, which training does not compute"):
        initial_head(config, model, None, seed=0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("config", [Gemma2Config, Starcoder2Config])
def test_gptq_is_nearer_to_the_dense_model_than_plain_rounding(config: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    dense = with_tokenizer(config(**CALIBRATION_SIZES), tmp_path / "dense")
    ids = AutoTokenizer.from_pretrained(SHIPPED_MODEL).encode(TEXT, add_special_tokens=False)[:200]

    def states(path: Path) -> torch.Tensor:
        model, pool = load(path)
        [pages] = page_tables(len(ids))
        with torch.inference_mode():
            inputs = decoder_inputs(rows_of(ids, pages, [len(ids)]), model, np.arange(len(ids)), pool.layers[0])
            return model.hidden(inputs, pool.layers)

    def error(method: Any) -> float:
        write_quantised(dense, tmp_path / method, method, text=TEXT)
        return float((states(tmp_path / method) - states(dense)).norm())

    assert error("gptq") < 0.93 * error("int4-rtn")
