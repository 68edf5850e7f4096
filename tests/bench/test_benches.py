"""The benches run by their documented commands and write all their figures; the values are not tested."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

from .commands import run


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face checkpoint of another family: tiny, random, with the shipped tokenizer."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=2048,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    path = tmp_path_factory.mktemp("checkpoint")
    transformers.Qwen2ForCausalLM(config).save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED_MODEL / name, path)
    return path


@pytest.mark.exhaustive
def test_offline_compares_with_transformers(checkpoint: Path, tmp_path: Path) -> None:
    run("offline.py", str(checkpoint), "--brief", "--repeat", "1", "--out", str(tmp_path / "figures.md"))
    lines = (tmp_path / "figures.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in lines if "(output)" in line or "(prompt)" in line]
    assert len(rows) == 5
    assert all(float(row[place].replace(",", "")) > 0 for row in rows for place in (2, 3, 4))


@pytest.mark.exhaustive
def test_overlap_compares_steps_ahead_with_steps_in_turn(checkpoint: Path, tmp_path: Path) -> None:
    arguments = ["--batches", "1,3", "--repeat", "1", "--step-ms", "0.1", "--out", str(tmp_path / "figures.md")]
    run("gpu/overlap.py", str(checkpoint), *arguments)
    lines = (tmp_path / "figures.md").read_text().splitlines()
    assert len([line for line in lines if line.startswith("| JSON Schema | ")]) == 2


@pytest.mark.exhaustive
def test_load_starts_a_server_and_measures_it(checkpoint: Path, tmp_path: Path) -> None:
    load = ["--requests", "4", "--prompt-tokens", "40", "--output-tokens", "5", "--concurrency", "2"]
    run("serving/load.py", str(checkpoint), *load, "--route", "completions", "--out", str(tmp_path / "figures.json"))
    [summary] = json.loads((tmp_path / "figures.json").read_text())["rounds"]
    assert summary["num_done"] == 4


@pytest.mark.exhaustive
def test_peers_reports_each_scenario_with_what_was_started(checkpoint: Path, tmp_path: Path) -> None:
    arguments = ["--small", "--rounds", "1", "--only", "single", "--out", str(tmp_path / "report.md")]
    run("peers/compare.py", "--checkpoint", str(checkpoint), *arguments)
    report = (tmp_path / "report.md").read_text()
    assert report.count("| single stream |") == 2  # its speed, its processor time
    assert "ramiform serve" in report


@pytest.mark.exhaustive
def test_vocabulary_measures_each_engine_in_a_process_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "figures.md"
    arguments = ["--tokenizer", str(SHIPPED_MODEL / "tokenizer.json"), "--engines", "native,outlines", "--repeat", "1"]
    run("grammar/vocabulary.py", *arguments, "--out", str(out))
    rows = [line.split("|") for line in out.read_text().splitlines() if line.startswith(("| native ", "| outlines "))]
    assert len(rows) == 2
    for row in rows:
        assert float(row[2]) > 0


@pytest.mark.exhaustive
def test_families_are_compared_with_transformers(tmp_path: Path) -> None:
    options = ["--only", "olmo2", "--hidden", "32", "--layers", "1", "--repeat", "1"]
    report = run("families.py", *options, "--out", str(tmp_path / "report.md"))
    assert "| Olmo2 | " in report
    assert (tmp_path / "report.md").read_text().strip() in report


@pytest.mark.exhaustive
def test_hostile_connections_are_of_all_kinds(tmp_path: Path) -> None:
    out = tmp_path / "hostile.md"
    run(
        "serving/hostile.py",
        "--connections",
        "60",
        "--seconds",
        "1",
        "--opening",
        "1",
        "--rounds",
        "1",
        "--out",
        str(out),
    )
    said = out.read_text()
    assert "TTFT, new connection p99" in said
    assert "Failed requests of the other clients: none" in said


@pytest.mark.exhaustive
def test_start_measures_first_answers_cold_and_warm_and_names_the_peers_that_are_skipped(
    checkpoint: Path, tmp_path: Path
) -> None:
    run("start.py", str(checkpoint), "--repeat", "1", "--out", str(tmp_path / "figures.md"))
    lines = (tmp_path / "figures.md").read_text().splitlines()
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in lines if line.startswith("| ramiform, ")}
    assert list(rows) == ["ramiform, cold", "ramiform, warm"]
    assert all(float(cell.replace(",", "")) > 0 for row in rows.values() for cell in row)
    assert [line.partition(":")[0] for line in lines if "skipped" in line] == ["llama.cpp", "vLLM"]


@pytest.mark.exhaustive
def test_weight_updates_judge_every_token_by_the_version_it_names() -> None:
    shown = run("training/weight_updates.py", "--updates", "12", "--in-flight", "4", "--judged", "20")
    assert "12 updates and " in shown
    assert "none lost" in shown
    assert int(shown.split("tokens judged: ")[1].split()[0]) > 0
