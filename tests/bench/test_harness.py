"""The harness of the benches: workers of checkouts, runs in turn, reports; and the rooms that the scripts stand in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ramiform.bench.harness import checkouts, interleaved, report, table

from .commands import BENCH

WORKER = """
from ramiform.bench.harness import timed

def worker(factor):
    import ramiform
    return lambda question: [factor * question["number"], ramiform.__file__]
"""


@pytest.mark.slow
def test_a_worker_answers_with_each_checkout(tmp_path: Path) -> None:
    script, wrapper, other = tmp_path / "script.py", tmp_path / "python", tmp_path / "other/ramiform"
    script.write_text(WORKER)
    other.mkdir(parents=True)
    (other / "__init__.py").touch()  # an older checkout: it has no harness
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={other.parent} exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    with checkouts(str(script), wrapper, factor=3) as asks:
        answers = [ask({"number": 2}) for ask in asks]
    assert [number for number, _ in answers] == [6, 6]
    assert [Path(file).parent == other for _, file in answers] == [False, True]


@pytest.mark.slow
def test_a_worker_that_ends_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def worker():\n    raise SystemExit(1)\n")
    with pytest.raises(RuntimeError, match="the worker has ended"), checkouts(str(script), None):
        pass


def test_ways_are_run_in_turn_and_the_first_round_is_dropped() -> None:
    calls: list[tuple[str, int]] = []
    ways = {name: lambda number, name=name: calls.append((name, number)) or number for name in ("a", "b")}
    assert interleaved(2, ways) == {"a": [1, 2], "b": [1, 2]}
    assert calls == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]


def test_a_report_has_its_command_and_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "report.md"
    monkeypatch.setattr(sys, "argv", [str(BENCH / "grammar/stall.py"), "--only", "two words", "--out", str(out)])
    report("Streams", table([{"beside": "none", "ms": 1.5}]), out=out)
    title, command, machine, *rows = out.read_text().split("\n\n")
    assert title == "# Streams"
    assert command == "`python -P bench/grammar/stall.py --only 'two words' --out report.md`"
    assert "cores of" in machine
    assert "torch" in machine
    assert rows == ["| beside | ms |\n| --- | ---: |\n| none | 1.50 |\n"]


def test_scripts_stand_in_rooms() -> None:
    assert len([path for path in BENCH.iterdir() if path.is_file()]) <= 12
    rooms = [path for path in BENCH.iterdir() if path.is_dir() and path.name not in ("results", "__pycache__")]
    assert all(len(list(room.glob("*.py"))) <= 20 for room in rooms)
