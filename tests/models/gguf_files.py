"""GGUF files of models, written with `gguf`'s writer as llama.cpp's converter does."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from transformers import PreTrainedModel

from . import k_quants

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen2MoeForCausalLM": "qwen2moe",
    "Qwen3MoeForCausalLM": "qwen3moe",
}
NORMAL, CONTROL = 1, 3  # llama.cpp's types of tokens
Kinds = Callable[[str], Type]  # how a tensor of that GGUF name is stored
Store = Callable[[np.ndarray, Type], np.ndarray]


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    kinds: Kinds,
    change: Callable[[Any], None] | None = None,
    store: Store | None = None,
    num_tensors: int = 0,
) -> Path:
    """Write a model. `change` may add or replace metadata; `store` chooses the block format.

    `num_tensors`: split it into files of at most so many.
    """
    config = model.config
    arch = ARCHITECTURES[config.architectures[0]]
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=num_tensors)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_vocab_size(config.vocab_size)
    if experts := getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        if arch != "llama":
            writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        if arch == "qwen2moe":
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if change is not None:
        change(writer)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch.upper()), config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        rows = tensor.detach().float().numpy()
        if arch == "llama" and name.split(".")[-2] in ("q_proj", "k_proj"):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            rows = rows.reshape(heads, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(rows.shape)
        if name.endswith("experts.gate_up_proj"):
            gate, up = np.split(rows, 2, axis=1)
            block = f"blk.{name.split('.')[2]}"
            _add(writer, f"{block}.ffn_gate_exps.weight", np.ascontiguousarray(gate), kinds, store or blocks)
            _add(writer, f"{block}.ffn_up_exps.weight", np.ascontiguousarray(up), kinds, store or blocks)
        elif name.endswith("experts.down_proj"):
            _add(writer, f"blk.{name.split('.')[2]}.ffn_down_exps.weight", rows, kinds, store or blocks)
        else:
            found = names.get_name(name, (".weight", ".bias"))
            assert found is not None, name
            _add(writer, found, rows, kinds, store or blocks)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_bpe_tokenizer(writer: gguf.GGUFWriter, tokenizer_json: Path) -> None:
    """Add a byte-level BPE with gpt-2's pre-tokeniser; it optionally begins with token 0, and ends with token 1."""
    tokenizer = json.loads(tokenizer_json.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.__getitem__))
    writer.add_token_types([CONTROL if token in special else NORMAL for token in range(len(vocabulary))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)


def _add(writer: gguf.GGUFWriter, name: str, rows: np.ndarray, kinds: Kinds, store: Store) -> None:
    kind = Type.F32 if rows.ndim == 1 or "gate_inp" in name else kinds(name)
    data = store(rows, kind)
    writer.add_tensor(name, data, raw_dtype=kind)


def blocks(rows: np.ndarray, kind: Type) -> np.ndarray:
    """Encode rows as blocks; formats that neither `gguf` nor `k_quants` writes get random blocks of about that size."""
    for quantize in (gguf.quants.quantize, k_quants.quantize):
        with suppress(NotImplementedError):
            return quantize(rows, kind)
    return random_blocks(rows.shape, kind, seed=rows.size)


def random_blocks(shape: tuple[int, ...], kind: Type, seed: int) -> np.ndarray:
    """Make random blocks: any bytes are valid but the two float16 scales."""
    size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    draw = np.random.default_rng(seed)
    data = draw.integers(0, 256, (*shape[:-1], shape[-1] // size, num_bytes), dtype=np.uint8)
    scales = {Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,), Type.Q2_K: (80, 82), Type.Q3_K: (108,)}[kind]
    for at in scales:
        some = draw.uniform(1e-4, 4e-4, data.shape[:-1]).astype(np.float16)
        data[..., at : at + 2] = some[..., None].view(np.uint8)
    return data.reshape(*shape[:-1], -1)


def dequantised(model: PreTrainedModel, path: Path) -> PreTrainedModel:
    """Return the model with the weights of the file, read by `gguf`."""
    reader = gguf.GGUFReader(path)
    stored = {t.name: torch.tensor(gguf.quants.dequantize(t.data, t.tensor_type)) for t in reader.tensors}
    config = model.config
    arch = ARCHITECTURES[config.architectures[0]]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch.upper()), config.num_hidden_layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            block = f"blk.{name.split('.')[2]}" if "layers." in name else ""
            if name.endswith("experts.gate_up_proj"):
                parts = [stored[f"{block}.ffn_{part}_exps.weight"] for part in ("gate", "up")]
                parameter.copy_(torch.cat(parts, 1))
                continue
            if name.endswith("experts.down_proj"):
                parameter.copy_(stored[f"{block}.ffn_down_exps.weight"])
                continue
            rows = stored[names.get_name(name, (".weight", ".bias"))]
            if arch == "llama" and name.split(".")[-2] in ("q_proj", "k_proj"):
                rows = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:]).transpose(1, 2)
            parameter.copy_(rows.reshape(parameter.shape))
    return model
