"""The model that ships as a GGUF file, which llama-server and the runtime read alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import transformers

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.tests.models.gguf_files import CONTROL, add_bpe_tokenizer, write_gguf

INFILL = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"]


def write_model(path: Path, *, fills_in: bool) -> Path:
    """Write the model. `fills_in`: the vocabulary's last tokens are renamed to those around a text to fill in."""
    model = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL)
    tokenizer = json.loads((SHIPPED_MODEL / "tokenizer.json").read_text("utf-8"))
    if fills_in:
        vocabulary = tokenizer["model"]["vocab"]
        for token, name in zip(sorted(vocabulary, key=vocabulary.__getitem__)[-len(INFILL) :], INFILL, strict=True):
            number = vocabulary.pop(token)
            vocabulary[name] = number
            tokenizer["model"]["merges"] = [pair for pair in tokenizer["model"]["merges"] if "".join(pair) != token]
            tokenizer["added_tokens"].append({"id": number, "content": name})
    changed = path.with_suffix(".json")
    changed.write_text(json.dumps(tokenizer), "utf-8")
    template = json.loads((SHIPPED_MODEL / "tokenizer_config.json").read_text("utf-8"))["chat_template"]

    def describe(writer: Any) -> None:
        add_bpe_tokenizer(writer, changed)
        writer.add_chat_template(template)

    assert CONTROL == gguf.TokenType.CONTROL
    return write_gguf(model, path, lambda _: gguf.GGMLQuantizationType.F32, describe)
