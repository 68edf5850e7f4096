"""Codes with scales of their own: what the kernels store the plain torch reads, and the reverse. Judge: plain torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ramiform.kernels import AttentionArgs, KvCache, RopeAndStoreArgs, RowSpan, attention_groups, store_kv
from ramiform.kernels.reference.attention import paged_attention
from ramiform.kernels.reference.attention_layout import attention_layout
from ramiform.kernels.reference.layers import apply_rope
from ramiform.kernels.reference.quantise import E4M3, PACKED_INT4
from ramiform.kernels.reference.scaled_codes import KeyBasis, pack_keys, pack_values, scaled_size, unpack
from ramiform.kernels.triton import scaled_codes, store
from ramiform.kernels.triton.attention.paged_attention import step_attention

PAGE = 16
H, K = 6, 2
DTYPES = pytest.mark.parametrize("stored", [torch.int8, E4M3, PACKED_INT4], ids=str)


@pytest.fixture(autouse=True)
def _few_angles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaled_codes, "_FEWEST_POSITIONS", 1024)


def some_basis(D: int, device: torch.device) -> KeyBasis:
    """Large offsets, as of models with biases, and heads that rotate in part."""
    draw = torch.Generator().manual_seed(3)
    half = torch.exp(torch.randn(K, D // 2, generator=draw) / 2)
    mean, first = torch.randn(2, K, D, generator=draw) * torch.tensor([10.0, 30.0])[:, None, None]
    frequencies = 100.0 ** -(torch.arange(D // 2) / (D // 2))
    frequencies[D // 4 :] = 0
    return KeyBasis(*(x.to(device) for x in (mean, first, torch.cat((half, half), -1), frequencies)))


def empty(stored: torch.dtype, D: int, basis: KeyBasis) -> KvCache:
    device = basis.mean_KD.device
    memory = torch.zeros(2, 40 * PAGE, K, scaled_size(D, stored), dtype=torch.uint8, device=device).view(stored)
    return KvCache(memory[0], memory[1], basis=basis)


@pytest.mark.slow
@DTYPES
@pytest.mark.parametrize(("D", "dtype"), [(64, torch.bfloat16), (80, torch.float32)], ids=str)
def test_kernels_store_what_plain_torch_stores(
    stored: torch.dtype, D: int, dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(D)
    basis = some_basis(D, device)
    positions = torch.tensor([0, 1, 17, 900, 31, 1023], device=device)
    qkv = torch.randn(6, H + 2 * K, D, device=device)
    qkv[:, H : H + K] += basis.offsets(positions)
    qkv = qkv.to(dtype)
    cos, sin = torch.ones(6, 1, D, dtype=dtype, device=device), torch.zeros(6, 1, D, dtype=dtype, device=device)
    slots = torch.tensor([5, 600, 3, 77, 16, -1], device=device)
    ours = empty(stored, D, basis)
    args = RopeAndStoreArgs(cos, sin, slots, H, eps=0.0, positions_T=positions)
    q_THD = store.rope_and_store(qkv, ours, None, args)
    assert torch.equal(q_THD, qkv[:, :H])
    written = slots >= 0
    k_TKD, v_TKD = apply_rope(qkv[:, H : H + K], cos, sin)[written], qkv[written, H + K :]
    keys = pack_keys(k_TKD, positions[written], basis, stored)
    for memory, want in ((ours.k_SKD, keys), (ours.v_SKD, pack_values(v_TKD, stored))):
        got = memory.view(torch.uint8)[slots[written]]
        # The kernel's offsets and sums may round another way, so a number halfway between two codes gets another.
        assert (got == want.view(torch.uint8)).float().mean() > 0.98
        numbers, wanted = unpack(got.view(stored), torch.float32), unpack(want, torch.float32)
        assert ((numbers - wanted).abs() <= wanted.abs().amax(-1, keepdim=True) * 0.25).all()
        others = torch.ones(len(memory), dtype=torch.bool, device=device)
        others[slots[written]] = False
        assert not memory.view(torch.uint8)[others].any()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value")  # of numpy, in the interpreter
def test_numbers_that_are_none_are_seen(device: torch.device) -> None:
    basis = some_basis(64, device)
    for stored in (torch.int8, E4M3, PACKED_INT4):
        kv = empty(stored, 64, basis)
        qkv = torch.randn(3, H + 2 * K, 64, device=device)
        qkv[1, H + K, 3], qkv[2, H, 5] = float("nan"), float("inf")
        ones, zeros = torch.ones(3, 1, 64, device=device), torch.zeros(3, 1, 64, device=device)
        args = RopeAndStoreArgs(ones, zeros, torch.arange(3, device=device), H, 0.0, positions_T=torch.arange(3))
        store.rope_and_store(qkv, kv, None, args)
        values, keys = (unpack(x[:3], torch.float32) for x in (kv.v_SKD, kv.k_SKD))
        assert values[1, 0, :32].isnan().all()
        assert not keys[2, 0].isfinite().all()
        assert values[0].isfinite().all()
        assert keys[:2].isfinite().all()


SPANS = [
    RowSpan(0, 23, np.array([2, 9])),  # a chunk from position 0 on
    RowSpan(70, 1, np.array([3, 8, 11, 12, 20])),
    RowSpan(37, 9, np.array([1, 5, 4]), tree=(-1, 0, 0, -1, 2)),  # nodes, whose slots are not their positions
    RowSpan(0, 1, np.array([30])),
]


def filled(stored: torch.dtype, D: int, basis: KeyBasis) -> KvCache:
    """Each slot's key is at the position that its row gives it."""
    kv, device = empty(stored, D, basis), basis.mean_KD.device
    for row in SPANS:
        end, first_node = row.first_position + row.num_tokens, row.first_position + row.num_tokens - len(row.tree)
        depths: list[int] = []
        for parent in row.tree:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        positions = torch.tensor([*range(first_node), *(first_node - 1 + depth for depth in depths)], device=device)
        places = np.arange(end)
        slots = torch.from_numpy(row.pages[places // PAGE] * PAGE + places % PAGE).to(device)
        k, v = torch.randn(2, end, K, D, device=device)
        v *= torch.exp(torch.randn(end, K, 1, device=device) * 2)  # scales of values that differ
        store_kv(k + basis.offsets(positions), v, kv, slots, positions)
    return kv


def check_attention(
    stored: torch.dtype, D: int, window: int | None, cap: float | None, deterministic: bool, device: torch.device
) -> None:
    torch.manual_seed(D)
    basis = some_basis(D, device)
    kv = filled(stored, D, basis)
    q_THD = torch.randn(sum(row.num_tokens for row in SPANS), H, D, device=device)
    sinks_H = torch.randn(H, device=device) if cap else None
    scale = 0.05
    args = AttentionArgs(SPANS, kv, H, PAGE, window, torch.float32)
    got = step_attention(args, deterministic=deterministic, soft_cap=cap).attend(q_THD, kv, scale, sinks_H)
    layout = attention_layout(SPANS, page_size=PAGE, window=window, dtype=torch.float32, device=device)
    want = paged_attention(q_THD, kv, layout, scale, cap, sinks_H)
    torch.testing.assert_close(got, want, atol=2e-2 * want.std().item(), rtol=2e-2)


CASES = [(64, None, None, False), (64, None, None, True), (80, 20, None, False), (16, None, 20.0, False)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("stored", "case"), [(torch.int8, CASES[0]), (E4M3, CASES[3]), (PACKED_INT4, CASES[2])], ids=str
)
def test_kernels_attend_to_codes_as_plain_torch_does(
    stored: torch.dtype, case: tuple[int, int | None, float | None, bool], device: torch.device
) -> None:
    """A chunk, decode rows and a tree: plain, with a cap and sinks, and with a window."""
    check_attention(stored, *case, device)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("stored", "case"),
    [
        (E4M3, CASES[0]),
        (E4M3, CASES[1]),
        (PACKED_INT4, CASES[1]),
        (torch.int8, CASES[2]),
        (PACKED_INT4, CASES[3]),
        (PACKED_INT4, (128, None, 20.0, False)),
    ],
    ids=str,
)
def test_kernels_attend_to_codes_of_every_format_in_other_ways(
    stored: torch.dtype, case: tuple[int, int | None, float | None, bool], device: torch.device
) -> None:
    """Each format in two ways or three, each way with two formats, the one above included."""
    check_attention(stored, *case, device)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:invalid value")  # of numpy, in the interpreter
@pytest.mark.parametrize("stored", [torch.int8, E4M3], ids=str)
def test_a_value_whose_scale_is_no_number_is_seen_and_one_of_zeros_is_not(
    stored: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(2)
    D, scale = 16, 0.05
    basis = some_basis(D, device)
    kv = empty(stored, D, basis)
    positions = torch.arange(70, device=device)
    k, v = torch.randn(2, 70, K, D, device=device)
    v[::3] = 0  # their scales are the smallest there are
    v[5:9] *= 1e4
    store_kv(k + basis.offsets(positions), v, kv, positions, positions)
    spans = [RowSpan(69, 1, np.arange(5))]
    q_THD = torch.randn(1, H, D, device=device)
    attention = step_attention(AttentionArgs(spans, kv, H, PAGE, None, torch.float32), deterministic=False)
    layout = attention_layout(spans, page_size=PAGE, window=None, dtype=torch.float32, device=device)
    want = paged_attention(q_THD, kv, layout, scale)
    torch.testing.assert_close(attention.attend(q_THD, kv, scale), want, atol=2e-2 * want.std().item(), rtol=2e-2)
    kv.v_SKD.view(torch.uint8)[7, 0, :2] = torch.tensor([0xC0, 0x7F], dtype=torch.uint8, device=device)
    got = attention.attend(q_THD, kv, scale)
    assert got[:, : H // K].isnan().all()
    torch.testing.assert_close(got[:, H // K :], want[:, H // K :], atol=2e-2 * want.std().item(), rtol=2e-2)


@pytest.mark.exhaustive
def test_forks_and_shared_keys_read_the_same_codes(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows whose pages begin alike meet them as pieces."""
    monkeypatch.setattr(attention_groups, "PASS_KEYS", 0)
    torch.manual_seed(1)
    D = 32
    basis = some_basis(D, device)
    kv = empty(torch.int8, D, basis)
    positions = torch.arange(128, device=device)
    k, v = torch.randn(2, 128, K, D, device=device)
    tables = [np.array([*range(7), 10 + row]) for row in range(5)]
    for own in tables:
        slots = torch.from_numpy(own[positions.cpu() // PAGE] * PAGE + positions.cpu().numpy() % PAGE).to(device)
        store_kv(k + basis.offsets(positions), v, kv, slots, positions)
    spans = [RowSpan(120, 1, own) for own in tables]
    q_THD = torch.randn(5, H, D, device=device)
    args = AttentionArgs(spans, kv, H, PAGE, None, torch.float32)
    attention = step_attention(args, deterministic=False)
    assert attention.shared is not None
    layout = attention_layout(spans, page_size=PAGE, window=None, dtype=torch.float32, device=device)
    want = paged_attention(q_THD, kv, layout, 0.05)
    torch.testing.assert_close(attention.attend(q_THD, kv, 0.05), want, atol=2e-2, rtol=2e-2)
