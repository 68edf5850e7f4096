"""Reads the ModelConfig of a checkpoint on disk: a Hugging Face directory or a GGUF file."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..protocol.config import ModelImplName
from .config import ModelConfig, parse_config
from .config_fields import read_json_object
from .encoders.table import encoder_class
from .errors import CheckpointError, UnsupportedField
from .families.table import FAMILIES
from .gguf.file import is_gguf, open_gguf
from .stored.weights import dense_modules, stored_head

logger = logging.getLogger("ramiform.models")


def read_config(path: Path, impl: ModelImplName = "native") -> ModelConfig:
    """Read the config of the checkpoint in directory `path`, or of the GGUF file `path`.

    `impl` "transformers" reads it for transformers' class, "auto" does so where no native family computes the model.

    Raises CheckpointError when there is no config, it is not JSON, it is an encoder's, or it asks for something that is
    not computed; the message names the field and its value.
    """
    if not path.exists():
        raise CheckpointError(path, "no such model directory")
    if is_gguf(path):
        if impl == "transformers":
            raise CheckpointError(path, "GGUF files have native families only: use --model-impl auto")
        gguf_file = open_gguf(path)  # raises when the optional package `gguf` is missing
        from .gguf.config import read_gguf_config

        return read_gguf_config(gguf_file)
    file = path / "config.json"
    if not file.is_file():
        raise CheckpointError(path, "not a Hugging Face checkpoint: it has no config.json")
    if (encoder := encoder_class(path)) is not None:
        raise CheckpointError(
            path, f"{encoder} is an encoder, which has no KV cache and generates no text: `ramiform serve` serves it"
        )
    if impl == "transformers":
        return _of_transformers(path)
    raw = _with_quantisation(path, read_json_object(file))
    try:
        return _with_dense_modules(path, _with_stored_head(path, parse_config(raw, file)))
    except UnsupportedField as error:
        if impl == "native":
            raise
        try:
            return _of_transformers(path)
        except CheckpointError as other:
            kind = (raw.get("architectures") or [None])[0]
            reason = error.reason if kind in FAMILIES else f"{kind} is no native family"
            raise CheckpointError(path, f"{reason}; {other.reason}") from None


def _with_quantisation(path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """Return the config with the quantisation that older writers call otherwise, or keep in a file beside it."""
    if raw.get("quantization_config") is not None:
        return raw
    own = raw.get("compression_config")
    if isinstance(own, dict):
        nested = own.get("quantization_config")
        return raw | {"quantization_config": nested if isinstance(nested, dict) else own}
    if (path / "quantize_config.json").is_file():
        return raw | {"quantization_config": {"quant_method": "gptq"} | read_json_object(path / "quantize_config.json")}
    if (path / "quant_config.json").is_file():  # AutoAWQ, with names of its own
        stored = read_json_object(path / "quant_config.json")
        renamed = {_AWQ_NAMES.get(name, name): value for name, value in stored.items()}
        return raw | {"quantization_config": {"quant_method": "awq"} | renamed}
    if (path / "hf_quant_config.json").is_file():  # ModelOpt
        stored = read_json_object(path / "hf_quant_config.json").get("quantization")
        return raw | {
            "quantization_config": {"quant_method": "modelopt"} | (stored if isinstance(stored, dict) else {})
        }
    return raw


_AWQ_NAMES = {"w_bit": "bits", "q_group_size": "group_size"}


def _with_dense_modules(path: Path, config: ModelConfig) -> ModelConfig:
    """Return the config with the modules that the files store dense: some writers quantise fewer than they say."""
    own = config.quantisation
    if own is None or not config.is_native:
        return config
    return replace(config, quantisation=replace(own, dense=dense_modules(path, config.stored)))


def _with_stored_head(path: Path, config: ModelConfig) -> ModelConfig:
    """Return the config with a head of its own if the checkpoint stores another one than the embedding."""
    if not config.tied_embeddings or stored_head(path, config.stored) != "other":
        return config
    logger.warning(
        "%s: config.json ties the head to the embedding, but another one is stored, which is used: set "
        "tie_word_embeddings to false to say so",
        path,
    )
    return replace(config, tied_embeddings=False)


def _of_transformers(path: Path) -> ModelConfig:
    from .transformers_backend.config import read_transformers_config  # needs the optional package `transformers`

    return read_transformers_config(path)
