"""Judges: the filters on one row at a time with numpy, and the law of large numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ramiform.kernels import (
    NOT_FINITE,
    SAMPLING_DTYPES,
    SamplingTensors,
    draw_tokens,
    sampling_weights,
)
from ramiform.kernels.cpu.ops import CpuOps
from ramiform.kernels.reference.ops import DeterministicOps, ReferenceOps
from ramiform.runtime.scheduler.rows.sampling_inputs import random_bits, splitmix64


def naive_weights(
    logits: np.ndarray, top_n_sigma: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> np.ndarray:
    """Probabilities of one row after top-n-sigma, temperature, top-k, top-p and min-p, in this order."""
    logits = logits.astype(np.float64)
    if top_n_sigma > 0:
        finite = logits[np.isfinite(logits)]
        least = finite.max() - top_n_sigma * finite.std()
        assume((np.abs(finite - least) > 1e-5).all() or finite.std() == 0)
        logits = np.where(logits >= least - 1e-9, logits, -np.inf)
    z = logits / temperature
    p = np.exp(z - z.max())
    p /= p.sum()
    order = np.argsort(-logits, kind="stable")
    p[order[top_k:]] = 0
    p /= p.sum()
    if top_p < 1:
        before = 0.0
        for token in order:
            assume(abs(before - top_p) > 1e-5)  # float32 may decide such a tie the other way
            kept = p[token] if before < top_p else 0.0
            before, p[token] = before + p[token], kept
        p /= p.sum()
    assume((np.abs(p - min_p * p.max()) > 1e-6).all() or min_p == 0)
    p[p < min_p * p.max()] = 0
    return p / p.sum()


def filters(top_k: list[int], top_p: list[float], temperature: float = 1.0) -> SamplingTensors:
    """Parameters of rows without top-n-sigma and min-p."""
    num = len(top_k)
    return SamplingTensors(
        top_n_sigma_R=torch.zeros(num),
        temperature_R=torch.full((num,), temperature),
        top_k_R=torch.tensor(top_k),
        top_p_R=torch.tensor(top_p, dtype=torch.float64),
        min_p_R=torch.zeros(num),
        draw_R=torch.zeros(num, dtype=torch.int64),
    )


def not_finite_rows(vocab_size: int = 300) -> torch.Tensor:
    """Rows of logits none of which has a finite maximum."""
    nan, inf = math.nan, math.inf
    rows = torch.randn(5, vocab_size)
    rows[0, 0] = rows[1, -1] = nan
    rows[2, 7] = inf
    rows[3] = -inf
    rows[4], rows[4, 9] = -inf, nan
    return rows


rows = st.tuples(
    st.sampled_from([-1.0, 0.0]) | st.floats(0.01, 4.0),
    st.floats(0.05, 5.0),
    st.integers(1, 60),
    st.floats(0.01, 1.0),
    st.just(0.0) | st.floats(0.0, 1.0),
)


@pytest.mark.slow
@given(
    parameters=st.lists(rows, min_size=1, max_size=4),
    vocab=st.integers(1, 50),
    candidates=st.integers(1, 12) | st.just(50),
    coarse=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=150, deadline=None)
def test_filters_equal_the_naive_ones_for_any_number_of_candidates(
    parameters: list[tuple[float, float, int, float, float]], vocab: int, candidates: int, coarse: bool, seed: int
) -> None:
    logits_RV = 3 * np.random.default_rng(seed).standard_normal((len(parameters), vocab)).astype(np.float32)
    if coarse:  # many equal logits, some tokens not allowed
        logits_RV = logits_RV.round()
        logits_RV[:, 1::3] = -np.inf
    columns = [torch.tensor(column) for column in zip(*parameters, strict=True)]
    columns.append(torch.zeros(len(parameters)))  # draws
    dtypes = (getattr(torch, dtype.__name__) for dtype in SAMPLING_DTYPES.values())
    sampling = SamplingTensors(*(column.to(dtype) for column, dtype in zip(columns, dtypes, strict=True)))
    candidates = min(candidates, vocab)
    weights_RV = sampling_weights(torch.from_numpy(logits_RV), sampling, num_candidates=candidates).numpy()
    for logits, weights, row in zip(logits_RV, weights_RV, parameters, strict=True):
        want = naive_weights(logits, *row)
        np.testing.assert_allclose(weights / weights.sum(), want, atol=1e-5)


def test_equal_logits_beyond_the_candidates_are_ranked_by_id() -> None:
    weights_RV = sampling_weights(torch.zeros(2, 40), filters([3, 40], [1.0, 0.24]), num_candidates=12)
    assert [torch.nonzero(row).flatten().tolist() for row in weights_RV] == [list(range(3)), list(range(10))]


def test_top_p_is_a_share_of_what_top_k_beyond_the_candidates_left() -> None:
    # Token t weighs 2 ** -t. Top-k leaves 1.75: two tokens hold 1.5, which is 0.8 of it but not 0.9.
    logits_RV = -torch.arange(9) * torch.tensor(2.0).log()
    weights_RV = sampling_weights(logits_RV.expand(2, 9), filters([3, 3], [0.8, 0.9]), num_candidates=2)
    assert [torch.nonzero(row).flatten().tolist() for row in weights_RV] == [[0, 1], [0, 1, 2]]


@pytest.mark.slow
@given(
    weights=st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=1, max_size=12).filter(any),
    draw=st.integers(-(1 << 63), (1 << 63) - 1),
)
@settings(max_examples=200, deadline=None)
def test_the_token_that_arrives_first_is_drawn(weights: list[float], draw: int) -> None:
    arrivals = [
        (-math.log(((splitmix64(draw, token) >> 12) + 0.5) / (1 << 52)) / weight, token)
        for token, weight in enumerate(weights)
        if weight
    ]
    assert draw_tokens(torch.tensor([weights]), torch.tensor([draw])).tolist() == [min(arrivals)[1]]


def test_the_winner_does_not_depend_on_the_weights_of_losers() -> None:
    weights_RV = torch.rand(500, 40, generator=torch.Generator().manual_seed(4))
    draws = torch.arange(500)
    winners = draw_tokens(weights_RV, draws)
    others = torch.ones(500, 40, dtype=torch.bool).scatter(1, winners[:, None], value=False)
    assert torch.equal(draw_tokens(weights_RV.masked_fill(others & (weights_RV < 0.5), 0.0), draws), winners)


def test_a_row_of_nan_gets_a_token_of_the_vocabulary() -> None:
    weights_RV = torch.full((1, 5), float("nan"))
    [token] = draw_tokens(weights_RV, torch.tensor([5])).tolist()
    assert 0 <= token < 5


def test_seeded_draws_give_the_softmax_distribution() -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0, 1.1])
    num = 20_000
    draws = torch.tensor([random_bits(seed, 17) for seed in range(num)])
    weights = sampling_weights(logits.expand(num, 5), filters([5] * num, [1.0] * num, temperature=0.7))
    counts = torch.bincount(draw_tokens(weights, draws), minlength=5).double()
    expected = num * (logits.double() / 0.7).softmax(-1)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 18.47  # the 0.999 quantile with 4 degrees of freedom


@pytest.mark.parametrize(
    "ops", [ReferenceOps(), CpuOps(), DeterministicOps()], ids=["reference", "cpu", "deterministic"]
)
@pytest.mark.parametrize("filtered", [False, True])
def test_a_row_without_a_finite_maximum_has_no_token(ops: ReferenceOps, filtered: bool) -> None:
    bad = not_finite_rows()
    logits_RV = torch.cat([bad, torch.randn(2, bad.shape[1])])
    num = len(logits_RV)
    top_k = [3 if filtered else bad.shape[1]] * num
    for temperature in (0.0, 0.7):
        sampled = ops.sample_tokens(logits_RV, filters(top_k, [0.9 if filtered else 1.0] * num, temperature)).tolist()
        assert sampled[:-2] == [NOT_FINITE] * len(bad)
        assert min(sampled[-2:]) >= 0
    assert ops.likeliest_tokens(logits_RV).tolist() == [*[NOT_FINITE] * len(bad), *logits_RV[-2:].argmax(-1).tolist()]
