"""Configuration of a draft head from its `config.json`, checked against its target.

EAGLE-1 and EAGLE-2 (Li et al. 2024, arXiv 2401.15077 and 2406.16858) share one head, here of kind "eagle"; EAGLE-3 (Li
et al. 2025, arXiv 2503.01840) is "eagle3".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...models.config import ModelConfig
from ...models.config_fields import ConfigFields, read_json_object
from ...models.rope.config import RopeConfig, parse_rope

HeadKind = Literal["eagle", "eagle3"]

# Class names in published config.json files, also used in saved ones.
ARCHITECTURES: dict[HeadKind, str] = {"eagle": "LlamaForCausalLMEagle", "eagle3": "LlamaForCausalLMEagle3"}


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Configuration of a draft head."""

    kind: HeadKind
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeConfig
    vocab_size: int  # the target's
    draft_vocab_size: int  # of the head's logits; may be restricted to the likeliest tokens
    captures: tuple[int, ...]  # target layers whose input is read; num_layers: the final norm's output
    norm_before_residual: bool = False  # the residual stream begins with the feature after its norm
    target_probe: tuple[float, ...] = ()  # a few of the target's weights, see `target_probe`; (): unknown

    @property
    def captured_size(self) -> int:
        """Width of the captured features of one target token."""
        return self.target_hidden_size * len(self.captures)


def default_layers(target: ModelConfig) -> tuple[int, ...]:
    """EAGLE-3's three layers: an early, a middle and a late one; of a very shallow target what it has."""
    last = target.num_layers - 1
    return (min(2, last), target.num_layers // 2, max(0, target.num_layers - 3))


def read_head_config(path: Path, kind: HeadKind, target: ModelConfig) -> HeadConfig:
    """Read the configuration of the head of `kind` in directory `path`, which is to draft for `target`.

    Raises CheckpointError, naming the field, when it is missing, is not supported, or the head was made for another
    target.
    """
    file = path / "config.json"
    raw = _as_published(read_json_object(file), file)
    config = parse_head_config(raw, file, kind, target)
    _check_fit(config, target, ConfigFields(raw, file))
    return config


def _as_published(raw: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the config with the fields of the library `speculators`, which nests the layer's, as other heads have
    them. Raises CheckpointError for what is not computed here."""
    if raw.get("transformer_layer_config") is None:
        return raw
    fields = ConfigFields(raw, file)
    fields.one_of("speculators_model_type", ("eagle3",), default="eagle3")
    fields.nested("transformer_layer_config").one_of("model_type", ("llama",), default="llama")
    for name in ("norm_before_fc", "fc_norm", "norm_output"):
        if fields.boolean(name, default=False):
            raise fields.unsupported(name, "it is")
    # Its layers are those whose input is read; others are named by their output.
    ids = raw.get("eagle_aux_hidden_state_layer_ids")
    if isinstance(ids, list) and all(type(i) is int for i in ids):
        ids = [i - 1 for i in ids]
    own = ("draft_vocab_size", "norm_before_residual", "target_hidden_size")
    nested = {**raw["transformer_layer_config"], **{name: raw[name] for name in own if raw.get(name) is not None}}
    return {**nested, "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}


def parse_head_config(raw: dict[str, Any], file: Path, kind: HeadKind, target: ModelConfig) -> HeadConfig:
    fields = ConfigFields(raw, file)
    fields.one_of("hidden_act", ("silu", "swish"), default="silu")
    if fields.count("num_hidden_layers", default=1) != 1:
        raise fields.unsupported("num_hidden_layers", "heads of one layer are; others are")
    hidden_size = fields.count("hidden_size")
    num_heads = fields.count("num_attention_heads")
    num_kv_heads = fields.count("num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        raise fields.invalid("num_key_value_heads", f"does not divide num_attention_heads {num_heads}")
    head_dim = fields.count("head_dim", default=max(1, hidden_size // num_heads))
    if head_dim % 2:
        raise fields.invalid("head_dim", f"must be even, is {head_dim}")
    rope = parse_rope(fields, fields.count("max_position_embeddings", default=2048), head_dim)
    if rope.depends_on_length:
        raise fields.unsupported("rope_scaling", f"{rope.type} scaling in a draft head is")
    vocab_size = fields.count("vocab_size")
    return HeadConfig(
        kind=kind,
        hidden_size=hidden_size,
        target_hidden_size=fields.count("target_hidden_size", default=target.hidden_size),
        intermediate_size=fields.count("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=fields.number("rms_norm_eps", default=1e-6),
        rope=rope,
        vocab_size=vocab_size,
        draft_vocab_size=fields.count("draft_vocab_size", default=vocab_size),
        captures=_captures(fields, kind, target),
        norm_before_residual=fields.boolean("norm_before_residual", default=False),
        target_probe=_probe(fields),
    )


def _captures(fields: ConfigFields, kind: HeadKind, target: ModelConfig) -> tuple[int, ...]:
    """Return the captured layers. `eagle_config.eagle_aux_hidden_state_layer_ids` names layers by their *output*."""
    if kind == "eagle":
        return (target.num_layers,)
    eagle = fields.nested("eagle_config")
    ids = eagle.raw.get("eagle_aux_hidden_state_layer_ids")
    if ids is None:
        return default_layers(target)
    whole = isinstance(ids, list) and len(ids) == 3 and all(type(i) is int for i in ids)
    if not whole or not all(-1 <= i < target.num_layers - 1 for i in ids):
        raise eagle.invalid(
            "eagle_aux_hidden_state_layer_ids", f"must be three layers of the target's {target.num_layers} but its last"
        )
    return tuple(i + 1 for i in ids)


def _probe(fields: ConfigFields) -> tuple[float, ...]:
    values = fields.raw.get("target_probe")
    if values is None:
        return ()
    if not isinstance(values, list) or not all(isinstance(value, int | float) for value in values):
        raise fields.invalid("target_probe", "must be a list of numbers")
    return tuple(float(value) for value in values)


def _check_fit(config: HeadConfig, target: ModelConfig, fields: ConfigFields) -> None:
    if config.vocab_size != target.vocab_size:
        raise fields.invalid("vocab_size", f"is not the target's {target.vocab_size}: the head is for another model")
    if config.kind == "eagle" and config.hidden_size != target.hidden_size:
        raise fields.invalid("hidden_size", f"is not the target's {target.hidden_size}: the head is for another model")
    if config.target_hidden_size != target.hidden_size:
        raise fields.invalid(
            "target_hidden_size", f"is not the target's {target.hidden_size}: the head is for another model"
        )
    if config.draft_vocab_size > config.vocab_size:
        raise fields.invalid("draft_vocab_size", f"is more than vocab_size {config.vocab_size}")


def config_json(config: HeadConfig, target: ModelConfig) -> dict[str, Any]:
    """Return the inverse of `read_head_config`, with the field names of published heads."""
    assert config.rope.type == "default", "heads of ours have plain rotary embeddings"
    raw: dict[str, Any] = {
        "architectures": [ARCHITECTURES[config.kind]],
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": 1,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.theta,
        "max_position_embeddings": target.context_length,
        "vocab_size": config.vocab_size,
        "bias": False,
        "tie_word_embeddings": False,
        "target_probe": list(config.target_probe),
    }
    if config.kind == "eagle3":
        ids = [layer - 1 for layer in config.captures]
        raw |= {
            "draft_vocab_size": config.draft_vocab_size,
            "target_hidden_size": config.target_hidden_size,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids},
        }
    return raw
