"""Every kernel compiles for the GPUs it is meant for, within what a multiprocessor has. No GPU is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARED_BYTES = {90: 227 * 1024, 80: 163 * 1024}


@pytest.mark.exhaustive
@pytest.mark.parametrize("capability", SHARED_BYTES)
@pytest.mark.timeout(600)
def test_every_kernel_compiles_without_spilling(capability: int, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    script = Path(__file__).with_name("compile_all.py")
    ran = subprocess.run(
        [sys.executable, "-P", script, str(capability)], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    compiled = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {one["name"] for one in compiled} == {
        "_attend_chunk",
        "_attend_split",
        "_combine",
        "_combine_experts",
        "_grouped_matmul",
        "_logprob",
        "_mask",
        "_rms_norm",
        "_rope_and_store",
        "_sample",
        "_silu_and_mul",
        "_split_kernel",
    }
    assert [one for one in compiled if one["spilled_bytes"]] == []
    assert [one for one in compiled if one["registers"] > 255 or one["shared_bytes"] > SHARED_BYTES[capability]] == []
