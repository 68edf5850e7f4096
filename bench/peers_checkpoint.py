"""One model that ramify, vLLM and llama.cpp all load: random weights, a whole vocabulary, and the same as a GGUF file.

What it says is noise; what it costs is what a trained model of the shape costs, detokenising included.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from ramify.bench.random_model import qwen2_shaped

SMALL: dict[str, int] = {  # 16M parameters with 32,768 tokens
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
GGUF_NAME = "model.gguf"
NORMAL, CONTROL = 1, 3  # llama.cpp's types of tokens


def make_checkpoint(folder: Path, *, small: bool, dtype: torch.dtype) -> Path:
    """Qwen2-0.5B's shape and vocabulary, or 16M parameters, with `model.gguf` beside the safetensors, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    qwen2_shaped(folder, 32768 if small else 151936, dtype=dtype, **(SMALL if small else {}))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    _fill_vocabulary(folder / "tokenizer.json", model.config.vocab_size)
    _write_gguf(model, folder)
    return folder


def _fill_vocabulary(path: Path, vocab_size: int) -> None:
    """Words that no merge makes, so that every id has a text: engines differ in what they do with ids without one."""
    tokenizer = json.loads(path.read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    for token in range(len(vocabulary), vocab_size):
        vocabulary[f"Ġw{token}"] = token
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))


def _write_gguf(model: transformers.PreTrainedModel, folder: Path) -> None:
    """As llama.cpp's converter would: matrices in the model's dtype, vectors in float32."""
    config: Any = model.config
    writer = gguf.GGUFWriter(folder / GGUF_NAME, "qwen2")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    _add_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        found = names.get_name(name, (".weight", ".bias"))
        assert found is not None, name
        kind = Type.BF16 if tensor.dtype == torch.bfloat16 and tensor.ndim > 1 else Type.F32
        writer.add_tensor(found, gguf.quants.quantize(tensor.float().numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, Any]) -> None:
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
