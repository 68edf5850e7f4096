"""Loading a checkpoint as a Decoder."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from ...kernels import Ops, for_device
from .config import ModelConfig
from .decoder import Decoder
from .errors import CheckpointError
from .gguf.file import is_gguf
from .linear import Destination, Linear
from .parallel.group import SINGLE_RANK, Group
from .parallel.shard import Shard
from .parallel.stage import Stage
from .parameters import allocate_parameters, checkpoint_destinations
from .quantised.rounding import int4_group_size
from .quantised.scheme import WeightKind, quantise_while_loading
from .read_config import read_config
from .size import model_size
from .stored.layout import renaming
from .stored.weight_source import WeightSource
from .stored.weights import HEAD_AS_EMBEDDING, IsIgnored, Progress, load_weights, stored_head, weight_files

MAX_PARAMETERS_PER_BYTE = 4  # weights of two bits
UNCHECKED_PARAMETERS = 1 << 28  # as many may be allocated before a truncated file is found out


_EXPERT = re.compile(r"model\.layers\.\d+\.\w+\.experts\.(\d+)\.")


def load_model(
    path: Path | WeightSource,
    config: ModelConfig | None = None,
    *,
    device: torch.device,
    dtype: torch.dtype,
    quantize: WeightKind | None = None,
    ops: Ops | None = None,
    on_progress: Progress | None = None,
    group: Group = SINGLE_RANK,
) -> Decoder:
    """Load the Hugging Face checkpoint in directory `path`, or the GGUF file `path`.

    `config` is the checkpoint's from `read_config`, as the settings change it; None: as it is read. The weights get
    `dtype` on `device`; only the part of the rank of `group` is read. `quantize` rounds the linear layers of a dense
    checkpoint while they are read; embeddings, head and norms stay dense. `ops` are as for `Decoder`. A
    `WeightSource` has weights in place of its directory's own.
    Raises CheckpointError when the files cannot be served, or are to be quantised twice.
    """
    source = path if isinstance(path, WeightSource) else None
    path = path.folder if isinstance(path, WeightSource) else path
    if device.type == "cuda":
        torch.cuda.set_device(device)  # Triton launches on this thread's device, wherever the tensors are
    config = config or read_config(path)
    if source is None:  # whose tensors are those of a model that was checked
        _check_size(path, config)
    if not config.is_native:
        from .transformers_backend.decoder import load_transformers_model

        return load_transformers_model(path, device=device, dtype=dtype, ops=ops, on_progress=on_progress)
    if device.type != "cpu":
        config = _with_blocks_of_device(config)
    if quantize is not None:
        config = _quantised_while_loading(path, config, quantize, group.shard)
    try:
        groups_experts = (ops or for_device(device)).groups_experts
        parameters = allocate_parameters(config, device=device, dtype=dtype, group=group, groups_experts=groups_experts)
        parts = checkpoint_destinations(parameters, config, group)
    except ValueError as error:
        raise CheckpointError(path, str(error)) from None
    _fill(path, config, parts, on_progress, stage=group.stage, shard=group.shard, source=source)
    del parts  # it holds the layers' first memory, which `finish` replaces
    _finish([*parameters.linears(), *parameters.packed_vocabulary()], device)
    return Decoder(config, parameters, ops, group)


def _finish(linears: Sequence[Linear], device: torch.device) -> None:
    """Give the layers' weights the form in which they are multiplied; on a CPU several layers at once, each by one
    thread: operators are small, and a start has other work for the processors."""
    each = {id(linear): linear for linear in linears}.values()  # an embedding may be the head too
    num_threads = torch.get_num_threads()
    if device.type != "cpu" or num_threads == 1:
        for linear in each:
            linear.finish()
        return
    try:
        with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(lambda linear: linear.finish(), each):
                pass
    finally:
        torch.set_num_threads(num_threads)


def _with_blocks_of_device(config: ModelConfig) -> ModelConfig:
    """Return the config in which those blocks of a GGUF file that a GPU computes stay; the others are read as dense."""
    own = config.quantisation
    if own is None or own.scheme.source != "gguf":
        return config
    from .gguf.block_reader import four_bit_modules  # here, because it imports gguf

    formats = four_bit_modules(own.block_formats, config)
    return replace(config, quantisation=replace(own, block_formats=formats) if formats else None)


def _quantised_while_loading(path: Path, config: ModelConfig, kind: WeightKind, shard: Shard) -> ModelConfig:
    """Return the config whose linear layers are rounded while they are read. Raises CheckpointError when they are
    quantised already."""
    own = config.quantisation
    if own is not None and (own.scheme.source != "gguf" or own.scheme.kind == "int4"):
        raise CheckpointError(
            path,
            f"holds {own.scheme.kind} weights: quantize {kind!r} needs a dense checkpoint",
        )
    sizes = config.linear_inputs
    if shard.num_slices > 1:
        sizes = (sizes[0], *(size // shard.num_slices for size in sizes[1:]))
    return replace(config, quantisation=quantise_while_loading(kind, int4_group_size(*sizes)))


def load_embedding_and_head(path: Path, *, device: torch.device, dtype: torch.dtype) -> Decoder:
    """Load embedding, final norm and head without the layers, for a draft source on a rank that holds a part of the
    model."""
    config = read_config(path)
    ends = replace(config, num_layers=0, windows=(), second_rope_layers=())
    parameters = allocate_parameters(ends, device=device, dtype=dtype)
    _fill(path, config, checkpoint_destinations(parameters, ends), stage=None)
    for linear in parameters.packed_vocabulary():
        linear.finish()
    return Decoder(config, parameters)


def _check_size(path: Path, config: ModelConfig) -> None:
    """Refuse a configuration of more parameters than the files can hold, before memory is allocated for it.

    Raises CheckpointError.
    """
    if is_gguf(path) or not config.is_native:
        return  # their configurations come with the tensors
    num_bytes = sum(file.stat().st_size for file in weight_files(path))
    num_parameters = model_size(config).num_parameters
    if num_parameters > max(num_bytes * MAX_PARAMETERS_PER_BYTE, UNCHECKED_PARAMETERS):
        raise CheckpointError(
            path,
            f"config.json describes {num_parameters:,} parameters, which {num_bytes:,} bytes of weights cannot hold",
        )


def _fill(
    path: Path,
    config: ModelConfig,
    parts: dict[str, Destination],
    on_progress: Progress | None = None,
    *,
    stage: Stage | None,
    shard: Shard = SINGLE_RANK.shard,
    source: WeightSource | None = None,
) -> None:
    """Read the weights. Tensors of other stages and of other ranks' experts are skipped; without a stage, all those
    that have no destination."""

    skipped = re.compile(config.stored.skipped or r"$.")

    def ignored(name: str) -> bool:
        if stage is None or stage.is_foreign(name, config) or skipped.match(name) is not None:
            return True
        expert = _EXPERT.match(name) if shard.whole_experts and config.experts is not None else None
        if expert is None or config.experts is None:
            return False
        index, count = int(expert[1]), config.experts.num_experts
        return index < count and index not in shard.experts(count)

    read_tensors_into(path, config, parts, ignored, on_progress, source=source)


def read_tensors_into(
    path: Path,
    config: ModelConfig,
    parts: dict[str, Destination],
    ignored: IsIgnored,
    on_progress: Progress | None = None,
    rename: Callable[[str], str] = str,
    source: WeightSource | None = None,
) -> None:
    """Fill the destinations from a checkpoint of the model `config`; `rename` changes Llama's names of its tensors.

    Raises CheckpointError as `load_weights` does.
    """
    if is_gguf(path):
        from .gguf.weights import load_gguf_weights  # needs the optional package `gguf`

        load_gguf_weights(path, config, parts, on_progress, ignored)
        return
    own, names = renaming(config.stored), _TORCHAO_NAMES
    schemes = () if config.quantisation is None else config.quantisation.schemes
    if any(scheme.kind == "fp8" and scheme.per_tensor for scheme in schemes):
        names = names | _FP8_NAMES

    def last_name(match: re.Match[str]) -> str:
        return f".{names.get(match[1], match[1])}"

    if config.tied_embeddings and stored_head(path, config.stored) == "alone":
        own = renaming(config.stored._replace(renames=(*config.stored.renames, HEAD_AS_EMBEDDING)))
    load_weights(path, parts, on_progress, ignored, lambda name: rename(_LAST_NAME.sub(last_name, own(name))), source)


# Names of quantised weights and of their scales: torchao's, and those of transformers' FP8 by tensor, of which AutoFP8,
# llm-compressor and vLLM have others.
_TORCHAO_NAMES = {"_weight_qdata": "weight", "_weight_scale": "weight_scale", "_weight_zero_point": "weight_zero_point"}
_FP8_NAMES = {"weight_scale_inv": "weight_scale", "activation_scale": "input_scale"}
_LAST_NAME = re.compile(rf"\.({'|'.join((*_TORCHAO_NAMES, *_FP8_NAMES))})$")
