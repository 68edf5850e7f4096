"""GGUF files as models. Judges: the `gguf` package, which writes and dequantises the files, and transformers'
forward."""

from __future__ import annotations

import string
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

import ramiform
from ramiform.kernels.cpu.products.packed_matrix import WIDTH
from ramiform.runtime.engine import KvMemory, KvPool, build_engine
from ramiform.runtime.engine.inputs import decoder_inputs
from ramiform.runtime.models.checkpoint import find_checkpoint, served_name
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.gguf.block_reader import FOUR_BIT_TYPES, four_bit_modules, read_four_bit
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.parallel.group import SingleRank
from ramiform.runtime.models.parallel.shard import Shard
from ramiform.runtime.models.parallel.stage import Stage
from ramiform.runtime.models.quantised.block_linear import BlockLinear
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.processes.launch import Runtime
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.errors import RamiformError, RequestError
from ramiform.runtime.scheduler.plan import Row

from . import k_quants
from .gguf_files import dequantised, random_blocks, write_gguf

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.15,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
CONFIGS: dict[str, Callable[..., transformers.PretrainedConfig]] = {
    "llama": lambda **sizes: transformers.LlamaConfig(**SIZES | sizes),
    "llama, tied": lambda **sizes: transformers.LlamaConfig(**SIZES | {"tie_word_embeddings": True} | sizes),
    "qwen2": lambda **sizes: transformers.Qwen2Config(**SIZES | sizes),
    "qwen3": lambda **sizes: transformers.Qwen3Config(**SIZES | {"head_dim": 32} | sizes),
    "mixtral": lambda **sizes: transformers.MixtralConfig(**SIZES | {"num_local_experts": 3} | sizes),
    "qwen2 moe": lambda **sizes: transformers.Qwen2MoeConfig(
        **SIZES | EXPERTS | {"shared_expert_intermediate_size": 64, "sliding_window": None} | sizes
    ),
    "qwen3 moe": lambda **sizes: transformers.Qwen3MoeConfig(
        **SIZES | EXPERTS | {"head_dim": 32, "norm_topk_prob": True} | sizes
    ),
}
# Blocks of 256 numbers want rows of as many.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
TOKENS = [5, 90, 3, 3, 41, 77, 0, 12, 63, 8, 8, 30]


def model_of(name: str, **sizes: int) -> PreTrainedModel:
    torch.manual_seed(len(name))
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](**sizes), dtype=torch.float32).eval()
    model.set_experts_implementation("eager")
    model.config.architectures = [type(model).__name__]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def logits(path: Path, **options: Any) -> torch.Tensor:
    model = load_model(path, device=torch.device("cpu"), dtype=torch.float32, **options)
    pool = KvPool(KvMemory(model.config, 2, device=model.device, dtype=model.dtype))
    rows = [Row(rid="r", tokens=TOKENS, first_position=0, pages=[1])]
    with torch.inference_mode():
        inputs = decoder_inputs(rows, model, np.arange(len(TOKENS)), pool.layers[0])
        return model.logits(model.hidden(inputs, pool.layers))


def logits_of(judge: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        return judge(torch.tensor([TOKENS])).logits[0]


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def error_of(path: Path, judge: PreTrainedModel, **options: Any) -> float:
    return difference(logits(path, **options), logits_of(judge))


class RoundedInputs(TorchFunctionMode):
    """Products, but for those of routers, round their inputs to int8 with a scale by group of 32, as those of packed
    blocks do."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.nn.functional.linear and len(args[1]) > EXPERTS["num_experts"]:
            groups = args[0].unflatten(-1, (-1, 32))
            scale = groups.abs().amax(-1, keepdim=True) / 127
            args = ((groups / scale).round().mul(scale).flatten(-2), *args[1:])
        return function(*args, **(kwargs or {}))


def check_rounded(path: Path, judge: PreTrainedModel) -> None:
    """Compare logits of packed blocks with those of a judge that rounds the same inputs.

    Some inputs lie halfway between two codes, where the last bits of a float32 decide; one code that differs makes
    others differ in all that follows in its token. So some tokens may differ by as much as rounding changes them, and
    all together by less than rounding changes all.
    """
    exact = logits_of(judge)
    with RoundedInputs():
        rounded = logits_of(judge)
    assert difference(logits(path), rounded) < difference(rounded, exact) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", list(CONFIGS))
def test_a_file_gives_the_logits_of_its_dense_tensors(name: str, kind: Type, tmp_path: Path) -> None:
    model = model_of(name)
    path = write_gguf(model, tmp_path / "model.gguf", lambda _: kind)
    assert error_of(path, dequantised(model, path)) < 1e-5


def test_logits_of_packed_blocks_computed_with_the_layers_have_the_bits_of_the_head_alone(tmp_path: Path) -> None:
    path = write_gguf(model_of("llama"), tmp_path / "model.gguf", lambda _: Type.Q8_0)
    model = load_model(path, device=torch.device("cpu"), dtype=torch.float32)
    kv = KvPool(KvMemory(model.config, 2, device=model.device, dtype=model.dtype)).layers
    assert model.compiled_head is not None
    rows = [Row(rid="r", tokens=TOKENS, first_position=0, pages=[1])]
    with torch.inference_mode():
        for wanted in (np.array([len(TOKENS) - 1]), np.array([3, 3, 7]), np.arange(len(TOKENS))):
            alone = model.logits(model.hidden(decoder_inputs(rows, model, wanted, kv[0]), kv))
            assert torch.equal(model.logits_of_step(decoder_inputs(rows, model, wanted, kv[0]), kv), alone)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q5_0, Type.Q5_1, Type.Q4_0, Type.Q4_1], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", list(CONFIGS))
def test_blocks_stay_packed_and_give_the_logits_of_the_dequantised(name: str, kind: Type, tmp_path: Path) -> None:
    model = model_of(name)
    path = write_gguf(model, tmp_path / "model.gguf", lambda _: kind)
    check_rounded(path, dequantised(model, path))
    parameters = load_model(path, device=torch.device("cpu"), dtype=torch.float32).parameters
    layer = parameters.layers[1]
    assert all(isinstance(part, BlockLinear) for part in (layer.qkv, layer.o, parameters.head, parameters.embedding_VE))
    assert (parameters.head is parameters.embedding_VE) == model.config.tie_word_embeddings


def test_a_file_in_parts_is_one_model(tmp_path: Path) -> None:
    model = model_of("llama")
    write_gguf(model, tmp_path / "whole.gguf", lambda _: Type.F32)
    write_gguf(model, tmp_path / "parts.gguf", lambda _: Type.F32, num_tensors=7)
    parts = sorted(tmp_path.glob("parts-*.gguf"))
    assert parts[0].name == "parts-00001-of-00003.gguf"
    assert torch.equal(logits(parts[0]), logits(tmp_path / "whole.gguf"))
    assert find_checkpoint(str(parts[1])) == parts[0]
    assert served_name(str(parts[0]), None) == "parts"
    parts[2].rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(RamiformError, match=r"parts-00003-of-00003\.gguf is missing"):
        read_config(parts[0])
    (tmp_path / parts[2].name).write_bytes(parts[1].read_bytes())
    with pytest.raises(RamiformError, match="it declares 21 tensors, and its parts have 14"):
        read_config(parts[0])


@pytest.mark.parametrize("name", ["llama, tied", "mixtral"])
def test_a_stage_reads_its_own_layers(name: str, tmp_path: Path) -> None:
    path = write_gguf(model_of(name), tmp_path / "model.gguf", lambda _: Type.Q8_0)
    options: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32}
    whole, x = load_model(path, **options), torch.randn(3, SIZES["hidden_size"])
    for index, layer in enumerate(whole.parameters.layers):
        stage = load_model(path, **options, group=SingleRank(Shard(), Stage(index, 2)))
        [own] = stage.parameters.layers
        for mine, theirs in ((own.qkv(x), layer.qkv(x)), (own.mlp(x, whole.ops), layer.mlp(x, whole.ops))):
            torch.testing.assert_close(mine, theirs)
        assert stage.parameters.num_embedded == (SIZES["vocab_size"] if index == 0 else 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [Type.Q4_K, Type.Q6_K, Type.Q5_K, Type.Q3_K, Type.Q2_K], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", ["llama", "qwen3 moe"])
def test_blocks_of_256_give_the_logits_of_the_dequantised(name: str, kind: Type, tmp_path: Path) -> None:
    sizes = WIDE | ({"moe_intermediate_size": 256, "head_dim": 64} if "moe" in name else {})
    model = model_of(name, **sizes)
    path = write_gguf(model, tmp_path / "model.gguf", lambda _: kind)
    check_rounded(path, dequantised(model, path))


def test_a_mixture_of_formats_stays_packed_where_it_can(tmp_path: Path) -> None:
    # As Q4_K_M mixes them: some of the values and of the down projections have six bits.
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}  # a head fills panels
    model = model_of("llama", **WIDE | sizes)
    six = ("blk.0.attn_v", "blk.0.ffn_down", "token_embd", "output.")
    path = write_gguf(model, tmp_path / "model.gguf", lambda name: Type.Q6_K if name.startswith(six) else Type.Q4_K)
    check_rounded(path, dequantised(model, path))
    parameters = load_model(path, device=torch.device("cpu"), dtype=torch.float32).parameters
    for layer in parameters.layers:
        assert all(isinstance(part, BlockLinear) for part in (layer.qkv, layer.o, layer.mlp.gate_up, layer.mlp.down))
    # Parts that end within a panel are dense together.
    write_gguf(model_of("llama", **WIDE), path, lambda name: Type.Q5_0 if "attn_k" in name else Type.Q8_0)
    narrow = load_model(path, device=torch.device("cpu"), dtype=torch.float32).parameters.layers[0]
    assert isinstance(narrow.qkv, BlockLinear) == (WIDTH <= 128)


@pytest.mark.parametrize(("kind", "most"), [(Type.Q4_K, 0.09), (Type.Q6_K, 0.022)], ids=["Q4_K", "Q6_K"])
def test_the_package_reads_our_blocks_as_nearly_the_rows(kind: Type, most: float) -> None:
    rows = np.random.default_rng(0).normal(size=(4, 512)).astype(np.float32)
    rows[0] = 0
    rows[1, 256:] = np.abs(rows[1, 256:])
    found = gguf.quants.dequantize(k_quants.quantize(rows, kind), kind)
    assert found.shape == rows.shape
    assert not found[0].any()
    assert np.linalg.norm(found - rows) < most * np.linalg.norm(rows)


@pytest.mark.parametrize("kind", FOUR_BIT_TYPES, ids=lambda kind: kind.name)
def test_four_bit_blocks_equal_the_package_s_numbers(kind: Type) -> None:
    shape = (5, 512)
    if kind == Type.Q4_K:
        data = random_blocks(shape, kind, seed=1)
    else:
        data = gguf.quants.quantize(np.random.default_rng(0).normal(size=shape).astype(np.float32), kind)
    codes, scales, bases = read_four_bit(data, kind)
    ours = (codes.float() - 8) * scales.repeat_interleave(32, 1) + bases.repeat_interleave(32, 1)
    theirs = torch.tensor(gguf.quants.dequantize(data, kind))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert theirs.std() > 1e-3


def test_transformers_reads_the_same_model_from_the_same_file(tmp_path: Path) -> None:
    model = model_of("llama")
    write_gguf(model, tmp_path / "model.gguf", lambda _: Type.Q8_0)
    judge = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32
    ).eval()
    check_rounded(tmp_path / "model.gguf", judge)


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_an_eight_bit_file_may_be_rounded_while_loading(quantize: str, tmp_path: Path) -> None:
    model = model_of("qwen2")
    path = write_gguf(model, tmp_path / "model.gguf", lambda _: Type.Q8_0)
    assert 0 < error_of(path, dequantised(model, path), quantize=quantize) < 0.4
    write_gguf(model, path, lambda _: Type.Q4_0)
    with pytest.raises(CheckpointError, match="holds int4 weights"):
        logits(path, quantize=quantize)


def test_four_bits_in_a_part_of_a_product_make_no_four_bit_model(tmp_path: Path) -> None:
    model = model_of("qwen2")
    path = write_gguf(model, tmp_path / "model.gguf", lambda name: Type.Q4_0 if "attn_v" in name else Type.Q8_0)
    quantisation = read_config(path).quantisation
    assert quantisation is not None
    assert quantisation.scheme.kind == "int8"
    assert four_bit_modules(quantisation.block_formats, read_config(path)) == {}
    assert 0 < error_of(path, dequantised(model, path), quantize="int8") < 0.4


def test_rope_factors_of_the_file_divide_the_frequencies(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 5000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, rope_parameters=rope)).eval()
    model.config.architectures = ["LlamaForCausalLM"]
    plain = 1.0 / 5000.0 ** (torch.arange(0, 16, 2, dtype=torch.float32) / 16)
    factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    path = tmp_path / "model.gguf"
    write_gguf(model, path, lambda _: Type.F32, lambda writer: writer.add_tensor("rope_freqs.weight", factors))
    assert error_of(path, model) < 1e-5
    assert float(np.abs(factors - 1).max()) > 1


def _add_keys(keys: dict[str, Any]) -> Callable[[gguf.GGUFWriter], None]:
    """Return a change of a file that adds metadata below its architecture, and tensors."""

    def add(writer: gguf.GGUFWriter) -> None:
        for key, value in keys.items():
            name = f"{writer.arch}.{key}"
            if isinstance(value, np.ndarray):
                writer.add_tensor(key, value)
            elif isinstance(value, bool):
                writer.add_bool(name, value)
            elif isinstance(value, str):
                writer.add_string(name, value)
            else:
                (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(name, value)

    return add


_DIVISORS = np.linspace(1, 3, 8, dtype=np.float32)


@pytest.mark.parametrize(
    ("keys", "rope", "amplitude"),
    [
        ({"rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}, 1.0),
        ({"rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}, 1.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {"rope_type": "default"}, 1.0),
        ({"rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 1.3}, {"rope_type": "linear", "factor": 4.0}, 1.3),
        ({"rope.scaling.attn_factor": 1.3, "rope_freqs.weight": _DIVISORS}, {"rope_type": "default"}, 1.3),
        ({"rope.scaling.factor": 4.0, "rope_freqs.weight": _DIVISORS}, {"rope_type": "linear", "factor": 4.0}, 1.0),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 16,
                "rope.scaling.yarn_beta_fast": 4.0,
                "rope.scaling.attn_factor": 1.2,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0},
            1.2,
        ),
    ],
)
def test_rope_keys_mean_what_they_mean_to_llama_cpp(
    keys: dict[str, Any], rope: dict[str, Any], amplitude: float, tmp_path: Path
) -> None:
    """Judge: transformers, with the scaling as llama.cpp's sources compute it."""
    torch.manual_seed(0)
    judge = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, rope_parameters={"rope_theta": 1e4, **rope})
    ).eval()
    judge.config.architectures = ["LlamaForCausalLM"]
    path = write_gguf(judge, tmp_path / "model.gguf", lambda _: Type.F32, _add_keys(keys))
    embedding = judge.model.rotary_emb
    embedding.attention_scaling *= amplitude
    if "rope_freqs.weight" in keys:
        embedding.inv_freq /= torch.from_numpy(_DIVISORS)
    assert error_of(path, judge) < 1e-5


def test_fewer_dimensions_may_rotate_than_a_head_has(tmp_path: Path) -> None:
    """Judge: a model whose rows are in the order in which all rotate, some by nothing."""
    model, judge = model_of("qwen2"), model_of("qwen2")
    D, n = 16, 6
    path = write_gguf(model, tmp_path / "model.gguf", lambda _: Type.F32, _add_keys({"rope.dimension_count": n}))
    rest = range(n, D)
    order = [*range(n // 2), *rest[: (D - n) // 2], *range(n // 2, n), *rest[(D - n) // 2 :]]
    with torch.no_grad():
        for layer in judge.model.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                for own in (projection.weight, projection.bias):
                    own.copy_(own.unflatten(0, (-1, D))[:, order].flatten(0, 1))
    embedding = judge.model.rotary_emb
    theta = judge.config.rope_parameters["rope_theta"]
    embedding.inv_freq = torch.zeros(D // 2)
    embedding.inv_freq[: n // 2] = 1.0 / theta ** (torch.arange(0, n, 2) / n)
    assert error_of(path, judge) < 1e-5


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attention.causal": False}, "llama.attention.causal: supported: true; False"),
        ({"rope.scaling.type": "longrope"}, "llama.rope.scaling.type: supported: none, linear, yarn; 'longrope'"),
        ({"rope.dimension_count": 8}, "llama.rope.dimension_count: supported: the head's size, 16; 8"),
        (
            {"rope.scaling.factor": 2.0, "rope.scaling.yarn_log_multiplier": 0.1},
            "llama.rope.scaling.yarn_log_multiplier: supported: the default; 0.1",
        ),
    ],
)
def test_metadata_that_are_not_computed_are_refused_by_key(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_gguf(model_of("llama"), tmp_path / "model.gguf", lambda _: Type.F32, _add_keys(keys))
    with pytest.raises(CheckpointError, match=message):
        read_config(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"kinds": lambda name: Type.F64 if "blk.1.ffn_up" in name else Type.F16},
            "blk.1.ffn_up.weight is stored as F64",
        ),
        ({"kinds": lambda name: Type.I8 if "attn_k" in name else Type.F16}, "blk.0.attn_k.weight is stored as I8"),
    ],
    ids=["F64", "I8"],
)
def test_a_scheme_that_is_not_read_is_refused_by_layer_and_name(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    def stored(rows: np.ndarray, kind: Type) -> np.ndarray:
        plain = {Type.F64: np.float64, Type.I8: np.int8}
        return rows.astype(plain[kind]) if kind in plain else gguf.quants.quantize(rows, kind)

    path = write_gguf(model_of("llama"), tmp_path / "model.gguf", store=stored, **arguments)
    with pytest.raises(CheckpointError, match=message):
        logits(path)


@pytest.mark.exhaustive
def test_a_file_is_served_with_its_own_tokenizer(tmp_path: Path) -> None:
    model = model_of("qwen2", vocab_size=28)

    def add_tokenizer(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list([*string.ascii_lowercase, "<|end|>", "ab"])
        writer.add_token_types([1] * 26 + [3, 1])
        writer.add_token_merges(["a b"])
        writer.add_eos_token_id(26)

    path = write_gguf(model, tmp_path / "tiny.gguf", lambda _: Type.F32, add_tokenizer)
    ids = [ord(letter) - ord("a") for letter in "hello"]
    with torch.inference_mode():
        while len(ids) < 11 and ids[-1] != 26:
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    pieces = [*string.ascii_lowercase, "", "ab"]

    @ramiform.function
    def write(s: ramiform.ProgramState) -> None:
        s += "hello"
        s += ramiform.gen("text", max_tokens=6, temperature=0.0)

    with Runtime(model=str(path), device="cpu", num_pages=16) as runtime:
        assert runtime.info.name == "tiny"
        assert write.run(backend=runtime)["text"] == "".join(pieces[number] for number in ids[5:])


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ("mamba", r"general\.architecture: supported: .*'mamba' is not supported"),
        ("clip", "it is the vision tower of a model \\(mmproj\\)"),
    ],
)
def test_another_architecture_is_refused_by_its_name(tmp_path: Path, architecture: str, words: str) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", architecture)
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=words):
        logits(tmp_path / "model.gguf")
    with pytest.raises(RequestError, match="no GGUF or mmproj file has them here: leave out picture_bytes"):
        build_engine(CoreConfig(device="cpu", picture_bytes=1), tmp_path / "model.gguf")


def test_truncated_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = write_gguf(model_of("llama"), tmp_path / "model.gguf", lambda _: Type.F16)
    whole = path.read_bytes()
    for content, message in (
        (whole[: len(whole) // 2], rf"ends early: it has {len(whole) // 2:,} bytes, and its tensors need [0-9,]+\."),
        (whole[:-33], f"ends early: it has {len(whole) - 33:,} bytes, and its tensors need"),
        (whole[:40], "ends early: it has 40 bytes, and its metadata need"),
        (b"PK\x03\x04" + bytes(64), r"it is no GGUF file: it begins with b'PK\\x03\\x04'"),
        (b"", "it is no GGUF file: it begins with b''"),
    ):
        path.write_bytes(content)
        with pytest.raises(RamiformError, match=rf"model\.gguf: not readable as GGUF: .*{message}"):
            logits(path)


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(model_of("llama"), tmp_path / "model.gguf", lambda _: Type.F16)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(
        RamiformError, match=r"GGUF files are read with the extra 'gguf': pip install 'ramiform\[gguf\]'"
    ):
        logits(path)


def test_missing_and_unexpected_tensors_are_named(tmp_path: Path) -> None:
    model = model_of("llama")
    path = tmp_path / "model.gguf"
    write_gguf(
        model, path, lambda _: Type.F16, lambda writer: writer.add_tensor("extra.weight", np.zeros(4, np.float32))
    )
    with pytest.raises(CheckpointError, match=r"the tensor extra\.weight is unexpected"):
        logits(path)
    write_gguf(model, path, lambda _: Type.F16, lambda writer: writer.add_block_count(3))
    with pytest.raises(CheckpointError, match=r"the tensor blk\.2\.attn_norm\.weight is missing"):
        logits(path)
