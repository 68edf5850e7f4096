"""Products on a CPU by one thread: bytes beside a plain read, operations beside the loops' own rate in the cache.

    python -P bench/kernels/products.py [--out FILE]
    python -P bench/kernels/products.py --rounding [--before CHECKOUT/.venv/bin/python]
    python -P bench/kernels/products.py --codes

Everything is relative to what the same processor did in the same run. With `--rounding` products of float32 rows are
judged by float64, torch's too: the root of the mean square of the errors over that of the results. With `--codes`
weights of codes with scales by group are multiplied by rows of int8, by tiles where the processor has them, and wide:
other numbers in float32 and bfloat16, which is the most that widening them could give.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer

from ramiform.bench.harness import Ask, Before, Out, checkouts, report, table, timed
from ramiform.kernels.cpu.compiled import Floats, Ints
from ramiform.kernels.cpu.instructions import HOST
from ramiform.kernels.cpu.products.amx import usable
from ramiform.kernels.cpu.products.block_formats import BLOCK_FORMATS
from ramiform.kernels.cpu.products.byte_tiles import MIN_ROWS as BYTE_ROWS
from ramiform.kernels.cpu.products.matmul import multiply
from ramiform.kernels.cpu.products.packed_matrix import NEVER, TILES_FROM, PackedMatrix
from ramiform.tests.kernels import test_block_matmul, test_integer_matmul


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


WIDTHS = [(576, 1536), (896, 4864), (4864, 896)]  # inputs and outputs of layers of SmolLM2 and Qwen2-0.5B
ROUNDS = 9
GROUPED = [("int4", 32), ("int4", 128), ("int8", 32), ("int8", 128)]  # codes, and inputs of a scale


def worker() -> Ask:
    """Return what computes products of (stored dtype, inputs, outputs, rows), and gives microseconds, our error and
    torch's."""
    torch.set_num_threads(1)

    def measure(question: Any) -> Any:
        stored, C, N, T = question
        draw = torch.Generator().manual_seed(C + T)
        w_NC = (torch.randn(N, C, generator=draw) / C**0.5).to(getattr(torch, stored))
        x_TC = torch.randn(T, C, generator=draw)
        exact_TN = x_TC.double() @ w_NC.double().t()
        matrix, y_TN = PackedMatrix.of_dense(w_NC), np.empty((T, N), np.float32)
        seconds = least_seconds([partial(multiply, matrix.descriptor, x_TC.numpy(), y_TN)], 20)

        def error(got_TN: torch.Tensor) -> float:
            return float((got_TN.double() - exact_TN).square().mean().sqrt() / exact_TN.square().mean().sqrt())

        return 1e6 * seconds, error(torch.from_numpy(y_TN)), error(F.linear(x_TC, w_NC.float()))

    return measure


def rounding_rows(before: Path | None) -> Iterator[dict[str, Any]]:
    """Measure products of float32 rows; checkouts take turns."""
    with checkouts(__file__, before) as asks:
        for stored, (C, N), T in product(("float32", "bfloat16"), WIDTHS, (1, 4, 12, 256)):
            rounds = [[ask([stored, C, N, T]) for ask in asks] for _ in range(ROUNDS if T < 256 else 3)]
            row: dict[str, Any] = {"weights": stored, "inputs": C, "outputs": N, "rows": T}
            row["us"] = f"{median(mine[0] for mine, *_ in rounds):.0f}"
            row |= {"error": f"{rounds[0][0][1]:.1e}", "torch's": f"{rounds[0][0][2]:.1e}"}
            if before:
                row["before: error"] = f"{rounds[0][1][1]:.1e}"
                row["time over before's"] = f"{median(mine[0] / old[0] for mine, old in rounds):.2f}"
            yield row


def code_rows() -> Iterator[dict[str, Any]]:
    """Measure products with weights of codes with scales by group: rows of int8 by dot products and, where there are
    tiles, by tiles of bytes and with weights widened to bfloat16."""
    N, C = 1024, 2048
    wide = [PackedMatrix.of_dense(torch.randn(N, C)), PackedMatrix.of_dense(torch.randn(N, C).bfloat16())]
    if HOST.bfloat16_dot:
        wide.append(PackedMatrix.of_dense(torch.randn(N, C).bfloat16(), rows=torch.bfloat16))
    for (name, group), T in product((*((name, 32) for name in BLOCK_FORMATS), *GROUPED), (8, 32, 128, 512)):
        if name in BLOCK_FORMATS:
            data, w_NC = test_block_matmul.stored(name, N, C)
            matrix, bias_N = PackedMatrix.of_blocks([(name, data)]), torch.zeros(N)
        else:
            matrix, w_NC, bias_N = test_integer_matmul.weights(name, C, group, N)
        x_TC, y_TN = torch.randn(T, C), np.empty((T, N), np.float32)
        exact_TN = x_TC.double() @ w_NC.t() + bias_N

        def measured(descriptor: Ints, T: int = T, x_TC: torch.Tensor = x_TC, y_TN: Floats = y_TN) -> float:
            """Return billions of operations a second."""
            seconds = least_seconds([partial(multiply, descriptor, x_TC.numpy(), y_TN)], 5)
            return 2 * T * N * C / seconds / 1e9

        def error(y_TN: Floats = y_TN, exact_TN: torch.Tensor = exact_TN) -> str:
            return f"{float((torch.from_numpy(y_TN).double() - exact_TN).norm() / exact_TN.norm()):.1e}"

        # The rows from which on weights are widened, of each way: 0 is without tiles, and too few for bytes go by dots.
        ways = {"dot products, GFLOP/s": 0}
        if usable() and T >= BYTE_ROWS:
            ways["tiles of bytes"] = NEVER
        if usable():
            ways["widened"] = 1
        rates: dict[str, Any] = dict.fromkeys(("dot products, GFLOP/s", "tiles of bytes", "widened"), "")
        errors = []
        for way, rows in ways.items():
            descriptor = matrix.descriptor.copy()
            descriptor[TILES_FROM] = rows
            rates[way] = measured(descriptor)
            errors.append(error())
        rates["wide"] = max(measured(dense.descriptor) for dense in wide)
        last = {"error": errors[0], "error, widened": errors[-1] if "widened" in ways else ""}
        yield {"weights": f"{name}, {group}", "rows": T} | rates | last


def main(
    rounding: Annotated[bool, typer.Option(help="errors of products of float32 rows")] = False,
    codes: Annotated[bool, typer.Option(help="weights of codes with scales by group")] = False,
    before: Before = None,
    out: Out = None,
) -> None:
    torch.set_num_threads(1)
    if codes:
        said = f"Processor time of one thread, a weight of 1,024 x 2,048, {HOST}."
        report("Products with weights of codes", said, table(list(code_rows())), out=out)
        return
    if rounding:
        report(
            "Rounding of products of float32 rows", f"{HOST}, one thread.", table(list(rounding_rows(before))), out=out
        )
        return
    said = (
        f"Processor time, a weight of 4096 x 4096, {HOST}. The first row has the limits: a plain read of memory, and "
    )
    said += "the float32 loop on data in the cache."
    report("Products on a CPU", said, table(list(product_rows())), out=out)


if __name__ == "__main__":
    typer.run(main)
