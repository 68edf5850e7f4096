"""Compiled forms of kernels. Judge: the launches of random steps, each of which must be one of those listed before."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import random, sys
import numpy as np
import torch
from ramiform.kernels import SAMPLING_DTYPES, AttentionArgs, DecodeAttentionArgs, KvCache, RowSpan, SamplingTensors
from ramiform.kernels.triton import launching
from ramiform.kernels.triton.ops import TritonOps
from ramiform.kernels.triton.variants import KernelShapes, variants

H, K, D, V = 8, 2, 64, 1000
draw = random.Random(int(sys.argv[1]))
ops = TritonOps()
for window in (None, 100):
    shapes = KernelShapes(H, K, D, 512, V, 16, windows=(window,), num_experts=8, num_chosen=2, expert_size=64)
    known = {launch.key for launch in variants(shapes)}
    kv = KvCache(*torch.empty(2, 64 * 16, K, D, dtype=torch.bfloat16))
    with launching.recorded() as launches:
        for _ in range(int(sys.argv[2])):
            rows = []
            for _ in range(draw.randrange(1, 40)):
                tokens = draw.choice([1, 1, 1, 3, 9, 17, 40, 70, 200])
                nodes = tuple(range(-1, tokens - 2)) if 1 < tokens <= 40 and draw.random() < 0.5 else ()
                first = draw.randrange(300)
                pages = np.arange(-(-(first + tokens) // 16)) + draw.choice([0, 0, 7])
                rows.append(RowSpan(first, tokens, pages, nodes))
            q = torch.empty(sum(row.num_tokens for row in rows), H, D, dtype=torch.bfloat16)
            ops.attention(AttentionArgs(rows, kv, H, 16, window, q.dtype)).attend(q, kv, 0.1)
            R = len(rows)
            table = torch.zeros(R, draw.randrange(1, 40), dtype=torch.int32)
            q = torch.empty(R, H, D, dtype=torch.bfloat16)
            args = DecodeAttentionArgs(table, table[:, 0].contiguous(), kv, 16, window)
            ops.decode_attention(args).attend(q, kv, 0.1)
            top_k = draw.choice([0, 1, 50, 64])
            columns = [torch.ones(R, dtype=getattr(torch, dtype.__name__)) for dtype in SAMPLING_DTYPES.values()]
            ops.sample_tokens(torch.empty(R, V), SamplingTensors(*columns, max_top_k=top_k))
            T = draw.randrange(1, 300)
            routing = ops.route(torch.empty(T, 8, dtype=torch.bfloat16), 2, True)
            x = torch.empty(T, 512, dtype=torch.bfloat16)
            y = ops.grouped_matmul(x, torch.empty(8, 128, 512, dtype=x.dtype), routing.ends_N, routing.tokens_P)
    new = {launch.key for launch in launches} - known
    assert not new, new
    assert len(launches) > 100, len(launches)
"""


@pytest.mark.exhaustive
def test_random_steps_launch_only_forms_that_are_listed(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    seed = str(random.Random(5).randrange(1000))
    command = [sys.executable, "-P", "-c", SCRIPT, seed, "15"]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
