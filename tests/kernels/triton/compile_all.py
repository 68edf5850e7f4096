"""Compiles every kernel in every configuration for a GPU; prints a JSON object for each. Run by test_compile.py in a
process that does not interpret: `python compile_all.py CAPABILITY`, 90 say."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import torch

from ramify.kernels.kv_cache import KvCache
from ramify.kernels.triton import experts, layers, logits, sampling, store, tables
from ramify.kernels.triton.chunk_attention import chunk_attention, query_tiles
from ramify.kernels.triton.paged_rows import PagedRows
from ramify.kernels.triton.split_attention import split_attention
from ramify.kernels.triton.splits import make_splits

sys.path.insert(0, __file__.rpartition("/")[0])
from compiling import Launch, compile_launch, recorded

CPU = torch.device("cpu")
HEADS = [(32, 8, 128), (14, 2, 64), (16, 8, 256), (64, 8, 128)]  # query, key/value, size


def cache(kv_heads: int, head_dim: int, dtype: torch.dtype) -> KvCache:
    scale = torch.ones(kv_heads) if dtype.itemsize == 1 else None
    return KvCache(*torch.empty(2, 160, kv_heads, head_dim, dtype=dtype), scale, scale)


def rows(num_rows: int, queries: int, *, tree: bool, window: int | None = None) -> PagedRows:
    num = torch.zeros(num_rows, dtype=torch.int32)
    tokens = torch.zeros(num_rows * queries, dtype=torch.int32)
    table = torch.zeros((num_rows, 64), dtype=torch.int32)
    return PagedRows(table, num, num, num, tokens, tokens.long() if tree else None, queries, 16, window)


def attention(capability: int) -> Iterator[tuple[str, Launch]]:
    stored = [torch.bfloat16, torch.int8] + ([torch.float8_e4m3fn] if tables.reads_fp8(CPU) else [])
    for heads, kv_heads, head_dim in HEADS:
        for dtype in stored:
            kv = cache(kv_heads, head_dim, dtype)
            name = f"H{heads}-K{kv_heads}-D{head_dim}-{str(dtype).removeprefix('torch.')}"
            for queries in (1, 8, 64) if dtype == torch.bfloat16 else (1, 8):
                q = torch.empty(4 * queries, heads, head_dim, dtype=torch.bfloat16)
                with recorded() as launches:
                    splits = make_splits(torch.zeros(4, dtype=torch.int32), num_wanted=66, tile=64)
                    split_attention(q, kv, rows(4, queries, tree=queries > 1), splits, q, 0.1)
                yield from ((f"{name}-Q{queries}", launch) for launch in launches)
            tile = tables.chunk_tile(CPU, head_dim, dtype)
            tiles = query_tiles([100], [200], group=heads // kv_heads, tile=tile, device=CPU)
            q = torch.empty(100, heads, head_dim, dtype=torch.bfloat16)
            for window in (None, 4096) if dtype == torch.bfloat16 else (None,):
                with recorded() as launches:
                    chunk_attention(q, kv, rows(1, 100, tree=False, window=window), tiles, q, 0.1)
                yield from ((f"{name}-W{window}", launch) for launch in launches)
            qkv = torch.empty(4, heads + 2 * kv_heads, head_dim, dtype=torch.bfloat16)
            angles = torch.empty(4, 1, head_dim, dtype=torch.bfloat16)
            with recorded() as launches:
                store.rope_and_store(qkv, angles, angles, kv, torch.zeros(4, dtype=torch.int64), heads)
            yield from ((name, launch) for launch in launches)


def others() -> Iterator[tuple[str, Launch]]:
    for width in (256, 896, 4096, 8192):
        x, weight = torch.empty(4, width, dtype=torch.bfloat16), torch.empty(width, dtype=torch.bfloat16)
        with recorded() as launches:
            layers.rms_norm(x, weight, 1e-5)
            layers.add_rms_norm(x, x, weight, 1e-5)
            layers.silu_and_mul(x)
        yield from ((f"E{width}", launch) for launch in launches)
    for num_experts, inner, outer in ((8, 4096, 28672), (128, 2048, 1536), (60, 1408, 2048)):
        weight = torch.empty(num_experts, outer, inner, dtype=torch.bfloat16, device="meta")
        for num_tokens in (1, 64 * num_experts, 1024 * num_experts):
            x = torch.empty(num_tokens, inner, dtype=torch.bfloat16, device="meta")
            rows = torch.zeros(num_tokens, dtype=torch.int64)
            with recorded() as launches:
                experts.grouped_matmul(x, weight, torch.zeros(num_experts, dtype=torch.int64), rows)
                experts.grouped_matmul(x, weight, torch.zeros(num_experts, dtype=torch.int64))
            yield from ((f"N{num_experts}-C{inner}-T{num_tokens}", launch) for launch in launches)
    with recorded() as launches:
        layers.rms_norm(torch.empty(4, 48, 128, dtype=torch.bfloat16), torch.empty(40, 128, dtype=torch.bfloat16), 1e-6)
    yield from (("heads", launch) for launch in launches)
    for vocab_size in (1024, 128256):
        logits_RV, ones_R = torch.empty(4, vocab_size), torch.ones(4)
        with recorded() as launches:
            logits.apply_token_bitmask(logits_RV, torch.empty(4, -(-vocab_size // 32), dtype=torch.int32))
            for max_top_k in (0, 50):
                sampling.sample_tokens(
                    logits_RV,
                    temperature_R=ones_R,
                    top_k_R=ones_R.long(),
                    top_p_R=ones_R.double(),
                    min_p_R=ones_R,
                    draw_R=ones_R.long(),
                    max_top_k=max_top_k,
                )
            sampling.logprobs(logits_RV, ones_R.long())
        yield from ((f"V{vocab_size}", launch) for launch in launches)


if __name__ == "__main__":
    wanted = int(sys.argv[1])
    tables.ASSUMED = (wanted // 10, wanted % 10)
    seen = set()
    for name, launch in [*attention(wanted), *others()]:
        compiled = compile_launch(launch, wanted)
        if (key := (name, compiled.name)) not in seen:
            seen.add(key)
            print(json.dumps({"case": name, **compiled._asdict()}), flush=True)
