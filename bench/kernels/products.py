"""Products on a CPU by one thread: bytes beside a plain read, operations beside the loops' own rate in the cache.

    python -P bench/kernels/products.py [--out FILE]

Everything is relative to what the same processor did in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import typer

from ramiform.bench.harness import Out, report, table, timed
from ramiform.kernels.cpu.instructions import HOST
from ramiform.kernels.cpu.products.matmul import multiply
from ramiform.kernels.cpu.products.packed_matrix import PackedMatrix


def least_seconds(calls: list[Callable[[], object]], repeat: int) -> float:
    """Return the least processor time of a call. The calls are made in turn, so that none finds its data cached."""
    times = []
    for number in range((repeat + 1) * len(calls)):
        times.append(timed(time.thread_time, calls[number % len(calls)]))
    return min(times[len(calls) :])


def product_rows() -> Iterator[dict[str, Any]]:
    """Measure products of a 4096 x 4096 matrix, by rows: ours, and torch's nearest."""
    N = C = 4096
    G, group = C // 128, 128
    big = torch.ones(1 << 26)
    read_rate = big.nbytes / least_seconds([big.sum], 5)
    small, few_TC = PackedMatrix.of_dense(torch.randn(256, 128)), np.ones((48, 128), np.float32)
    few_TN = np.empty((48, 256), np.float32)

    def in_cache() -> None:
        for _ in range(100):
            multiply(small.descriptor, few_TC, few_TN)

    peak = 100 * 2 * 48 * 256 * 128 / least_seconds([in_cache], 5)
    yield {"weights": "(limits)", "rows": "", "ms": "", "GB/s": read_rate / 1e9, "GFLOP/s": peak / 1e9, "x torch": ""}
    dense = [torch.randn(N, C) for _ in range(2)]
    halves = [weight.bfloat16() for weight in dense * 2]
    codes = [torch.randint(-127, 128, (N, C), dtype=torch.int8) for _ in range(5)]
    nibbles = [torch.randint(0, 256, (N, C // 2), dtype=torch.uint8) for _ in range(8)]
    fours = [torch._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (N, C)).int(), 1) for _ in range(8)]
    scale_N, scale_NG = torch.rand(N), torch.rand(N, G)
    groups_GN2 = torch.rand(G, N, 2, dtype=torch.bfloat16)
    ours = {
        "float32": [PackedMatrix.of_dense(weight) for weight in dense],
        "bfloat16": [PackedMatrix.of_dense(weight, rows=torch.bfloat16) for weight in halves],
        "int8": [PackedMatrix.of_int8(code, scale_N) for code in codes],
        "int4": [PackedMatrix.of_int4(code, scale_NG, scale_NG) for code in nibbles],
    }

    def torch_s(kind: str, x: torch.Tensor) -> dict[str, list[Callable[[], object]]]:
        half, rounded = x.bfloat16(), x.to(torch.int8)
        match kind:
            case "float32":
                return {"linear": [partial(F.linear, x, weight) for weight in dense]}
            case "bfloat16":
                return {"linear": [partial(F.linear, half, weight) for weight in halves]}
            case "int8":
                scale = scale_N.bfloat16()
                return {
                    "int8pack": [partial(torch._weight_int8pack_mm, half, code, scale) for code in codes],
                    "_int_mm": [partial(torch._int_mm, rounded, code.t()) for code in codes],
                }
            case _:
                return {
                    "int4pack": [
                        partial(torch._weight_int4pack_mm_for_cpu, half, code, group, groups_GN2) for code in fours
                    ]
                }

    for kind, matrices in ours.items():
        for T in (1, 2, 3, 4, 6, 8, 16, 64, 256):
            x = torch.randn(T, C)
            y_TN, repeat, several = np.empty((T, N), np.float32), 4 if T < 64 else 1, len(matrices) if T < 64 else 1
            taken = least_seconds(
                [partial(multiply, matrix.descriptor, x.numpy(), y_TN) for matrix in matrices[:several]], repeat
            )
            theirs = {name: least_seconds(calls[:several], 1) for name, calls in torch_s(kind, x).items()}
            yield {
                "weights": kind,
                "rows": T,
                "ms": taken * 1e3,
                "GB/s": matrices[0].nbytes / taken / 1e9,
                "GFLOP/s": 2 * T * N * C / taken / 1e9,
                "x torch": ", ".join(f"{name} {other / taken:.1f}" for name, other in theirs.items()),
            }


def main(out: Out = None) -> None:
    torch.set_num_threads(1)
    said = (
        f"Processor time, a weight of 4096 x 4096, {HOST}. The first row has the limits: a plain read of memory, and "
    )
    said += "the float32 loop on data in the cache."
    report("Products on a CPU", said, table(list(product_rows())), out=out)


if __name__ == "__main__":
    typer.run(main)
