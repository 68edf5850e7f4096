"""`ramiform check-logprobs`: figures by hand, and what it says of the model that ships."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.errors import RamiformError
from ramiform.tools.check_logprobs import (
    EXACT,
    ComparedSetting,
    LogprobReport,
    Mismatch,
    RuntimeSetting,
    check_logprobs,
    compare,
    generate,
    trainer_logprobs,
)

RAMIFORM = str(Path(sys.executable).parent / "ramiform")


def test_a_missing_package_is_named_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(RamiformError, match=r"ramiform\[transformers\]"):
        check_logprobs(str(SHIPPED_MODEL))


def test_figures_are_those_of_numpy() -> None:
    draw = np.random.default_rng(1)
    own = draw.normal(-2, 1, 1000)
    other = own + draw.normal(0, 0.01, 1000)
    found = Mismatch.of(own.tolist(), other.tolist())
    size = np.abs(own - other)
    assert found.num_tokens == 1000
    assert found.mean == pytest.approx(size.mean())
    assert found.p99 == pytest.approx(np.quantile(size, 0.99, method="inverted_cdf"))
    assert found.largest == pytest.approx(size.max())
    ratio = np.exp(other - own)
    assert found.kl == pytest.approx((ratio - 1 - np.log(ratio)).mean(), rel=1e-6)


def test_the_estimate_of_kl_is_that_of_two_distributions() -> None:
    draw = np.random.default_rng(2)
    p, q = draw.dirichlet(np.ones(5)), draw.dirichlet(np.ones(5))
    drawn = draw.choice(5, 200_000, p=p)
    found = Mismatch.of(np.log(p)[drawn].tolist(), np.log(q)[drawn].tolist())
    assert found.kl == pytest.approx((p * np.log(p / q)).sum(), rel=0.05)


def test_a_report_names_the_first_setting_within_its_bound() -> None:
    def compared(dtype: str, mean: float) -> ComparedSetting:
        setting = RuntimeSetting(dtype, False)  # type: ignore[arg-type]
        return ComparedSetting(setting, "bfloat16", Mismatch(1, mean, mean, mean, 0.0))

    floor = Mismatch(1, 0.02, 0.1, 0.2, 0.0)
    both = [compared("bfloat16", 0.03), compared("float32", 0.01)]
    assert LogprobReport(both, floor).agreeing == RuntimeSetting("float32", False)
    assert LogprobReport(both[:1], floor).agreeing is None
    assert (LogprobReport(both, floor).bound, LogprobReport(both, None).bound) == (0.02, EXACT)


@pytest.mark.exhaustive
def test_float32_agrees_and_bfloat16_no_worse_than_transformers_with_itself() -> None:
    exact = compare(SHIPPED_MODEL, RuntimeSetting("float32", True), "float32", num_tokens=40, seed=3)
    [only] = exact.compared
    assert only.mismatch.mean <= EXACT
    assert only.mismatch.num_tokens == 320
    rounded = compare(SHIPPED_MODEL, RuntimeSetting("bfloat16", False), "bfloat16", num_tokens=40, seed=3)
    assert rounded.floor is not None
    assert rounded.floor.mean > 10 * EXACT
    # The first is bfloat16 itself; which tokens are drawn, and so the means of 320, depends on what shared a step.
    assert rounded.compared[0].mismatch.mean <= 1.5 * rounded.floor.mean


@pytest.mark.exhaustive
def test_other_weights_are_a_mismatch_that_no_setting_removes(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(SHIPPED_MODEL, other)
    tensors = load_file(other / "model.safetensors")
    name = "model.layers.3.self_attn.q_proj.weight"
    save_file(tensors | {name: 1.05 * tensors[name]}, other / "model.safetensors", metadata={"format": "pt"})
    samples = generate(SHIPPED_MODEL, RuntimeSetting("float32", True), 32, 1)
    own = [value for one in samples for value in one.logprobs]
    same, changed = (
        Mismatch.of(own, trainer_logprobs(folder, samples, "float32")) for folder in (SHIPPED_MODEL, other)
    )
    assert same.mean <= EXACT < changed.mean
    assert changed.kl > 0
    assert math.isfinite(changed.largest)


@pytest.mark.exhaustive
def test_the_command_shows_a_table_and_refuses_what_no_trainer_holds(tmp_path: Path) -> None:
    command = [RAMIFORM, "check-logprobs", str(SHIPPED_MODEL), "--dtype", "float32", "--num-tokens", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "agrees within a mean of 1e-05: --dtype float32" in done.stdout
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    done = subprocess.run([*command[:2], str(tmp_path / "model.gguf")], capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "no safetensors files" in done.stderr
