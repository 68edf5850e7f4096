"""GPTQ: rounds column by column, and compensates each error in later columns (Frantar et al. 2023, arXiv 2210.17323,
algorithm 1).

Legend: N rows (outputs), C columns (inputs), G groups of a row's C, B columns of a block.
"""

from __future__ import annotations

import torch

from .int4_matrix import Int4Matrix, round_to_nearest

DAMPING = 0.01  # added to the Hessian's diagonal, as a part of its mean
_BLOCK = 128  # columns whose errors update the later ones in one product


def gptq(weight_NC: torch.Tensor, hessian_CC: torch.Tensor, group_size: int, *, act_order: bool = False) -> Int4Matrix:
    """Round to 4 bits. `hessian_CC` is the sum of the inputs' outer products, at any scale.

    Columns keep their order, so groups are neighbours. A group's scale and zero point are chosen at its first column,
    from the weights that are left by then. `act_order` rounds the columns of the largest inputs first, so that fewer
    errors of others are added to them; groups are neighbours in that order.
    """
    if act_order:
        order_C = torch.argsort(hessian_CC.diagonal(), descending=True, stable=True)
        ordered = gptq(weight_NC[:, order_C], hessian_CC[order_C][:, order_C], group_size)
        places_C = torch.argsort(order_C)
        return ordered._replace(codes_NC=ordered.codes_NC[:, places_C], groups_C=places_C // group_size)
    weight = weight_NC.float().clone()
    inverse = _inverse_factor(hessian_CC.double()).float()
    assert _BLOCK % group_size == 0, "a group must lie in one block"
    N, C = weight.shape
    codes = torch.empty((N, C), dtype=torch.uint8, device=weight.device)
    scales: list[torch.Tensor] = []
    zeros: list[torch.Tensor] = []
    for start in range(0, C, _BLOCK):
        end = min(start + _BLOCK, C)
        errors_NB = torch.zeros((N, end - start), device=weight.device)
        for column in range(start, end):
            if column % group_size == 0:
                rounded = round_to_nearest(weight[:, column : column + group_size], group_size)
                scales.append(rounded.scales_NG)
                zeros.append(rounded.zeros_NG)
            scale_N, zero_N = scales[-1][:, 0], zeros[-1][:, 0].float()
            code_N = (weight[:, column] / scale_N + zero_N).round_().clamp_(0, 15)
            codes[:, column] = code_N.to(torch.uint8)
            error_N = (weight[:, column] - (code_N - zero_N) * scale_N) / inverse[column, column]
            weight[:, column + 1 : end] -= error_N[:, None] * inverse[column, column + 1 : end]
            errors_NB[:, column - start] = error_N
        weight[:, end:] -= errors_NB @ inverse[start:end, end:]
    return Int4Matrix(codes, torch.cat(scales, 1), torch.cat(zeros, 1))


def _inverse_factor(hessian_CC: torch.Tensor) -> torch.Tensor:
    """Return the upper Cholesky factor of the inverse: row c over its diagonal is the share of column c's error by
    column."""
    hessian_CC = hessian_CC.clone()
    diagonal_C = hessian_CC.diagonal()
    diagonal_C[diagonal_C == 0] = 1.0  # an input that is always 0: any value works
    diagonal_C += DAMPING * diagonal_C.mean()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian_CC))
    return torch.linalg.cholesky(inverse, upper=True)
