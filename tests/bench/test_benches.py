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
    run("offline.py", str(checkpoint), "--brief", "--repeat", "1", "--json", str(tmp_path / "figures.json"))
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["info"]["architecture"] == "Qwen2ForCausalLM"
    assert len(figures["rows"]) == 5
    assert all(row["tok/s"] > 0 and row["transformers tok/s"] > 0 for row in figures["rows"])


@pytest.mark.exhaustive
def test_overlap_compares_steps_ahead_with_steps_in_turn(checkpoint: Path, tmp_path: Path) -> None:
    arguments = ["--batches", "1,3", "--repeat", "1", "--step-ms", "0.1", "--out", str(tmp_path / "figures.md")]
    run("overlap.py", str(checkpoint), *arguments)
    lines = (tmp_path / "figures.md").read_text().splitlines()
    assert len([line for line in lines if line.startswith("| JSON Schema | ")]) == 2


@pytest.mark.slow
def test_radix_compares_with_a_flat_cache_and_a_trie(tmp_path: Path) -> None:
    trees = ["--tree-nodes", "10", "--tree-tokens", "2000", "--nodes", "1000", "--requests", "20", "--batches", "2"]
    chats = ["--turns", "40", "--chat-tokens", "500000"]
    run("radix.py", *trees, *chats, "--json", str(tmp_path / "figures.json"))
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures["rows"]) == 9
    for row in figures["rows"]:
        assert row["ramiform µs"] > 0
        assert row["flat blocks µs"] > 0
        assert row["ramiform hit %"] > 20
    ample = figures["rows"][1]
    assert ample["token trie µs"] > 0
    assert ample["evicted pages/request"] == 0
    assert ample["flat blocks hit %"] < ample["token trie hit %"], "it finds whole pages only"
    assert ample["ramiform hit %"] == ample["token trie hit %"], "reuse is token-exact"


@pytest.mark.exhaustive
@pytest.mark.parametrize("loop", [["--concurrency", "3"], ["--rate", "200"]], ids=["closed", "open"])
def test_serving_measures_closed_and_open_loops(url: str, loop: list[str], tmp_path: Path) -> None:
    load = ["--num-requests", "7", "--prompt-tokens", "40", "--output-tokens", "5", "--shared-tokens", "32"]
    run("serving.py", "--url", url, *load, *loop, "--json", str(tmp_path / "figures.json"))
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["output tok/s"] > 0
    assert figures["TTFT ms"]["p50"] <= figures["TTFT ms"]["p99"]
    assert figures["ITL ms"]["p50"] > 0
    assert figures["cached tokens"] >= 5 * 32  # the first ones may find nothing cached yet


@pytest.mark.exhaustive
def test_peers_reports_each_scenario_with_what_was_started(checkpoint: Path, tmp_path: Path) -> None:
    arguments = ["--small", "--rounds", "1", "--only", "single", "--out", str(tmp_path / "report.md")]
    run("peers.py", "--checkpoint", str(checkpoint), *arguments)
    report = (tmp_path / "report.md").read_text()
    assert report.count("| single stream |") == 2  # its speed, its processor time
    assert "ramiform serve" in report


@pytest.mark.slow
def test_vocabulary_measures_each_engine_in_a_process_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "figures.md"
    arguments = ["--tokenizer", str(SHIPPED_MODEL / "tokenizer.json"), "--engines", "native,outlines", "--repeat", "1"]
    run("vocabulary.py", *arguments, "--out", str(out))
    rows = [line.split("|") for line in out.read_text().splitlines() if line.startswith(("| native ", "| outlines "))]
    assert len(rows) == 2
    for row in rows:
        assert float(row[2]) > 0


@pytest.mark.exhaustive
def test_families_are_compared_with_transformers(tmp_path: Path) -> None:
    options = ["--only", "olmo2", "--hidden", "32", "--layers", "1", "--repeat", "1"]
    report = run("model_impl.py", *options, "--out", str(tmp_path / "report.md"))
    assert "| Olmo2 | " in report
    assert (tmp_path / "report.md").read_text().strip() in report


@pytest.mark.exhaustive
def test_hostile_connections_are_of_all_kinds(tmp_path: Path) -> None:
    out = tmp_path / "hostile.md"
    run("hostile.py", "--connections", "120", "--seconds", "3", "--opening", "1", "--rounds", "1", "--out", str(out))
    said = out.read_text()
    assert "TTFT, new connection p99" in said
    assert "Failed requests of the other clients: none" in said
