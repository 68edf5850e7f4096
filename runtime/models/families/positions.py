"""Windows and ropes of each layer, by the rules of the family's row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from ....kernels import Chunk
from ..config_fields import ConfigFields
from ..rope.config import NO_ROPE, RopeConfig, parse_rope
from .row import Family


class Positions(NamedTuple):
    """Windows and ropes of a model's layers, as `ModelConfig` has them."""

    windows: tuple[int | None, ...]
    rope: RopeConfig
    second_rope: RopeConfig | None
    second_rope_layers: tuple[bool, ...]
    context_length: int


def parse_positions(fields: ConfigFields, family: Family, num_layers: int, head_dim: int, rope_dim: int) -> Positions:
    """Read the fields of windows and ropes; `rope_dim` of a head's dimensions rotate by the main one.

    Raises CheckpointError, naming the field.
    """
    max_positions = fields.count("max_position_embeddings")
    windows = _windows(fields, family, num_layers)
    rope = _main_rope(fields, family, max_positions, rope_dim)
    second_rope, second_rope_layers = _second_rope(fields, family, max_positions, head_dim, windows)
    if rope.depends_on_length and second_rope is not None:
        raise fields.unsupported("rope_scaling", f"{rope.type} in some layers only is")
    return Positions(windows, rope, second_rope, second_rope_layers, rope.context_length(max_positions))


def _main_rope(fields: ConfigFields, family: Family, max_positions: int, head_dim: int) -> RopeConfig:
    if family.rope_switch_field is not None and fields.raw.get(family.rope_switch_field) != "rope":
        return replace(NO_ROPE, original_context=max_positions)
    if family.learned_positions is not None:
        return RopeConfig(type="none", theta=1.0, original_context=max_positions)
    layers = "full_attention" if family.second_rope == "own in window layers" else None
    return parse_rope(
        fields,
        max_positions,
        head_dim,
        layers=layers,
        share_field=family.rotary_field,
        axes_by_turns=family.axes_by_turns,
    )


def _second_rope(
    fields: ConfigFields, family: Family, max_positions: int, head_dim: int, windows: tuple[int | None, ...]
) -> tuple[RopeConfig | None, tuple[bool, ...]]:
    """Return the rope of layers that differ from the others, and which they are."""
    match family.second_rope:
        case "own in window layers" if any(windows):
            own = fields.raw | {
                "rope_scaling": None,  # of the other layers
                "rope_parameters": fields.nested("rope_parameters").raw.get("sliding_attention"),
                "rope_theta": fields.raw.get("rope_local_base_freq") or fields.raw.get("rope_theta"),
            }
            rope = parse_rope(ConfigFields(own, fields.file), max_positions, head_dim)
            return rope, tuple(window is not None for window in windows)
        case "none in full layers" if any(windows):
            return NO_ROPE, tuple(window is None for window in windows)
        case "none where listed":
            return NO_ROPE, _layers_without_rope(fields, len(windows))
    return None, ()


def _windows(fields: ConfigFields, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """Return each layer's sliding window by the family's rule.

    Mistral and Mixtral use `sliding_window` in every layer; Qwen3-MoE only with `use_sliding_window`. Qwen2 and Qwen3,
    with `use_sliding_window`, use it in the layers that `layer_types` names, or else from `max_window_layers` on.
    The rule "by layer type" follows `layer_types`, or in older files `sliding_window_pattern`, whose every n-th
    layer has no window.
    """
    if family.windows == "chunks":
        return _chunks(fields, num_layers)
    used = fields.boolean("use_sliding_window", default=False)
    if family.windows == "none":
        if used:
            raise fields.unsupported("use_sliding_window", f"for {fields.raw['architectures'][0]} true is")
        return (None,) * num_layers
    if fields.raw.get("sliding_window") is None:
        return (None,) * num_layers
    if not used and family.windows not in ("every layer", "by layer type"):
        return (None,) * num_layers
    window = fields.count("sliding_window")
    if family.windows not in ("by layer", "by layer type"):
        return (window,) * num_layers
    types = fields.raw.get("layer_types")
    if types is None and family.windows == "by layer":
        first = fields.count("max_window_layers", default=28, least=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if types is None:
        pattern = fields.count("sliding_window_pattern")
        return tuple(window if (layer + 1) % pattern else None for layer in range(num_layers))
    return _by_layer_type(fields, types, {"sliding_attention": window, "full_attention": None}, num_layers)


def _chunks(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    """Return the chunks of layers with positions, or of those that `layer_types` names."""
    if fields.raw.get("attention_chunk_size") is None:
        return (None,) * num_layers
    chunk, types = Chunk(fields.count("attention_chunk_size")), fields.raw.get("layer_types")
    if types is None:
        return tuple(None if without else chunk for without in _layers_without_rope(fields, num_layers))
    return _by_layer_type(fields, types, {"chunked_attention": chunk, "full_attention": None}, num_layers)


def _by_layer_type(
    fields: ConfigFields, types: Any, kinds: dict[str, int | None], num_layers: int
) -> tuple[int | None, ...]:
    if not isinstance(types, list) or len(types) != num_layers or not all(kind in kinds for kind in types):
        raise fields.invalid("layer_types", f"must name one of {', '.join(kinds)} for each of {num_layers} layers")
    return tuple(kinds[kind] for kind in types)


def _layers_without_rope(fields: ConfigFields, num_layers: int) -> tuple[bool, ...]:
    listed = fields.raw.get("no_rope_layers") or None
    interval = fields.count("no_rope_layer_interval", default=4)
    if listed is None:
        return tuple((layer + 1) % interval == 0 for layer in range(num_layers))
    if not isinstance(listed, list) or len(listed) != num_layers or not all(used in (0, 1) for used in listed):
        raise fields.invalid("no_rope_layers", f"must give 0 or 1 for each of {num_layers} layers")
    return tuple(not used for used in listed)
