"""GGUF files of every architecture, as llama.cpp's converter wrote them. Judges: transformers and llama.cpp.

`llama_cpp/write.py` made the files and what is expected of them: greedy tokens on which transformers and llama.cpp
agree, this with the file in float32 and in float16; log-probabilities of transformers for the file in float16, and of
llama.cpp for the quantised one.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from ramiform.kernels.cpu.products import packed_matrix
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.gguf.families import ARCHITECTURES
from ramiform.runtime.models.read_config import read_config

from .llama_cpp.cases import CASES, TRANSFORMERS_ALONE
from .test_decoder_equals_transformers import forward, load, page_tables, rows_of

DATA = Path(__file__).parent / "llama_cpp" / "data"
EXPECTED: dict[str, dict[str, Any]] = json.loads((DATA / "expected.json").read_text())
QUANTISED = [name for name in EXPECTED if name not in TRANSFORMERS_ALONE]
# Both round inputs to int8, at other places; routers may then choose other experts.
QUANTISED_BOUND = 0.3


def unpack(name: str, folder: Path) -> Path:
    path = folder / f"{name}.gguf"
    path.write_bytes(lzma.decompress((DATA / f"{name}.gguf.xz").read_bytes()))
    return path


def logits(path: Path, tokens: list[int]) -> torch.Tensor:
    model, pool = load(path)
    [pages] = page_tables(len(tokens))
    return forward(model, pool, rows_of(tokens, pages, [len(tokens)]))[0]


def largest_error(rows: torch.Tensor, top: dict[str, list[list[float]]]) -> float:
    """Compare log-probabilities of the judge's five most likely tokens at some positions."""
    logprobs = rows.log_softmax(-1)
    return max(abs(float(logprobs[int(at), int(token)]) - value) for at, best in top.items() for token, value in best)


@pytest.mark.parametrize("name", EXPECTED)
def test_greedy_tokens_are_the_judges(name: str, tmp_path: Path) -> None:
    expected = EXPECTED[name]
    prompt, greedy = expected["prompt"], expected["greedy"]
    rows = logits(unpack(name, tmp_path), prompt + greedy)
    assert rows[len(prompt) - 1 : -1].argmax(-1).tolist() == greedy
    assert largest_error(rows, expected["top"]) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_files_are_near_llama_cpp(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rows that go by tiles are not rounded to int8: they are nearer to the file's weights, and farther from llama.cpp.
    monkeypatch.setattr(packed_matrix, "usable", lambda: False)
    expected = EXPECTED[name]
    rows = logits(unpack(f"{name}-quantised", tmp_path), expected["prompt"] + expected["greedy"])
    assert largest_error(rows, expected["quantised top"]) < QUANTISED_BOUND


@pytest.mark.slow
def test_every_architecture_and_case_has_a_file(tmp_path: Path) -> None:
    assert EXPECTED.keys() == CASES.keys()
    found = {gguf.GGUFReader(unpack(name, tmp_path)).fields["general.architecture"].contents() for name in EXPECTED}
    assert found == ARCHITECTURES.keys()


def test_files_of_bamba_are_refused_by_the_scale_that_they_have_not(tmp_path: Path) -> None:
    """llama.cpp's converter writes them as Granite's; its numbers for them are not transformers'."""
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "granitehybrid")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"granitehybrid\.attention\.scale: supported: a number, .*None is not"):
        read_config(tmp_path / "model.gguf")
