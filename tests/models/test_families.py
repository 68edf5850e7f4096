"""Every native family on random checkpoints in float32. Judge: transformers, its logits and its greedy tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from ramiform.kernels import for_device
from ramiform.kernels.cpu import thread_pool
from ramiform.runtime.engine import KvMemory, KvPool, build_engine
from ramiform.runtime.models import compiled_layers
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.parallel.group import Group
from ramiform.runtime.models.parallel.shard import why_indivisible
from ramiform.runtime.models.parameters import num_parameters
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.models.rope.angles import rope_amplitude, rope_frequencies
from ramiform.runtime.models.size import model_size
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.errors import RequestError
from ramiform.tests.composition.test_stages import logits as staged_logits
from ramiform.tests.composition.threads import groups, on_each
from ramiform.tools.quantize.write import write_quantised

from .test_compiled_layers import STEPS, states
from .test_decoder_equals_transformers import assert_close, forward, load, page_tables, rows_of, tokens

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": 203,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.12,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_NO_GROUPS = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
_GPT2 = {"vocab_size": 203, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256, "initializer_range": 0.12}
_FALCON = {name: value for name, value in _NO_GROUPS.items() if name != "intermediate_size"}
_OPT = {**_FALCON, "ffn_dim": 112, "init_std": 0.12, "word_embed_proj_dim": 64}
_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * pair for pair in range(6)],
    "long_factor": [2.0 + 0.3 * pair for pair in range(6)],
    "original_max_position_embeddings": 40,
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.75,
}
_LATENT = {**SIZES, "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 16,
           "qk_rope_head_dim": 8, "v_head_dim": 12, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
           "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "n_shared_experts": 2,
           "routed_scaling_factor": 0.7}  # fmt: skip
_YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64, "mscale": 0.7,
         "mscale_all_dim": 0.9, "beta_fast": 32, "beta_slow": 1}  # fmt: skip
_TEXT = {**SIZES, "head_dim": 16, "layer_types": _LAYERS, "sliding_window": 21}
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
_ALPHA = {"rope_type": "dynamic", "alpha": 30.0, "factor": 1.0, "rope_theta": 1e4}
_LLAMA4 = {**SIZES, "head_dim": 16, "num_local_experts": 5, "intermediate_size_mlp": 96, "attention_chunk_size": 24,
           "floor_scale": 16, "attn_scale": 0.3}  # fmt: skip

# Class of the config, and its fields.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("Gemma", {**SIZES, "head_dim": 24}),
    "gemma 2": ("Gemma2", {**SIZES, "head_dim": 24, "query_pre_attn_scalar": 40, "sliding_window": 21,
                           "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0}),
    "gemma 3": ("Gemma3Text", {**_TEXT, "head_dim": 24, "query_pre_attn_scalar": 40}),
    "gemma 3, linear": ("Gemma3Text", {**_TEXT, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}),
    "vaultgemma": ("VaultGemma", {**SIZES, "head_dim": 24, "sliding_window": 21, "layer_types": _LAYERS}),
    "phi 3": ("Phi3", {**SIZES, "sliding_window": 21}),
    "phi 3, longrope": ("Phi3", {**SIZES, "rope_parameters": _LONGROPE, "original_max_position_embeddings": 40}),
    "olmo": ("Olmo", SIZES),
    "olmo 2": ("Olmo2", SIZES),
    "olmo 3": ("Olmo3", {**SIZES, "sliding_window": 21, "layer_types": _LAYERS, "rope_parameters": {
        "full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e4,
                           "original_max_position_embeddings": 64},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e4}}}),
    "granite": ("Granite", {**SIZES, "embedding_multiplier": 3.0, "attention_multiplier": 0.3,
                            "residual_multiplier": 0.4, "logits_scaling": 0.5}),
    "smollm 3": ("SmolLM3", {**SIZES, "no_rope_layers": [1, 0, 1]}),
    "glm": ("Glm", {**SIZES, "head_dim": 16}),
    "glm 4": ("Glm4", {**SIZES, "head_dim": 24}),
    "cohere": ("Cohere", {**SIZES, "logit_scale": 0.5}),
    "cohere, qk norm": ("Cohere", {**SIZES, "logit_scale": 0.5, "use_qk_norm": True}),
    "cohere 2": ("Cohere2", {**SIZES, "logit_scale": 0.5, "sliding_window": 21, "layer_types": _LAYERS}),
    "starcoder 2": ("Starcoder2", {**SIZES, "sliding_window": 30}),
    "stablelm": ("StableLm", {**SIZES, "use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "falcon, multi-query": ("Falcon", _FALCON),
    "falcon, groups": ("Falcon", {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon, groups, one norm": ("Falcon", {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2,
                                            "num_ln_in_parallel_attn": 1}),
    "falcon, sequential": ("Falcon", {**_FALCON, "multi_query": False, "parallel_attn": False, "bias": True}),
    "phi": ("Phi", SIZES),
    "gpt neox": ("GPTNeoX", _NO_GROUPS),
    "gpt neox, sequential": ("GPTNeoX", {**_NO_GROUPS, "use_parallel_residual": False, "rotary_pct": 1.0}),
    "gpt 2": ("GPT2", _GPT2),
    "opt": ("OPT", _OPT),
    "nemotron": ("Nemotron", SIZES),
    "arcee": ("Arcee", SIZES),
    "seed oss": ("SeedOss", {**SIZES, "head_dim": 24, "attention_out_bias": True}),
    "ernie 4.5": ("Ernie4_5", {**SIZES, "head_dim": 24, "use_bias": True}),
    "helium": ("Helium", {**SIZES, "head_dim": 16, "intermediate_size": 128}),
    "exaone 4": ("Exaone4", {**SIZES, "sliding_window": 21, "layer_types": _LAYERS}),
    "exaone 4, no windows": ("Exaone4", {**SIZES, "sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "cwm": ("Cwm", {**_TEXT, "bos_token_id": 1, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}}),
    "ministral": ("Ministral", _TEXT),
    "deepseek v2": ("DeepseekV2", {**_LATENT, "topk_method": "group_limited_greedy", "first_k_dense_replace": 1}),
    "deepseek v2 lite": ("DeepseekV2", {**_LATENT, "q_lora_rank": None, "first_k_dense_replace": 1,
                                        "rope_parameters": _YARN}),
    "deepseek v3": ("DeepseekV3", {**_LATENT, "first_k_dense_replace": 1, "rope_parameters": _YARN}),
    "gpt oss": ("GptOss", {**_TEXT, "intermediate_size": 96, "num_local_experts": 4, "num_experts_per_tok": 3,
                           "rope_parameters": {**_YARN, "mscale": None, "mscale_all_dim": None, "truncate": False}}),
    "llama 4": ("Llama4Text", {**_LLAMA4, "no_rope_layers": [1, 0, 1], "moe_layers": [0, 1]}),
    "llama 4, no norms": ("Llama4Text", {**_LLAMA4, "no_rope_layer_interval": 2, "use_qk_norm": False,
                                         "interleave_moe_layer_step": 2, "num_experts_per_tok": 2,
                                         "attn_temperature_tuning": False}),
    "glm 4.5": ("Glm4Moe", {**SIZES, **_MOE, "n_routed_experts": 6, "n_shared_experts": 1, "use_qk_norm": True,
                            "head_dim": 24, "attention_bias": True, "routed_scaling_factor": 1.4}),
    "ernie 4.5 moe": ("Ernie4_5_Moe", {**SIZES, "moe_num_experts": 5, "moe_k": 2, "moe_intermediate_size": 24}),
    "olmoe": ("Olmoe", {**SIZES, "intermediate_size": 48, "num_experts": 5, "num_experts_per_tok": 2}),
    "hunyuan": ("HunYuanDenseV1", {**SIZES, "head_dim": 24, "rope_parameters": _ALPHA}),
    "hunyuan moe": ("HunYuanMoEV1", {**SIZES, "head_dim": 16, "num_experts": 4, "moe_topk": [3, 3, 3]}),
    "glm 4.7 flash": ("Glm4MoeLite", {**_LATENT, "n_group": 1, "topk_group": 1, "rope_interleave": False}),
}  # fmt: skip
Checkpoint = Callable[[str], Path]
every_family = pytest.mark.parametrize("name", CONFIGS)


@cache
def make_judge(name: str) -> PreTrainedModel:
    """Make a random model in which every parameter matters: transformers starts norms at 1 and biases at 0."""
    kind, fields = CONFIGS[name]
    torch.manual_seed(len(name))
    config = getattr(transformers, f"{kind}Config")(**fields)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in (*model.named_parameters(), *routing_biases(model)):
            if parameter.dim() == 1 or name.endswith(("proj_bias", "correction_bias")):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def routing_biases(model: PreTrainedModel) -> list[tuple[str, torch.Tensor]]:
    """The stored buffers of routers, which are no parameters to transformers."""
    ends = ("e_score_correction_bias", "expert_bias")
    return [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(ends)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Directories of the checkpoints by name, made on first use."""

    @cache
    def make(name: str) -> Path:
        path = tmp_path_factory.mktemp("checkpoint")
        make_judge(name).save_pretrained(path)
        return path

    return make


def expected(name: str, prompt: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return make_judge(name)(torch.tensor([prompt])).logits[0]


@pytest.mark.slow
@every_family
def test_prompts_and_decode_steps_equal_the_judge_s(name: str, checkpoint: Checkpoint) -> None:
    model, pool = load(checkpoint(name))
    lengths = (101, 48, 7)
    prompts = [tokens(length, seed=length) for length in lengths]
    parts = [[length - count - 1, count, 1] for length, count in zip(lengths, (30, 1, 1), strict=True)]
    rows = [rows_of(*row) for row in zip(prompts, page_tables(*lengths), parts, strict=True)]
    steps = [forward(model, pool, [row[step] for row in rows]) for step in range(3)]
    for prompt, *found in zip(prompts, *steps, strict=True):
        want = expected(name, prompt)
        assert float(want.std()) > 0.3, "the judge's model must not be trivial"
        assert_close(torch.cat(found), want)


@pytest.mark.slow
@every_family
def test_a_prompt_in_one_pass(name: str, checkpoint: Checkpoint) -> None:
    model, pool = load(checkpoint(name))
    prompt = tokens(101, seed=1)
    [pages] = page_tables(101)
    assert_close(forward(model, pool, rows_of(prompt, pages, [101]))[0], expected(name, prompt))


@every_family
def test_parameters_are_counted_as_the_judge_counts_them(name: str, checkpoint: Checkpoint) -> None:
    config = read_config(checkpoint(name))
    judge = make_judge(name)
    assert num_parameters(config) == judge.num_parameters() + sum(bias.numel() for _, bias in routing_biases(judge))
    assert model_size(config).num_parameters == num_parameters(config)


@pytest.mark.slow
@every_family
def test_plain_torch_computes_the_same(name: str, checkpoint: Checkpoint) -> None:
    """The compiled step computes some blocks; the others, and all before the loops are loaded, are plain torch."""
    path, prompt = checkpoint(name), tokens(38, seed=3)
    [pages] = page_tables(38)
    found = []
    for kernels in ("auto", "reference"):
        ops = None if kernels == "auto" else for_device(CPU, "reference", attention_cap=read_config(path).attention_cap)
        model = load_model(path, device=CPU, dtype=torch.float32, ops=ops)
        pool = load(path)[1]
        found.append(torch.cat([forward(model, pool, [row])[0] for row in rows_of(prompt, pages, [30, 7, 1])]))
    assert_close(*found)


def logits(path: Path, *, group: Group | None = None, **options: Any) -> torch.Tensor:
    """Compute logits of a prompt in chunks and of single tokens after it."""
    model = load_model(path, device=CPU, dtype=torch.float32, **options, **({} if group is None else {"group": group}))
    pool = KvPool(KvMemory(model.config, 8, device=CPU, dtype=model.dtype))
    rows = rows_of(tokens(38, seed=1), [5, 0, 7], [29, 7, 1, 1])
    return torch.cat([forward(model, pool, [row])[0] for row in rows])


@pytest.mark.slow
@every_family
def test_two_ranks_compute_what_one_does(name: str, checkpoint: Checkpoint) -> None:
    path = checkpoint(name)
    if (reason := why_indivisible(read_config(path), 2)) is not None:
        with pytest.raises(RequestError, match=f"tp 2 does not fit the model: {reason}"):
            groups(path, 2)
        return
    for mine in on_each(groups(path, 2), lambda group: logits(path, group=group)):
        torch.testing.assert_close(mine, logits(path), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@every_family
def test_two_stages_compute_what_one_does(name: str, checkpoint: Checkpoint) -> None:
    path = checkpoint(name)
    first, _ = on_each(groups(path, 1, stages=2), lambda group: staged_logits(path, group, (0, 2, 3)))
    torch.testing.assert_close(first, staged_logits(path, captures=(0, 2, 3)), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@every_family
def test_weights_rounded_while_loading(name: str, checkpoint: Checkpoint) -> None:
    exact = logits(checkpoint(name))
    assert 0 < float((logits(checkpoint(name), quantize="int8") - exact).norm() / exact.norm()) < 0.1


@pytest.mark.parametrize("name", ["phi 3", "helium", "granite", "olmo 3", "hunyuan moe"])
def test_a_written_checkpoint_equals_rounding_while_loading(name: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    write_quantised(checkpoint(name), tmp_path / "int8", "int8")
    torch.testing.assert_close(
        logits(tmp_path / "int8"), logits(checkpoint(name), quantize="int8"), atol=1e-4, rtol=1e-4
    )


def test_a_family_with_other_names_is_not_written_quantised(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="GPT2LMHeadModel names its tensors otherwise"):
        write_quantised(checkpoint("gpt 2"), tmp_path / "out", "int8")
    with pytest.raises(CheckpointError, match="GptOssForCausalLM names its tensors otherwise"):
        write_quantised(checkpoint("gpt oss"), tmp_path / "out", "int8")
    with pytest.raises(CheckpointError, match="gptq does not know how HeliumForCausalLM lays out its heads"):
        write_quantised(checkpoint("helium"), tmp_path / "out", "gptq", text="any")


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("falcon, groups", "alibi", True, "alibi: for FalconForCausalLM True is not supported"),
        ("olmo", "clip_qkv", 8.0, "clip_qkv: for OlmoForCausalLM 8.0 is not supported"),
        ("gpt 2", "add_cross_attention", True, "add_cross_attention: for GPT2LMHeadModel True is not supported"),
        ("smollm 3", "no_rope_layers", [1, 2, 1], "no_rope_layers must give 0 or 1 for each of 3 layers"),
        ("hunyuan moe", "norm_topk_prob", False, "norm_topk_prob: for HunYuanMoEV1ForCausalLM False is not supported"),
    ],
)
def test_what_a_family_does_not_compute_is_refused(
    name: str, field: str, value: object, message: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    config = json.loads((checkpoint(name) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_config(tmp_path)


def test_fields_of_hunyuan_a13b_that_are_off_are_read_so(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Its published file has false for numbers that it does not use, and a list where all layers have one number."""
    config = json.loads((checkpoint("hunyuan moe") / "config.json").read_text())
    off = {"n_group": False, "topk_group": False, "routed_scaling_factor": False, "num_shared_expert": [1, 1, 1]}
    (tmp_path / "config.json").write_text(json.dumps(config | off))
    assert read_config(tmp_path) == read_config(checkpoint("hunyuan moe"))
    (tmp_path / "config.json").write_text(json.dumps(config | off | {"num_shared_expert": [2, 2, 2]}))
    experts = read_config(tmp_path).experts
    assert experts is not None
    assert experts.shared_size == 2 * experts.intermediate_size


def test_gpt_oss_without_a_rope_has_the_scaling_of_its_class(checkpoint: Checkpoint, tmp_path: Path) -> None:
    config = json.loads((checkpoint("gpt oss") / "config.json").read_text())
    del config["rope_parameters"]
    config["max_position_embeddings"] = 131_072
    (tmp_path / "config.json").write_text(json.dumps(config))
    judge = transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters
    rope = read_config(tmp_path).rope
    assert (rope.type, rope.theta, rope.factor) == (judge["rope_type"], judge["rope_theta"], judge["factor"])
    assert (rope.original_context, rope.truncate) == (judge["original_max_position_embeddings"], judge["truncate"])


def test_sizes_that_no_group_divides_are_refused_for_int4(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="int4 needs layers whose inputs are all divisible by 32"):
        load_model(checkpoint("olmoe"), device=CPU, dtype=torch.float32, quantize="int4")


def test_long_rope_within_its_original_context_keeps_the_kernels(checkpoint: Checkpoint) -> None:
    rope = read_config(checkpoint("phi 3, longrope")).rope
    assert rope.depends_on_length
    assert rope.within(41).depends_on_length
    short = rope.within(40)
    assert not short.depends_on_length
    got = rope_frequencies(short, 16)
    assert torch.equal(got, rope_frequencies(rope, 16))
    assert rope_amplitude(short) == rope_amplitude(rope) > 1


def test_an_engine_of_a_short_context_needs_no_switch_of_factors(checkpoint: Checkpoint) -> None:
    path = checkpoint("phi 3, longrope")
    for length, depends in ((40, False), (41, True)):
        config = CoreConfig(device="cpu", dtype="float32", num_pages=8, context_length=length)
        assert build_engine(config, path)._runner.model.rope.depends_on_length == depends


_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_QWEN_VISION = {
    "depth": 1,
    "hidden_size": 64,
    "embed_dim": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "intermediate_size": 48,
    "fullatt_block_indexes": [0],
    "deepstack_visual_indexes": [0],
}
_SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
_QWEN_TEXT = {**SIZES, "head_dim": 16, "rope_parameters": _SECTIONS}
_QWEN_TOKENS = {"image_token_id": 200, "video_token_id": 201, "vision_start_token_id": 198, "vision_end_token_id": 199}
MULTIMODAL: dict[str, dict[str, Any]] = {
    "Gemma3": {"text_config": _TEXT, "vision_config": _VISION, "mm_tokens_per_image": 1, "image_token_index": 200,
               "boi_token_index": 201, "eoi_token_index": 202},
    "Qwen2VL": {"text_config": _QWEN_TEXT, "vision_config": _QWEN_VISION, **_QWEN_TOKENS},
    "Qwen2_5_VL": {"text_config": _QWEN_TEXT, "vision_config": _QWEN_VISION, **_QWEN_TOKENS},
    "Qwen3VL": {"text_config": _QWEN_TEXT, "vision_config": _QWEN_VISION, **_QWEN_TOKENS},
    "Qwen3_5": {"text_config": {**_QWEN_TEXT, "layer_types": ["linear_attention", "full_attention"] * 2,
                                "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                                "linear_key_head_dim": 12, "linear_value_head_dim": 10,
                                "rope_parameters": {**_SECTIONS, "partial_rotary_factor": 0.5}},
                "vision_config": _QWEN_VISION, **_QWEN_TOKENS},
    "Qwen3VLMoe": {"text_config": {**_QWEN_TEXT, **_MOE, "num_experts": 5}, "vision_config": _QWEN_VISION,
                   **_QWEN_TOKENS},
    "Mistral3": {"text_config": {"model_type": "mistral", **SIZES}, "image_token_index": 200,
                 "vision_config": {"model_type": "pixtral", **_VISION}},
    "Llama4": {"text_config": {**_LLAMA4, "no_rope_layers": [1, 0, 1]}, "image_token_index": 200,
               "vision_config": {**_VISION, "vision_output_dim": 32, "projector_input_dim": 32,
                                 "projector_output_dim": 32}},
    "Llava": {"text_config": {"model_type": "llama", **SIZES}, "image_token_index": 200,
              "vision_config": {"model_type": "clip_vision_model", "projection_dim": 32, **_VISION}},
    "InternVL": {"text_config": {"model_type": "qwen2", **SIZES}, "image_token_id": 200,
                 "vision_config": {**_VISION, "image_size": [28, 28], "patch_size": [14, 14]}},
    "SmolVLM": {"text_config": {"model_type": "llama", **SIZES, "pad_token_id": 0}, "image_token_id": 200,
                "vision_config": _VISION},
    "Idefics3": {"text_config": {"model_type": "llama", **SIZES, "pad_token_id": 0}, "image_token_id": 200,
                 "vision_config": _VISION},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", MULTIMODAL)
def test_the_text_part_of_multimodal_checkpoints(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**MULTIMODAL[kind])
    judge = transformers.AutoModelForImageTextToText.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    judge.save_pretrained(tmp_path)
    model, pool = load(tmp_path)
    prompt = [token % 190 for token in tokens(61, seed=2)]
    [pages] = page_tables(61)
    sizes = [40, 19, 1, 1] if model.config.recurrent is None else [61]  # states need slots
    got = torch.cat([forward(model, pool, [row])[0] for row in rows_of(prompt, pages, sizes)])
    with torch.inference_mode():
        want = judge(input_ids=torch.tensor([prompt])).logits[0]
        if model.config.recurrent is None:
            assert_close(got, want)
            return
        # transformers sums over chunks in float32, and is itself four times the tolerance from float64.
        exact = judge.double()(input_ids=torch.tensor([prompt])).logits[0]
        assert float((got - exact).abs().max()) <= max(1e-4, float((want - exact).abs().max()))


def test_experts_in_one_tensor_may_be_stored_either_way(tmp_path: Path) -> None:
    """Qwen3-VL's mixtures are published with inputs before outputs, and written by transformers 5 the other way."""
    torch.manual_seed(1)
    config = transformers.Qwen3VLMoeConfig(**MULTIMODAL["Qwen3VLMoe"])
    transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    expected = logits(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if ".mlp.experts." in name]:
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(logits(tmp_path), expected)


def test_square_experts_that_may_be_stored_either_way_are_refused(tmp_path: Path) -> None:
    own = MULTIMODAL["Qwen3VLMoe"]
    text = own["text_config"] | {"moe_intermediate_size": own["text_config"]["hidden_size"] // 2}
    config = transformers.Qwen3VLMoeConfig(**own | {"text_config": text})
    transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="either order"):
        logits(tmp_path)


def test_a_text_part_of_another_kind_is_refused(tmp_path: Path) -> None:
    config = transformers.LlavaConfig(text_config={"model_type": "opt", "hidden_size": 64})
    config.architectures = ["LlavaForConditionalGeneration"]
    config.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"text_config\.model_type: supported: llama; 'opt' is not supported"):
        read_config(tmp_path)


def test_internlm_3_is_a_llama_with_flags_of_its_own(tmp_path: Path) -> None:
    torch.manual_seed(1)
    judge = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, head_dim=16, attention_bias=False, rope_parameters=_SECTIONS)
    ).eval()
    judge.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    fields = {"architectures": ["InternLM3ForCausalLM"], "bias": False, "qkv_bias": False}
    (tmp_path / "config.json").write_text(json.dumps(config | fields))
    model, pool = load(tmp_path)
    prompt = tokens(20, seed=2)
    with torch.inference_mode():
        assert_close(forward(model, pool, rows_of(prompt, [0, 1], [20]))[0], judge(torch.tensor([prompt])).logits[0])


BLOCKS = [
    "gemma 3", "olmo 2", "glm 4", "granite", "phi", "gpt neox", "gpt 2", "opt", "cohere 2", "falcon, groups",
    "gpt oss", "llama 4", "glm 4.5", "hunyuan moe",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_a_compiled_step_with_a_draft_tree_equals_plain_ops(name: str, checkpoint: Checkpoint) -> None:
    path = checkpoint(name)
    cap = read_config(path).attention_cap
    ours = load_model(path, device=CPU, dtype=torch.float32)
    assert ours._compiled is not None
    ops = for_device(CPU, "reference", attention_cap=cap)
    slow = load_model(path, device=CPU, dtype=torch.float64, ops=ops)
    step, captures = STEPS["tree and others"], (0, 2, 3)
    for got, want in zip(states(ours, step, captures), states(slow, step, captures), strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", BLOCKS)
def test_threads_do_not_change_a_bit_of_a_step(
    name: str, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(checkpoint(name), device=CPU, dtype=torch.float32)
    step, captures = STEPS["tree and others"], (0, 2, 3)
    alone = states(model, step, captures)
    monkeypatch.setattr(compiled_layers, "_MIN_SHARED_WORK", 1)
    before = thread_pool.num_threads()
    thread_pool.set_num_threads(3)
    try:
        together = states(model, step, captures)
    finally:
        thread_pool.set_num_threads(before)
    for got, want in zip(together, alone, strict=True):
        assert torch.equal(got, want)
