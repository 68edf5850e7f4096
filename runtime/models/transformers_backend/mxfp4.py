"""gpt-oss's experts in MXFP4, which transformers loads into modules that multiply by the packed weights.

transformers' own quantiser of the format needs a package of kernels, and on CPUs widens all weights. This one is
registered beside it, and replaces the experts' modules only. Imports transformers.

Legend: T tokens, K experts of a token, P = T * K pairs of the two, N experts, E hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ....kernels import for_device
from ..experts.mixture import ExpertLinear, SeparateExperts
from ..quantised.mxfp4 import MXFP4_GROUP, Mxfp4Linear, check_exponents

METHOD = "ramiform-mxfp4"
_PRODUCTS = ("gate_up_proj", "down_proj")


class PackedGptOssExperts(nn.Module):
    """All experts of a layer. Parameters have the names and shapes of the checkpoint until `pack` replaces them."""

    _apply_gate = GptOssExperts._apply_gate

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.num_experts, self.alpha, self.limit = config.num_local_experts, config.swiglu_alpha, config.swiglu_limit
        sizes = (2 * config.intermediate_size, config.hidden_size), (config.hidden_size, config.intermediate_size)
        for name, (outputs, inputs) in zip(_PRODUCTS, sizes, strict=True):
            if inputs % MXFP4_GROUP:
                raise ValueError(f"{name} has {inputs} inputs, which groups of {MXFP4_GROUP} do not divide")
            groups = self.num_experts, outputs, inputs // MXFP4_GROUP
            for end, shape in (("blocks", (*groups, MXFP4_GROUP // 2)), ("scales", groups)):
                self.register_parameter(f"{name}_{end}", _parameter(torch.empty(shape, dtype=torch.uint8)))
            self.register_parameter(f"{name}_bias", _parameter(torch.empty(self.num_experts, outputs)))
        self._experts: dict[str, ExpertLinear] = {}

    def pack(self) -> None:
        """Pack the loaded weights for the device's products, and free them. Raises ValueError for scales that are no
        numbers."""
        for name in _PRODUCTS:
            blocks, scales = getattr(self, f"{name}_blocks").data, getattr(self, f"{name}_scales").data
            check_exponents(scales.flatten())
            delattr(self, f"{name}_blocks")
            delattr(self, f"{name}_scales")
            bias, linears = getattr(self, f"{name}_bias"), []
            for rows, exponents in zip(blocks, scales, strict=True):
                outputs, groups = exponents.shape
                linear = Mxfp4Linear(outputs, groups * MXFP4_GROUP, False, device=rows.device, dtype=bias.dtype)
                parts = linear.row_destinations(0, outputs)
                parts["weight_packed"].put(rows.flatten(1))
                parts["weight_scale"].put(exponents)
                linears.append(linear)
            self._experts[name] = SeparateExperts(tuple(linears))
            self._experts[name].finish()

    def forward(self, hidden_states: torch.Tensor, router_indices: Any, routing_weights: Any) -> torch.Tensor:
        """Return [T, E], the weighted sum of each token's experts; indices and weights are [T, K]."""
        (T, K), device = router_indices.shape, hidden_states.device
        experts_P, order_P = router_indices.flatten().sort(stable=True)
        ends_N = torch.searchsorted(experts_P, torch.arange(self.num_experts, device=device), right=True)
        ops = for_device(device, "reference")
        gate_up = self._experts["gate_up_proj"](hidden_states, ends_N, order_P // K, ops)
        gated = self._apply_gate(gate_up + self.gate_up_proj_bias[experts_P])  # type: ignore[no-untyped-call,index]
        y_PE = self._experts["down_proj"](gated, ends_N, None, ops) + self.down_proj_bias[experts_P]  # type: ignore[index]
        pairs_PE = torch.empty_like(y_PE)
        pairs_PE[order_P] = y_PE * routing_weights.flatten()[order_P, None].to(y_PE.dtype)
        return pairs_PE.view(T, K, -1).sum(1)


@register_quantization_config(METHOD)  # type: ignore[untyped-decorator]
class PackedMxfp4Config(QuantizationConfigMixin):  # type: ignore[misc]
    """The quantiser's settings: none."""

    def __init__(self, **_: Any) -> None:
        self.quant_method = METHOD


@register_quantizer(METHOD)  # type: ignore[untyped-decorator]
class PackedMxfp4Quantizer(HfQuantizer):  # type: ignore[misc]
    """Replaces gpt-oss's experts before transformers reads the weights, and packs them afterwards."""

    requires_calibration = False
    is_trainable = False

    def is_serializable(self) -> bool:
        return False

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, GptOssExperts):
                    setattr(module, name, PackedGptOssExperts(model.config))

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        for module in model.modules():
            if isinstance(module, PackedGptOssExperts):
                module.pack()
        return model


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)
