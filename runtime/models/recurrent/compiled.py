"""A recurrent layer between its projections by the compiled loops of `kernels.cpu.recurrence`.

Legend: as in `layer`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....kernels.cpu import recurrence
from ....kernels.cpu.bfloat16 import as_float_array
from ....kernels.cpu.thread_pool import num_threads, run_tasks
from .memory import LayerStates, RecurrentStep

if TYPE_CHECKING:
    from .layer import RecurrentLayer

_MIN_SHARED_WORK = 1 << 22  # multiplications of a step's recurrence from which on waking a second thread pays
_NOTHING = torch.empty(0)


def suits_loops(layer: RecurrentLayer, projected_TJ: torch.Tensor) -> bool:
    """Return True if the loops compute the layer's types."""
    dtype = projected_TJ.dtype
    return dtype in (torch.float32, torch.bfloat16) and layer.conv_WC.dtype == dtype and projected_TJ.is_contiguous()


def compute(
    layer: RecurrentLayer, projected_TJ: torch.Tensor, states: LayerStates | None, step: RecurrentStep
) -> torch.Tensor:
    """Return `RecurrentLayer.__call__`."""
    config, T = layer.config, len(projected_TJ)
    C, H, V = config.conv_channels, config.num_heads, config.value_size
    rows_R5, saves_M2 = step.table
    if states is None:
        conv_SWC = projected_TJ.new_empty((0, config.conv_width - 1, C))
        states = LayerStates(conv_SWC, torch.empty((0, H, config.key_size, V)))
    shares = T * H * config.key_size * V >= _MIN_SHARED_WORK
    projected, mixed_TC = as_float_array(projected_TJ), np.empty((T, C), np.float32)
    bias_C = projected_TJ.new_empty(0) if layer.conv_bias_C is None else layer.conv_bias_C
    conv = [as_float_array(x) for x in (layer.conv_WC, bias_C)]
    _share(
        shares,
        C,
        lambda first, end: recurrence.convolve(
            first, end, rows_R5, saves_M2, projected, *conv, True, as_float_array(states.conv_SWC), mixed_TC
        ),
    )
    scalars_TX = projected_TJ[:, C + config.inner :].float().contiguous().numpy()
    skip_H = _NOTHING if layer.skip_H is None else layer.skip_H
    values = [x.numpy() for x in (layer.log_decay_H, layer.step_bias_H, skip_H)]
    x_THV, state_SHKV = np.empty((T, H, V), np.float32), states.state_SHKV.numpy()
    _share(
        shares,
        H,
        lambda first, end: recurrence.advance(
            first,
            end,
            rows_R5,
            saves_M2,
            mixed_TC,
            scalars_TX,
            config.num_key_heads,
            config.is_delta,
            *values,
            *config.step_limit,
            state_SHKV,
            x_THV,
        ),
    )
    output_TI = torch.empty((T, config.inner), dtype=layer.norm_weight.dtype)
    size = V if config.is_delta else config.inner // config.num_key_heads
    weight_N, x_TI, output = as_float_array(layer.norm_weight), x_THV.reshape(T, -1), as_float_array(output_TI)
    _share(
        shares,
        T,
        lambda first, end: recurrence.gated_norm(
            first, end, projected, C, size, not config.is_delta, layer.norm_eps, weight_N, x_TI, output
        ),
    )
    return output_TI


def _share(shares: bool, size: int, compute: Callable[[int, int], object]) -> None:
    """Call `compute` for all of [0, size), in parts that threads share if there is enough work."""
    count = min(num_threads(), size) if shares else 1
    ends = [size * part // count for part in range(count + 1)]
    run_tasks([partial(compute, first, end) for first, end in pairwise(ends)])
