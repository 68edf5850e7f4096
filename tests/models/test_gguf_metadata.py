"""Metadata of GGUF files. Judge: the package gguf."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from ramiform.runtime.models.gguf.file import open_gguf

ARRAYS: dict[str, list[Any]] = {
    "tokenizer.ggml.tokens": ["", "Paris", "▁né\n", "x" * 300, "a"],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.scores": [-1.5, 0.0, 2.25],
    "tokenizer.ggml.token_type": [1, -3, 1 << 30],
    "llama.flags": [True, False, True],
}


@pytest.mark.parametrize("order", gguf.GGUFEndian)
def test_values_are_those_that_the_package_reads(tmp_path: Path, order: gguf.GGUFEndian) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=order)
    writer.add_block_count(3)
    writer.add_name("né")
    for key, values in ARRAYS.items():
        writer.add_array(key, values)
    write(writer)
    file = open_gguf(path)
    assert {key: file.value(key) for key in ARRAYS} == ARRAYS
    for key, field in gguf.GGUFReader(path).fields.items():
        assert file.value(key) == field.contents()


@pytest.mark.parametrize(("number", "name"), [(15, "Q4_K_M"), (7, "Q8_0"), (0, "F32"), (999, None), (None, None)])
def test_the_type_of_a_file_has_llama_cpps_name(tmp_path: Path, number: int | None, name: str | None) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    if number is not None:
        writer.add_file_type(number)
    write(writer)
    assert open_gguf(tmp_path / "a.gguf").file_type == name


def write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
