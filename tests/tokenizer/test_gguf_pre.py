"""Pre-tokenisers of GGUF files. Judge: llama.cpp's ids, written by `tests/models/llama_cpp/write_pre.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from ramiform.runtime.tokenizer.gguf import load_gguf_tokenizer
from ramiform.runtime.tokenizer.gguf_pre import PRE_TOKENIZERS

JUDGED = json.loads((Path(__file__).parents[1] / "models/llama_cpp/data/pre_tokenizers.json").read_text("utf-8"))
EXPECTED = {name: row["ids"] for row in JUDGED["expected"] for name in row["names"]}


def test_every_pre_tokeniser_was_judged() -> None:
    assert EXPECTED.keys() == set(PRE_TOKENIZERS)


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_texts_are_cut_as_llama_cpp_cuts_them(pre: str, tmp_path: Path) -> None:
    writer: Any = gguf.GGUFWriter(tmp_path / "vocabulary.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(JUDGED["tokens"])
    writer.add_token_types([1] * len(JUDGED["tokens"]))
    writer.add_token_merges(JUDGED["merges"])
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer = load_gguf_tokenizer(tmp_path / "vocabulary.gguf")
    for text, ids in zip(JUDGED["texts"], EXPECTED[pre], strict=True):
        assert tokenizer.encode(text) == ids, text


def test_blanks_that_users_defined_are_one_token(tmp_path: Path) -> None:
    """Gemma's tokens of several blanks; llama.cpp gives Gemma 3's for "a  little" the ids of "a", "  " and "little"."""
    writer: Any = gguf.GGUFWriter(tmp_path / "vocabulary.gguf", "gemma3")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<eos>", "\u2581", "a", "\u2581a", "  "])
    writer.add_token_scores([0.0, 0.0, -3.0, -2.0, -1.0, -4.0])
    writer.add_token_types([2, 3, 1, 1, 1, 4])
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(0)
    writer.add_add_space_prefix(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer = load_gguf_tokenizer(tmp_path / "vocabulary.gguf")
    assert tokenizer.encode("a  a a") == [3, 5, 3, 4]
    assert tokenizer.decode([3, 5, 3, 4]) == "a  a a"
