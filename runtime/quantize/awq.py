"""AWQ (Lin et al. 2024, arXiv 2306.00978, section 3.2): inputs that are large on average get finer weights, by a factor
for each that the operation before takes back. Knows matrices; knows no model.

Legend: N rows (outputs), C columns (inputs).
"""

from __future__ import annotations

import torch

from .groups import nearest, squared_error

NUM_STEPS = 20  # exponents from 0, which is plain rounding, up to 1


def input_factors(
    weight_NC: torch.Tensor, hessian_CC: torch.Tensor, mean_C: torch.Tensor, group_size: int
) -> torch.Tensor:
    """float32 [C]: what to multiply the columns of the weight with, and divide the inputs by, before rounding.

    They are `mean_C`, the inputs' mean absolute values, to the power between 0 and 1 that leaves the least squared
    error of the outputs over the inputs that `hessian_CC` was made of.
    """
    weight_NC, mean_C = weight_NC.float(), mean_C.float().clamp_min(1e-4)
    best, least = torch.ones_like(mean_C), float("inf")
    for step in range(NUM_STEPS):
        factor_C = mean_C ** (step / NUM_STEPS)
        factor_C = (factor_C / (factor_C.max() * factor_C.min()).sqrt()).clamp_min(1e-4)
        rounded = nearest(weight_NC * factor_C, group_size).dense() / factor_C
        error = squared_error(rounded - weight_NC, hessian_CC)
        if error < least:
            best, least = factor_C, error
    return best
