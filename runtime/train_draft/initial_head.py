"""A head before training.

Legend: V the head's vocabulary, E hidden size.
"""

from __future__ import annotations

import torch

from ..models.decoder import Decoder
from ..models.linear import DenseLinear
from ..protocol.errors import RequestError
from ..speculation.eagle.config import HeadConfig
from ..speculation.eagle.head import EagleHead
from ..speculation.eagle.parameters import HeadParameters, allocate_head
from . import ops


def initial_head(config: HeadConfig, target: Decoder, draft_ids_V: torch.Tensor | None, seed: int) -> EagleHead:
    """Random matrices, unit norms; EAGLE-3's logits begin as the target's. Parameters are float32 and on the target's
    device. `draft_ids_V` int64, ascending: the tokens of a limited vocabulary."""
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
    whole = target.parameters.head
    if parameters.lm_head is not None:
        rows = whole.weight if draft_ids_V is None else whole.weight[draft_ids_V.to(target.device)]
        parameters.lm_head.weight.copy_(rows)
    return EagleHead(
        config,
        parameters,
        target_embedding=target.parameters.embedding_VE.float(),
        target_lm_head=DenseLinear(whole.weight.float()),
        token_offsets=None if draft_ids_V is None else draft_ids_V - torch.arange(len(draft_ids_V)),
        ops=ops,
    )


def trainable_tensors(parameters: HeadParameters) -> dict[str, torch.Tensor]:
    """The tensors that training changes, by the names of their fields."""
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
    """Give `head` what `other` has learnt. Raises RequestError when it has other parts."""
    ours, theirs = trainable_tensors(head.parameters), trainable_tensors(other.parameters)
    if {name: part.shape for name, part in ours.items()} != {name: part.shape for name, part in theirs.items()}:
        raise RequestError("the head to begin with has other tensors than the one to be trained", param="init")
    for name, part in ours.items():
        part.copy_(theirs[name])
