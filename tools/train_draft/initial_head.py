"""The head that training begins with.

Legend: V the head's vocabulary, E hidden size.
"""

from __future__ import annotations

import torch

from ...kernels.reference import layers
from ...runtime.models.decoder import Decoder
from ...runtime.models.linear import DenseLinear
from ...runtime.protocol.errors import RequestError
from ...runtime.speculation.eagle.config import HeadConfig
from ...runtime.speculation.eagle.head import EagleHead
from ...runtime.speculation.eagle.parameters import HeadParameters, allocate_head


class TrainingOps:
    """Plain torch layer ops, through which gradients flow. Norms compute in the dtype of their weights, not in that
    which automatic mixed precision gave the products before them."""

    silu_and_mul = staticmethod(layers.silu_and_mul)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return layers.rms_norm(x.to(weight.dtype), weight, eps)

    def add_rms_norm(
        self, x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = weight_E.dtype
        return layers.add_rms_norm(x_TE.to(dtype), residual_TE.to(dtype), weight_E, eps)


def initial_head(config: HeadConfig, target: Decoder, draft_ids_V: torch.Tensor | None, seed: int) -> EagleHead:
    """Return a head with random matrices and unit norms; the output layer of EAGLE-3 is a copy of the target's.

    Parameters are float32 and on the target's device. `draft_ids_V` int64, ascending, are the tokens of a limited
    vocabulary; None: all. Raises RequestError when the target caps its logits.
    """
    if target.config.logit_cap is not None:
        raise RequestError(
            f"the model caps its logits at {target.config.logit_cap:g}, which training does not compute", param="model"
        )
    parameters = allocate_head(
        config,
        own_lm_head=config.kind == "eagle3",
        own_embedding=False,
        device=target.device,
        dtype=torch.float32,
    )
    draw = torch.Generator().manual_seed(seed)
    for linear in (parameters.fc, parameters.qkv, parameters.o, parameters.gate_up, parameters.down):
        spread = linear.weight.shape[1] ** -0.5
        linear.weight.copy_(torch.randn(linear.weight.shape, generator=draw) * spread)
    for norm in (parameters.hidden_norm_E, parameters.input_norm_E, parameters.post_norm_E, parameters.norm_E):
        if norm is not None:
            norm.fill_(1.0)
    weight_VE = target.parameters.dense_head()
    if parameters.lm_head is not None:
        rows = weight_VE if draft_ids_V is None else weight_VE[draft_ids_V.to(target.device)]
        parameters.lm_head.weight.copy_(rows)
    return EagleHead(
        config,
        parameters,
        target_embedding=target.parameters.dense_embedding().float(),
        target_lm_head=DenseLinear(weight_VE.float()),
        token_offsets=None if draft_ids_V is None else draft_ids_V - torch.arange(len(draft_ids_V)),
        ops=TrainingOps(),
    )


def trainable_tensors(parameters: HeadParameters) -> dict[str, torch.Tensor]:
    """Return the tensors that training changes, by the names of their fields."""
    found: dict[str, torch.Tensor] = {}
    for name in parameters.__slots__:
        match getattr(parameters, name):
            case DenseLinear(weight=weight, bias=bias):
                found[f"{name}.weight"] = weight
                if bias is not None:
                    found[f"{name}.bias"] = bias
            case torch.Tensor() as tensor if name != "embedding":
                found[name] = tensor
    return found


def copy_trained_tensors(head: EagleHead, other: EagleHead) -> None:
    """Copy the trained tensors of `other` into `head`. Raises RequestError when names or shapes differ."""
    ours, theirs = trainable_tensors(head.parameters), trainable_tensors(other.parameters)
    if {name: part.shape for name, part in ours.items()} != {name: part.shape for name, part in theirs.items()}:
        raise RequestError("the head to begin with has other tensors than the one to be trained", param="init")
    for name, part in ours.items():
        part.copy_(theirs[name])
