"""Compiles every kernel in every configuration for a GPU; prints a JSON object for each. Run by test_compile.py in a
process that does not interpret: `python compile_all.py CAPABILITY`, 90 say."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch

from ramiform.kernels import KvCache, RopeAndStoreArgs, SamplingTensors
from ramiform.kernels.attention_groups import LEVELS
from ramiform.kernels.triton import experts, launch_configs, layers, logits, sampling, store
from ramiform.kernels.triton.chunk_attention import chunk_attention, query_tiles
from ramiform.kernels.triton.paged_rows import PagedRows
from ramiform.kernels.triton.split_attention import Merge, SharedPass, attend_shared, split_attention
from ramiform.kernels.triton.splits import fixed_splits, make_splits

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


def shared_attention(q_THD: torch.Tensor, kv: KvCache, *, paths: bool) -> None:
    """Launch attention of two decode rows, with a window and without, whose first keys are shared; with `paths` also
    that of paths of draft trees in deterministic mode, which have pages of one slot."""
    tokens = torch.zeros(32, dtype=torch.int32)
    for window in (None, 4096):
        pieces = replace(rows(2, 16, tree=False, window=window), first_key_R=tokens, tokens_N=tokens, are_pieces=True)
        splits = make_splits(pieces.num_keys_R, num_wanted=66, tile=64)
        merge = Merge.empty(SharedPass(pieces, splits, torch.zeros((2, LEVELS), dtype=torch.int32)), 70, q_THD)
        attend_shared(q_THD, kv, merge, 0.1)
        own = replace(rows(2, 1, tree=False, window=window), first_key_R=tokens)
        split_attention(q_THD, kv, own, make_splits(own.num_keys_R, num_wanted=66, tile=64), q_THD, 0.1, merge=merge)
    if paths:
        slots = replace(rows(2, 8, tree=False), first_key_R=tokens, tokens_N=tokens, page_size=1)
        splits = fixed_splits(slots.num_keys_R, size=1024, max_keys=2048)
        split_attention(q_THD, kv, slots, splits, q_THD, 0.1, fixed=True, merge=merge)


def attention() -> Iterator[tuple[str, Launch]]:
    """Yield launches of every dtype and row size for one set of heads; of the other heads, trees and chunks only."""
    eight_bits = [torch.int8] + ([torch.float8_e4m3fn] if launch_configs.reads_fp8(CPU) else [])
    for heads, kv_heads, head_dim in HEADS:
        first = (heads, kv_heads, head_dim) == HEADS[0]
        for dtype in [torch.bfloat16, *(eight_bits if first else [])]:
            kv = cache(kv_heads, head_dim, dtype)
            name = f"H{heads}-K{kv_heads}-D{head_dim}-{str(dtype).removeprefix('torch.')}"
            for queries, fixed in [(1, False), (8, False), (64, False), (1, True)] if first else [(8, False)]:
                q = torch.empty(4 * queries, heads, head_dim, dtype=torch.bfloat16)
                with recorded() as launches:
                    splits = make_splits(torch.zeros(4, dtype=torch.int32), num_wanted=66, tile=64)
                    split_attention(q, kv, rows(4, queries, tree=queries > 1), splits, q, 0.1, fixed=fixed)
                yield from ((f"{name}-Q{queries}{'-fixed' * fixed}", launch) for launch in launches)
            with recorded() as launches:
                shared_attention(torch.empty(4, heads, head_dim, dtype=torch.bfloat16), kv, paths=first)
            yield from ((f"{name}-shared", launch) for launch in launches)
            tile = launch_configs.chunk_tile(CPU, head_dim, dtype)
            tiles = query_tiles([100], [200], group=heads // kv_heads, tile=tile, device=CPU)
            q = torch.empty(100, heads, head_dim, dtype=torch.bfloat16)
            for window in (None, 4096) if first and dtype == torch.bfloat16 else (None,):
                with recorded() as launches:
                    chunk_attention(q, kv, rows(1, 100, tree=False, window=window), tiles, q, 0.1)
                yield from ((f"{name}-W{window}", launch) for launch in launches)
            qkv = torch.empty(4, heads + 2 * kv_heads, head_dim, dtype=torch.bfloat16)
            angles = torch.empty(4, 1, head_dim, dtype=torch.bfloat16)
            slots, norm = torch.zeros(4, dtype=torch.int64), torch.empty(heads + kv_heads, head_dim)
            for qk_norm in (None, norm) if first and dtype == torch.bfloat16 else (None,):
                with recorded() as launches:
                    args = RopeAndStoreArgs(angles, angles, slots, heads, eps=1e-6)
                    store.rope_and_store(qkv, kv, qk_norm, args)
                yield from ((f"{name}{'-norm' * (qk_norm is not None)}", launch) for launch in launches)


def others() -> Iterator[tuple[str, Launch]]:
    for width in (896, 4096):
        x, weight = torch.empty(4, width, dtype=torch.bfloat16), torch.empty(width, dtype=torch.bfloat16)
        with recorded() as launches:
            layers.rms_norm(x, weight, 1e-5)
            layers.add_rms_norm(x, x, weight, 1e-5)
            layers.silu_and_mul(x)
        yield from ((f"E{width}", launch) for launch in launches)
    for num_experts, inner, outer, means in ((8, 4096, 28672, (0, 64, 1024)), (60, 1408, 2048, (0,))):
        weight = torch.empty(num_experts, outer, inner, dtype=torch.bfloat16, device="meta")
        for num_tokens in (max(1, mean * num_experts) for mean in means):
            x = torch.empty(num_tokens, inner, dtype=torch.bfloat16, device="meta")
            rows = torch.zeros(num_tokens, dtype=torch.int64)
            with recorded() as launches:
                experts.grouped_matmul(x, weight, torch.zeros(num_experts, dtype=torch.int64), rows)
                experts.grouped_matmul(x, weight, torch.zeros(num_experts, dtype=torch.int64))
                experts.grouped_matmul(x, weight, torch.zeros(num_experts, dtype=torch.int64), rows, fixed=True)
            yield from ((f"N{num_experts}-C{inner}-T{num_tokens}", launch) for launch in launches)
    for num_chosen, width in ((2, 4096), (8, 2048)):
        y, weights = torch.empty(4 * num_chosen, width, dtype=torch.bfloat16), torch.empty(4, num_chosen)
        with recorded() as launches:
            experts.combine_experts(y, torch.arange(4 * num_chosen), weights)
        yield from ((f"K{num_chosen}-E{width}", launch) for launch in launches)
    with recorded() as launches:
        layers.rms_norm(torch.empty(4, 48, 128, dtype=torch.bfloat16), torch.empty(40, 128, dtype=torch.bfloat16), 1e-6)
    yield from (("heads", launch) for launch in launches)
    for vocab_size in (128256,):
        logits_RV, ones_R = torch.empty(4, vocab_size), torch.ones(4)
        with recorded() as launches:
            logits.apply_token_bitmask(logits_RV, torch.empty(4, -(-vocab_size // 32), dtype=torch.int32))
            for max_top_k in (0, 50):
                columns = ones_R, ones_R.long(), ones_R.double(), ones_R, ones_R.long()
                sampling.sample_tokens(logits_RV, SamplingTensors(*columns, max_top_k))
            sampling.logprobs(logits_RV, ones_R.long())
        yield from ((f"V{vocab_size}", launch) for launch in launches)


def distinct(launches: list[tuple[str, Launch]]) -> Iterator[tuple[str, Launch]]:
    """Drop launches that Triton would compile once."""
    seen = set()
    for name, launch in launches:
        arguments = tuple(
            f"*{value.dtype}" if isinstance(value, torch.Tensor) else value if parameter.is_constexpr else type(value)
            for parameter, value in zip(
                launch.kernel.params, (launch.arguments[name] for name in launch.kernel.arg_names), strict=True
            )
        )
        key = (launch.kernel.__name__, arguments, tuple(launch.options.items()))
        if key not in seen:
            seen.add(key)
            yield name, launch


if __name__ == "__main__":
    wanted = int(sys.argv[1])
    launch_configs.ASSUMED_CAPABILITY = (wanted // 10, wanted % 10)
    for name, launch in distinct([*attention(), *others()]):
        print(json.dumps({"case": name, **compile_launch(launch, wanted)._asdict()}), flush=True)
