"""Rounds a model's layers one after the other, each to suit the inputs that it gets on a text.

A layer's inputs are those that the rounded layers before it give. Knows the decoder's layers; knows nothing of files.

Legend: T tokens, E hidden size, N rows (outputs), C columns (inputs).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from ..engine.inputs import decoder_inputs
from ..engine.kv_pool import PAGE_SIZE, KvMemory
from ..models.decoder import Decoder
from ..models.linear import DenseLinear, Destination, Linear
from ..models.mlp import DenseMlp
from ..models.packed import PackedLinear
from ..models.parameters import LayerParameters
from ..scheduler.plan import Row
from .awq import input_factors
from .gptq import gptq
from .groups import Groups, nearest

Method = Literal["awq", "gptq"]


@dataclass
class Inputs:
    """What must be known of a product's inputs."""

    linear: Linear
    hessian_CC: torch.Tensor | None = None  # the sum of outer products with themselves
    absolute_C: torch.Tensor | None = None  # the sum of absolute values
    count: int = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        self.hessian_CC = wide.t() @ wide + (0 if self.hessian_CC is None else self.hessian_CC)
        self.absolute_C = wide.abs().sum(0) + (0 if self.absolute_C is None else self.absolute_C)
        self.count += len(x)
        return self.linear(x)

    def pieces(self, start: int, size: int) -> dict[str, Destination]:
        return self.linear.pieces(start, size)

    def finish(self) -> None:
        self.linear.finish()

    @property
    def nbytes(self) -> int:
        return self.linear.nbytes


@dataclass
class Rounded:
    """A layer's matrices in 4 bits, by the names of Hugging Face's modules, and the dense tensors that changed."""

    groups: dict[str, Groups] = field(default_factory=dict)
    dense: dict[str, torch.Tensor] = field(default_factory=dict)


@torch.inference_mode()
def rounded_layers(
    model: Decoder, texts: Sequence[Sequence[int]], method: Method, group_size: int
) -> Iterator[Rounded]:
    """Every layer, in order. `model` is dense and has no mixtures; its norms and biases are changed on the way."""
    states_TE = F.embedding(
        torch.tensor([token for text in texts for token in text], device=model.device), model.parameters.embedding_VE
    )
    windows = list(pairwise(np.cumsum([0, *map(len, texts)]).tolist()))
    for index, stored in enumerate(model.parameters.layers):
        layer = _unpacked(stored)
        qkv, o, gate_up, down = (Inputs(linear) for linear in (layer.qkv, layer.o, *_mlp(layer)))
        watched = replace(layer, qkv=qkv, o=o, mlp=replace(_dense_mlp(layer), gate_up=gate_up, down=down))
        _run(model, index, watched, states_TE, windows)
        if method == "awq":
            _move_factors(layer, qkv, gate_up, down, group_size)
        groups = {
            name: gptq(_weight(inputs.linear), _hessian(inputs), group_size)
            if method == "gptq"
            else nearest(_weight(inputs.linear), group_size)
            for name, inputs in (("qkv", qkv), ("o", o), ("gate_up", gate_up), ("down", down))
        }
        for inputs, rounded in zip((qkv, o, gate_up, down), groups.values(), strict=True):
            _weight(inputs.linear).copy_(rounded.dense())
        states_TE = _run(model, index, layer, states_TE, windows)
        changed = _changed(index, layer) if method == "awq" else {}
        yield Rounded(dict(_by_module(model, index, groups)), changed)


def _move_factors(layer: LayerParameters, qkv: Inputs, gate_up: Inputs, down: Inputs, group_size: int) -> None:
    """Multiplies columns, and divides what comes before them: the norms, and of `down` the rows of up. Between the
    values and `o` heads share factors' places, so `o` has none."""
    up_weight = _weight(gate_up.linear)
    size = len(up_weight) // 2
    up_bias = _bias(gate_up.linear)
    before_down = [up_weight[size:]] if up_bias is None else [up_weight[size:], up_bias[size:]]
    for inputs, before in ((down, before_down), (qkv, [layer.input_norm_E]), (gate_up, [layer.post_norm_E])):
        weight = _weight(inputs.linear)
        assert inputs.absolute_C is not None
        factor_C = input_factors(weight, _hessian(inputs), inputs.absolute_C / inputs.count, group_size)
        factor_C = factor_C.to(weight.dtype)
        weight.mul_(factor_C)
        for tensor in before:
            tensor.div_(factor_C if tensor.dim() == 1 else factor_C[:, None])


def _run(
    model: Decoder, index: int, layer: LayerParameters, states_TE: torch.Tensor, windows: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """The layer's outputs, of each window by itself.

    A decoder of two layers computes them: its embedding is the states, its first layer this one, and the second's
    input is what is wanted. Of the second, attention alone is computed, and thrown away; so is the head.
    """
    config = replace(model.config, num_layers=2, windows=(model.config.windows[index],) * 2)
    one = Decoder(
        config,
        replace(
            model.parameters,
            embedding_VE=states_TE,
            layers=(layer, model.parameters.layers[index]),
            head=DenseLinear(states_TE[:1]),
        ),
    )
    outputs = []
    for start, end in windows:
        pages = list(range(-(-(end - start) // PAGE_SIZE)))
        memory = KvMemory(config, len(pages), device=model.device, dtype=model.dtype)
        row = Row(rid="", tokens=list(range(start, end)), first_position=0, pages=pages)
        kv = memory.layers()
        _, output = one.hidden_and_features(decoder_inputs([row], one, np.array([0]), kv[0]), kv, (1,))
        assert output is not None
        outputs.append(output)
    return torch.cat(outputs)


def _by_module(model: Decoder, index: int, groups: dict[str, Groups]) -> Iterator[tuple[str, Groups]]:
    config, mlp = model.config, _dense_mlp(model.parameters.layers[index])
    D = config.head_dim
    heads = (("q_proj", config.num_heads * D), ("k_proj", config.num_kv_heads * D), ("v_proj", config.num_kv_heads * D))
    parts: dict[str, tuple[str, tuple[tuple[str, int], ...]]] = {
        "qkv": ("self_attn", heads),
        "o": ("self_attn", (("o_proj", config.hidden_size),)),
        "gate_up": ("mlp", (("gate_proj", mlp.intermediate_size), ("up_proj", mlp.intermediate_size))),
        "down": ("mlp", (("down_proj", config.hidden_size),)),
    }
    for name, (block, modules) in parts.items():
        start = 0
        for module, size in modules:
            yield f"model.layers.{index}.{block}.{module}", groups[name].rows(start, size)
            start += size


def _changed(index: int, layer: LayerParameters) -> dict[str, torch.Tensor]:
    """What took factors and stays dense."""
    prefix, bias = f"model.layers.{index}", _bias(_dense_mlp(layer).gate_up)
    changed = {
        f"{prefix}.input_layernorm.weight": layer.input_norm_E,
        f"{prefix}.post_attention_layernorm.weight": layer.post_norm_E,
    }
    return changed if bias is None else changed | {f"{prefix}.mlp.up_proj.bias": bias[len(bias) // 2 :]}


def _unpacked(layer: LayerParameters) -> LayerParameters:
    """The layer in a form that can be changed: of one layer at a time, since it takes its room twice."""

    def dense(linear: Linear) -> Linear:
        return linear.dense() if isinstance(linear, PackedLinear) else linear

    mlp = _dense_mlp(layer)
    mlp = replace(mlp, gate_up=dense(mlp.gate_up), down=dense(mlp.down))
    return replace(layer, qkv=dense(layer.qkv), o=dense(layer.o), mlp=mlp)


def _hessian(inputs: Inputs) -> torch.Tensor:
    assert inputs.hessian_CC is not None
    return inputs.hessian_CC


def _mlp(layer: LayerParameters) -> tuple[Linear, Linear]:
    mlp = _dense_mlp(layer)
    return mlp.gate_up, mlp.down


def _dense_mlp(layer: LayerParameters) -> DenseMlp:
    assert isinstance(layer.mlp, DenseMlp)
    return layer.mlp


def _weight(linear: Linear) -> torch.Tensor:
    assert isinstance(linear, DenseLinear)
    return linear.weight


def _bias(linear: Linear) -> torch.Tensor | None:
    assert isinstance(linear, DenseLinear)
    return linear.bias
