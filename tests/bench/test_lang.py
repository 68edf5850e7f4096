"""The language's bench runs and its Markdown holds every figure. What the figures are is not tested."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .commands import run


@pytest.mark.exhaustive
def test_the_language_s_overhead_round_trips_and_tokens_are_measured(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    printed = run("lang.py", "--tiny", "--json", str(figures))
    tables = json.loads(figures.read_text())["tables"]
    assert all(title in printed for title in tables)
    assert all(row["ms"] > 0 for row in tables["Importing"])
    assert all(row["us"] > 0 for row in tables["Overhead per operation"])
    assert {row["way"] for row in tables["Programs at once"]} == {"threads", "async", "compiled"}
    messages = {row["way"]: row["messages"] for row in tables["Round trips of a program of 5 generations"]}
    assert messages["compiled"] == 1
    http, *language = tables["Ten programs against a client that resends"]
    assert all(row["calls"] == http["calls"] for row in language)
    assert all(row["tokens sent"] < http["tokens sent"] for row in language)
