"""The ModelConfig of a checkpoint that transformers computes, and the reasons to refuse one.

A model without weights, on torch's "meta" device, is asked for the shapes of its layers' attention.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ..config import ModelConfig
from ..errors import CheckpointError
from ..rope.config import NO_ROPE
from .attention import NAME, AttentionProbe, AttentionShape, NotServed, attend, set_owner

logger = logging.getLogger("ramiform.models")

_INSTALL = "install ramiform[transformers]"
_LAYER_TYPES = {"full_attention", "sliding_attention", "attention"}


def load_package() -> Any:
    """Import transformers, which then knows the runtime's attention. Raises ImportError when it is missing."""
    import transformers
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
    return transformers


def read_transformers_config(path: Path) -> ModelConfig:
    """Read the config of the checkpoint in directory `path` for transformers' own class of it.

    Raises CheckpointError with the reason when the package is missing, does not know the class, or computes something
    that paged KV cannot serve exactly.
    """
    file = path / "config.json"
    stamp = file.stat().st_mtime_ns if file.is_file() else 0
    try:
        return _read(path, stamp)
    except ImportError as error:
        raise CheckpointError(path, f"this architecture needs the package transformers: {_INSTALL} ({error})") from None
    except NotServed as error:
        raise CheckpointError(path, f"transformers' class of it cannot be served: {error}") from None


@lru_cache(maxsize=8)
def _read(path: Path, stamp: int) -> ModelConfig:
    transformers = load_package()
    try:
        with quiet(transformers):
            config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # whatever a config of an unknown kind leads to
        raise NotServed(
            f"transformers {transformers.__version__} does not read its config: {_first_line(error)}"
        ) from None
    _check_config(config)
    _check_class(transformers, config)
    try:
        with torch.device("meta"), quiet(transformers):
            model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=NAME).eval()
    except Exception as error:  # such as a config that contradicts itself
        raise NotServed(f"transformers does not make it: {_first_line(error)}") from None
    shape = probed_shape(_probe_without_weights(model), config.num_hidden_layers)
    heads, kv_heads, head_dim = (
        (shape.num_heads, shape.num_kv_heads, max(shape.key_dim, shape.value_dim))
        if shape is not None
        else _written_sizes(config)
    )
    return ModelConfig(
        architecture=type(model).__name__,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=1e-6,
        rope=NO_ROPE,
        context_length=_context_length(config),
        windows=(None,) * config.num_hidden_layers,  # known when the weights are loaded
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=None,
        tied_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
        attention_scale=head_dim**-0.5,
        attention_cap=shape.cap if shape is not None else getattr(config, "attn_logit_softcapping", None),
        counted_parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def _check_config(config: Any) -> None:
    """Raise NotServed for what the config tells by itself."""
    if getattr(config, "is_encoder_decoder", False):
        raise NotServed("it is an encoder and a decoder")
    if config.get_text_config() is not config:
        raise NotServed("it is multimodal, and its text part alone is not a class of its own here")
    if getattr(config, "quantization_config", None) is not None and not is_packed_gpt_oss(config):
        raise NotServed("its weights are quantised, which only native families read, and gpt-oss in MXFP4")
    if getattr(config, "use_bidirectional_attention", None):
        raise NotServed("its attention is not causal")
    others = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if others:
        raise NotServed(
            f"its layers are of the types {', '.join(sorted(others))}, whose state is not KV of every token"
        )
    for name in ("num_hidden_layers", "vocab_size", "hidden_size"):
        if not isinstance(getattr(config, name, None), int):
            raise NotServed(f"its config has no {name}")
    for rope in _ropes(config):
        if rope.get("rope_type") == "dynamic":
            raise NotServed("its rotary scaling changes with the length of the sequence")


def is_packed_gpt_oss(config: Any) -> bool:
    """Return True if the experts are stored in MXFP4, as OpenAI publishes them."""
    quantisation = getattr(config, "quantization_config", None)
    return isinstance(quantisation, dict) and (config.model_type, quantisation.get("quant_method")) == (
        "gpt_oss",
        "mxfp4",
    )


def _ropes(config: Any) -> Iterator[dict[str, Any]]:
    rope = getattr(config, "rope_parameters", None) or {}
    yield rope
    yield from (own for own in rope.values() if isinstance(own, dict))


def _context_length(config: Any) -> int:
    """Return the longest context whose positions do not depend on the sequence's length."""
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int):
        raise NotServed("its config has no max_position_embeddings")
    originals = [
        int(rope["original_max_position_embeddings"]) for rope in _ropes(config) if rope.get("rope_type") == "longrope"
    ]
    return min([length, *originals])


def _check_class(transformers: Any, config: Any) -> None:
    """Raise NotServed when there is no class for the config, or one that lets nobody else compute its attention."""
    try:
        found = transformers.AutoModelForCausalLM._model_mapping[type(config)]
    except KeyError:
        raise NotServed(f"transformers has no causal language model of type {config.model_type!r}") from None
    if not getattr(found, "_supports_attention_backend", False):
        raise NotServed(f"{found.__name__} does not use transformers' attention interface")
    if getattr(found, "_is_stateful", False):
        raise NotServed(f"{found.__name__} has a recurrent state, which is not KV of every token")


def _probe_without_weights(model: Any) -> AttentionProbe | None:
    """Return the attention that the model on the meta device asks for; None when it needs numbers to go on."""
    probe = AttentionProbe()
    set_owner(model, probe)
    tokens = torch.zeros((1, 2), dtype=torch.int64, device="meta")
    try:
        with torch.no_grad(), torch.device("meta"):
            model.base_model(input_ids=tokens, position_ids=tokens, use_cache=False)
    except NotServed:
        raise
    except Exception as error:  # such as the routing of experts
        logger.debug("no shapes without weights: %s", error)
        return None
    return probe


def probed_shape(probe: AttentionProbe | None, num_layers: int) -> AttentionShape | None:
    """Return the shape that all layers have. Raises NotServed when they differ."""
    if probe is None:
        return None
    if len(probe.shapes) != num_layers:
        raise NotServed(f"{len(probe.shapes)} of its {num_layers} layers attend through the interface")
    first = probe.shapes[0]
    for place, shape in enumerate(probe.shapes):
        if shape._replace(window=first.window) != first:
            raise NotServed(f"layer {place} attends with other shapes than layer 0: {shape} and {first}")
    return first


def _written_sizes(config: Any) -> tuple[int, int, int]:
    """Return heads, key/value heads and head size as config.json gives them."""
    heads = config.num_attention_heads
    if getattr(config, "kv_lora_rank", None) is not None:  # latent attention, expanded for every head
        return heads, heads, config.qk_nope_head_dim + config.qk_rope_head_dim
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return heads, kv_heads, getattr(config, "head_dim", None) or config.hidden_size // heads


@dataclass(frozen=True)
class _Level:
    verbosity: int
    shows_bars: bool


@contextlib.contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Silence transformers' progress bars and advice: what goes wrong is raised."""
    log = transformers.utils.logging
    before = _Level(log.get_verbosity(), log.is_progress_bar_enabled())
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(before.verbosity)
        if before.shows_bars:
            log.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
