"""The command `ramiform eval`, as a user runs it."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

import ramiform
from ramiform.lang.evaluation.report import Report

RAMIFORM = str(Path(sys.executable).parent / "ramiform")
SCRIPT = """
import ramiform
from ramiform import gen

@ramiform.function
def program(s, country):
    s += f"Question: What is the capital of {country}?\\nAnswer:" + gen("city", max_tokens=8, stop="\\n")

def metric(example, state):
    return state["city"].strip() == example["city"]

dataset = "cities.csv"
options = {"temperature": 0}
if __name__ == "__main__":
    raise SystemExit("not for eval")
"""


def run(runtime: ramiform.Runtime, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [RAMIFORM, "eval", "--address", runtime.address, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "cities.csv").write_text("country,city\nFrance,Paris\nItaly,Rome\nPeru,Oslo\n")
    path = tmp_path / "cities.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.exhaustive
def test_a_script_is_evaluated_and_its_report_kept(backend: ramiform.Runtime, script: Path, tmp_path: Path) -> None:
    save, page, table = tmp_path / "first.json", tmp_path / "page.html", tmp_path / "table.csv"
    done = run(backend, script, "--save", save, "--html", page, "--csv", table)
    assert done.returncode == 0, done.stderr
    assert "0.667" in done.stdout
    assert Report.load(save).scores() == [1.0, 1.0, 0.0]
    assert "<svg" in page.read_text()
    with table.open(newline="") as file:
        assert [row["city"] for row in csv.DictReader(file)] == ["Paris", "Rome", "Oslo"]

    (tmp_path / "cities.csv").write_text("country,city\nFrance,Paris\n")
    done = run(backend, script, "--limit", "1", "--against", save)
    assert "ramiform: only reports of the same examples" in done.stderr
    assert done.returncode == 1


@pytest.mark.exhaustive
def test_a_script_without_a_metric_is_refused(backend: ramiform.Runtime, script: Path) -> None:
    script.write_text(SCRIPT.replace("def metric", "def measure"))
    done = run(backend, script)
    assert done.returncode == 1
    assert "defines no 'metric'; an evaluation needs program, dataset, metric" in done.stderr.replace("\n", " ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://127.0.0.1:9", "http://127.0.0.1:9/get_server_info: nothing listens there"),
        ("ipc:///nowhere/socket", "no runtime listens at ipc:///nowhere/socket"),
    ],
)
def test_an_address_where_nothing_listens_is_one_line_and_no_failed_examples(
    script: Path, address: str, message: str
) -> None:
    done = subprocess.run(
        [RAMIFORM, "eval", "--address", address, str(script)], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"ramiform: {message}\n")
