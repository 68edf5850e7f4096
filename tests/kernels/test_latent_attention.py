"""Compiled latent attention in both forms. Judge: softmax in float64 over keys and values that are expanded before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from ramiform.kernels import AttentionArgs, KvCache, LatentArgs, RopeAndStoreArgs, RowSpan, for_device
from ramiform.kernels.cpu import thread_pool
from ramiform.kernels.cpu.attention import latent as latent_attention
from ramiform.kernels.cpu.attention.latent import LatentMatrices, RowsOfForms, attend_latents, divide
from ramiform.kernels.cpu.attention.paged import CompiledAttention
from ramiform.kernels.reference.quantise import E4M3, quantise

CPU = torch.device("cpu")
HEADS, PLAIN, ROPE, VALUE, RANK = 4, 40, 8, 36, 96
PAGE, PAGES, SCALE = 16, 64, 0.3
SHARED = list(range(40, 48))
# name: rows as (first position, tokens, tree, pages), and the rows whose keys are expanded
STEPS: dict[str, tuple[list[tuple[int, int, tuple[int, ...], list[int]]], list[int]]] = {
    "one token": ([(70, 1, (), [3, 9, 1, 4, 2])], []),
    "few rows": ([(0, 1, (), [5]), (33, 3, (-1, 0), [6, 7, 8]), (15, 2, (), [11, 12])], []),
    "a prompt": ([(0, 75, (), [5, 3, 30, 31, 9])], [0]),
    "a chunk behind a prefix": ([(100, 60, (), list(range(10, 20)))], [0]),
    "a short chunk behind a long prefix": ([(200, 17, (), list(range(10, 24)))], []),
    "chunks beside decode rows": (
        [
            (30, 1, (), [1, 2]),
            (0, 40, (), [3, 4, 5]),
            (90, 2, (-1,), list(range(6, 12))),
            (50, 70, (), list(range(20, 28))),
        ],
        [1, 3],
    ),
    "chunks with one prefix": (
        [(128, 60, (), [*SHARED, 1, 2, 3, 8]), (128, 33, (), [*SHARED, 4, 5, 6]), (128, 1, (), [*SHARED, 7])],
        [0, 1],
    ),
    "a chunk that ends in a tree": ([(16, 70, (-1, 0, 0, 2), [9, 8, 7, 6, 5, 4])], [0]),
}


@pytest.fixture(autouse=True)
def one_thread_after() -> Iterator[None]:
    yield
    thread_pool.set_num_threads(1)


def cache(dtype: torch.dtype, rank: int = RANK) -> tuple[KvCache, torch.Tensor]:
    """Return a cache of latents, and what it means in float64."""
    draw = torch.Generator().manual_seed(1)
    latents = torch.randn(PAGES * PAGE, 1, rank + ROPE, generator=draw)
    scale_K = None
    if dtype in (torch.int8, E4M3):
        scale_K = latents.abs().amax().view(1) / (127 if dtype == torch.int8 else 448)
        stored = quantise(latents, scale_K, dtype)
        meant = stored.double() * scale_K.double()
    else:
        stored = latents.to(dtype)
        meant = stored.double()
    return KvCache(stored, stored[..., :rank], scale_K, scale_K), meant[:, 0]


def judge(
    q_THD: torch.Tensor, rows: Sequence[RowSpan], meant_SC: torch.Tensor, key_HNC: torch.Tensor, value_HCV: torch.Tensor
) -> torch.Tensor:
    found, token = [], 0
    for row in rows:
        length = row.first_position + row.num_tokens
        places = torch.arange(length)
        slots = torch.from_numpy(row.pages)[places // PAGE] * PAGE + places % PAGE
        latent_LC, rope_LR = meant_SC[slots].split((key_HNC.shape[2], ROPE), dim=1)
        k = torch.einsum("lc,hnc->hln", latent_LC, key_HNC.double())
        k = torch.cat((k, rope_LR.expand(len(key_HNC), -1, -1)), dim=2)
        v = torch.einsum("lc,hcv->hlv", latent_LC, value_HCV.double())
        num_plain = row.num_tokens - len(row.tree)
        for t in range(row.num_tokens):
            seen = list(range(row.first_position + min(t + 1, num_plain)))
            node = t - num_plain
            while node >= 0:
                seen.append(row.first_position + num_plain + node)
                node = row.tree[node]
            scores = torch.einsum("hd,hld->hl", q_THD[token].double(), k[:, seen]) * SCALE
            found.append(torch.einsum("hl,hlv->hv", scores.softmax(1), v[:, seen]).flatten())
            token += 1
    return torch.stack(found)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    ("dtype", "stored", "threads"),
    [
        (torch.float32, torch.float32, 2),
        (torch.float32, E4M3, 1),
        (torch.float32, torch.int8, 1),
        (torch.bfloat16, torch.bfloat16, 2),
        (torch.bfloat16, E4M3, 1),
    ],
)
def test_both_forms_give_the_attention_of_expanded_keys(
    dtype: torch.dtype, stored: torch.dtype, threads: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latent_attention, "_MIN_WORK", 1)
    thread_pool.set_num_threads(threads)
    parts, expanded = STEPS[name]
    rows = [RowSpan(first, count, np.array(pages), tree) for first, count, tree, pages in parts]
    draw = torch.Generator().manual_seed(2)
    key_HNC = (torch.randn(HEADS, PLAIN, RANK, generator=draw) / 8).to(dtype)
    value_HCV = (torch.randn(HEADS, RANK, VALUE, generator=draw) / 8).to(dtype)
    q_THD = torch.randn(sum(row.num_tokens for row in rows), HEADS, PLAIN + ROPE, generator=draw).to(dtype)
    kv, meant_SC = cache(stored)
    matrices = LatentMatrices(key_HNC, value_HCV)
    expected = judge(q_THD, rows, meant_SC, key_HNC, value_HCV)
    found = []
    for deterministic in (False, True):
        ops = for_device(CPU, deterministic=deterministic)
        attention = ops.attention(AttentionArgs(rows, kv, HEADS, PAGE, None, dtype))
        assert isinstance(attention, CompiledAttention)
        out = attend_latents(q_THD, kv, attention, matrices, SCALE, expand=not deterministic)
        assert out.dtype == dtype
        error = float((out.double() - expected).norm() / expected.norm())
        assert error < (2e-6 if dtype == torch.float32 else 2e-2)
        found.append(out)
    if dtype == stored == torch.float32:
        forms = divide(attention, matrices, ROPE, dots=False)
        assert (forms is not None) == bool(expanded)
        if forms is not None:
            assert isinstance(forms, RowsOfForms)
            assert forms.plan.num_R.tolist() == [rows[row].num_tokens for row in expanded]
            assert len(forms.slots_L) == len({page for row in expanded for page in pages_of(rows[row])}) * PAGE
    assert torch.equal(*found) == (not expanded) or dtype == torch.bfloat16


def pages_of(row: RowSpan) -> list[int]:
    pages: list[int] = row.pages[: -(-(row.first_position + row.num_tokens) // PAGE)].tolist()
    return pages


@pytest.mark.parametrize("T", range(1, 17))
def test_one_head_of_small_latents_has_memory_of_its_own(T: int) -> None:
    """Its products take more memory than its latents, and would overwrite these in memory that is free already."""
    draw, rank = torch.Generator().manual_seed(4), 32
    key_HNC, value_HCV = torch.randn(1, PLAIN, rank, generator=draw), torch.randn(1, rank, VALUE, generator=draw)
    q_THD, rows = torch.randn(T, 1, PLAIN + ROPE, generator=draw), [RowSpan(20, T, np.array([5, 9, 12]))]
    kv, meant_SC = cache(torch.float32, rank)
    attention = for_device(CPU).attention(AttentionArgs(rows, kv, 1, PAGE, None, torch.float32))
    assert isinstance(attention, CompiledAttention)
    found = attend_latents(q_THD, kv, attention, LatentMatrices(key_HNC, value_HCV), SCALE, expand=False)
    torch.testing.assert_close(found.double(), judge(q_THD, rows, meant_SC, key_HNC, value_HCV), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_are_rotated_and_latents_stored_as_by_plain_torch(dtype: torch.dtype, interleaved: bool) -> None:
    draw = torch.Generator().manual_seed(3)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).to(dtype)

    first_TX, norm_C, kv = numbers(5, HEADS * (PLAIN + ROPE) + RANK + ROPE), numbers(RANK), cache(dtype)[0]
    rows = [RowSpan(20, 5, np.array([3, 7]))]
    slots_T = torch.arange(7 * PAGE + 4, 7 * PAGE + 9)
    rope = RopeAndStoreArgs(numbers(5, 1, ROPE), numbers(5, 1, ROPE), slots_T, HEADS, 1e-6)
    q_TY, latent_TC, key_TR = first_TX.clone().split((HEADS * (PLAIN + ROPE), RANK, ROPE), dim=1)
    plain, expected = for_device(CPU, "reference"), KvCache(kv.k_SKD.clone(), kv.v_SKD.clone())
    rope_TNR = torch.cat((q_TY.unflatten(1, (HEADS, -1))[..., PLAIN:], key_TR[:, None]), dim=1)
    latent_TC = plain.rms_norm(latent_TC.contiguous(), norm_C, 1e-6)
    turned_THR = plain.store_latent(latent_TC, rope_TNR, expected, rope, interleaved)

    ops = for_device(CPU)
    matrices = LatentMatrices(numbers(HEADS, PLAIN, RANK), numbers(HEADS, RANK, VALUE))
    attention = ops.attention(AttentionArgs(rows, kv, HEADS, PAGE, None, dtype))
    args = LatentArgs(attention, matrices, SCALE, norm_C, 1e-6, rope, interleaved)
    assert ops.attend_latents(first_TX, first_TX, kv, args) is not None
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(kv.k_SKD, expected.k_SKD, atol=tolerance, rtol=tolerance)
    found = first_TX[:, : HEADS * (PLAIN + ROPE)].unflatten(1, (HEADS, -1))
    torch.testing.assert_close(found[..., PLAIN:], turned_THR, atol=tolerance, rtol=tolerance)
    assert torch.equal(found[..., :PLAIN].flatten(1), q_TY.unflatten(1, (HEADS, -1))[..., :PLAIN].flatten(1))
