"""Calibrated quantisation: rounds a model's layers one after the other by AWQ or GPTQ, or smooths them, on a text.

A layer's inputs are the outputs of the rounded layers before it; SmoothQuant's are the dense model's.

Legend: T tokens, E hidden size, C columns (inputs).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer

from ...runtime.engine.build import choose_device, choose_dtype
from ...runtime.engine.inputs import decoder_inputs
from ...runtime.engine.kv_pool import PAGE_SIZE, KvMemory
from ...runtime.models.config import LLAMA_LAYOUT, ModelConfig
from ...runtime.models.decoder import Decoder
from ...runtime.models.errors import CheckpointError
from ...runtime.models.linear import DenseLinear
from ...runtime.models.load import load_model
from ...runtime.models.parameters import LayerParameters, num_parameters
from ...runtime.models.quantised.rounding import int8_rows
from ...runtime.models.stored.layout import rotary_order
from ...runtime.models.stored.weights import Progress
from ...runtime.protocol.errors import RequestError
from ...runtime.scheduler.plan import Row
from . import CalibratedMethod
from .awq import input_scales, round_clipped, smooth_scales
from .gptq import gptq
from .int4_matrix import Int4Matrix, gptq_tensors, packed_tensors, round_to_nearest
from .recorded_inputs import (
    ScaleTransfer,
    record_inputs,
    recorded_products,
    scale_transfers,
    stop_recording,
    transferred_tensors,
)

MIN_TOKENS = 64  # least tokens of a matrix's statistics


@dataclass
class RoundedLayer:
    """A layer's matrices by Hugging Face module, in 4 bits or smoothed for 8, and the dense tensors that changed."""

    groups: dict[str, Int4Matrix] = field(default_factory=dict)
    smoothed: dict[str, torch.Tensor] = field(default_factory=dict)
    dense: dict[str, torch.Tensor] = field(default_factory=dict)
    undersampled: list[str] = field(default_factory=list)  # modules with too few tokens


@torch.inference_mode()
def round_layers(
    model: Decoder,
    texts: Sequence[Sequence[int]],
    method: CalibratedMethod,
    group_size: int,
    act_order: bool = False,
    smooth_strength: float = 0.5,
) -> Iterator[RoundedLayer]:
    """Round every layer, in order. `model` is dense; its norms, biases and routers are changed. `act_order` is gptq's,
    `smooth_strength` int8's.

    Matrices with fewer than MIN_TOKENS tokens, such as experts that few tokens choose, are rounded to nearest.
    """
    tokens = torch.tensor([token for text in texts for token in text], device=model.device)
    positions = torch.tensor([place for text in texts for place in range(len(text))], device=model.device)
    states_TE = model.embed(tokens, positions)
    windows = list(pairwise(np.cumsum([0, *map(len, texts)]).tolist()))
    for index, stored in enumerate(model.parameters.layers):
        layer = record_inputs(stored)
        _run(model, index, layer, states_TE, windows)
        moves = method != "gptq"
        for move in scale_transfers(layer) if moves else ():
            _transfer_scales(move, group_size if method == "awq" else None, smooth_strength)
        rounded = RoundedLayer(dense=transferred_tensors(index, layer) if moves else {})
        for modules, inputs in recorded_products(index, layer, model.config):
            weight, undersampled = inputs.linear.weight, inputs.count < MIN_TOKENS
            start = 0
            whole = None
            if method == "gptq" and not undersampled:
                whole = gptq(weight, inputs.hessian_CC, group_size, act_order=act_order)
            for module, size in modules:
                rows = weight[start : start + size]
                if method == "int8":
                    rounded.smoothed[module] = rows.clone()
                else:
                    # Scores are exponents: AWQ leaves the ranges of what makes them.
                    clips = method == "awq" and not undersampled and not module.endswith(("q_proj", "k_proj"))
                    groups = round_clipped(rows, inputs.hessian_CC, group_size) if clips else None
                    groups = groups or (whole.rows(start, size) if whole else round_to_nearest(rows, group_size))
                    rounded.groups[module] = groups
                    rows.copy_(groups.dense())
                start += size
            rounded.undersampled += [module for module, _ in modules if undersampled]
        states_TE = _run(model, index, stop_recording(layer), states_TE, windows)
        yield rounded


def _transfer_scales(move: ScaleTransfer, group_size: int | None, smooth_strength: float) -> None:
    """Move AWQ's factors for groups of that size, else SmoothQuant's."""
    count = sum(inputs.count for inputs in move.products)
    if count < MIN_TOKENS:
        return
    seen = [(inputs.linear.weight, inputs.hessian_CC) for inputs in move.products]
    if group_size is None:
        largest_C = torch.stack([inputs.largest_C for inputs in move.products]).amax(0)
        factor_C = smooth_scales([weight for weight, _ in seen], largest_C, smooth_strength)
    else:
        mean_C = torch.stack([inputs.absolute_C for inputs in move.products]).sum(0) / count
        factor_C = input_scales(seen, mean_C, group_size)
    factor_C = factor_C.to(seen[0][0].dtype)
    for weight in [*(weight for weight, _ in seen), *move.dense]:
        weight.mul_(factor_C)
    for tensor in move.before:
        tensor.div_(factor_C if tensor.dim() == 1 else factor_C[:, None])


def _run(
    model: Decoder, index: int, layer: LayerParameters, states_TE: torch.Tensor, windows: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """Compute the layer's outputs, of each window by itself.

    A decoder of two layers does it: its embedding is the states, its first layer this one, and the second layer's input
    is captured. The second layer's attention and the head are computed and discarded.
    """
    config = replace(
        model.config,
        num_layers=2,
        windows=(model.config.windows[index],) * 2,
        second_rope_layers=(model.config.uses_second_rope(index),) * 2,
        embedding_scale=None,
        learned_positions=None,
    )
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


class CalibratedTensors(NamedTuple):
    """Tensors of a calibrated checkpoint, by the name of the tensor that they replace."""

    written: dict[str, dict[str, torch.Tensor]]  # by the tensor that they replace
    undersampled: list[str]  # modules with too few tokens


_MAX_TOKENS = 1 << 15  # of the text; more tokens change little
_WINDOW = 512  # tokens per window


def calibrate(
    path: Path,
    config: ModelConfig,
    method: CalibratedMethod,
    text: str,
    group_size: int | None,
    on_progress: Progress | None = None,
    *,
    act_order: bool = False,
    smooth_strength: float = 0.5,
) -> CalibratedTensors:
    """Load the dense model, on a CUDA device when there is one, and round it on `text`. "int8" is SmoothQuant.

    The tensors are those of GPTQ's format with `act_order`, else of compressed-tensors.

    Raises RequestError naming `calibration` when the text has fewer tokens than a window, CheckpointError when AWQ does
    not know the model's block.
    """
    if config.stored != LLAMA_LAYOUT or rotary_order(config) is not None or config.latent is not None:
        raise CheckpointError(
            path, f"{method} does not know how {config.architecture} lays out its heads and matrices: use int4-rtn"
        )
    if method != "gptq" and (config.norm, config.norm_placement, config.gated_mlp) != ("rms", "pre", True):
        raise CheckpointError(
            path,
            f"{'awq' if method == 'awq' else 'smoothing'} scales a pre-norm block of RMS norms and gated MLPs, "
            f"which this model has not: use {'gptq' if method == 'awq' else 'int8 as it is'}",
        )
    tokens = Tokenizer.from_file(str(path / "tokenizer.json")).encode(text, add_special_tokens=False).ids[:_MAX_TOKENS]
    window = min(_WINDOW, config.context_length)
    if len(tokens) < window:
        raise RequestError(
            f"the text has {len(tokens)} tokens: calibrating takes at least {window}", param="calibration"
        )
    texts = [tokens[start : start + window] for start in range(0, len(tokens) - window + 1, window)]
    device = choose_device("auto")
    dtype = choose_dtype("auto", device, num_parameters(config))
    model = load_model(path, device=device, dtype=dtype)
    calibrated, as_stored = CalibratedTensors({}, []), gptq_tensors if act_order else packed_tensors
    layers = round_layers(model, texts, method, group_size or 0, act_order, smooth_strength)
    for done, layer in enumerate(layers, start=1):
        for module, weight in layer.smoothed.items():
            codes_NC, scale_N1 = int8_rows(weight.cpu())
            calibrated.written[f"{module}.weight"] = {f"{module}.weight": codes_NC, f"{module}.weight_scale": scale_N1}
        for module, groups in layer.groups.items():
            calibrated.written[f"{module}.weight"] = {
                name: part.cpu() for name, part in as_stored(module, groups).items()
            }
        calibrated.written.update({name: {name: tensor.cpu()} for name, tensor in layer.dense.items()})
        calibrated.undersampled.extend(layer.undersampled)
        if on_progress is not None:
            on_progress(done, config.num_layers)
    return calibrated
