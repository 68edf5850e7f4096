"""Section B of the first hour on a GPU: kernels alone, beside torch's own.

Legend: R rows, T tokens, H query heads, K key/value heads, D head size, S slots, P pages of a row, V tokens of a
vocabulary, N experts, E inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ramiform.bench.gpu.measurements import KV_DTYPES, Hour, Measurement
from ramiform.kernels import AttentionArgs, KvCache, RowSpan, SamplingTensors, attention_groups
from ramiform.kernels.dispatch import for_device
from ramiform.runtime.engine.kv_pool import PAGE_SIZE

Call = Callable[[], object]


def heads(hour: Hour) -> tuple[int, int, int]:
    """Return H, K and D: Llama-3.1-8B's."""
    return (2, 1, 16) if hour.dry else (32, 8, 128)


def cache_of(hour: Hour, num_slots: int, kv: str) -> KvCache:
    """Make a cache of random numbers."""
    _, K, D = heads(hour)
    dtype = hour.dtype if kv == "bf16" else KV_DTYPES[kv]
    k_SKD, v_SKD = (torch.randn(num_slots, K, D, device=hour.device).to(dtype) for _ in range(2))
    scale_K = torch.ones(K, device=hour.device) if dtype.itemsize == 1 else None
    return KvCache(k_SKD, v_SKD, scale_K, scale_K)


class Batch:
    """Rows of one length over shuffled pages."""

    def __init__(
        self, hour: Hour, num_rows: int, num_keys: int, kv: str, num_queries: int = 1, *, tree: bool = False
    ) -> None:
        from ramiform.kernels.triton.attention.paged_rows import PagedRows

        H, self.K, self.D = heads(hour)
        pages = -(-num_keys // PAGE_SIZE)
        self.kv = cache_of(hour, num_rows * pages * PAGE_SIZE, kv)
        self.num_bytes = self.kv.k_SKD.nbytes + self.kv.v_SKD.nbytes
        ints = partial(torch.full, (num_rows,), dtype=torch.int32, device=hour.device)
        own = torch.arange(num_queries, device=hour.device)
        self.rows = PagedRows(
            page_table_RP=torch.randperm(num_rows * pages, device=hour.device).view(num_rows, pages).int(),
            num_keys_R=ints(num_keys),
            first_query_R=torch.arange(num_rows, dtype=torch.int32, device=hour.device) * num_queries,
            num_queries_R=ints(num_queries),
            positions_T=(num_keys - num_queries + own).repeat(num_rows).int(),
            visible_T=((2 << own) - 1).repeat(num_rows) if tree else None,
            max_queries=num_queries,
            page_size=PAGE_SIZE,
            window=None,
        )
        self.q_THD = torch.randn(num_rows * num_queries, H, self.D, device=hour.device, dtype=hour.dtype)
        self.out_THD = torch.empty_like(self.q_THD)

    def split(self, *, per_sm: int = 4, tile: int = 64) -> Call:
        """Return the attention of few tokens a row, its keys cut into splits."""
        from ramiform.kernels.triton import launch_configs
        from ramiform.kernels.triton.attention import split_attention, splits

        wanted = max(1, launch_configs.num_splits_wanted(self.q_THD.device, self.K) * per_sm // 4)
        cut = splits.make_splits(self.rows.num_keys_R, num_wanted=wanted, tile=tile)
        return partial(split_attention.split_attention, self.q_THD, self.kv, self.rows, cut, self.out_THD, self.D**-0.5)

    def torch_attention(self) -> Call:
        """Return torch's attention of one token a row on contiguous keys, which saves it the cost of paging."""
        k, v = (
            x.to(self.q_THD.dtype).view(len(self.q_THD), -1, self.K, self.D).transpose(1, 2)
            for x in (self.kv.k_SKD, self.kv.v_SKD)
        )
        return partial(F.scaled_dot_product_attention, self.q_THD[:, :, None], k, v, enable_gqa=True)


def decode_attention(hour: Hour) -> Measurement:
    """Measure decode attention beside torch's, and sweep stages, keys of a tile, warps and splits."""
    from ramiform.kernels.triton.attention import split_attention

    shapes = [(1, 64)] if hour.dry else [(1, 1024), (1, 8192), (1, 32768), (32, 1024), (128, 1024), (128, 4096)]
    tiles = [(3, 64, 4)] if hour.dry else [(s, k, w) for s in (3, 5, 7) for k in (32, 64, 128) for w in (4, 8)]
    plain_tile = split_attention.split_tile
    for num_rows, num_keys in shapes:
        for kv in ("bf16",) if hour.dry else KV_DTYPES:
            batch = Batch(hour, num_rows, num_keys, kv)
            shape: dict[str, Any] = {"rows": num_rows, "keys": num_keys, "kv": kv}
            taken, theirs = hour.seconds(batch.split()), hour.seconds(batch.torch_attention())
            yield shape | {"us": 1e6 * taken, "GB/s": batch.num_bytes / taken / 1e9, "torch us": 1e6 * theirs}
            for stages, keys, warps in tiles:
                changes = {"keys": keys, "num_warps": warps, "num_stages": stages}
                for per_sm in (4,) if hour.dry else (2, 4, 8):
                    row = shape | {"stages": stages, "tile": keys, "warps": warps, "CTAs an SM": per_sm}
                    split_attention.split_tile = lambda *args, changes=changes, **named: plain_tile(
                        *args, **named
                    )._replace(**changes)
                    try:
                        taken = hour.seconds(batch.split(per_sm=per_sm, tile=keys))
                        yield row | {"us": 1e6 * taken, "GB/s": batch.num_bytes / taken / 1e9}
                    except Exception as error:  # out of shared memory
                        yield row | {"failed": type(error).__name__}
                    finally:
                        split_attention.split_tile = plain_tile


def tree_attention(hour: Hour) -> Measurement:
    """Measure rows of drafts, in parts of the time of one token a row."""
    for num_rows, num_keys in [(1, 64)] if hour.dry else [(1, 8192), (1, 32768), (8, 8192), (8, 32768)]:
        one = hour.seconds(Batch(hour, num_rows, num_keys, "bf16").split())
        for num in (8,) if hour.dry else (8, 16, 64):
            taken = hour.seconds(Batch(hour, num_rows, num_keys, "bf16", num, tree=True).split())
            yield {"rows": num_rows, "keys": num_keys, "tokens": num, "x one's time": taken / one}


def shared_prefixes(hour: Hour) -> Measurement:
    """Measure rows of few tokens that share a prefix: its keys read once for all, and row by row.

    Rows in which sharing is slower say what PASS_KEYS of kernels/attention_groups.py should be, in saved key reads.
    """
    from ramiform.kernels.triton.attention.paged_attention import step_attention

    H, _, D = heads(hour)
    own = 64  # keys of each row behind the prefix, its own token included
    shapes = [(2, 1024, 1), (4, 8192, 1), (16, 256, 1), (16, 1024, 1), (64, 1024, 1), (64, 8192, 1), (16, 1024, 8)]
    for num_rows, num_shared, num_tokens in [(4, 128, 1)] if hour.dry else [*shapes, (64, 1024, 4)]:
        pages = np.arange(num_shared // PAGE_SIZE)
        rest = num_shared // PAGE_SIZE + np.arange(num_rows * 5).reshape(num_rows, 5)
        spans = [RowSpan(num_shared + own - num_tokens, num_tokens, np.concatenate((pages, more))) for more in rest]
        for kv in ("bf16",) if hour.dry else ("bf16", "fp8"):
            cache = cache_of(hour, num_shared + 80 * num_rows, kv)
            q_THD = torch.randn(num_rows * num_tokens, H, D, device=hour.device, dtype=hour.dtype)
            args = AttentionArgs(spans, cache, H, PAGE_SIZE, None, hour.dtype)
            before, made = attention_groups.PASS_KEYS, []
            for limit in (-1, 1 << 60):  # share what saves anything; share nothing
                attention_groups.PASS_KEYS = limit
                made.append(step_attention(args, deterministic=False))
            attention_groups.PASS_KEYS = before
            assert [attention.shared is not None for attention in made] == [True, False]
            shared, alone = (hour.seconds(partial(each.attend, q_THD, cache, D**-0.5)) for each in made)
            yield {
                "rows": num_rows,
                "tokens": num_tokens,
                "shared keys": num_shared,
                "kv": kv,
                "us": 1e6 * shared,
                "row by row us": 1e6 * alone,
                "saved key reads": (num_rows - -(-num_rows * num_tokens // attention_groups.PIECE_TOKENS)) * num_shared,
            }


def chunk_attention(hour: Hour) -> Measurement:
    """Measure attention of a prompt's chunk over its keys, and torch's of a whole prompt on contiguous keys."""
    H, _, D = heads(hour)
    ops = for_device(hour.device, "triton")
    whole = [(num_keys, num_keys) for num_keys in ((16,) if hour.dry else (1024, 2048, 8192, 32768))]
    for num_tokens, num_keys in [*whole, *([] if hour.dry else [(2048, 16384)])]:
        for kv in ("bf16",) if hour.dry else ("bf16", "fp8"):
            pages = np.arange(-(-num_keys // PAGE_SIZE))
            q_THD = torch.randn(num_tokens, H, D, device=hour.device, dtype=hour.dtype)
            cache = cache_of(hour, len(pages) * PAGE_SIZE, kv)
            span = RowSpan(num_keys - num_tokens, num_tokens, pages)
            attention = ops.attention(AttentionArgs([span], cache, H, PAGE_SIZE, None, hour.dtype))
            taken = hour.seconds(partial(attention.attend, q_THD, cache, D**-0.5))
            operations = 2 * H * D * num_tokens * (2 * num_keys - num_tokens + 1)
            row = {"tokens": num_tokens, "keys": num_keys, "kv": kv, "TFLOP/s": operations / taken / 1e12}
            if num_tokens == num_keys and kv == "bf16":
                views = [x[:num_keys].transpose(0, 1)[None] for x in (q_THD, cache.k_SKD, cache.v_SKD)]
                theirs = hour.seconds(partial(F.scaled_dot_product_attention, *views, is_causal=True, enable_gqa=True))
                row["torch TFLOP/s"] = operations / theirs / 1e12
            yield row


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
            sampling = SamplingTensors(
                top_n_sigma_R=ones_R * 0,
                temperature_R=ones_R,
                top_k_R=(ones_R * top_k).long(),
                top_p_R=ones_R.double() * top_p,
                min_p_R=ones_R * 0,
                draw_R=torch.arange(num_rows, device=hour.device),
            )
            taken = hour.seconds(partial(ops.sample_tokens, logits_RV, sampling))
            yield {"rows": num_rows, "filter": name, "us": 1e6 * taken, "torch us": 1e6 * theirs}


def other_kernels(hour: Hour) -> Measurement:
    """Measure kernels that read and write each number once, and their meaning in plain torch."""
    from ramiform.kernels.reference import layers as plain
    from ramiform.kernels.reference import logits as plain_logits
    from ramiform.kernels.triton import layers, logits

    tokens, size, inner, vocab_size = (4, 32, 64, 96) if hour.dry else (4096, 4096, 14336, 128256)
    x = torch.randn(tokens, size, device=hour.device, dtype=hour.dtype)
    weight = torch.ones(size, device=hour.device, dtype=hour.dtype)
    gate_up = torch.randn(tokens, 2 * inner, device=hour.device, dtype=hour.dtype)
    logits_RV = torch.randn(64, vocab_size, device=hour.device)
    bitmask_RW = torch.full((64, -(-vocab_size // 32)), -1, dtype=torch.int32, device=hour.device)
    for name, num_bytes, ours, theirs, arguments in (
        ("add and norm", 4 * x.nbytes, layers.add_rms_norm, plain.add_rms_norm, (x, x, weight, 1e-5)),
        ("silu and multiply", gate_up.nbytes * 3 // 2, layers.silu_and_mul, plain.silu_and_mul, (gate_up,)),
        (
            "token mask",
            2 * logits_RV.nbytes,
            logits.apply_token_bitmask,
            plain_logits.apply_token_bitmask,
            (logits_RV, bitmask_RW),
        ),
    ):
        taken, plainly = (hour.seconds(partial(call, *arguments)) for call in (ours, theirs))
        yield {"op": name, "us": 1e6 * taken, "GB/s": num_bytes / taken / 1e9, "plain torch us": 1e6 * plainly}


ALL = (decode_attention, tree_attention, shared_prefixes, chunk_attention, experts, sampling, other_kernels)
