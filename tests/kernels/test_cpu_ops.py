"""Compiled loops of the CPU op set. Judge: the reference, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ramiform.kernels import KvCache, RopeAndStoreArgs, SamplingTensors, for_device
from ramiform.kernels.cpu import thread_pool
from ramiform.kernels.cpu.compiled import exp
from ramiform.kernels.cpu.ops import CpuOps
from ramiform.kernels.cpu.products.matmul import packed_matmul
from ramiform.kernels.cpu.products.packed_matrix import PackedMatrix
from ramiform.kernels.reference.ops import DeterministicOps, ReferenceOps

CPU, REFERENCE = CpuOps(), ReferenceOps()
NUM_TOKENS = [1, 2, 33, 64, 65]
NEAR = {"atol": 2e-6, "rtol": 2e-5}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_for_device_returns_them_for_a_cpu_unless_told_otherwise() -> None:
    assert for_device(torch.device("cpu")).name == "cpu"
    assert for_device(torch.device("cpu"), "reference").name == "reference"
    assert for_device(torch.device("cpu"), deterministic=True).name == "deterministic cpu"


def test_exp_is_close_to_numpy_s() -> None:
    xs = np.linspace(-87, 0, 20_001, dtype=np.float32)
    np.testing.assert_allclose([exp(x) for x in xs], np.exp(xs.astype(np.float64)), rtol=1e-5)
    near = xs[xs > -20]
    np.testing.assert_allclose([exp(x) for x in near], np.exp(near.astype(np.float64)), rtol=2e-6)
    assert exp(np.float32(-1e30)) == pytest.approx(0, abs=1e-37)


@pytest.mark.parametrize("T", NUM_TOKENS)
@pytest.mark.parametrize("E", [1, 96, 257])
def test_norms_equal_the_reference(T: int, E: int) -> None:
    x, residual, weight = random(T, E), random(T, E, seed=1), random(E, seed=2)
    torch.testing.assert_close(
        CPU.rms_norm(x, weight, 1e-5).double(), REFERENCE.rms_norm(x.double(), weight.double(), 1e-5), **NEAR
    )
    kept = x.clone(), residual.clone()
    got = CPU.add_rms_norm(x, residual, weight, 1e-5)
    want = REFERENCE.add_rms_norm(x.double(), residual.double(), weight.double(), 1e-5)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other, **NEAR)
    assert torch.equal(x, kept[0]), "what goes in stays as it is"
    assert torch.equal(residual, kept[1]), "what goes in stays as it is"


@pytest.mark.parametrize("T", NUM_TOKENS)
@pytest.mark.parametrize("size", [1, 31, 640])
def test_the_gate_equals_the_reference(T: int, size: int) -> None:
    gate_up = random(T, 2 * size) * 8
    gate_up[0, 0] = -200.0
    want = REFERENCE.silu_and_mul(gate_up.double())
    torch.testing.assert_close(CPU.silu_and_mul(gate_up).double(), want, **NEAR)


@pytest.mark.parametrize("T", NUM_TOKENS)
def test_the_clamped_gate_equals_the_reference(T: int) -> None:
    gate_up = random(T, 2 * 95) * 8
    want = REFERENCE.clamped_swiglu(gate_up.double(), 1.702, 7.0)
    torch.testing.assert_close(CPU.clamped_swiglu(gate_up, 1.702, 7.0).double(), want, **NEAR)


@pytest.mark.parametrize("T", NUM_TOKENS)
@pytest.mark.parametrize(("H", "K", "D"), [(4, 2, 64), (3, 3, 6), (7, 1, 2)])
@pytest.mark.parametrize("normed", [False, True])
def test_rotation_and_storing_equal_the_reference(normed: bool, T: int, H: int, K: int, D: int) -> None:
    qkv, cos, sin = random(T, H + 2 * K, D), random(T, 1, D, seed=1), random(T, 1, D, seed=2)
    slots = torch.randperm(200, generator=torch.Generator().manual_seed(3))[:T]

    def run(ops: ReferenceOps, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        kv = KvCache(*torch.zeros(2, 200, K, D, dtype=dtype))
        args = RopeAndStoreArgs(cos.to(dtype), sin.to(dtype), slots, num_heads=H, eps=1e-5)
        weight_HD = random(H + K, D, seed=5).to(dtype) if normed else None
        q = ops.rope_and_store(qkv.to(dtype), kv, weight_HD, args)
        return q.double(), kv.k_SKD.double(), kv.v_SKD.double()

    for got, want in zip(run(CPU, torch.float32), run(REFERENCE, torch.float64), strict=True):
        torch.testing.assert_close(got, want, **NEAR)


@pytest.mark.parametrize("V", [311, 5000])
def test_draws_are_those_of_the_reference(V: int) -> None:
    """The draws are the same alone and in a batch of rows with other filters."""
    R = 400
    draw = torch.Generator().manual_seed(8)
    logits = 3 * torch.randn(R, V, generator=draw)
    logits[torch.rand(R, V, generator=draw) < 0.4] = -torch.inf

    def choose(*values: float) -> torch.Tensor:
        return torch.tensor(values)[torch.randint(len(values), (R,), generator=draw)]

    sampling = SamplingTensors(
        top_n_sigma_R=choose(0.0, 0.0, -1.0, 0.7),
        temperature_R=choose(0.0, 0.3, 1.0, 2.5),
        top_k_R=choose(V, V, V, 5).long(),
        top_p_R=choose(1.0, 1.0, 0.7).double(),
        min_p_R=choose(0.0, 0.05, 1.0),
        draw_R=torch.randint(-(1 << 62), 1 << 62, (R,), generator=draw),
        max_top_k=5,
    )
    want = REFERENCE.sample_tokens(logits, sampling)
    assert CPU.sample_tokens(logits, sampling).tolist() == want.tolist()
    rows = (slice(r, r + 1) for r in range(R))
    alone = [CPU.sample_tokens(logits[row], sampling.select(row)).item() for row in rows]
    assert alone == want.tolist()
    assert len(set(want.tolist())) > 50


@pytest.mark.parametrize("ops", [CPU, REFERENCE, DeterministicOps()], ids=["cpu", "reference", "deterministic"])
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_sums_and_entropies_are_those_of_float64(scale: float, ops: ReferenceOps) -> None:
    """A row's do not depend on the other rows, but for the reference's."""
    R, V = 6, 50_001
    draw = torch.Generator().manual_seed(9)
    logits = scale * torch.randn(R, V, generator=draw)
    logits[torch.rand(R, V, generator=draw) < 0.3] = -torch.inf
    log_sums, entropies = ops.log_sums(logits)
    near = {"atol": 1e-7 * float(logits.amax()) + 1e-6, "rtol": 0}
    torch.testing.assert_close(log_sums.double(), logits.double().logsumexp(-1), **near)
    probabilities = logits.double().softmax(-1)
    torch.testing.assert_close(entropies.double(), torch.special.entr(probabilities).sum(-1), **near)
    if ops is not REFERENCE:
        for r in range(R):
            alone = torch.cat(ops.log_sums(logits[r : r + 1]))
            assert torch.equal(alone, torch.stack((log_sums[r], entropies[r])))


@pytest.mark.parametrize("V", [40, 311, 20_000])
def test_drawn_tokens_have_the_log_probabilities_of_their_distribution(V: int) -> None:
    """The reference gives the same ones, but where a filter's bound lies within rounding. A drawn token's is finite."""
    R = 300
    draw = torch.Generator().manual_seed(10)
    logits = 2 * torch.randn(R, V, generator=draw).round(decimals=1)  # with equal ones

    def choose(*values: float) -> torch.Tensor:
        return torch.tensor(values)[torch.randint(len(values), (R,), generator=draw)]

    sampling = SamplingTensors(
        top_n_sigma_R=choose(0.0, 0.0, 1.0),
        temperature_R=choose(0.5, 1.0, 1.5),
        top_k_R=choose(1, 3, 20, 1000, V).long().clamp(max=V),
        top_p_R=choose(0.1, 0.7, 0.99, 1.0).double(),
        min_p_R=choose(0.0, 0.02),
        draw_R=torch.randint(-(1 << 62), 1 << 62, (R,), generator=draw),
    )
    tokens, wanted = CPU.sample_tokens(logits, sampling), REFERENCE.sample_tokens(logits, sampling)
    assert (tokens != wanted).sum() <= 2
    logprobs = CPU.drawn_logprobs(logits, tokens, sampling)
    assert logprobs.isfinite().all()
    others = torch.randint(V, (R,), generator=draw)
    for own in (tokens, others):
        found, expected = CPU.drawn_logprobs(logits, own, sampling), REFERENCE.drawn_logprobs(logits, own, sampling)
        assert ((found - expected).abs() > 1e-5).sum() <= 2  # not of equal infinities
    for r in range(0, R, 50):
        row = slice(r, r + 1)
        assert CPU.drawn_logprobs(logits[row], tokens[row], sampling.select(row)).item() == logprobs[r]


def test_the_first_of_equal_logits_is_the_likeliest() -> None:
    logits = random(9, 3001).round(decimals=1)
    want = [row.tolist().index(max(row.tolist())) for row in logits]
    assert CPU.likeliest_tokens(logits).tolist() == REFERENCE.likeliest_tokens(logits).tolist() == want


def test_other_dtypes_go_to_torch() -> None:
    gate_up = random(3, 20).half()
    assert torch.equal(CPU.silu_and_mul(gate_up), REFERENCE.silu_and_mul(gate_up))


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def _threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(thread_pool, "_MIN_NUMBERS", 1)  # even the smallest is shared
    before = thread_pool.num_threads()
    thread_pool.set_num_threads(request.param)
    yield
    thread_pool.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("T", [1, 2, 5, 90])
def test_bfloat16_is_what_float64_gives_rounded_once(T: int) -> None:
    x, residual, weight = (random(*shape, seed=seed).bfloat16() for seed, shape in enumerate(((T, 96), (T, 96), (96,))))
    once: dict[str, Any] = {"atol": 1e-6, "rtol": 2.0**-8}  # half of a last bit, and what float32 adds
    want = REFERENCE.rms_norm(x.double(), weight.double(), 1e-5)
    torch.testing.assert_close(CPU.rms_norm(x, weight, 1e-5).double(), want, **once)
    normed, total = CPU.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(normed.double(), REFERENCE.rms_norm(total.double(), weight.double(), 1e-5), **once)
    gate_up = torch.cat((x, residual), dim=1) * 8
    torch.testing.assert_close(CPU.silu_and_mul(gate_up).double(), REFERENCE.silu_and_mul(gate_up.double()), **once)

    qkv, cos, sin = (random(T, *shape, seed=4).bfloat16() for shape in ((6, 16), (1, 16), (1, 16)))
    slots = torch.randperm(200, generator=torch.Generator().manual_seed(3))[:T]
    found = []
    for ops_of, dtype in ((CPU, torch.bfloat16), (REFERENCE, torch.float64)):
        kv = KvCache(*torch.zeros(2, 200, 2, 16, dtype=dtype))
        args = RopeAndStoreArgs(cos.to(dtype), sin.to(dtype), slots, num_heads=2, eps=1e-5)
        q = ops_of.rope_and_store(qkv.to(dtype), kv, None, args)
        found.append((q.double(), kv.k_SKD.double(), kv.v_SKD.double()))
    for got, meant in zip(*found, strict=True):
        torch.testing.assert_close(got, meant, **once)


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    """Checked by a norm that multiplies by one, for numbers near every tie, the largest ones, infinities and NaN."""
    ties = torch.arange(0x3F80_0000, 0x3F84_0000, 0x1FFF, dtype=torch.int32).view(torch.float32)
    extremes = torch.tensor([3.4e38, -3.4e38, float("inf"), float("nan"), 1e-40, -0.0])
    for value in [*ties.tolist(), *extremes.tolist()]:
        high = torch.tensor([[value]]).bfloat16()
        low = torch.tensor([[value]]) - high.float()
        got = CPU.add_rms_norm(high, low.bfloat16(), torch.ones(1).bfloat16(), 1e-5)[1]
        torch.testing.assert_close(got, high + low.bfloat16(), atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_nan_and_infinity_propagate(number: float) -> None:
    """A broken checkpoint must not look like a working one."""
    x = torch.ones(2, 32)
    x[0, 3] = number
    ones = torch.ones(32)
    for y in (
        CPU.rms_norm(x, ones, 1e-6),
        CPU.add_rms_norm(x, torch.zeros(2, 32), ones, 1e-6)[0],
        CPU.silu_and_mul(torch.cat((x, x - x), dim=1)),
        CPU.clamped_swiglu(torch.cat((x - x, x), dim=1), 1.0, 9.0),
        packed_matmul(x, PackedMatrix.of_dense(torch.ones(4, 32))),
    ):
        assert not y[0].isfinite().all()
        assert y[1:].isfinite().all()
