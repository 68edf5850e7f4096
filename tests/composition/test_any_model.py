"""Architectures of transformers' own list, native, through transformers or refused. Judge: transformers' greedy tokens.

Each has a small random checkpoint. Its requests are cut into chunks, share steps with others, meet a cache that holds
their prompts, or none, and a grammar. docs/models/models.md has the same table.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import ramiform
from ramiform.runtime.engine import build_engine
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.encoders.table import ENCODERS
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.families.table import FAMILIES
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.models.transformers_backend import attention
from ramiform.runtime.models.transformers_backend import config as backend
from ramiform.runtime.parallel.placement import placement_of
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.sampling import Constraint, SamplingParams
from ramiform.runtime.speculation.build import build_source
from ramiform.runtime.speculation.draft_model import DraftModelSource
from ramiform.tests.models.test_families import routing_biases

from .alone import TOKENIZER, run
from .test_speculation import REQUESTS, check, crowding_requests, plain

SIZES: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_WINDOWS = {"sliding_window": 21, "layer_types": ["sliding_attention", "full_attention"]}
_NO_GROUPS = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
_PLAIN = {name: value for name, value in _NO_GROUPS.items() if name != "intermediate_size"}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
_MANY = {**SIZES, **_EXPERTS, "num_experts": 4}
_LOCAL = {**SIZES, **_EXPERTS, "num_local_experts": 4}
_ROUTED = {**SIZES, **_EXPERTS, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
_LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16,
           "qk_rope_head_dim": 8, "v_head_dim": 12}  # fmt: skip
_LINEAR = {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "head_dim": 16,
           "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 10}  # fmt: skip
_MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 12, "mamba_n_groups": 2}

# Fields of the config, by its class.
NATIVE: dict[str, dict[str, Any]] = {
    "Llama": SIZES,
    "Mistral": {**SIZES, "sliding_window": 21},
    "Ministral": {**SIZES, "head_dim": 16, **_WINDOWS},
    "Mixtral": {**SIZES, "num_local_experts": 4},
    "Qwen2": SIZES,
    "Qwen2Moe": {**_MANY, "shared_expert_intermediate_size": 24, "sliding_window": None},
    "Qwen3": {**SIZES, "head_dim": 16},
    "Qwen3Moe": {**_MANY, "head_dim": 16},
    "Qwen3Next": {**_MANY, **_LINEAR, "shared_expert_intermediate_size": 24},
    "Qwen3_5Text": {**SIZES, **_LINEAR},
    "Qwen3_5MoeText": {**_MANY, **_LINEAR, "shared_expert_intermediate_size": 24},
    "GraniteMoeHybrid": {**_LOCAL, **_MAMBA, "shared_intermediate_size": 40,
                         "layer_types": _LINEAR["layer_types"]},
    "Bamba": {**SIZES, **_MAMBA, "attn_layer_indices": [1]},
    "FalconH1": {**SIZES, **_MAMBA, "mamba_d_ssm": 96, "mamba_chunk_size": 16, "key_multiplier": 0.7,
                 "ssm_multipliers": [0.5, 0.8, 1.3, 1.1, 0.9]},
    "Jamba": {**SIZES, "num_experts": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "NemotronH": {**SIZES, "layers_block_type": ["linear_attention", "mlp", "full_attention"], "head_dim": 16,
                  "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 12, "n_groups": 2,
                  "time_step_min": 1e-30},
    "Lfm2": {**SIZES, "layer_types": ["conv", "full_attention"]},
    "Lfm2Moe": {**_MANY, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "Gemma": {**SIZES, "head_dim": 16},
    "Gemma2": {**SIZES, "head_dim": 16, "query_pre_attn_scalar": 24, **_WINDOWS},
    "Gemma3Text": {**SIZES, "head_dim": 16, "query_pre_attn_scalar": 24, **_WINDOWS},
    "VaultGemma": {**SIZES, "head_dim": 16, **_WINDOWS},
    "Phi": SIZES,
    "Phi3": SIZES,
    "Olmo": SIZES,
    "Olmo2": SIZES,
    "Olmo3": {**SIZES, **_WINDOWS},
    "Granite": {**SIZES, "attention_multiplier": 0.3, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    "SmolLM3": {**SIZES, "no_rope_layers": [1, 0]},
    "Glm": {**SIZES, "head_dim": 16},
    "Glm4": {**SIZES, "head_dim": 16},
    "Cohere": SIZES,
    "Cohere2": {**SIZES, **_WINDOWS},
    "Starcoder2": {**SIZES, "sliding_window": 21},
    "StableLm": {**SIZES, "partial_rotary_factor": 0.5},
    "Falcon": _PLAIN,
    "GPTNeoX": {**_NO_GROUPS, "rotary_pct": 0.5},
    "GPT2": {"vocab_size": 2048, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 128, "initializer_range": 0.2,
             "bos_token_id": 1, "eos_token_id": 2},
    "OPT": {**_PLAIN, "ffn_dim": 80, "init_std": 0.2, "word_embed_proj_dim": 48},
    "Nemotron": SIZES,
    "Arcee": SIZES,
    "SeedOss": {**SIZES, "head_dim": 16},
    "Ernie4_5": {**SIZES, "head_dim": 16},
    "Helium": {**SIZES, "head_dim": 12},
    "Exaone4": {**SIZES, **_WINDOWS},
    "Cwm": {**SIZES, "head_dim": 16, **_WINDOWS},
    "DeepseekV2": {**_ROUTED, **_LATENT, "topk_method": "group_limited_greedy"},
    "DeepseekV3": {**_ROUTED, **_LATENT},
    "Glm4MoeLite": {**_ROUTED, **_LATENT},
    "Llama4Text": {**_LOCAL, "head_dim": 16, "intermediate_size_mlp": 40, "no_rope_layers": [1, 0],
                   "attention_chunk_size": 18, "floor_scale": 12, "num_experts_per_tok": 1},
    "Glm4Moe": {**_ROUTED, "head_dim": 16, "n_shared_experts": 1},
    "Ernie4_5_Moe": {**SIZES, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24},
    "Olmoe": {**_MANY, "intermediate_size": 24},
    "HunYuanDenseV1": {**SIZES, "head_dim": 16},
    "HunYuanMoEV1": {**_MANY, "head_dim": 16, "intermediate_size": 24, "moe_topk": 2},
    "GptOss": {**_LOCAL, "head_dim": 16, **_WINDOWS},
}  # fmt: skip
THROUGH_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "Apertus": SIZES,
    "BitNet": SIZES,
    "Dots1": {**_ROUTED, "head_dim": 16, "n_shared_experts": 1},
    "FlexOlmo": _MANY,
    "GPTBigCode": {"vocab_size": 2048, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 128,
                   "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2},
    "GraniteMoe": _LOCAL,
}  # fmt: skip
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Bloom": (
        {"vocab_size": 2048, "hidden_size": 48, "n_layer": 2, "n_head": 4},
        "does not use transformers' attention",
    ),
    "CodeGen": ({"vocab_size": 2048, "n_embd": 48, "n_layer": 2, "n_head": 4}, "does not use transformers' attention"),
    "Bart": ({"vocab_size": 2048, "d_model": 48}, "encoder and a decoder"),
    "Bert": (_NO_GROUPS, "its attention is not causal"),
    "DiffLlama": (SIZES, "one attention module serves several layers"),
    "Doge": (SIZES, "passes a mask of its own"),
    "Mamba": ({"vocab_size": 2048, "hidden_size": 48, "num_hidden_layers": 2}, "of the types linear_attention"),
}
Judge = tuple[PreTrainedModel, Path]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Models and the directories of their checkpoints, by the class of their config."""

    @cache
    def make(kind: str) -> Judge:
        torch.set_num_threads(1)
        torch.manual_seed(len(kind))
        config = getattr(transformers, f"{kind}Config")(**{**NATIVE, **THROUGH_TRANSFORMERS}[kind])
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        with torch.no_grad():
            for name, parameter in (*model.named_parameters(), *routing_biases(model)):
                if parameter.dim() == 1 or name.endswith(("proj_bias", "correction_bias")):
                    parameter.add_(0.2 * torch.randn_like(parameter))
        path = tmp_path_factory.mktemp("checkpoint")
        model.save_pretrained(path)
        return model, path

    return make


PROMPTS = {"long": 45, "longer": 61, "short": 5}
LETTERS = "abcdef"
NEW_TOKENS = 6


def requests_of(prefix: str) -> list[Generate]:
    """Greedy requests, one of them under a grammar."""
    found = []
    for index, (name, length) in enumerate(PROMPTS.items()):
        tokens = [10 + (7 * place + 31 * index) % 2000 for place in range(length)]
        params: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "temperature": 0.0, "ignore_eos": True}
        found.append(Generate(rid=f"{prefix}{name}", tokens=tokens, sampling=SamplingParams(**params)))
        if name == "longer":
            grammar = Constraint("regex", f"[{LETTERS}]{{40,}}")
            own = SamplingParams(**params, constraint=grammar)
            found.append(Generate(rid=f"{prefix}grammar", tokens=tokens, sampling=own))
    return found


@torch.inference_mode()
def greedy(model: PreTrainedModel, tokens: Sequence[int], allowed: torch.Tensor | None) -> list[int]:
    """Continue by the likeliest tokens, each computed from the whole sequence, among the `allowed` ones."""
    ids = list(tokens)
    for _ in range(NEW_TOKENS):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        if allowed is not None:
            logits = logits.masked_fill(~allowed, float("-inf"))
        ids.append(int(logits.argmax()))
    return ids[len(tokens) :]


def check_against(model: PreTrainedModel, path: Path, impl: Any) -> None:
    letters = LETTERS.encode()
    allowed = torch.tensor([bool(one) and all(byte in letters for byte in one or b"") for one in TOKENIZER.token_bytes])
    again = [*requests_of(""), *requests_of("again ")]
    for settings in ({"prefix_cache": True}, {"prefix_cache": False}):
        shape: dict[str, Any] = {"num_pages": 64, "prefill_budget": 16, "speculative": "off", **settings}
        config = CoreConfig(device="cpu", dtype="float32", model_impl=impl, **shape)
        engine = build_engine(config, path)
        got, stats, plans = run(again, engine=engine, stagger=4, **shape)
        assert (stats.num_cached_tokens > 0) == settings["prefix_cache"]
        assert any(len(plan.rows) > 1 for plan in plans)
        for request in again:
            grammar = request.sampling.constraint is not None
            assert got[request.rid].ids == _expected(model, tuple(request.tokens), allowed if grammar else None)


_kept: dict[Any, list[int]] = {}


def _expected(model: PreTrainedModel, tokens: tuple[int, ...], allowed: torch.Tensor | None) -> list[int]:
    key = id(model), tokens, allowed is None
    if key not in _kept:
        _kept[key] = greedy(model, tokens, allowed)
    return _kept[key]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", NATIVE)
def test_native_families_give_transformers_tokens(kind: str, checkpoints: Any) -> None:
    model, path = checkpoints(kind)
    assert read_config(path, "auto").is_native
    check_against(model, path, "auto")


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", THROUGH_TRANSFORMERS)
def test_models_through_transformers_give_its_tokens(kind: str, checkpoints: Any) -> None:
    model, path = checkpoints(kind)
    assert not read_config(path, "auto").is_native
    check_against(model, path, "auto")


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["Llama", "Gemma2", "Gemma3Text", "OPT", "GPT2", "Cohere2", "Phi", "Granite"])
def test_native_families_through_transformers_give_its_tokens(kind: str, checkpoints: Any) -> None:
    model, path = checkpoints(kind)
    check_against(model, path, "transformers")


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_served_exactly_is_refused_with_the_reason(kind: str, tmp_path: Path) -> None:
    fields, reason = REFUSED[kind]
    config = getattr(transformers, f"{kind}Config")(**fields)
    config.architectures = [f"{kind}ForCausalLM"]
    config.save_pretrained(tmp_path)
    for impl in ("auto", "transformers"):
        with pytest.raises(CheckpointError, match=reason):
            read_config(tmp_path, impl)


SHAPES: dict[str, dict[str, Any]] = {
    "off, chunks": {"speculative": "off", "prefill_budget": 48},
    "ngram, few pages": {"speculative": "ngram", "num_pages": 24},
    "suffix, host memory": {"speculative": "suffix", "num_pages": 24, "host_kv_memory": 0.01},
    "draft, overlap": {"speculative": "draft", "overlap": "on"},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_whatever_a_request_asks_for_is_the_same_through_transformers(shape: dict[str, Any]) -> None:
    """The model that ships, native and through transformers: draws, grammars, stops, penalties, drafts, evictions."""
    torch.set_num_threads(1)
    settings = {"device": "cpu", "dtype": "float32", "num_pages": 512, "speculative_adaptive": False} | shape
    config = CoreConfig(**settings, model_impl="transformers")
    engine = build_engine(
        config, SHIPPED_MODEL, make_source=_shipped_draft if shape["speculative"] == "draft" else None
    )
    assert not engine._runner.model.config.is_native
    got, stats, _ = run(REQUESTS[:16], engine=engine, **settings)
    check(got, plain(REQUESTS[:16]), tolerance=1e-3)
    assert (stats.num_accepted_tokens > 0) == (shape["speculative"] != "off")


def _shipped_draft(target: Decoder, *, num_pages: int, num_host_pages: int) -> DraftModelSource:
    draft = load_model(SHIPPED_MODEL, device=target.device, dtype=target.dtype)
    return DraftModelSource(draft, num_pages, num_host_pages)


@pytest.mark.exhaustive
def test_retracted_requests_get_the_same_tokens_through_transformers() -> None:
    requests = crowding_requests()
    settings = {"device": "cpu", "dtype": "float32", "num_pages": 40, "speculative": "off"}
    engine = build_engine(CoreConfig(**settings, model_impl="transformers"), SHIPPED_MODEL)
    got, stats, _ = run(requests, engine=engine, **settings)
    assert stats.num_retractions > 0
    check(got, run(requests, **settings | {"num_pages": 512})[0], tolerance=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"deterministic": True}, "deterministic needs a native family; transformers computes this model"),
        ({"quantize": "int8"}, "quantize needs a native family; transformers computes this model"),
    ],
)
def test_settings_that_transformers_models_do_not_know_are_refused(settings: dict[str, Any], message: str) -> None:
    config = CoreConfig(device="cpu", dtype="float32", num_pages=8, model_impl="transformers", **settings)
    with pytest.raises(RequestError, match=message):
        build_engine(config, SHIPPED_MODEL)


@pytest.mark.slow
def test_a_draft_head_is_refused_for_a_model_through_transformers() -> None:
    config = CoreConfig(device="cpu", dtype="float32", num_pages=8, model_impl="transformers", speculative="eagle")
    engine = build_engine(config, SHIPPED_MODEL)
    with pytest.raises(RequestError, match="eagle reads hidden states of native families"):
        build_source(config, SHIPPED_MODEL, engine._runner.model, num_pages=8, num_host_pages=0)


def test_ranks_are_refused_for_a_model_through_transformers() -> None:
    config = CoreConfig(device="cpu", model_impl="transformers", tp=2)
    with pytest.raises(RequestError, match="tp and pp need a native family"):
        placement_of(config, SHIPPED_MODEL, 0)


def test_a_missing_package_is_named(checkpoints: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    backend._read.cache_clear()
    with pytest.raises(CheckpointError, match=r"needs the package transformers: install ramiform\[transformers\]"):
        read_config(SHIPPED_MODEL, "transformers")


def test_weights_that_are_missing_are_not_made_up(checkpoints: Any, tmp_path: Path) -> None:
    _, path = checkpoints("Apertus")
    broken = tmp_path / "broken"
    shutil.copytree(path, broken)
    file = broken / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"missing keys: model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(broken, read_config(broken, "auto"), device=torch.device("cpu"), dtype=torch.float32)


def test_a_model_that_attends_otherwise_than_it_says_is_refused(checkpoints: Any, monkeypatch: Any) -> None:
    """The trial at load compares two chunks over paged KV with transformers' own pass."""
    _, path = checkpoints("Apertus")
    store = attention.store_kv
    monkeypatch.setattr(attention, "store_kv", lambda k, v, *where: store(k, v * 0.9, *where))
    with pytest.raises(CheckpointError, match="in chunks with paged KV it computes other logits than by itself"):
        load_model(path, read_config(path, "auto"), device=torch.device("cpu"), dtype=torch.float32)


def tables() -> list[dict[str, list[str]]]:
    """The tables of docs/models/models.md: the cells behind each class."""
    page = (Path(ramiform.__file__).parent / "docs/models/models.md").read_text(encoding="utf-8")
    found: list[dict[str, list[str]]] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| class in"):
            found.append({})
        elif found and (match := re.fullmatch(r"`(\w+)`", cells[0])):
            found[-1][match[1]] = cells[1:]
    return found


def class_name(kind: str) -> str:
    """The causal language model of a config's class."""
    config = getattr(transformers, f"{kind}Config")
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return names.get(config.model_type, f"{kind}ForCausalLM")


@pytest.mark.slow
def test_the_page_lists_what_runs_and_what_is_refused() -> None:
    native, multimodal, through, encoders, refused = tables()
    assert ENCODERS.keys() == encoders.keys()
    assert native.keys() | multimodal.keys() == FAMILIES.keys()
    assert {class_name(kind) for kind in NATIVE} | {"InternLM3ForCausalLM"} == native.keys()
    assert {class_name(kind) for kind in THROUGH_TRANSFORMERS} == through.keys()
    assert {f"{kind}ForCausalLM" for kind in REFUSED} == refused.keys()
    assert len(native) + len(through) + len(refused) > 30


@pytest.mark.slow
@pytest.mark.parametrize("kind", NATIVE)
def test_the_page_says_which_families_have_the_compiled_step(kind: str, checkpoints: Any) -> None:
    model = load_model(checkpoints(kind)[1], device=torch.device("cpu"), dtype=torch.float32)
    compiled = "no" if model._compiled is None else "yes"
    assert tables()[0][class_name(kind)][1] == compiled
