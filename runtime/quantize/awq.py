"""AWQ: scales that give finer weights to inputs that are large on average (Lin et al. 2024, arXiv 2306.00978, section
3.2).

Legend: N rows (outputs), C columns (inputs).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .int4_matrix import round_to_nearest, squared_error

NUM_STEPS = 20  # exponents from 0, which is plain rounding, up to 1


def input_scales(
    products: Sequence[tuple[torch.Tensor, torch.Tensor]], mean_C: torch.Tensor, group_size: int
) -> torch.Tensor:
    """Return float32 [C]: factors of the weights' columns, by which the inputs are divided, before rounding.

    `products` are weights [N, C] with the same inputs, each with the sum of its inputs' outer products [C, C]. The
    factors are `mean_C`, the inputs' mean absolute values, to the power between 0 and 1 with the least squared error of
    all outputs.
    """
    mean_C = mean_C.float().clamp_min(1e-4)
    best, least = torch.ones_like(mean_C), float("inf")
    for step in range(NUM_STEPS):
        factor_C = mean_C ** (step / NUM_STEPS)
        factor_C = (factor_C / (factor_C.max() * factor_C.min()).sqrt()).clamp_min(1e-4)
        error = sum(_error(weight_NC.float(), hessian_CC, factor_C, group_size) for weight_NC, hessian_CC in products)
        if error < least:
            best, least = factor_C, error
    return best


def _error(weight_NC: torch.Tensor, hessian_CC: torch.Tensor, factor_C: torch.Tensor, group_size: int) -> float:
    rounded = round_to_nearest(weight_NC * factor_C, group_size).dense() / factor_C
    return squared_error(rounded - weight_NC, hessian_CC)
