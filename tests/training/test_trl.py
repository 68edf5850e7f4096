"""Rollouts as TRL's trainer and `datasets` take them, in an environment that has both: installed at the first run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ramiform

PACKAGES = ("trl==1.16.0", "datasets==5.2.0", "pyarrow==26.0.1")
EXAMPLES = Path(ramiform.__file__).parent / "examples/training"
STEPS = 12
TRAINING = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch
import ramiform
import trl_grpo
from datasets import Dataset
from pyarrow import parquet

folder = sys.argv[2]
with ramiform.Engine(dtype="float32", log_level="error") as engine:
    cases, held_out = trl_grpo.cases()
    before = trl_grpo.share_right(engine, held_out)
    found = ramiform.rollouts(trl_grpo.talk, cases[:2], trl_grpo.reward, group=2, backend=engine.runtime)
    rows = found.rows()
    found.to_parquet(folder + "/rows.parquet")
    stored = parquet.read_table(folder + "/rows.parquet").to_pylist()
    listed = Dataset.from_list(rows).to_list()
    trainer = trl_grpo.train(engine, steps=int(sys.argv[3]), folder=folder)
    log = trainer.state.log_history
    after = trl_grpo.share_right(engine, held_out)
    ids = [5, 9, 300, 17, 41]
    score = engine.generate(input_ids=ids, sampling_params={"max_new_tokens": 1, "temperature": 0}, return_logprob=True)
    [(own, token, _)] = score["meta_info"]["output_token_logprobs"]
    with torch.inference_mode():
        logits = trainer.model(torch.tensor([ids])).logits[0, -1].float()
    told = {
        "right": [before, after],
        "same_rows": stored == rows and listed == rows,
        "rewards": [one["reward"] for one in log if "reward" in one],
        "lengths": [one["completions/mean_length"] for one in log if "reward" in one],
        "difference": abs(own - logits.log_softmax(-1)[token].item()),
    }
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the interpreter of an environment with TRL, on top of the packages of this one."""
    folder = Path.home() / ".cache/ramiform-tests/trl-1.16.0"
    interpreter = folder / "bin/python"
    if not (folder / "made").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        [site] = folder.glob("lib/python*/site-packages")
        found = [path for path in sys.path if path.endswith("site-packages")]
        (site / "base.pth").write_text("\n".join([*found, str(Path(ramiform.__file__).parent.parent)]))
        subprocess.run([str(interpreter), "-m", "pip", "install", "-q", *PACKAGES], check=True)
        (folder / "made").touch()
    return interpreter


@pytest.mark.real
def test_trl_trains_on_rollouts_and_datasets_reads_their_rows(python: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(python), "-P", "-c", TRAINING, str(EXAMPLES), str(tmp_path), str(STEPS)],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["same_rows"]
    assert len(told["rewards"]) == STEPS
    assert all(0.5 < reward <= 1 for reward in told["rewards"])
    before, after = told["right"]  # held-out answers
    assert after > before + 0.2
    assert all(1 < length < 34 for length in told["lengths"])  # of the tokens that the model chose
    assert told["difference"] < 1e-4  # the runtime has the trainer's last weights
