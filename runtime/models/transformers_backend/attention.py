"""The attention function that transformers' models call, and what it calls: a probe, or attention over paged KV.

Legend: T tokens of the step, H query heads, K key/value heads, D head size of keys, V of values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import nn

from ....kernels import KvCache, store_kv
from ..decoder_inputs import DecoderInputs

NAME = "ramiform_paged"
_OWNER = "_ramiform_attention"  # attribute of the model's modules


class NotServed(Exception):
    """The model cannot be served exactly; the message says why."""


class AttentionShape(NamedTuple):
    """Shape and settings of one layer's attention."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None
    cap: float | None
    has_sinks: bool


class AttentionCall(NamedTuple):
    """Arguments of one call of a layer's attention."""

    shape: AttentionShape
    q_THD: torch.Tensor
    k_TKD: torch.Tensor
    v_TKV: torch.Tensor
    scale: float
    sinks_H: torch.Tensor | None


class AttentionOwner(Protocol):
    """Computes the attention of a model's layers."""

    def attend(self, module: nn.Module, call: AttentionCall) -> torch.Tensor:
        """Return [T, H, V]. `module` is the layer's attention module."""
        ...


class AttentionSettings(TypedDict, total=False):
    """Keywords of attention functions, by transformers' names, that change what is computed."""

    scaling: float | None
    sliding_window: int | None
    softcap: float | None
    s_aux: torch.Tensor | None  # sinks
    is_causal: bool | None
    position_bias: torch.Tensor | None


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **settings: Unpack[AttentionSettings],
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' attention functions do: [1, heads, T, size] of each to [1, T, H, V].

    Raises NotServed when the layer asks for anything but causal attention.
    """
    if attention_mask is not None:
        raise NotServed("it passes a mask of its own to attention")
    is_causal = settings.get("is_causal")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise NotServed("its attention is not causal")
    if settings.get("position_bias") is not None:
        raise NotServed("it adds a bias to attention scores")
    _, H, _, D = query.shape
    window, cap, sinks_H = settings.get("sliding_window"), settings.get("softcap") or None, settings.get("s_aux")
    shape = AttentionShape(H, key.shape[1], D, value.shape[-1], window, cap, sinks_H is not None)
    owner: AttentionOwner = getattr(module, _OWNER)
    scaling = settings.get("scaling")
    scale = D**-0.5 if scaling is None else float(scaling)
    q_THD, k_TKD, v_TKV = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    return owner.attend(module, AttentionCall(shape, q_THD, k_TKD, v_TKV, scale, sinks_H))[None], None


def set_owner(model: nn.Module, owner: AttentionOwner) -> None:
    """Let `owner` compute the attention of all of the model's layers."""
    for module in model.modules():
        setattr(module, _OWNER, owner)


@dataclass
class AttentionProbe:
    """Records the layers' attention, in the order of the layers, and returns zeros."""

    modules: list[nn.Module] = field(default_factory=list)
    shapes: list[AttentionShape] = field(default_factory=list)

    def attend(self, module: nn.Module, call: AttentionCall) -> torch.Tensor:
        if any(module is seen for seen in self.modules):
            raise NotServed("one attention module serves several layers")
        self.modules.append(module)
        self.shapes.append(call.shape)
        return call.v_TKV.new_zeros((*call.q_THD.shape[:2], call.shape.value_dim))


class PagedAttention:
    """Attention over paged KV of the layers that a probe has found."""

    def __init__(self, probe: AttentionProbe) -> None:
        self._place = {id(module): place for place, module in enumerate(probe.modules)}
        self._shapes = list(probe.shapes)
        self._step: tuple[DecoderInputs, Sequence[KvCache]] | None = None

    def begin(self, inputs: DecoderInputs, kv: Sequence[KvCache]) -> None:
        """Compute the following calls for this step; `kv` has one cache per layer."""
        self._step = inputs, kv

    def attend(self, module: nn.Module, call: AttentionCall) -> torch.Tensor:
        shape, q_THD, k_TKD, v_TKV, scale, sinks_H = call
        place = self._place[id(module)]
        assert self._step is not None
        assert shape == self._shapes[place], "a layer's attention has changed"
        inputs, kv = self._step
        if shape.value_dim < shape.key_dim:  # slots have one size
            v_TKV = F.pad(v_TKV, (0, shape.key_dim - shape.value_dim))
        store_kv(k_TKD, v_TKV, kv[place], inputs.slots_T, inputs.positions_T)
        attention = inputs.attention[shape.window]
        out_THD = attention.attend(q_THD, kv[place], scale, None if sinks_H is None else sinks_H.float())
        return out_THD[..., : shape.value_dim]
