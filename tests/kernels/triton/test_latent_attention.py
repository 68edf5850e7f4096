"""Attention to latents and their storing. Judge: the plain torch ops, which test_families compares with transformers.

Shapes are small and odd: a program of the interpreter takes milliseconds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ramiform.kernels import AttentionArgs, DecodeAttentionArgs, KvCache, RopeAndStoreArgs, RowSpan
from ramiform.kernels.reference.ops import ReferenceOps
from ramiform.kernels.triton.ops import TritonOps

PAGE = 16
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def cache(num_pages: int, rank: int, rope: int, dtype: torch.dtype, device: torch.device) -> KvCache:
    memory = torch.randn(num_pages * PAGE, 1, rank + rope)
    scale = None
    if dtype.itemsize == 1:
        memory, scale = memory * (20 if dtype == torch.int8 else 1), torch.full((1,), 0.07, device=device)
    memory = memory.to(dtype).to(device)
    return KvCache(memory, memory[..., :rank], scale, scale)


def rows_of(*sizes: tuple[int, int], trees: dict[int, list[int]] | None = None, shared: int = 0) -> list[RowSpan]:
    """Rows of (first position, tokens), each with pages of its own but the first `shared` ones."""
    rows, page = [], shared
    for index, (first, num) in enumerate(sizes):
        own = -(-(first + num) // PAGE) - shared
        pages = np.concatenate((np.arange(shared), np.arange(page, page + own)[::-1]))
        rows.append(RowSpan(first, num, pages, tuple((trees or {}).get(index, ()))))
        page += own
    return rows


CASES = {
    "decode": rows_of((0, 1), (200, 1), (63, 1)),
    "shared keys": rows_of((300, 1), (290, 1), (288, 1), (280, 2), shared=16),
    "chunks": rows_of((0, 40), (70, 20), (100, 3), (33, 1)),
    "trees": rows_of((90, 7), (40, 3), trees={0: [-1, 0, 0, 2, -1], 1: [-1, 0, 1]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("rows", CASES.values(), ids=CASES)
def test_rows_attend_to_latents(rows: list[RowSpan], deterministic: bool, device: torch.device) -> None:
    torch.manual_seed(1)
    kv = cache(64, 24, 8, torch.float32, device)
    q_THD = torch.randn(sum(row.num_tokens for row in rows), 5, 32, device=device)
    args = AttentionArgs(rows, kv, 5, PAGE, None, torch.float32)
    got = TritonOps(deterministic).attention(args).attend(q_THD, kv, 0.3)
    want = ReferenceOps().attention(args).attend(q_THD, kv, 0.3)
    assert got.shape == (*q_THD.shape[:2], 24)
    torch.testing.assert_close(got, want, atol=2e-6, rtol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8], ids=str)
def test_caches_of_other_dtypes(stored: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(2)
    dtype = stored if stored.itemsize == 2 else torch.float16
    rows = rows_of((70, 1), (20, 12))
    kv = cache(16, 32, 16, stored, device)
    q_THD = torch.randn(13, 20, 48, device=device).to(dtype)
    args = AttentionArgs(rows, kv, 20, PAGE, None, dtype)
    got = TritonOps().attention(args).attend(q_THD, kv, 0.2)
    exact = replace(kv, k_SKD=kv.k_SKD.float(), v_SKD=kv.v_SKD.float())
    want = ReferenceOps().attention(args).attend(q_THD.float(), exact, 0.2)
    torch.testing.assert_close(got.float(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_a_step_whose_lengths_are_on_the_device(device: torch.device) -> None:
    torch.manual_seed(3)
    kv = cache(16, 24, 8, torch.float32, device)
    rows = rows_of((100, 1), (30, 1))
    table = torch.zeros(3, 7, dtype=torch.int32)
    for row, span in enumerate(rows):
        table[row, : len(span.pages)] = torch.from_numpy(span.pages)
    num_keys = torch.tensor([101, 31, 0], dtype=torch.int32, device=device)  # the last one is padding
    q_THD = torch.randn(3, 5, 32, device=device)
    step = TritonOps().decode_attention(DecodeAttentionArgs(table.to(device), num_keys, kv, PAGE, None))
    want = ReferenceOps().attention(AttentionArgs(rows, kv, 5, PAGE, None, torch.float32)).attend(q_THD[:2], kv, 0.3)
    torch.testing.assert_close(step.attend(q_THD, kv, 0.3)[:2], want, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8], ids=str)
def test_latents_are_stored_with_the_rotated_key(stored: torch.dtype, interleaved: bool, device: torch.device) -> None:
    torch.manual_seed(4)
    latent, rope = torch.randn(3, 24, device=device), torch.randn(3, 20, 8, device=device)
    cos, sin = torch.randn(2, 3, 1, 8, device=device)
    args = RopeAndStoreArgs(cos, sin, torch.tensor([5, 0, 17], device=device), 19, 1e-6)
    caches = [cache(2, 24, 8, stored, device) for _ in range(2)]
    for kv in caches:
        kv.k_SKD.view(torch.uint8).zero_()
    got = TritonOps().store_latent(latent, rope, caches[0], args, interleaved)
    torch.testing.assert_close(got, ReferenceOps().store_latent(latent, rope, caches[1], args, interleaved))
    mine, theirs = (kv.k_SKD.float() for kv in caches)
    torch.testing.assert_close(mine, theirs, atol=1.01 if stored == torch.int8 else 1e-6, rtol=0.13)
    nowhere = args._replace(slots_T=torch.full((3,), -1, device=device))
    TritonOps().store_latent(2 * latent, rope, caches[0], nowhere, interleaved)
    assert torch.equal(caches[0].k_SKD.float(), mine)
