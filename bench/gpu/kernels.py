"""Section B of the first hour on a GPU: kernels alone, beside torch's own."""

from __future__ import annotations

from functools import partial

import torch

from ramiform.bench.gpu.measurements import KV_DTYPES, Hour, Measurement
from ramiform.kernels import KvCache, SamplingTensors
from ramiform.kernels.dispatch import for_device
from ramiform.runtime.engine.kv_pool import PAGE_SIZE


def decode_attention(hour: Hour) -> Measurement:
    """Sweep stages, keys of a tile, warps and splits of decode attention."""
    from ramiform.kernels.triton import launch_configs, paged_rows, split_attention, splits

    H, K, D = (2, 1, 16) if hour.dry else (32, 8, 128)
    shapes = [(1, 64)] if hour.dry else [(1, 1024), (1, 8192), (1, 32768), (32, 1024), (128, 1024), (128, 4096)]
    tiles = [(3, 64, 4)] if hour.dry else [(s, k, w) for s in (3, 5, 7) for k in (32, 64, 128) for w in (4, 8)]
    plain_tile = split_attention.split_tile
    for num_rows, num_keys in shapes:
        for kv in ("bf16",) if hour.dry else KV_DTYPES:
            dtype = hour.dtype if kv == "bf16" else KV_DTYPES[kv]
            pages = -(-num_keys // PAGE_SIZE)
            memory = torch.zeros(2, num_rows * pages * PAGE_SIZE, K, D, device=hour.device, dtype=dtype)
            scale_K = torch.ones(K, device=hour.device) if dtype.itemsize == 1 else None
            cache = KvCache(memory[0], memory[1], scale_K, scale_K)
            ints = partial(torch.full, (num_rows,), dtype=torch.int32, device=hour.device)
            rows = paged_rows.PagedRows(
                torch.randperm(num_rows * pages, device=hour.device).view(num_rows, pages).int(),
                ints(num_keys),
                torch.arange(num_rows, dtype=torch.int32, device=hour.device),
                ints(1),
                ints(num_keys - 1),
                None,
                1,
                PAGE_SIZE,
                None,
            )
            q_THD = torch.randn(num_rows, H, D, device=hour.device, dtype=hour.dtype)
            out_THD = torch.empty_like(q_THD)
            for stages, keys, warps in tiles:
                for per_sm in (4,) if hour.dry else (2, 4, 8):
                    changes = {"keys": keys, "num_warps": warps, "num_stages": stages}
                    split_attention.split_tile = lambda *args, changes=changes: plain_tile(*args)._replace(**changes)
                    wanted = max(1, launch_configs.num_splits_wanted(hour.device, K) * per_sm // 4)
                    if hour.dry:
                        wanted = 1
                    cut = splits.make_splits(rows.num_keys_R, num_wanted=wanted, tile=keys)
                    row = {"rows": num_rows, "keys": num_keys, "kv": kv, "stages": stages, "tile": keys, "warps": warps}
                    try:
                        taken = hour.seconds(
                            partial(split_attention.split_attention, q_THD, cache, rows, cut, out_THD, D**-0.5)
                        )
                        yield row | {"CTAs an SM": per_sm, "us": 1e6 * taken, "GB/s": memory.nbytes / taken / 1e9}
                    except Exception as error:  # out of shared memory
                        yield row | {"failed": type(error).__name__}
                    finally:
                        split_attention.split_tile = plain_tile


def chunk_attention(hour: Hour) -> Measurement:
    """Measure attention of a prompt over its keys, and torch's on contiguous keys."""
    from ramiform.kernels import AttentionArgs, RowSpan

    H, K, D = (2, 1, 16) if hour.dry else (32, 8, 128)
    ops = for_device(hour.device, "triton")
    for num_keys in (16,) if hour.dry else (1024, 2048, 8192, 32768):
        pages = torch.arange(-(-num_keys // PAGE_SIZE)).numpy()
        memory = torch.randn(2, len(pages) * PAGE_SIZE, K, D, device=hour.device, dtype=hour.dtype)
        q_THD = torch.randn(num_keys, H, D, device=hour.device, dtype=hour.dtype)
        cache = KvCache(memory[0], memory[1])
        span = RowSpan(0, num_keys, pages)
        attention = ops.attention(AttentionArgs([span], cache, H, PAGE_SIZE, None, hour.dtype))
        taken = hour.seconds(partial(attention.attend, q_THD, cache, D**-0.5))
        heads = [x[:num_keys].transpose(0, 1)[None] for x in (q_THD, memory[0], memory[1])]
        theirs = hour.seconds(
            partial(torch.nn.functional.scaled_dot_product_attention, *heads, is_causal=True, enable_gqa=True)
        )
        operations = 2 * H * D * num_keys * (num_keys + 1)
        yield {"tokens": num_keys, "TFLOP/s": operations / taken / 1e12, "torch TFLOP/s": operations / theirs / 1e12}


def experts(hour: Hour) -> Measurement:
    """Measure the products of a mixture's experts, and torch's grouped product where there is one."""
    ops = for_device(hour.device, "triton")
    N, E, size, chosen = (2, 16, 16, 1) if hour.dry else (128, 2048, 768, 8)
    weight = torch.randn(N, 2 * size, E, device=hour.device, dtype=hour.dtype)
    for tokens in (4,) if hour.dry else (1, 32, 128, 1024, 8192):
        pairs = tokens * chosen
        expert_P = torch.randint(N, (pairs,), device=hour.device).sort().values
        ends = torch.bincount(expert_P, minlength=N).cumsum(0)
        rows_P = torch.randint(tokens, (pairs,), device=hour.device)
        x = torch.randn(tokens, E, device=hour.device, dtype=hour.dtype)
        taken = hour.seconds(partial(ops.grouped_matmul, x, weight, ends, rows_P))
        row = {"tokens": tokens, "us": 1e6 * taken, "TFLOP/s": 4 * pairs * E * size / taken / 1e12}
        if hour.device.type == "cuda" and hasattr(torch, "_grouped_mm"):
            theirs = partial(torch._grouped_mm, x[rows_P], weight.transpose(1, 2), offs=ends.int())
            row["torch us"] = 1e6 * hour.seconds(theirs)
        yield row


def sampling(hour: Hour) -> Measurement:
    """Measure draws, and a softmax and multinomial of torch without filters."""
    ops, vocab_size = for_device(hour.device, "triton"), 96 if hour.dry else 128256
    for num_rows in (2,) if hour.dry else (1, 32, 128, 512):
        logits_RV = torch.randn(num_rows, vocab_size, device=hour.device)
        ones_R = torch.ones(num_rows, device=hour.device)
        theirs = hour.seconds(lambda x=logits_RV: torch.multinomial(x.softmax(-1), 1))
        for name, top_k, top_p in (("all", vocab_size, 1.0), ("top-p", vocab_size, 0.9), ("top-k", 50, 1.0)):
            draws = torch.arange(num_rows, device=hour.device)
            tensors = (ones_R, (ones_R * top_k).long(), ones_R.double() * top_p, ones_R * 0, draws)
            taken = hour.seconds(partial(ops.sample_tokens, logits_RV, SamplingTensors(*tensors)))
            yield {"rows": num_rows, "filter": name, "us": 1e6 * taken, "torch us": 1e6 * theirs}
