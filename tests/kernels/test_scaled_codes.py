"""Judge: the definition, number by number in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from ramiform.kernels import (
    KvCache,
    RowSpan,
    StreamingAttention,
    StreamingSizes,
    attention_layout,
    paged_attention,
    store_kv,
)
from ramiform.kernels.reference.deterministic_attention import deterministic_attention
from ramiform.kernels.reference.quantise import E4M3, PACKED_INT4, rotate, rotation_size
from ramiform.kernels.reference.scaled_codes import (
    CLIPS,
    KeyBasis,
    e5m3_codes,
    e5m3_scales,
    pack,
    pack_keys,
    pack_values,
    scaled_head_dim,
    scaled_size,
    unpack,
    unpack_keys,
)

DTYPES = pytest.mark.parametrize("dtype", [torch.int8, E4M3, PACKED_INT4], ids=str)
LEVELS = [c + c**3 / 128 for c in np.arange(16) - 7.5]
E4M3_NUMBERS = torch.arange(-128, 128, dtype=torch.int8).view(E4M3).double()
E4M3_NUMBERS = E4M3_NUMBERS[E4M3_NUMBERS.isfinite()].unique().numpy()
E5M3 = np.array([2.0 ** (e - 19) * (1 + m / 8) for e in range(32) for m in range(8)][:255])


def nearest(numbers: np.ndarray, x: np.ndarray) -> np.ndarray:
    return numbers[np.abs(numbers[:, None] - x[None]).argmin(0)]


def naive(x_D: np.ndarray, dtype: torch.dtype) -> tuple[np.ndarray, list[float]]:
    """Return what a rotated key or value is read back as, and the largest error that rounding may make of it."""
    if dtype != PACKED_INT4:
        numbers = np.arange(-127.0, 128) if dtype == torch.int8 else E4M3_NUMBERS
        scale = float(torch.tensor(np.abs(x_D).max() / numbers[-1], dtype=torch.float32).bfloat16())
        return nearest(numbers, x_D / scale) * scale, [scale]
    found, scales = [], []
    for first in range(0, len(x_D), 32):
        own = x_D[first : first + 32]
        tries = []
        for clip in CLIPS:
            scale = nearest(E5M3, np.array([np.abs(own).max() / LEVELS[-1] * clip]))[0]
            back = nearest(np.array(LEVELS), own / scale) * scale
            tries.append((np.square(back - own).sum(), scale, back))
        best = min(tries, key=lambda one: one[0])
        found.append(best[2])
        scales.append(best[1])
    return np.concatenate(found), scales


def hadamard(size: int) -> np.ndarray:
    block = rotation_size(size)
    matrix = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    return np.kron(np.eye(size // block), matrix / block**0.5)


def turned(x_D: np.ndarray, angles: Sequence[float]) -> np.ndarray:
    out, half = x_D.copy(), len(x_D) // 2
    for i, angle in enumerate(angles):
        low, high = x_D[i], x_D[i + half]
        out[i], out[i + half] = (
            low * math.cos(angle) - high * math.sin(angle),
            high * math.cos(angle) + low * math.sin(angle),
        )
    return out


def some_basis(K: int, D: int) -> KeyBasis:
    draw = torch.Generator().manual_seed(3)
    half = torch.exp(torch.randn(K, D // 2, generator=draw))
    mean, first = torch.randn(2, K, D, generator=draw) * torch.tensor([30.0, 90.0])[:, None, None]
    frequencies = 10000.0 ** -(torch.arange(D // 2) / (D // 2))
    frequencies[D // 4 :] = 0  # partial rotary
    return KeyBasis(mean, first, torch.cat((half, half), -1), frequencies)


@DTYPES
@pytest.mark.parametrize("D", [64, 80, 128, 16])
def test_keys_and_values_are_stored_as_the_definition_says(dtype: torch.dtype, D: int) -> None:
    T, K = 5, 2
    torch.manual_seed(D)
    basis, positions = some_basis(K, D), torch.tensor([0, 1, 17, 4096, 31000])
    k_TKD = torch.randn(T, K, D) + basis.offsets(positions)
    v_TKD = torch.randn(T, K, D) * torch.exp(torch.randn(D))
    stored = pack_keys(k_TKD, positions, basis, dtype)
    assert (stored.shape, stored.dtype) == ((T, K, scaled_size(D, dtype)), dtype)
    assert scaled_head_dim(stored.shape[2], dtype) == D
    codes = unpack(stored, torch.float64).numpy()
    keys = unpack_keys(stored, positions, basis, torch.float64).numpy()
    values = unpack(pack_values(v_TKD, dtype), torch.float64).numpy()
    H = hadamard(D)
    for t, position in enumerate(positions.tolist()):
        for head in range(K):
            mean = (basis.first_KD if position == 0 else basis.mean_KD)[head].double().numpy()
            offset = turned(mean, (basis.frequencies.double() * position).tolist())
            factor = basis.factor_KD[head].double().numpy()
            x = ((k_TKD[t, head].double().numpy() - offset) / factor) @ H
            want, scales = naive(x, dtype)
            # float32 may fall on the other side of the middle between two codes, of which both are as good.
            assert np.square(codes[t, head] - x).sum() <= np.square(want - x).sum() * 1.001 + 1e-8
            assert np.abs(codes[t, head] - want).max() <= max(scales) * (33 if dtype == E4M3 else 3)
            assert np.mean(np.abs(codes[t, head] - want) < 1e-4 * max(scales)) > 0.9
            np.testing.assert_allclose(keys[t, head], codes[t, head] @ H * factor + offset, atol=1e-5)
            own = v_TKD[t, head].double().numpy() @ H
            assert np.square(values[t, head] - own).sum() <= np.square(naive(own, dtype)[0] - own).sum() * 1.001 + 1e-8


def test_scores_are_a_product_with_the_codes_and_one_with_the_offset() -> None:
    """The algebra by which kernels read: first the factor, then H; the offset's angle in two parts."""
    D, P, positions = 64, 16, torch.tensor([3, 16, 77, 1000])
    basis = some_basis(1, D)
    stored = pack_keys(torch.randn(4, 1, D) + basis.offsets(positions), positions, basis, torch.int8)
    q, H = torch.randn(D, dtype=torch.float64), torch.from_numpy(hadamard(D))
    for place, position in enumerate(positions.tolist()):
        codes = unpack(stored[place, 0], torch.float64)
        back = turned(q.numpy(), (-(position // P) * P * basis.frequencies.double()).tolist())
        within = turned(basis.mean_KD[0].double().numpy(), (position % P * basis.frequencies.double()).tolist())
        score = float((q * basis.factor_KD[0].double()) @ H @ codes + back @ within)
        want = float(q @ unpack_keys(stored, positions, basis, torch.float64)[place, 0])
        assert score == pytest.approx(want, abs=1e-8)


def test_every_e5m3_code_is_its_number_and_the_nearest_to_it() -> None:
    codes = torch.arange(255, dtype=torch.uint8)
    np.testing.assert_array_equal(e5m3_scales(codes).numpy(), E5M3.astype(np.float32))
    assert torch.equal(e5m3_codes(e5m3_scales(codes)), codes)
    numbers = torch.exp(torch.randn(500) * 4)
    distance = np.abs(E5M3[:, None] - numbers.double().numpy()[None])
    got = e5m3_scales(e5m3_codes(numbers)).double().numpy()
    np.testing.assert_allclose(np.abs(got - numbers.double().numpy()), distance.min(0))
    assert e5m3_codes(torch.tensor([0.0, 1e30])).tolist() == [0, 254]


@DTYPES
def test_zeros_are_zeros_and_a_number_that_is_none_is_seen(dtype: torch.dtype) -> None:
    x = torch.zeros(3, 1, 64)
    x[1, 0, 3], x[2, 0, 5] = float("nan"), float("inf")
    found = unpack(pack(x, dtype), torch.float32)
    assert found[0].abs().max() < 1e-5
    assert found[1, 0, :32].isnan().all()
    assert not found[2, 0, :32].isfinite().any() or dtype != PACKED_INT4
    assert not found[2].isfinite().all()


@DTYPES
def test_what_is_stored_for_a_token_does_not_depend_on_others(dtype: torch.dtype) -> None:
    basis = some_basis(2, 64)
    k_TKD, positions = torch.randn(70, 2, 64), torch.arange(70)
    together = pack_keys(k_TKD, positions, basis, dtype).view(torch.uint8)
    for t in (0, 3, 69):
        alone = pack_keys(k_TKD[t : t + 1], positions[t : t + 1], basis, dtype).view(torch.uint8)
        assert torch.equal(alone[0], together[t])


def test_four_bits_of_normal_numbers_lose_less_than_their_bound() -> None:
    x = torch.randn(4000, 1, 64)
    assert (unpack(pack(x, PACKED_INT4), torch.float32) - x).square().mean() < 0.0072
    assert (unpack(pack(x, torch.int8), torch.float32) - x).square().mean() < 6e-5


SPANS = [
    RowSpan(0, 7, np.array([2, 9])),
    RowSpan(6, 1, np.array([3, 8])),
    RowSpan(5, 8, np.array([1, 5, 4, 0]), tree=(-1, 0, 0, -1, 2)),
]


def seen_keys(row: RowSpan, window: int | None) -> list[tuple[list[int], list[int]]]:
    """Return the places, and the positions, of the keys that each query of a row sees."""
    found, first_node = [], row.first_position + row.num_tokens - len(row.tree)
    for query in range(row.num_tokens):
        place = row.first_position + query
        places = list(range(min(place + 1, first_node)))
        if (node := place - first_node) >= 0:
            path = []
            while node >= 0:
                path.append(first_node + node)
                node = row.tree[node]
            places += path[::-1]
        positions = list(range(len(places)))
        first = 0 if window is None else max(0, len(places) - window)
        found.append((places[first:], positions[first:]))
    return found


@DTYPES
@pytest.mark.parametrize(("window", "is_special"), [(None, False), (3, True)], ids=["plain", "window, cap and sink"])
@pytest.mark.parametrize("kind", ["padded", "deterministic", "bfloat16"])
def test_attention_reads_the_numbers_that_the_codes_stand_for(
    dtype: torch.dtype, window: int | None, is_special: bool, kind: str
) -> None:
    """Also nodes of draft trees, whose slots are not their positions."""
    torch.manual_seed(4)
    D, K, H, page = 64, 2, 6, 4
    basis, size = some_basis(K, D), scaled_size(64, dtype)
    kv = KvCache(*torch.zeros(2, 40, K, size).to(dtype), basis=basis)
    for row in SPANS:
        places, positions = zip(*{pair for one in seen_keys(row, None) for pair in zip(*one, strict=True)}, strict=True)
        slots = torch.tensor([row.pages[place // page] * page + place % page for place in places])
        at = torch.tensor(positions)
        store_kv(torch.randn(len(at), K, D) + basis.offsets(at), torch.randn(len(at), K, D), kv, slots, at)
    q_THD = torch.randn(16, H, D)
    model_dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    q_THD = q_THD.to(model_dtype)
    cap, sinks_H = (20.0, torch.randn(H)) if is_special else (None, None)
    scale = 0.02
    settings = {"page_size": page, "window": window, "device": torch.device("cpu")}
    if kind == "deterministic":
        got = deterministic_attention(SPANS, cap=cap, **settings).attend(q_THD, kv, scale, sinks_H)
    else:
        got = paged_attention(q_THD, kv, attention_layout(SPANS, dtype=model_dtype, **settings), scale, cap, sinks_H)
    assert got.dtype == model_dtype
    t, H_DD = 0, torch.from_numpy(hadamard(D))
    for row in SPANS:
        for places, positions in seen_keys(row, window):
            slots = torch.tensor([row.pages[place // page] * page + place % page for place in places])
            k_LKD = unpack_keys(bits(kv.k_SKD)[slots].view(dtype), torch.tensor(positions), basis, torch.float64)
            v_LKD = unpack(bits(kv.v_SKD)[slots].view(dtype), torch.float64) @ H_DD
            for head in range(H):
                scores = k_LKD[:, head // 3] @ q_THD[t, head].double() * scale
                scores = scores if cap is None else cap * torch.tanh(scores / cap)
                if sinks_H is not None:
                    scores = torch.cat((scores, sinks_H[head : head + 1].double()))
                want = scores.softmax(0)[: len(k_LKD)] @ v_LKD[:, head // 3]
                tolerance = 2e-2 if kind == "bfloat16" else 1e-4
                torch.testing.assert_close(got[t, head].double(), want, atol=tolerance, rtol=tolerance)
            t += 1


@DTYPES
def test_a_rolling_window_reads_keys_by_their_places_and_its_sink_by_the_row_of_position_0(dtype: torch.dtype) -> None:
    """Judge: the same attention over the numbers that the codes stand for."""
    torch.manual_seed(6)
    D, K, H, L, page = 64, 2, 6, 30, 4
    basis, places = some_basis(K, D), torch.arange(L)
    kv = KvCache(*torch.zeros(2, 32, K, scaled_size(D, dtype)).to(dtype), basis=basis)
    store_kv(torch.randn(L, K, D) + basis.offsets(places), torch.randn(L, K, D), kv, places, places)
    meant = KvCache(
        unpack_keys(bits(kv.k_SKD)[:L].view(dtype), places, basis, torch.float32),
        rotate(unpack(bits(kv.v_SKD)[:L].view(dtype), torch.float32)),
    )

    def turn_back(distances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        phases = distances[:, None] * basis.frequencies
        cos, sin = phases.cos()[:, None], phases.sin()[:, None]
        return torch.cat((cos, cos), -1), torch.cat((sin, -sin), -1)

    row, q_THD = RowSpan(24, 6, np.arange(8)), torch.randn(6, H, D)
    for num_sinks in (0, 2):
        sizes = StreamingSizes(window=7, num_sinks=num_sinks)
        attention = StreamingAttention(
            [row], sizes, page_size=page, turn_back=turn_back, device=torch.device("cpu"), cap=None
        )
        got, want = (attention.attend(q_THD, cache, 0.02) for cache in (kv, meant))
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def bits(codes: torch.Tensor) -> torch.Tensor:
    return codes.view(torch.int8)
