"""Writing a dense checkpoint as a quantised one, file by file: compressed-tensors, or GPTQ's format with act-order.

The linear layers of attention and MLP, experts included, are rounded. Embeddings, routers, head, norms and biases stay
as they are. One file's tensors are held at a time.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ...runtime.models.config import ModelConfig
from ...runtime.models.errors import CheckpointError
from ...runtime.models.quantised.rounding import GROUP_SIZES, fp8_rows, int4_group_size, int8_rows
from ...runtime.models.read_config import read_config
from ...runtime.models.stored.weights import INDEX_FILE, Progress, weight_files
from . import Method
from .calibration import CalibratedTensors, calibrate
from .int4_matrix import packed_tensors, round_to_nearest

FOUR_BITS = ("int4-rtn", "awq", "gptq")
_MLP = (
    r"mlp\.(?:experts\.\d+\.|shared_experts?\.|shared_mlp\.)?(?:\w+_proj|c_fc)|block_sparse_moe\.experts\.\d+\.w[123]"
)
LINEAR_WEIGHT = re.compile(rf"(model\.layers\.\d+\.(?:self_attn\.\w+_proj(?:_with_mqa)?|{_MLP}))\.weight")


def write_quantised(
    source: Path,
    out: Path,
    method: Method,
    on_progress: Progress | None = None,
    text: str | None = None,
    *,
    act_order: bool = False,
    smooth_strength: float | None = None,
) -> list[str]:
    """Quantise the checkpoint in directory `source` into the new directory `out`.

    `method` is "int8" (a scale per row), "fp8" (e4m3 with a scale per row; inputs by token) or one of 4 bits, in groups
    of at most 128 inputs with scale and zero point: "int4-rtn" (round to nearest), "awq" or "gptq", which are
    calibrated on `text`. `act_order`, of "gptq", is written in GPTQ's own format.

    `smooth_strength`, of "int8" with a `text`, moves large inputs into the weights by SmoothQuant; inputs are int8 by
    token then.

    Returns the modules that `text` gave too few tokens, such as experts that few tokens choose; they are rounded to
    nearest. Raises CheckpointError when `source` cannot be read, is quantised already or has sizes that no group
    divides, or when `out` exists; RequestError when the text has too few tokens.
    """
    config = read_config(source)
    group_size = int4_group_size(*config.linear_inputs)
    _check_writable(source, out, config, method, group_size)
    files = weight_files(source)
    calibrated = CalibratedTensors({}, [])
    if method == "awq" or method == "gptq" or (method == "int8" and smooth_strength is not None):
        assert group_size is not None or method == "int8"
        assert text is not None
        calibrated = calibrate(
            source,
            config,
            method,
            text,
            group_size,
            on_progress,
            act_order=act_order,
            smooth_strength=0.5 if smooth_strength is None else smooth_strength,
        )
    out.mkdir(parents=True)
    quantised = partial(_quantised_tensors, calibrated.written, method, group_size)
    index = _write_weights(files, out, quantised, on_progress)
    if (source / INDEX_FILE).is_file():
        _write_json(out / INDEX_FILE, index)
    if act_order:
        quantisation = _act_order_config(group_size)
    else:
        rounds_inputs = method == "fp8" or smooth_strength is not None
        quantisation = _quantisation_config(method, group_size, config.experts is not None, rounds_inputs=rounds_inputs)
    _write_other_files(source, out, quantisation)
    if on_progress is not None:
        total = sum(file.stat().st_size for file in files)
        on_progress(total, total)
    return calibrated.undersampled


def _check_writable(source: Path, out: Path, config: ModelConfig, method: Method, group_size: int | None) -> None:
    """Refuse a checkpoint whose tensors `method` cannot write, and a directory `out` that exists.

    Raises CheckpointError.
    """
    if config.quantisation is not None:
        raise CheckpointError(source, f"holds {config.quantisation.scheme.kind} weights already")
    in_one_tensor = config.experts is not None and config.experts.stacked is not None
    if config.stored.renames or config.stored.transposed or config.recurrent is not None or in_one_tensor:
        raise CheckpointError(
            source, f"{config.architecture} names its tensors otherwise: quantize it while loading (--quantize)"
        )
    if method in FOUR_BITS and group_size is None:
        raise CheckpointError(source, f"int4 needs sizes divisible by {min(GROUP_SIZES)}, not {config.linear_inputs}")
    if out.exists():
        raise CheckpointError(out, "exists already")


def _write_weights(
    files: list[Path],
    out: Path,
    quantised: Callable[[str, torch.Tensor], dict[str, torch.Tensor]],
    on_progress: Progress | None,
) -> dict[str, Any]:
    """Write what `quantised` makes of each tensor, into a file of the same name in `out`.

    Returns the safetensors index: the file of each tensor, and their total bytes.
    """
    file_names: dict[str, str] = {}
    num_bytes, done = 0, 0
    total = sum(file.stat().st_size for file in files)
    for file in files:
        written: dict[str, torch.Tensor] = {}
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # safe_open is no mapping
                tensor = tensors.get_tensor(name)
                written |= quantised(name, tensor)
                done += tensor.nbytes
                if on_progress is not None:
                    on_progress(done, total)
        save_file(written, out / file.name, metadata={"format": "pt"})
        file_names |= dict.fromkeys(written, file.name)
        num_bytes += sum(tensor.nbytes for tensor in written.values())
    return {"metadata": {"total_size": num_bytes}, "weight_map": dict(sorted(file_names.items()))}


def _write_other_files(source: Path, out: Path, quantisation: dict[str, Any]) -> None:
    """Write config.json with its `quantization_config`, and copy the tokenizer's files and the like."""
    raw = json.loads((source / "config.json").read_text(encoding="utf-8"))
    _write_json(out / "config.json", raw | {"quantization_config": quantisation})
    for file in source.iterdir():
        if file.is_file() and file.suffix in (".json", ".model", ".jinja", ".txt") and not (out / file.name).exists():
            shutil.copyfile(file, out / file.name)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _quantised_tensors(
    calibrated: dict[str, dict[str, torch.Tensor]],
    method: Method,
    group_size: int | None,
    name: str,
    tensor: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Return the tensors, by name, that stand for one of the dense checkpoint: `calibrated` ones where it has them."""
    if name in calibrated:
        return calibrated[name]
    if (match := LINEAR_WEIGHT.fullmatch(name)) is not None:
        return _rounded_tensors(match[1], tensor, method, group_size)
    return {name: tensor}


def _rounded_tensors(
    module: str, weight: torch.Tensor, method: Method, group_size: int | None
) -> dict[str, torch.Tensor]:
    if method == "int4-rtn":
        assert group_size is not None
        return packed_tensors(module, round_to_nearest(weight, group_size))
    codes, scale_N1 = (fp8_rows if method == "fp8" else int8_rows)(weight)
    return {f"{module}.weight": codes, f"{module}.weight_scale": scale_N1}


def _quantisation_config(
    method: Method, group_size: int | None, mixture: bool, *, rounds_inputs: bool
) -> dict[str, Any]:
    weights: dict[str, Any] = {
        "num_bits": 4 if method in FOUR_BITS else 8,
        "type": "float" if method == "fp8" else "int",
        "symmetric": method not in FOUR_BITS,
        "strategy": "group" if method in FOUR_BITS else "channel",
        "group_size": group_size if method in FOUR_BITS else None,
        "dynamic": False,
    }
    inputs = {"num_bits": 8, "type": weights["type"], "symmetric": True, "strategy": "token", "dynamic": True}
    kind = {"int8": "int-quantized", "fp8": "float-quantized"}.get(method, "pack-quantized")
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        # Other libraries treat routers as linear layers too.
        "ignore": ["lm_head", *(["re:.*\\.gate$", "re:.*shared_expert_gate$"] if mixture else [])],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": inputs if rounds_inputs else None,
                "output_activations": None,
                "format": kind,
            }
        },
    }


def _act_order_config(group_size: int | None) -> dict[str, Any]:
    """Return the description of GPTQ's own format with act-order."""
    return {
        "quant_method": "gptq",
        "checkpoint_format": "gptq",
        "bits": 4,
        "group_size": group_size,
        "desc_act": True,
        "sym": False,
        "lm_head": False,
    }
