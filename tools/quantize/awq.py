"""AWQ: scales that give finer weights to inputs that are large on average, and ranges that cut off large weights (Lin
et al. 2024, arXiv 2306.00978, section 3.2); SmoothQuant's scales (Xiao et al. 2023, arXiv 2211.10438, section 4).

Legend: N rows (outputs), C columns (inputs), G groups of a row's C.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .int4_matrix import Int4Matrix, round_to_nearest, squared_error

NUM_STEPS = 20  # exponents from 0, which is plain rounding, up to 1
CLIPS = tuple(1 - step / 20 for step in range(11))  # parts of a group's range, from all to half of it


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


def round_clipped(weight_NC: torch.Tensor, hessian_CC: torch.Tensor, group_size: int) -> Int4Matrix:
    """Round to nearest, each group in the part of its range with the least squared error of the group's products.

    `hessian_CC` is the sum of the inputs' outer products.
    """
    weight_NC = weight_NC.float()
    N, C = weight_NC.shape
    groups_NGC = weight_NC.view(N, -1, group_size)
    low, high = groups_NGC.amin(2, keepdim=True), groups_NGC.amax(2, keepdim=True)
    blocks = hessian_CC.float().view(C // group_size, group_size, -1, group_size)
    within_GCC = blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)  # inputs of one group
    best, least_NG = round_to_nearest(weight_NC, group_size), torch.full((N, C // group_size), float("inf"))
    least_NG = least_NG.to(weight_NC.device)
    for clip in CLIPS:
        tried = round_to_nearest(groups_NGC.clamp(low * clip, high * clip).view(N, C), group_size)
        error_GNC = (tried.dense() - weight_NC).view(N, -1, group_size).transpose(0, 1)
        error_NG = (torch.bmm(error_GNC, within_GCC) * error_GNC).sum(2).t().contiguous()
        better_NG = error_NG < least_NG
        columns_NC = better_NG.repeat_interleave(group_size, 1)
        best = Int4Matrix(
            torch.where(columns_NC, tried.codes_NC, best.codes_NC),
            torch.where(better_NG, tried.scales_NG, best.scales_NG),
            torch.where(better_NG, tried.zeros_NG, best.zeros_NG),
        )
        least_NG = torch.minimum(least_NG, error_NG)
    return best


def smooth_scales(weights: Sequence[torch.Tensor], largest_C: torch.Tensor, strength: float) -> torch.Tensor:
    """Return float32 [C]: factors of the weights' columns, by which the inputs are divided, before int8 rounds both.

    `weights` [N, C] have the same inputs, of which `largest_C` are the largest absolute values. `strength` 0 leaves
    the rounding's difficulty with the inputs, 1 moves it to the weights.
    """
    weight_C = torch.stack([weight_NC.float().abs().amax(0) for weight_NC in weights]).amax(0)
    factor_C = largest_C.float().clamp_min(1e-5) ** strength / weight_C.clamp_min(1e-5) ** (1 - strength)
    return (factor_C / (factor_C.max() * factor_C.min()).sqrt()).clamp_min(1e-4)
