"""Record of the experts that tokens were routed to, kept beside their keys and values.

A layer notes the experts of a step's tokens, and the step stores them by KV slot. So a cached prefix has those of the
forward that computed it, and copies of pages take them along.

Legend: S slots, L layers, K experts of a token, T tokens, N experts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch

from ....kernels import Ops
from ....kernels.reference.experts import Routing
from ..config import ModelConfig

# Classes whose routers score by a softmax over all experts, and whose recorded experts transformers judges in tests.
RECORDED = frozenset({"MixtralForCausalLM", "OlmoeForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"})
UNKNOWN = -1  # in place of an expert, in layers without a mixture


def route_bytes(config: ModelConfig) -> int:
    """Return the bytes of a token's experts in all layers; 0: the model has no mixtures."""
    return 0 if config.experts is None else 2 * config.num_layers * config.experts.num_per_token


class ExpertRoutes:
    """Experts by KV slot, the best first in each layer. Slots of the host's pages come after those of the device."""

    def __init__(self, config: ModelConfig, num_slots: int, device: torch.device) -> None:
        """`config` is that of a model with mixtures, of which all layers are computed here."""
        assert config.experts is not None
        self.shape = config.num_layers, config.experts.num_per_token
        self.memory_1SLK = torch.full((1, num_slots, *self.shape), UNKNOWN, dtype=torch.int16, device=device)
        self._step_LTK = torch.empty((self.shape[0], 0, self.shape[1]), dtype=torch.int64, device=device)

    def begin(self, num_tokens: int) -> torch.Tensor:
        """Begin a step; return where its tokens' experts are noted, int64 [L, T, K]."""
        (L, K), device = self.shape, self.memory_1SLK.device
        self._step_LTK = torch.full((L, num_tokens, K), UNKNOWN, dtype=torch.int64, device=device)
        return self._step_LTK

    def noting(self, ops: Ops, layer: int) -> Ops:
        """Return ops that note the experts which they choose for a layer."""
        return cast(Ops, _NotingOps(ops, self._step_LTK[layer]))

    def store(self, slots_T: torch.Tensor) -> None:
        """Store what was noted of the step in its tokens' slots."""
        self.memory_1SLK[0, slots_T] = self._step_LTK.transpose(0, 1).to(torch.int16)

    def copy(self, runs: Iterable[tuple[slice, slice]]) -> None:
        """Copy slots to slots, one run after the other."""
        for source, target in runs:
            self.memory_1SLK[:, target] = self.memory_1SLK[:, source].clone()


class _NotingOps:
    """The ops of a device, of which those that route note the experts in a tensor [T, K]."""

    def __init__(self, ops: Ops, noted_TK: torch.Tensor) -> None:
        self._ops, self._noted_TK = ops, noted_TK

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def route(self, *arguments: Any) -> Routing:
        return self._note(self._ops.route(*arguments))

    def route_by_groups(self, *arguments: Any) -> Routing:
        return self._note(self._ops.route_by_groups(*arguments))

    def _note(self, routing: Routing) -> Routing:
        experts_P = torch.searchsorted(routing.ends_N, routing.place_P, right=True)
        self._noted_TK.copy_(experts_P.view_as(self._noted_TK))
        return routing
