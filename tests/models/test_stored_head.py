"""Heads of tied checkpoints as files store them. Judge: transformers, which takes another head and warns."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ramiform.runtime.models.read_config import read_config

from .test_decoder_equals_transformers import assert_close, forward, load, page_tables, rows_of, tokens
from .test_families import make_judge

TIED = ["gemma 2", "gpt 2", "cohere"]
PROMPT = tokens(30, seed=1)


@pytest.mark.parametrize("name", TIED)
@pytest.mark.parametrize("kind", ["another", "the same", "alone"])
def test_the_head_in_the_file_is_used(name: str, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = make_judge(name)
    assert model.config.tie_word_embeddings
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    [embedding] = [key for key in tensors if key.endswith(("embed_tokens.weight", "wte.weight"))]
    tensors["lm_head.weight"] = (
        tensors[embedding].clone() if kind != "another" else torch.randn_like(tensors[embedding])
    )
    if kind == "alone":
        del tensors[embedding]
    save_file(tensors, file, metadata={"format": "pt"})
    with caplog.at_level(logging.WARNING, "ramiform.models"):
        decoder, pool = load(tmp_path)
    assert ("ties the head to the embedding" in caplog.text) == (kind == "another")
    assert read_config(tmp_path).tied_embeddings == (kind != "another")
    [got] = forward(decoder, pool, rows_of(PROMPT, *page_tables(30), [30]))
    judge = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.inference_mode():
        assert_close(got, judge(torch.tensor([PROMPT])).logits[0])
