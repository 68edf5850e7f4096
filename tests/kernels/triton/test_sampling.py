"""Judge: the reference, which sorts."""

from __future__ import annotations

import pytest
import torch

from ramiform.kernels import NOT_FINITE, SamplingTensors
from ramiform.kernels.reference import sampling as reference
from ramiform.kernels.triton.sampling import log_sums, sample_tokens

from ..test_sampling import not_finite_rows

FILTERS = {  # top-k (None: no filter), top-p, min-p, top-n-sigma
    "none": (None, 1.0, 0.0, 0.0),
    "top-k": (50, 1.0, 0.0, 0.0),
    "top-k-1": (1, 1.0, 0.0, 0.0),
    "top-p": (None, 0.9, 0.0, 0.0),
    "small-top-p": (None, 1e-6, 0.0, 0.0),
    "min-p": (None, 1.0, 0.1, 0.0),
    "top-k-top-p": (40, 0.7, 0.0, 0.0),
    "all": (300, 0.95, 0.02, 0.0),
    "n-sigma": (None, 1.0, 0.0, 1.5),
    "tiny-n-sigma": (None, 1.0, 0.0, 1e-6),
    "n-sigma-top-p": (None, 0.8, 0.0, 2.0),
    "n-sigma-and-all": (300, 0.95, 0.02, 1.2),
}
# Each filter where numbers tie, and with one of the other shapes; in the interpreter with one of all.
CASES = [
    pytest.param(filters, shape, id=f"{name}-{shape}")
    for number, (name, filters) in enumerate(FILTERS.items())
    for shape in ("ties", ("masked", "flat", "spread")[number % 3])
    if torch.cuda.is_available() or (shape == "ties") == (number % 4 < 2)
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("filters", "shape"), CASES)
def test_the_token_is_the_winner_among_those_the_filters_keep(
    filters: tuple[int | None, float, float, float], shape: str, device: torch.device
) -> None:
    R, V = 6, 5003
    torch.manual_seed(len(shape))
    logits_RV = torch.randn(R, V, device=device) * 3
    if shape == "ties":
        logits_RV = logits_RV.round()
    elif shape == "flat":
        logits_RV = torch.zeros(R, V, device=device)
    elif shape == "masked":
        logits_RV = logits_RV.masked_fill(torch.rand(R, V, device=device) < 0.999, float("-inf"))
        logits_RV[:, 77] = 0.0
    top_k, top_p, min_p, top_n_sigma = filters
    temperature_R = torch.tensor([0.0, 0.3, 1.0, 1.0, 2.0, 1e-38], device=device)
    top_k_R = torch.full((R,), V if top_k is None else top_k, device=device)
    top_p_R = torch.full((R,), top_p, dtype=torch.float64, device=device)
    min_p_R = torch.full((R,), min_p, device=device)
    top_n_sigma_R = torch.full((R,), top_n_sigma, device=device)
    draw_R = torch.randint(-(2**63), 2**63 - 1, (R,), device=device)
    max_top_k = 0 if top_k is None or top_p == 1 else top_k
    sampling = SamplingTensors(top_n_sigma_R, temperature_R, top_k_R, top_p_R, min_p_R, draw_R, max_top_k)
    got_R = sample_tokens(logits_RV, sampling)
    weights_RV = reference.sampling_weights(logits_RV, sampling._replace(temperature_R=temperature_R.clamp_min(1e-38)))
    drawn_R = reference.draw_tokens(weights_RV, draw_R)
    assert got_R.tolist() == torch.where(temperature_R == 0, logits_RV.argmax(-1), drawn_R).tolist()


def test_sums_and_entropies_equal_the_reference(device: torch.device) -> None:
    torch.manual_seed(0)
    logits_RV = torch.randn(4, 5003, device=device) * 10
    logits_RV[1, :4999] = float("-inf")  # a first block without a finite one
    wanted = reference.log_sums(logits_RV)
    for found_R, wanted_R in zip(log_sums(logits_RV), wanted, strict=True):
        torch.testing.assert_close(found_R, wanted_R)
    torch.testing.assert_close(wanted[0], logits_RV.logsumexp(-1))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_finite_maximum_has_no_token(temperature: float, device: torch.device) -> None:
    bad = not_finite_rows(5003).to(device)  # two blocks
    logits_RV = torch.cat([bad, torch.randn(1, bad.shape[1], device=device)])
    R, V = logits_RV.shape
    sampling = SamplingTensors(
        torch.full((R,), 1.0, device=device),
        torch.full((R,), temperature, device=device),
        torch.full((R,), V, device=device),
        torch.full((R,), 0.9, dtype=torch.float64, device=device),
        torch.zeros(R, device=device),
        torch.arange(R, device=device),
    )
    found = sample_tokens(logits_RV, sampling).tolist()
    assert found[:-1] == [NOT_FINITE] * len(bad)
    assert found[-1] >= 0
