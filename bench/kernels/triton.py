"""The Triton kernels on a GPU: bytes moved against a device copy, operations against a matrix product. On a CPU the
product loops, by one thread: bytes read against a plain read, operations against the loops' own rate in the cache.

    python -P bench/kernels/triton.py [--out FILE] [--cpu]

Everything is relative to what the same device did in the same run. Without a CUDA device the CPU is measured.

Legend: R rows, T tokens, H query heads, K key/value heads, D head size, S slots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer

from ramiform.bench.harness import Out, table, write

PAGE_SIZE = 16
H, K, D = 32, 8, 128  # Llama-3.1-8B's heads
VOCAB = 128256
Measure = Callable[[Callable[[], object]], float]


def bench_copy(seconds: Measure) -> float:
    """Bytes per second, read and written, of a copy of 1 GiB."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source))


def bench_product(seconds: Measure) -> float:
    """Operations per second of a bf16 matrix product of size 8192."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return 2 * 8192**3 / seconds(lambda: a @ a)


class Shape:
    """A batch of rows of one length over shuffled pages."""

    def __init__(
        self, num_rows: int, num_keys: int, num_queries: int, stored: torch.dtype, *, tree: bool = False
    ) -> None:
        from ramiform.kernels.kv_cache import KvCache
        from ramiform.kernels.triton import paged_rows

        pages = -(-num_keys // PAGE_SIZE)
        table_RP = torch.randperm(num_rows * pages, device="cuda").view(num_rows, pages)
        k, v = (torch.randn(num_rows * pages * PAGE_SIZE, K, D, device="cuda").to(stored) for _ in range(2))
        scale_K = torch.ones(K, device="cuda") if stored.itemsize == 1 else None
        self.kv = KvCache(k, v, scale_K, scale_K)
        own = torch.arange(num_queries, device="cuda")
        self.rows = paged_rows.PagedRows(
            page_table_RP=table_RP.int(),
            num_keys_R=torch.full((num_rows,), num_keys, dtype=torch.int32, device="cuda"),
            first_query_R=torch.arange(num_rows, dtype=torch.int32, device="cuda") * num_queries,
            num_queries_R=torch.full((num_rows,), num_queries, dtype=torch.int32, device="cuda"),
            positions_T=(num_keys - num_queries + own).repeat(num_rows).int(),
            visible_T=((2 << own) - 1).repeat(num_rows) if tree else None,
            max_queries=num_queries,
            page_size=PAGE_SIZE,
            window=None,
        )
        self.num_rows, self.num_keys, self.num_queries = num_rows, num_keys, num_queries
        self.q_THD = torch.randn(num_rows * num_queries, H, D, device="cuda", dtype=torch.bfloat16)
        self.out_THD = torch.empty_like(self.q_THD)
        self.kv_bytes = 2 * num_rows * num_keys * K * D * stored.itemsize

    def split(self, *, tile: int = 64) -> Callable[[], object]:
        from ramiform.kernels.triton.launch_configs import num_splits_wanted
        from ramiform.kernels.triton.split_attention import split_attention
        from ramiform.kernels.triton.splits import make_splits

        splits = make_splits(self.rows.num_keys_R, num_wanted=num_splits_wanted(self.q_THD.device, K), tile=tile)
        return lambda: split_attention(self.q_THD, self.kv, self.rows, splits, self.out_THD, D**-0.5)

    def chunk(self) -> Callable[[], object]:
        from ramiform.kernels.triton.chunk_attention import chunk_attention, query_tiles
        from ramiform.kernels.triton.launch_configs import chunk_tile

        tile = chunk_tile(self.q_THD.device, D, self.kv.k_SKD.dtype)
        tiles = query_tiles(
            [self.num_queries] * self.num_rows,
            [self.num_keys] * self.num_rows,
            group=H // K,
            tile=tile,
            device=self.q_THD.device,
        )
        return lambda: chunk_attention(self.q_THD, self.kv, self.rows, tiles, self.out_THD, D**-0.5)

    def torch_attention(self) -> Callable[[], object]:
        """torch's attention on contiguous keys, which saves it the cost of paging."""
        q = self.q_THD.view(self.num_rows, self.num_queries, H, D).transpose(1, 2)
        k, v = (
            x.to(torch.bfloat16)[: self.num_rows * self.num_keys]
            .view(self.num_rows, self.num_keys, K, D)
            .transpose(1, 2)
            for x in (self.kv.k_SKD, self.kv.v_SKD)
        )
        causal = self.num_queries == self.num_keys
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def decode_rows(seconds: Measure, copy_rate: float) -> Iterator[dict[str, Any]]:
    for num_rows, num_keys in [(1, 8192), (1, 32768), (8, 8192), (64, 2048), (128, 4096), (256, 1024)]:
        for stored in (torch.bfloat16, torch.float8_e4m3fn, torch.int8):
            shape = Shape(num_rows, num_keys, 1, stored)
            ours, theirs = seconds(shape.split()), seconds(shape.torch_attention())
            yield {
                "rows": num_rows,
                "keys": num_keys,
                "stored": str(stored).removeprefix("torch."),
                "KV MiB": shape.kv_bytes / 2**20,
                "% of the copy rate": 100 * shape.kv_bytes / ours / copy_rate,
                "x torch's speed in bf16": theirs / ours,
            }


def shared_rows(seconds: Measure) -> Iterator[dict[str, Any]]:
    """Rows of few tokens that share a prefix: its keys read once for all, and row by row."""
    import numpy as np

    from ramiform.kernels import AttentionArgs, RowSpan, attention_groups
    from ramiform.kernels.triton.paged_attention import step_attention

    own = 64  # keys of each row behind the prefix, its own token included
    for num_rows, num_shared, num_tokens in [
        (2, 1024, 1), (4, 8192, 1), (16, 256, 1), (16, 1024, 1), (64, 1024, 1), (64, 8192, 1), (16, 1024, 8),
        (64, 1024, 4),
    ]:  # fmt: skip
        pages = np.arange(num_shared // PAGE_SIZE)
        rest = num_shared // PAGE_SIZE + np.arange(num_rows * 5).reshape(num_rows, 5)
        spans = [RowSpan(num_shared + own - num_tokens, num_tokens, np.concatenate((pages, more))) for more in rest]
        for stored in (torch.bfloat16, torch.float8_e4m3fn):
            kv = Shape(1, num_shared + 80 * num_rows, 1, stored).kv
            q_THD = torch.randn(num_rows * num_tokens, H, D, device="cuda", dtype=torch.bfloat16)
            args = AttentionArgs(spans, kv, H, PAGE_SIZE, None, torch.bfloat16)
            made = []
            before = attention_groups.PASS_KEYS
            for limit in (-1, 1 << 60):  # share what saves anything; share nothing
                attention_groups.PASS_KEYS = limit
                made.append(step_attention(args, deterministic=False))
            attention_groups.PASS_KEYS = before
            assert [attention.shared is not None for attention in made] == [True, False]
            taken = [seconds(lambda a=attention, q=q_THD, kv=kv: a.attend(q, kv, D**-0.5)) for attention in made]
            yield {
                "rows": num_rows,
                "tokens": num_tokens,
                "shared keys": num_shared,
                "stored": str(stored).removeprefix("torch."),
                "us, shared": 1e6 * taken[0],
                "us, row by row": 1e6 * taken[1],
                "x": taken[1] / taken[0],
                "saved key reads": (num_rows - -(-num_rows * num_tokens // attention_groups.PIECE_TOKENS)) * num_shared,
            }


def tree_rows(seconds: Measure) -> Iterator[dict[str, Any]]:
    for num_rows, num_keys in [(1, 8192), (1, 32768), (8, 8192), (8, 32768)]:
        one = seconds(Shape(num_rows, num_keys, 1, torch.bfloat16).split())
        row: dict[str, Any] = {"rows": num_rows, "keys": num_keys}
        for num in (8, 16, 64):
            row[f"{num} tokens x one's time"] = (
                seconds(Shape(num_rows, num_keys, num, torch.bfloat16, tree=True).split()) / one
            )
        yield row


def chunk_rows(seconds: Measure, product_rate: float) -> Iterator[dict[str, Any]]:
    for num_queries, num_keys in [(2048, 2048), (8192, 8192), (2048, 16384)]:
        for stored in (torch.bfloat16, torch.float8_e4m3fn):
            shape = Shape(1, num_keys, num_queries, stored)
            ours = seconds(shape.chunk())
            prefix = num_keys - num_queries
            operations = 4 * H * D * (num_queries * prefix + num_queries * (num_queries + 1) / 2)
            yield {
                "tokens": num_queries,
                "keys": num_keys,
                "stored": str(stored).removeprefix("torch."),
                "% of the matrix rate": 100 * operations / ours / product_rate,
                "x torch's speed": seconds(shape.torch_attention()) / ours if not prefix else "-",
            }


def other_rows(seconds: Measure, copy_rate: float) -> Iterator[dict[str, Any]]:
    from ramiform.kernels import SamplingTensors
    from ramiform.kernels.reference import layers as plain
    from ramiform.kernels.reference import sampling as plain_sampling
    from ramiform.kernels.triton import layers, logits, sampling

    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    weight = torch.ones(4096, device="cuda", dtype=torch.bfloat16)
    gate_up = torch.randn(4096, 28672, device="cuda", dtype=torch.bfloat16)

    def row(op: str, num_bytes: int, ours: Callable[[], object], theirs: Callable[[], object]) -> dict[str, Any]:
        taken = seconds(ours)
        return {
            "op": op,
            "% of the copy rate": 100 * num_bytes / taken / copy_rate,
            "x plain torch's speed": seconds(theirs) / taken,
        }

    yield row(
        "add and norm",
        4 * x.nbytes,
        lambda: layers.add_rms_norm(x, x, weight, 1e-5),
        lambda: plain.add_rms_norm(x, x, weight, 1e-5),
    )
    yield row(
        "silu and multiply",
        gate_up.nbytes * 3 // 2,
        lambda: layers.silu_and_mul(gate_up),
        lambda: plain.silu_and_mul(gate_up),
    )
    logits_RV = torch.randn(64, VOCAB, device="cuda")
    bitmask_RW = torch.full((64, -(-VOCAB // 32)), -1, dtype=torch.int32, device="cuda")
    from ramiform.kernels.reference.logits import apply_token_bitmask

    yield row(
        "token mask",
        2 * logits_RV.nbytes,
        lambda: logits.apply_token_bitmask(logits_RV, bitmask_RW),
        lambda: apply_token_bitmask(logits_RV, bitmask_RW),
    )
    for name, top_k, top_p in [
        ("sample", VOCAB, 1.0),
        ("sample, top-p 0.9", VOCAB, 0.9),
        ("sample, top-k 50", 50, 1.0),
    ]:
        ones_R = torch.ones(64, device="cuda")
        draw_R = torch.randint(1 << 62, (64,), device="cuda")
        parameters = SamplingTensors(ones_R, (ones_R * top_k).long(), ones_R.double() * top_p, ones_R * 0, draw_R)
        yield row(
            name,
            logits_RV.nbytes,
            lambda p=parameters: sampling.sample_tokens(logits_RV, p),
            lambda p=parameters: plain_sampling.draw_tokens(plain_sampling.sampling_weights(logits_RV, p), p.draw_R),
        )


def cpu_seconds(calls: list[Callable[[], object]], repeat: int) -> float:
    """Return the least processor time of a call. The calls are made in turn, so that none finds its data cached."""
    times = []
    for number in range((repeat + 1) * len(calls)):
        start = time.thread_time()
        calls[number % len(calls)]()
        if number >= len(calls):
            times.append(time.thread_time() - start)
    return min(times)


def product_rows() -> Iterator[dict[str, Any]]:
    """Measure products of a 4096 x 4096 matrix, by rows: ours, and torch's nearest."""
    import numpy as np

    from ramiform.kernels.cpu.matmul import multiply
    from ramiform.kernels.cpu.packed_matrix import PackedMatrix

    N = C = 4096
    G, group = C // 128, 128
    big = torch.ones(1 << 26)
    read_rate = big.nbytes / cpu_seconds([big.sum], 5)
    small, few_TC = PackedMatrix.of_dense(torch.randn(256, 128)), np.ones((48, 128), np.float32)
    few_TN = np.empty((48, 256), np.float32)

    def in_cache() -> None:
        for _ in range(100):
            multiply(small.descriptor, few_TC, few_TN)

    peak = 100 * 2 * 48 * 256 * 128 / cpu_seconds([in_cache], 5)
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
            taken = cpu_seconds(
                [partial(multiply, matrix.descriptor, x.numpy(), y_TN) for matrix in matrices[:several]], repeat
            )
            theirs = {name: cpu_seconds(calls[:several], 1) for name, calls in torch_s(kind, x).items()}
            yield {
                "weights": kind,
                "rows": T,
                "ms": taken * 1e3,
                "GB/s": matrices[0].nbytes / taken / 1e9,
                "GFLOP/s": 2 * T * N * C / taken / 1e9,
                "x torch": ", ".join(f"{name} {other / taken:.1f}" for name, other in theirs.items()),
            }


def measure_cpu(out: Out) -> None:
    from ramiform.kernels.cpu.instructions import HOST

    torch.set_num_threads(1)
    text = f"""# Products on a CPU

`python -P bench/kernels/triton.py --cpu`, torch {torch.__version__}, one thread, processor time, a weight of 4096 x
4096. {HOST}. The first row has the limits: a plain read of memory, and the float32 loop on data in the cache.

{table(list(product_rows()))}
"""
    write(text, out)


def main(
    out: Out = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="measure the CPU although there is a CUDA device")] = False,
) -> None:
    if cpu or not torch.cuda.is_available():
        measure_cpu(out)
        return
    from triton.testing import do_bench

    def seconds(call: Callable[[], object]) -> float:
        return float(do_bench(call, return_mode="median")) / 1e3

    torch.manual_seed(0)
    copy_rate, product_rate = bench_copy(seconds), bench_product(seconds)
    text = f"""# The kernels, {torch.cuda.get_device_name()}

`python -P bench/kernels/triton.py`, torch {torch.__version__}. The device copies {copy_rate / 1e12:.2f} TB/s (read and
written) and multiplies {product_rate / 1e12:.0f} TFLOP/s in bf16; percentages are of these, measured in the same run.
{H} query heads, {K} key heads of {D}.

## Decode attention

{table(list(decode_rows(seconds, copy_rate)))}

## Tree attention: time against a single token's

{table(list(tree_rows(seconds)))}

## Shared prefixes: rows of 64 keys of their own

Rows in which sharing is slower say what `PASS_KEYS` of kernels/attention_groups.py should be, in saved key reads.

{table(list(shared_rows(seconds)))}

## Chunk attention

{table(list(chunk_rows(seconds, product_rate)))}

## Others, 4096 tokens or 64 rows of logits

{table(list(other_rows(seconds, copy_rate)))}
"""
    write(text, out)


if __name__ == "__main__":
    typer.run(main)
