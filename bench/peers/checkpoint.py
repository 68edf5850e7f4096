"""Write one random model that ramiform, vLLM and llama.cpp all load: a whole vocabulary, and a GGUF copy.

What it says is noise; what it costs is what a trained model of the shape costs, detokenising included.
"""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path

import torch
import transformers
from gguf import GGMLQuantizationType as Type

from ramiform.bench.random_models import qwen2_shaped
from ramiform.tests.models.gguf_files import add_bpe_tokenizer, write_gguf

SMALL: dict[str, int] = {  # 16M parameters with 32,768 tokens
    "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
GGUF_NAME = "model.gguf"
GGUF_TYPES = {"Q8_0": Type.Q8_0, "Q4_0": Type.Q4_0}  # written here; others by llama.cpp's quantiser


def make_checkpoint(folder: Path, *, small: bool, dtype: torch.dtype) -> Path:
    """Qwen2-0.5B's shape and vocabulary, or 16M parameters, with `model.gguf` beside the safetensors, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    qwen2_shaped(folder, 32768 if small else 151936, dtype=dtype, **(SMALL if small else {}))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    _fill_vocabulary(folder / "tokenizer.json", model.config.vocab_size)

    _write_gguf(model, folder / GGUF_NAME, Type.BF16 if dtype == torch.bfloat16 else Type.F32)
    return folder


def make_gguf(folder: Path, name: str, quantizer: Path) -> Path:
    """Write `model-NAME.gguf` beside `make_checkpoint`'s file, unless it is there; return its path.

    Q8_0 and Q4_0 hold every matrix in that format. Mixed formats, such as Q4_K_M, are what llama.cpp's `quantizer`
    makes of them: rows that do not divide into its blocks get another format.
    """
    path = folder / f"model-{name}.gguf"
    if path.exists():
        return path
    if name in GGUF_TYPES:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return _write_gguf(model, path, GGUF_TYPES[name])
    subprocess.run([quantizer, folder / GGUF_NAME, path, name], check=True, stdout=subprocess.DEVNULL)
    return path


def _write_gguf(model: transformers.PreTrainedModel, path: Path, kind: Type) -> Path:
    tokenizer_json = path.with_name("tokenizer.json")
    return write_gguf(model, path, lambda _: kind, partial(add_bpe_tokenizer, tokenizer_json=tokenizer_json))


def _fill_vocabulary(path: Path, vocab_size: int) -> None:
    """Words that no merge makes, so that every id has a text: engines differ in what they do with ids without one."""
    tokenizer = json.loads(path.read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    for token in range(len(vocabulary), vocab_size):
        vocabulary[f"Ġw{token}"] = token
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))
