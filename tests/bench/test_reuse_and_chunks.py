"""The benches of the cache and of chunked prefill run by their documented commands and write whole figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .commands import run


def run_with_figures(path: Path, script: str, *arguments: str) -> tuple[str, dict[str, Any]]:
    printed = run(script, *arguments, "--json", str(path))
    return printed, json.loads(path.read_text())


@pytest.mark.exhaustive
def test_prefix_reuse_compares_the_cache_with_none_and_with_the_optimum(tmp_path: Path) -> None:
    tiny = ["--size", "0.05", "--length", "0.1", "--pause", "0.01", "--repeat", "1"]
    printed, figures = run_with_figures(tmp_path / "figures.json", "prefix_reuse.py", *tiny)
    assert len(figures["runtime"]) == 6
    assert len(figures["scheduler"]) == 18
    for row in figures["runtime"]:
        # Requests may compute the same tokens at once, the more the busier the machine. The scheduler's below do not.
        assert 75 <= row["of optimum %"] <= 100
        assert row["TTFT, off / on"] > 0
        assert f"| {row['workload']} |" in printed
    for row in figures["scheduler"]:
        assert 98 <= row["ample: of optimum %"] <= 100
        assert row["program"] - 1e-9 <= row["bound"] <= row["optimum %"] + 1e-9


@pytest.mark.exhaustive
def test_chunked_prefill_compares_budgets_with_none(tmp_path: Path) -> None:
    load = ["--streams", "2", "--prompts", "2", "--prompt-tokens", "300", "--budgets", "64", "--repeat", "1"]
    printed, figures = run_with_figures(tmp_path / "figures.json", "chunked_prefill.py", *load)
    assert [row["prefill budget"] for row in figures["rows"]] == ["64", "2050 (no chunks)"]
    for row in figures["rows"]:
        assert 0 < row["ITL p50 ms"] <= row["p99"] <= row["max"]
        assert row["prompt tok/s"] > 0
        assert f"| {row['prefill budget']} |" in printed
