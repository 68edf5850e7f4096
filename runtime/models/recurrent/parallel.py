"""Projections of layers that attend and are recurrent at once, and the factors of their products (Falcon-H1).

Both parts read the layer's input, and their outputs are added. Legend: O outputs of a product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, repeat

import torch

from ..config import ModelConfig
from ..linear import JoinedLinear, Linear, ScaledLinear, SummedLinear
from ..mlp import DenseMlp, Mlp


def joined_projections(
    config: ModelConfig, attention: tuple[Linear, Linear], recurrent: tuple[Linear, Linear], like: torch.Tensor
) -> tuple[JoinedLinear, SummedLinear]:
    """Join the input projections of both parts and the output projections of both, with the factors of `config`.

    Factors are float32 on the device of `like`.
    """
    own, factors, D = config.recurrent, config.multipliers, config.head_dim
    assert own is not None
    sizes = [config.num_heads * D, config.num_kv_heads * D, config.num_kv_heads * D]
    inner = config.num_heads * D, own.inner
    (qkv, o), (projection, output) = attention, recurrent
    if factors is not None:
        gate, *conv, step = factors.recurrent
        qkv = _scaled(qkv, sizes, [1.0, factors.key, 1.0], factors.attention_in, config.qkv_bias, like)
        parts = [*own.conv_sizes, own.inner, own.num_scalars]
        projection = _scaled(projection, parts, [*conv, gate, step], factors.recurrent_in, own.projection_bias, like)
        o, output = ScaledLinear(o, factors.attention_out), ScaledLinear(output, factors.recurrent_out)
    return JoinedLinear((qkv, projection), (sum(sizes), own.projected)), SummedLinear((o, output), inner)


def scaled_mlp(config: ModelConfig, mlp: Mlp, like: torch.Tensor) -> Mlp:
    """Return the MLP with its factors."""
    factors, size = config.multipliers, config.intermediate_size
    if factors is None or not isinstance(mlp, DenseMlp):
        return mlp
    gate_up = _scaled(mlp.gate_up, [size, size], [factors.gate, 1.0], 1.0, config.mlp_bias, like)
    return replace(mlp, gate_up=gate_up, down=ScaledLinear(mlp.down, factors.down))


def _scaled(
    linear: Linear,
    sizes: Sequence[int],
    factors: Sequence[float],
    input_factor: float,
    has_bias: bool,
    like: torch.Tensor,
) -> ScaledLinear:
    """Give the outputs of each size a factor; that of the inputs becomes a part of it where no bias is added."""
    shared = 1.0 if has_bias else input_factor
    each = list(chain.from_iterable(repeat(factor * shared, size) for size, factor in zip(sizes, factors, strict=True)))
    return ScaledLinear(linear, like.new_tensor(each, dtype=torch.float32), input_factor if has_bias else None)
