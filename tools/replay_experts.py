"""Replay of recorded experts in a trainer's forward pass: transformers' routers choose those that the runtime chose.

Rounding moves a router's scores, and where two are close the trainer takes another expert than the runtime did. That
mismatch is no rounding any more. With the runtime's experts forced, the weights of each are still the trainer's own.

Legend: B sequences, T tokens, L layers, K experts of a token, N experts.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from ..runtime.protocol.errors import RequestError

# Routers that score by a softmax over all experts, and whether the weights of the chosen ones are made to sum to 1.
_ROUTERS: dict[str, Callable[[Any], bool]] = {
    "MixtralTopKRouter": lambda router: True,
    "OlmoeTopKRouter": lambda router: bool(router.norm_topk_prob),
    "Qwen2MoeTopKRouter": lambda router: bool(router.norm_topk_prob),
    "Qwen3MoeTopKRouter": lambda router: bool(router.norm_topk_prob),
}
_LAYER = re.compile(r"layers\.(\d+)\.")


@contextmanager
def replayed_experts(model: torch.nn.Module, experts_BTLK: torch.Tensor) -> Iterator[None]:
    """Force the experts of a transformers model's forward passes, whose inputs have B sequences of T tokens.

    `experts_BTLK` are integers, L the model's layers. A token with -1 in a layer's place of its first expert has those
    that the trainer's router chooses. Raises RequestError for a model without routers that it knows, and for another
    shape.
    """
    routers = _routers_of(model)
    num_layers, num_chosen = experts_BTLK.shape[-2:]
    most = max(int(router.num_experts) for router in routers.values())
    if experts_BTLK.dim() != 4 or num_layers <= max(routers):
        raise RequestError(f"experts must be [B, T, layers, chosen], got {list(experts_BTLK.shape)}", param="experts")
    if (chosen := {int(router.top_k) for router in routers.values()}) != {num_chosen}:
        raise RequestError(f"the model chooses {chosen} experts for a token, got {num_chosen}", param="experts")
    if experts_BTLK.numel() and not -1 <= int(experts_BTLK.min()) <= int(experts_BTLK.max()) < most:
        raise RequestError(f"experts must be from -1 to {most - 1}", param="experts")
    experts_LPK = experts_BTLK.long().flatten(0, 1).transpose(0, 1)
    with ExitStack() as hooks:
        for layer, router in routers.items():
            hook = partial(_force, _ROUTERS[type(router).__name__](router), experts_LPK[layer])
            hooks.callback(router.register_forward_hook(hook).remove)
        yield


def recorded_experts(meta_info: Mapping[str, Any], num_layers: int, num_chosen: int) -> torch.Tensor:
    """Return the experts [T, L, K] of a sequence from an answer of `/generate` or `Engine.generate`: those of all its
    tokens, of which the last has -1. Raises RequestError for an answer without them."""
    if "routed_experts" not in meta_info:
        raise RequestError("the answer has no experts: ask for return_routed_experts", param="meta_info")
    experts = np.frombuffer(base64.b64decode(meta_info["routed_experts"]), "<i4").reshape(-1, num_layers, num_chosen)
    num_tokens = meta_info["prompt_tokens"] + meta_info["completion_tokens"]
    found_TLK = torch.full((num_tokens, num_layers, num_chosen), -1)
    found_TLK[num_tokens - 1 - len(experts) : num_tokens - 1] = torch.tensor(experts)
    return found_TLK


def _routers_of(model: torch.nn.Module) -> dict[int, Any]:
    """Return the routers of a model by layer. Raises RequestError if it has none, or others than are known."""
    found: dict[int, Any] = {}
    for name, module in model.named_modules():
        kind = type(module).__name__
        if not kind.endswith("Router"):
            continue
        if kind not in _ROUTERS or (layer := _LAYER.search(f"{name}.")) is None:
            known = ", ".join(sorted(_ROUTERS))
            raise RequestError(f"experts are replayed in {known}; the model has a {kind} at {name}", param="model")
        found[int(layer[1])] = module
    if not found:
        raise RequestError(f"{type(model).__name__} has no routers: there are no experts to replay", param="model")
    return found


def _force(
    is_normalised: bool,
    experts_PK: torch.Tensor,
    router: torch.nn.Module,
    inputs: Any,
    output: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a router's output with the recorded experts, and with its own weights of these."""
    logits_PN, weights_PK, own_PK = output
    if len(experts_PK) != len(own_PK):
        raise RequestError(
            f"the forward pass has {len(own_PK)} tokens, and experts were given for {len(experts_PK)}", param="experts"
        )
    experts_PK = experts_PK.to(own_PK.device)
    chosen_PK = torch.where(experts_PK[:, :1] < 0, own_PK, experts_PK)
    forced_PK = logits_PN.float().softmax(-1).gather(1, chosen_PK)
    if is_normalised:
        forced_PK = forced_PK / forced_PK.sum(-1, keepdim=True)
    return logits_PN, forced_PK.to(weights_PK.dtype), chosen_PK
