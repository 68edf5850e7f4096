"""adapter_config.json of a LoRA adapter in PEFT's format: what it changes, by how much, and what is not computed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from ....constrained.budget import PATTERN_STEPS, CompileBudget
from ....constrained.errors import GrammarError
from ....constrained.regex.char_dfa import CharDfa
from ....constrained.regex.subset import char_dfa
from ....constrained.regex.syntax.parser import parse_regex
from ..config_fields import ConfigFields, read_json_object
from ..errors import CheckpointError

T = TypeVar("T")
CONFIG_FILE = "adapter_config.json"
_MAX_CONFIG_BYTES = 1 << 20
_MAX_STATES = 4000  # of a pattern's automaton
_MAX_NAMES, _MAX_PATTERNS = 4096, 64  # of modules in a field; patterns are those that have an automaton
# Patterns whose only special characters are dots, as of single modules: PEFT writes one for each.
_IS_NAME = re.compile(r"[A-Za-z0-9_.]*")
_ALL_LINEAR = "all-linear"

# Fields that say how the adapter was trained, or what it was trained for.
_INFORMATION = frozenset(
    "arrow_config auto_mapping base_model_name_or_path corda_config eva_config exclude_modules fan_in_fan_out "
    "inference_mode layers_pattern layers_to_transform loftq_config lora_dropout lora_ga_config megatron_config "
    "megatron_core peft_version qalora_group_size revision runtime_config target_modules task_type".split()
)
_READ = frozenset("alpha_pattern init_lora_weights lora_alpha peft_type r rank_pattern use_rslora bias".split())
_REASONS = {
    "use_dora": "DoRA scales the merged weights, which are not made here",
    "modules_to_save": "whole modules of an adapter are not exchanged: merge it into a checkpoint",
    "lora_bias": "adapters have no biases",
    "trainable_token_indices": "embeddings are the base's",
    "target_parameters": "adapters of experts are not computed",
    "layer_replication": "layers are the base's",
    "use_qalora": "QA-LoRA pools the inputs",
    "alora_invocation_tokens": "an adapter is active from a request's first token on",
}
# Initialisations that change the base's weights: the adapter belongs to a base that is not here.
_CHANGES_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")


@dataclass(frozen=True)
class PeftConfig:
    """Configuration of a LoRA adapter in PEFT's format, checked."""

    file: Path
    rank: int
    alpha: float
    ranks: dict[str, int]  # by pattern of modules
    alphas: dict[str, float]
    is_rank_stabilised: bool
    targets: str | tuple[str, ...] | None
    excluded: str | tuple[str, ...]
    layers: frozenset[int] | None  # None: all

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's adapter."""
        return _of_module(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor of a module's adapter."""
        alpha = _of_module(self.alphas, module, self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilised else rank)

    def adapts(self, module: str, layer: int) -> bool | None:
        """Return True if the adapter has a part for the module of a layer; None: the configuration does not say."""
        if self.targets is None:
            return None
        if _selects(self.excluded, module) or (self.layers is not None and layer not in self.layers):
            return False
        return self.targets == _ALL_LINEAR or _selects(self.targets, module)


def read_peft_config(path: Path) -> PeftConfig:
    """Read the configuration of the adapter in directory `path`.

    Raises CheckpointError, naming the field, when it is malformed or asks for something that is not computed.
    """
    file = path / CONFIG_FILE
    if not file.is_file():
        raise CheckpointError(path, f"holds no {CONFIG_FILE}: an adapter is a folder in PEFT's format")
    if file.stat().st_size > _MAX_CONFIG_BYTES:
        raise CheckpointError(file, f"is larger than {_MAX_CONFIG_BYTES} bytes")
    fields = ConfigFields(read_json_object(file), file)
    raw = fields.raw
    if raw.get("peft_type") != "LORA":
        raise fields.invalid("peft_type", "must be LORA")
    if raw.get("bias", "none") != "none":
        raise fields.invalid("bias", "must be none: biases are the base's")
    init = raw.get("init_lora_weights")
    if isinstance(init, str) and init.lower().startswith(_CHANGES_BASE):
        raise fields.invalid("init_lora_weights", "changes the base's weights: convert the adapter when it is saved")
    for name, value in raw.items():
        if name not in _INFORMATION | _READ and not _is_neutral(value):
            raise fields.invalid(name, _REASONS.get(name, "is unknown here, and may change the answers"))
    return PeftConfig(
        file=file,
        rank=fields.count("r", most=1 << 16),
        alpha=_number(fields, "lora_alpha", raw.get("lora_alpha", 8)),
        ranks={
            key: fields.nested("rank_pattern").count(key, most=1 << 16) for key in _patterns(fields, "rank_pattern")
        },
        alphas={
            key: _number(fields, "alpha_pattern", raw["alpha_pattern"][key])
            for key in _patterns(fields, "alpha_pattern")
        },
        is_rank_stabilised=raw.get("use_rslora") is True,
        targets=_modules(fields, "target_modules"),
        excluded=_modules(fields, "exclude_modules") or (),
        layers=_layers(fields),
    )


def _number(fields: ConfigFields, field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise fields.invalid(field, "must hold finite numbers")
    return float(value)


def _patterns(fields: ConfigFields, field: str) -> list[str]:
    patterns = list(fields.nested(field).raw)
    special = [pattern for pattern in patterns if _IS_NAME.fullmatch(pattern) is None]
    if len(patterns) > _MAX_NAMES or len(special) > _MAX_PATTERNS:
        raise fields.invalid(field, f"must have at most {_MAX_NAMES} names of modules and {_MAX_PATTERNS} patterns")
    for pattern in special:
        _compile(fields, field, pattern)
    return patterns


def _modules(fields: ConfigFields, field: str) -> str | tuple[str, ...] | None:
    value = fields.raw.get(field)
    if value is None:
        return None
    if isinstance(value, str):
        if value != _ALL_LINEAR:
            _compile(fields, field, value)
        return value
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise fields.invalid(field, "must be a pattern or a list of modules")
    if len(value) > _MAX_NAMES:
        raise fields.invalid(field, f"must have at most {_MAX_NAMES} modules")
    return tuple(value)


def _layers(fields: ConfigFields) -> frozenset[int] | None:
    value = fields.raw.get("layers_to_transform")
    if value is None:
        return None
    layers = [value] if isinstance(value, int) else value
    if not isinstance(layers, list) or not all(isinstance(layer, int) for layer in layers):
        raise fields.invalid("layers_to_transform", "must be a layer or a list of layers")
    return frozenset(layers)


def _compile(fields: ConfigFields, field: str, pattern: str) -> None:
    try:
        _automaton(pattern)
    except GrammarError as error:
        raise fields.invalid(field, f"holds a pattern that cannot be read: {error}") from None


@lru_cache(maxsize=4 * _MAX_PATTERNS)
def _automaton(pattern: str) -> CharDfa:
    """Compile a pattern to an automaton, which takes linear time for any pattern. Raises GrammarError."""
    return char_dfa(parse_regex(pattern), CompileBudget(_MAX_STATES, PATTERN_STEPS))


def _of_module(values: Mapping[str, T], module: str, default: T) -> T:
    """Return the value of the first pattern that matches the module's name, or its end after a dot."""
    parts = module.split(".")
    ends = {len(end): end for end in (".".join(parts[start:]) for start in range(len(parts)))}
    return next((value for pattern, value in values.items() if _matches(pattern, ends)), default)


def _matches(pattern: str, ends: dict[int, str]) -> bool:
    """Return True if a pattern matches one of the texts, which are given by their lengths."""
    if _IS_NAME.fullmatch(pattern) is None:
        return any(map(_automaton(pattern).accepts, ends.values()))
    end = ends.get(len(pattern))
    return end is not None and all(part in (".", other) for part, other in zip(pattern, end, strict=True))


def _selects(modules: str | tuple[str, ...], module: str) -> bool:
    if isinstance(modules, str):
        return _automaton(modules).accepts(module)
    return any(module == name or module.endswith(f".{name}") for name in modules)


def _is_neutral(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_neutral(each) for each in value.values())
    return not value
