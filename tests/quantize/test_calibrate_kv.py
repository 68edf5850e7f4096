"""`ramiform calibrate-kv` on the shipped model. Judge: the keys and values that transformers computes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from ramiform.cli import app
from ramiform.runtime.engine.kv_ranges import KV_SCALES_FILE
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.processes.launch import Runtime
from ramiform.runtime.protocol.errors import RequestError

TEXT = "Extract as JSON: Mira Sol is 34 years old and lives in Oslo.\n" * 3


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the shipped model without scales."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in SHIPPED_MODEL.iterdir():
        if file.is_file() and file.name != KV_SCALES_FILE:
            os.symlink(file, folder / file.name)
    return folder


@pytest.mark.exhaustive
def test_the_means_are_those_of_transformers_and_the_runtime_finds_them(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    arguments = ["calibrate-kv", str(model), "--data", str(tmp_path / "text"), "--window", "40", "--dtype", "float32"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED_MODEL)
    judge = AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32).eval()
    ids = tokenizer.encode(TEXT)
    frequencies, parts = judge.model.rotary_emb.inv_freq.double(), []
    for start in range(0, len(ids), 40):
        with torch.inference_mode():
            layers = judge(torch.tensor([ids[start : start + 40]]), use_cache=True).past_key_values.layers
        low, high = torch.stack([layer.keys[0].double() for layer in layers]).chunk(2, dim=-1)
        phase = torch.arange(low.shape[2])[:, None] * frequencies
        turned = torch.complex(low, high) * torch.exp(-1j * phase)
        parts.append(torch.cat((turned.real, turned.imag), dim=-1))
    written = json.loads((model / KV_SCALES_FILE).read_text())
    assert (written["format"], written["num_tokens"]) == ("ramiform KV statistics, 2", len(ids))
    mean_LKD = torch.cat([part[:, :, min(4, part.shape[2] - 1) :] for part in parts], dim=2).mean(2)
    torch.testing.assert_close(torch.tensor(written["k_mean"]).double(), mean_LKD, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(torch.tensor(written["k_first"]).double(), parts[0][:, :, 0], rtol=1e-3, atol=1e-3)
    with Runtime(str(model), kv_dtype="int8") as runtime:
        info = runtime.connection().call("info").info
        assert (info.kv_dtype, info.kv_scales) == ("int8", str(model / KV_SCALES_FILE))


@pytest.mark.parametrize("text", ["", "x"])
def test_unmeasurable_texts_and_unwritable_files_are_named(text: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(text)
    out = tmp_path / "no" / "folder"
    result = CliRunner().invoke(app, ["calibrate-kv", str(model), "--data", str(tmp_path / "text"), "--out", str(out)])
    assert isinstance(result.exception, RequestError)
    assert result.exception.param == ("out" if text else "data")
