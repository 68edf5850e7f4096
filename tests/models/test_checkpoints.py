"""Reading checkpoints: accepted files, and errors that name each defect."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ramiform.runtime.models import load as load_module
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.linear import Destination
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.packed_linear import PackedLinear
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.protocol.errors import RamiformError

ChangeConfig = Callable[..., Path]


def load(path: Path, on_progress: Callable[[int, int], None] | None = None) -> Decoder:
    return load_model(path, device=torch.device("cpu"), dtype=torch.float32, on_progress=on_progress)


def change_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


def parameters_equal(left: Decoder, right: Decoder) -> bool:
    # However weights lie in memory, their product with the unit vectors is what they are.
    pairs = zip(left.parameters.layers, right.parameters.layers, strict=True)
    with torch.inference_mode():
        hidden, inner = torch.eye(left.config.hidden_size), torch.eye(left.config.intermediate_size)
        return torch.equal(left.logits(hidden), right.logits(hidden)) and all(
            torch.equal(a.qkv(hidden), b.qkv(hidden)) and torch.equal(a.mlp.down(inner), b.mlp.down(inner))
            for a, b in pairs
        )


def test_a_sharded_checkpoint_equals_the_single_file(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint("qwen3"), dtype=torch.float32)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert parameters_equal(load(tmp_path), load(checkpoint("qwen3")))


@pytest.mark.parametrize("name", ["llama3", "qwen2, windows", "qwen3", "llama with biases"])
def test_parameters_are_counted_as_transformers_counts_them(name: str, checkpoint: Callable[[str], Path]) -> None:
    judge = transformers.AutoModelForCausalLM.from_pretrained(checkpoint(name))
    assert load(checkpoint(name)).num_parameters == judge.num_parameters()


def test_progress_grows_to_the_files_size(checkpoint: Callable[[str], Path]) -> None:
    calls: list[tuple[int, int]] = []
    load(checkpoint("llama2"), lambda done, total: calls.append((done, total)))
    size = (checkpoint("llama2") / "model.safetensors").stat().st_size
    assert [total for _, total in calls] == [size] * len(calls)
    done = [done for done, _ in calls]
    assert done == sorted(done)
    assert done[-1] == size
    assert len(set(done)) > 10


def test_layers_are_packed_while_nothing_else_holds_their_weights(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the model would be in memory twice."""

    class Destinations(dict[str, Destination]):
        pass  # which can be referred to weakly

    kept: list[weakref.ref[Destinations]] = []
    fill, finish = load_module.checkpoint_destinations, PackedLinear.finish

    def destinations(*args: Any) -> Destinations:
        made = Destinations(fill(*args))
        kept.append(weakref.ref(made))
        return made

    alive: list[bool] = []
    monkeypatch.setattr(load_module, "checkpoint_destinations", destinations)
    monkeypatch.setattr(PackedLinear, "finish", lambda linear: (alive.append(kept[0]() is not None), finish(linear)))
    load(checkpoint("llama3"))
    assert alive
    assert not any(alive)


def test_weights_take_the_type_asked_for(checkpoint: Callable[[str], Path]) -> None:
    model = load_model(checkpoint("llama2"), device=torch.device("cpu"), dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16


def test_an_unknown_path_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"/no/such/model: no such model directory"):
        load(Path("/no/such/model"))


def test_a_directory_without_a_config_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"architectures": ["BertLMHeadModel"]},
            r"architectures: supported: LlamaForCausalLM.*'BertLMHeadModel' is not",
        ),
        ({"architectures": ...}, r"architectures must list the model's class"),
        ({"architectures": [["LlamaForCausalLM"]]}, r"architectures must list the model's class"),
        ({"hidden_act": "gelu"}, r"hidden_act: .*'gelu' is not supported"),
        ({"hidden_size": ...}, r"the field hidden_size is missing"),
        ({"hidden_size": "64"}, r"hidden_size must be an integer .*'64'"),
        ({"num_key_value_heads": 3}, r"num_key_value_heads does not divide num_attention_heads 4, got 3"),
        ({"head_dim": 17}, r"head_dim must be even, got 17"),
        ({"rms_norm_eps": -1.0}, r"rms_norm_eps must be a positive number, got -1\.0"),
        ({"tie_word_embeddings": "yes"}, r"tie_word_embeddings must be true or false, got 'yes'"),
        ({"quantization_config": {"quant_method": "aqlm"}}, r"quantization_config\.quant_method: .*'aqlm' is not"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 3, "group_size": 32, "desc_act": True}},
            r"quantization_config\.bits: .*3 is not supported",
        ),
        (
            {"quantization_config": {"quant_method": "awq", "bits": 3, "group_size": 32}},
            r"quantization_config\.bits: supported: 4; 3 is not",
        ),
        ({"rope_parameters": {"rope_type": "spiral"}}, r"rope_parameters\.rope_type: .*'spiral' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope"}}, r"the field rope_parameters\.short_factor is missing"),
        (
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0, 2.0]}},
            r"rope_parameters\.short_factor must list 8 numbers",
        ),
        ({"rope_scaling": {"type": "linear"}}, r"the field rope_scaling\.factor is missing"),
        ({"rope_scaling": "linear"}, r"rope_scaling must be an object, got 'linear'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, r"rope_scaling\.low_freq_factor is missing"),
        ({"partial_rotary_factor": 0.2}, r"partial_rotary_factor must rotate an even number of a head's 16 dimensions"),
    ],
)
def test_unsupported_config_fields_are_named(
    fields: dict[str, object], message: str, change_config: ChangeConfig
) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: .*" + message):
        load(change_config(**fields))


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_config_that_is_no_json_object_is_named(text: str, broken: Path) -> None:
    (broken / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load(broken)


@pytest.mark.slow
@given(cut=st.integers(0, 500_000))
@settings(max_examples=40, deadline=None)
def test_a_truncated_file_is_named_wherever_it_was_cut(
    cut: int, checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("truncated")
    whole = (checkpoint("llama3") / "model.safetensors").read_bytes()
    (path / "config.json").write_bytes((checkpoint("llama3") / "config.json").read_bytes())
    (path / "model.safetensors").write_bytes(whole[: cut % len(whole)])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: corrupt or truncated"):
        load(path)


def test_bytes_that_are_no_safetensors_are_named(broken: Path) -> None:
    (broken / "model.safetensors").write_bytes(b"\x80\x04\x95" * 400)  # how a pickle begins
    with pytest.raises(CheckpointError, match=r"model\.safetensors: corrupt or truncated"):
        load(broken)


def test_a_missing_tensor_is_named(broken: Path) -> None:
    change_weights(broken, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(CheckpointError, match=r"the tensor model\.layers\.1\.mlp\.up_proj\.weight is in none of"):
        load(broken)


def test_an_unexpected_tensor_is_named(broken: Path) -> None:
    change_weights(broken, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}))
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.self_attn\.q_proj\.bias is unexpected"):
        load(broken)


def test_a_tensor_of_another_shape_is_named(broken: Path) -> None:
    change_weights(broken, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(63)}))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has shape \(63,\), config\.json asks for \(64,\)"):
        load(broken)


def test_a_tensor_of_integers_is_named(broken: Path) -> None:
    change_weights(broken, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(64, dtype=torch.int8)}))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is torch\.int8"):
        load(broken)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_tensor_of_no_numbers_is_named(broken: Path, value: float, dtype: torch.dtype) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"] = tensors["model.layers.1.mlp.up_proj.weight"].to(dtype)
        tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value

    change_weights(broken, spoil)
    with pytest.raises(CheckpointError, match=r"up_proj\.weight has values that are infinite or no numbers"):
        load(broken)


def test_finite_values_whose_sum_overflows_are_loaded(broken: Path) -> None:
    change_weights(broken, lambda tensors: tensors["model.norm.weight"].fill_(3e38))
    load(broken)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**8}, "num_hidden_layers.*at most 10000"),
        ({"vocab_size": 10**12}, "vocab_size.*at most"),
        ({"vocab_size": 10**9}, "bytes of weights cannot hold"),
        ({"num_hidden_layers": 9999}, "bytes of weights cannot hold"),
        ({"intermediate_size": 1 << 31}, "bytes of weights cannot hold"),
    ],
    ids=str,
)
def test_sizes_beyond_the_files_are_refused_before_memory_is_allocated(
    broken: Path, changes: dict[str, int], message: str
) -> None:
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(CheckpointError, match=message):
        load(broken)


def test_a_checkpoint_of_pickles_is_refused(broken: Path) -> None:
    (broken / "model.safetensors").rename(broken / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"holds neither model\.safetensors nor"):
        load(broken)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", r"not a safetensors index"),
        ("{}", r"not a safetensors index"),
        ('{"weight_map": {}}', r"weight_map is empty"),
        ('{"weight_map": {"a": "gone.safetensors"}}', r"gone\.safetensors, which does not exist"),
        ('{"weight_map": {"a": "../model.safetensors"}}', r"not a file beside it"),
    ],
)
def test_a_bad_shard_index_is_named(index: str, message: str, broken: Path) -> None:
    (broken / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json: .*" + message):
        load(broken)


def test_a_tensor_in_two_shards_is_named(broken: Path) -> None:
    names = ["one.safetensors", "two.safetensors"]
    for name in names:
        (broken / name).write_bytes((broken / "model.safetensors").read_bytes())
    (broken / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": names[0], "b": names[1]}}))
    with pytest.raises(CheckpointError, match=r"two\.safetensors: the tensor .* is stored twice"):
        load(broken)


def test_a_checkpoint_error_is_one_of_ours() -> None:
    assert issubclass(CheckpointError, RamiformError)


def test_windows_without_layer_types_start_at_max_window_layers(change_config: ChangeConfig) -> None:
    window = {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 1, "layer_types": ...}
    config = change_config(architectures=["Qwen2ForCausalLM"], **window)
    judge = transformers.Qwen2Config(
        num_hidden_layers=3, use_sliding_window=True, sliding_window=13, max_window_layers=1
    )
    want = tuple(13 if kind == "sliding_attention" else None for kind in judge.layer_types)
    assert read_config(config).windows == want


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        (None, 256),
        ({"rope_type": "linear", "factor": 2.0}, 512),
        ({"rope_type": "dynamic", "factor": 2.0}, 512),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            256,
        ),
    ],
)
def test_the_context_length_includes_rope_scaling(
    rope: dict[str, object] | None, length: int, change_config: ChangeConfig
) -> None:
    assert read_config(change_config(rope_parameters=rope)).context_length == length
