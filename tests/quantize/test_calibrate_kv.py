"""`ramiform calibrate-kv` on the shipped model. Judge: the keys and values that transformers computes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from ramiform.cli import app
from ramiform.kernels import PACKED_INT4
from ramiform.kernels.reference.quantise import E4M3
from ramiform.runtime.engine.kv_ranges import KV_SCALES_FILE, read_constants
from ramiform.runtime.engine.kv_statistics import better_statistics, divergence, measure_statistics, start_text
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.stored.kv_scales import KvStatistics
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


OF_ONE_KIND = "la la la la. " * 40  # its statistics are those of two words
OF_MANY = (Path(__file__).parents[2] / "runtime" / "models" / "decoder.py").read_text()[:6000]


@pytest.mark.exhaustive
@pytest.mark.parametrize("text", [OF_ONE_KIND, OF_MANY, TEXT], ids=["one kind", "code", "short"])
def test_a_file_never_makes_the_text_it_was_measured_on_worse(text: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(text)
    arguments = ["calibrate-kv", str(model), "--data", str(tmp_path / "text"), "--window", "200", "--dtype", "float32"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "in int4" in result.output
    decoder = load_model(model, device=torch.device("cpu"), dtype=torch.float32)
    written = read_constants(model / KV_SCALES_FILE, decoder.config, torch.int8)
    assert isinstance(written, KvStatistics)
    built_in, _ = measure_statistics(decoder, [start_text(model, decoder.config)])
    ids = AutoTokenizer.from_pretrained(SHIPPED_MODEL).encode(text)
    windows = [ids[start : start + 200] for start in range(0, len(ids), 200)]
    judge = [window for window in windows if len(window) >= min(200, len(windows[0]))][-1]
    lost = {
        stored: [divergence(decoder, judge, stored, own) for own in (written, built_in)]
        for stored in (PACKED_INT4, E4M3, torch.int8)
    }
    assert lost[PACKED_INT4][0] <= lost[PACKED_INT4][1]
    # The other formats have little to lose.
    assert all(own <= 1.5 * other + 1e-4 for own, other in lost.values())
    is_kept = all(map(torch.equal, written.tensors, built_in.tensors))
    assert is_kept == ("which are kept" in result.output)


@pytest.mark.exhaustive
def test_statistics_that_lose_more_than_the_built_in_text_s_are_not_written() -> None:
    decoder = load_model(SHIPPED_MODEL, device=torch.device("cpu"), dtype=torch.float32)
    built_in, _ = measure_statistics(decoder, [start_text(SHIPPED_MODEL, decoder.config)])
    texts = [AutoTokenizer.from_pretrained(SHIPPED_MODEL).encode(OF_MANY)[:200]]
    wrong = replace(built_in, mean_LKD=40 * built_in.mean_LKD)
    found, told = better_statistics(SHIPPED_MODEL, decoder, texts, wrong)
    assert all(map(torch.equal, found.tensors, built_in.tensors))
    assert "which are kept" in told


@pytest.mark.parametrize("text", ["", "x"])
def test_unmeasurable_texts_and_unwritable_files_are_named(text: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(text)
    out = tmp_path / "no" / "folder"
    result = CliRunner().invoke(app, ["calibrate-kv", str(model), "--data", str(tmp_path / "text"), "--out", str(out)])
    assert isinstance(result.exception, RequestError)
    assert result.exception.param == ("out" if text else "data")
