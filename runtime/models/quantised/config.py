"""The Quantisation that config.json's `quantization_config` describes, by the method that it names.

Settings that are not read here are refused by name and value.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import Any, Literal

from ..config_fields import ConfigFields
from .blockwise import FP8_BLOCK
from .compressed_config import parse_compressed_tensors
from .int4 import STORED_GROUP_SIZES
from .rounding import NVFP4_GROUP
from .scheme import InputKind, Quantisation, Scheme, WeightKind

_METHODS = ("compressed-tensors", "awq", "gptq", "auto-round", "fp8", "bitsandbytes", "torchao", "modelopt", "mxfp4")
_ROUTERS = ("gate", "router", "shared_expert_gate")
_LISTS = ("modules_to_not_convert", "ignored_layers", "ignore", "llm_int8_skip_modules", "exclude_modules")
_INTEGERS: dict[int, WeightKind] = {2: "int2", 4: "int4", 8: "int8"}
_DENSE_BITS = 16
# Settings of a GPTQ override that change how its modules are stored, and those that only their writer needs.
_OVERRIDES = ("bits", "group_size", "desc_act", "sym")
_WRITERS_ONLY = ("mse", "damp_percent", "damp_auto_increment", "static_groups", "act_group_aware", "true_sequential")


def parse_quantisation(fields: ConfigFields, renames: Sequence[tuple[str, str]] = ()) -> Quantisation | None:
    """Read the quantisation; None for a dense checkpoint. `renames` are those of the family's tensors.

    Raises CheckpointError, naming the field.
    """
    if not fields.raw:
        return None
    lists = {name: fields.modules(name) for name in _LISTS if name in fields.raw}
    renamed = {name: [_renamed(module, renames) for module in modules] for name, modules in lists.items()}
    fields = fields.updated(renamed)
    method = fields.one_of("quant_method", _METHODS, default=_METHODS[0])
    match method:
        case "awq":
            return _awq(fields)
        case "gptq":
            return _gptq(fields)
        case "auto-round":
            return _auto_round(fields)
        case "fp8":
            return _fp8(fields)
        case "bitsandbytes":
            return _bitsandbytes(fields)
        case "torchao":
            return _torchao(fields)
        case "modelopt":
            return _modelopt(fields)
        case "mxfp4":  # gpt-oss: its experts alone, whatever else the list of unconverted modules says
            return Quantisation(Scheme(kind="mxfp4", source="mxfp4"), (r"re:(?!.*\.experts\.)",))
        case _:
            return parse_compressed_tensors(fields)


def _awq(fields: ConfigFields) -> Quantisation:
    fields.one_of("version", ("gemm", "GEMM"), default="gemm")
    fields.boolean("zero_point", default=True)  # stored either way
    fields.exactly("bits", 4)
    # A name stands for every module whose name holds it (AutoAWQ, vLLM). Routers are dense anyway, and "gate" is in the
    # names of experts' matrices too.
    names = [name for name in fields.modules("modules_to_not_convert") if name.strip(".")]
    held = [name for name in names if name.strip(".").rpartition(".")[2] not in _ROUTERS]
    ends = [(name.rstrip("."), r"(?:\.|$)" if name.endswith(".") else "") for name in held]
    ignored = tuple(f"re:.*{re.escape(name)}{end}" for name, end in ends)
    return Quantisation(_integers(fields, "awq"), ignored)


def _gptq(fields: ConfigFields) -> Quantisation:
    dynamic = fields.nested("dynamic")
    overrides: list[tuple[str, Scheme | None]] = []
    for key, values in dynamic.raw.items():
        pattern = f"re:{key.removeprefix('-:').removeprefix('+:')}"
        fields.updated({"dynamic": [pattern]}).modules("dynamic")
        if key.startswith("-:") or values is False:
            overrides.append((pattern, None))
            continue
        own = dynamic.nested(key)
        for setting in own.raw:
            if setting not in (*_OVERRIDES, *_WRITERS_ONLY):
                raise own.unsupported(setting, "in an override it is")
        overrides.append((pattern, _integers(own.updated(fields.raw | own.raw), "gptq")))
    return Quantisation(_integers(fields, "gptq"), overrides=tuple(overrides))


def _auto_round(fields: ConfigFields) -> Quantisation:
    """AutoRound's own format: AWQ's or GPTQ's, without an index of groups, and overrides by module."""
    fields.one_of("data_type", ("int",), default="int")
    if (fields.raw.get("act_bits") or _DENSE_BITS) < _DENSE_BITS:
        raise fields.unsupported("act_bits", f"{fields.raw['act_bits']!r} is")
    packing = fields.one_of("packing_format", ("auto_round:auto_gptq", "auto_round:auto_awq"), default="")
    source: Literal["awq", "gptq"] = "awq" if packing.endswith("awq") else "gptq"
    overrides: list[tuple[str, Scheme | None]] = []
    extra = fields.nested("extra_config")
    for name in extra.raw:
        own = extra.nested(name)
        key = name if re.fullmatch(r"[\w.]+", name) else f"re:{name}"
        fields.updated({"extra_config": [key]}).modules("extra_config")
        dense = own.raw.get("bits", 0) == _DENSE_BITS
        overrides.append((key, None if dense else _integers(own.updated(fields.raw | own.raw), source, index=False)))
    return Quantisation(_integers(fields, source, index=False), overrides=tuple(overrides))


def _integers(fields: ConfigFields, source: Literal["awq", "gptq"], *, index: bool = True) -> Scheme:
    """Read bits and groups of a format of packed integers."""
    bits, size = fields.raw.get("bits"), fields.raw.get("group_size")
    if bits not in _INTEGERS:
        raise fields.unsupported("bits", f"supported: {', '.join(map(str, _INTEGERS))}; {bits!r} is")
    one_group = size in (-1, None)
    if not one_group and (type(size) is not int or size < 1):
        raise fields.invalid("group_size", "must be a number of inputs, or -1 for all")
    version = fields.one_of("checkpoint_format", ("gptq", "gptq_v2"), default="gptq") if source == "gptq" else ""
    return Scheme(
        kind=_INTEGERS[bits],
        source=source,
        group_size=None if one_group else size,
        act_order=source == "gptq" and not one_group and fields.boolean("desc_act", default=False),
        widened=bits != 4 or not (one_group or size in STORED_GROUP_SIZES),
        zeros_less_one=version != "gptq_v2",
        has_index=index and source == "gptq",
    )


def _fp8(fields: ConfigFields) -> Quantisation:
    static = fields.one_of("activation_scheme", ("dynamic", "static"), default="dynamic") == "static"
    fields.one_of("fmt", ("e4m3",), default="e4m3")
    names = fields.modules("modules_to_not_convert") + fields.modules("ignored_layers")
    # A name stands for the modules below it too, or is the end of one (transformers).
    ignored = tuple(f"part:{name}" for name in names if name)
    if fields.raw.get("weight_block_size") is None:
        scheme = Scheme(kind="fp8", source="compressed-tensors", activations=True, static=static, per_tensor=True)
        return Quantisation(scheme, ignored)
    fields.exactly("weight_block_size", [FP8_BLOCK, FP8_BLOCK])
    if static:
        raise fields.unsupported("activation_scheme", "'static' with scales by block is")
    return Quantisation(Scheme(kind="fp8", source="fp8", activations=True), ignored)


def _bitsandbytes(fields: ConfigFields) -> Quantisation:
    # A name of the list stands for the modules below it too, in any part of the model.
    names = fields.modules("llm_int8_skip_modules")
    skipped = tuple(f"re:(?:.*\\.)?{re.escape(name)}(?:\\.|$)" for name in names)
    if fields.boolean("load_in_8bit", default=False):
        return Quantisation(Scheme(kind="int8", source="bitsandbytes"), skipped)
    if not fields.boolean("load_in_4bit", default=False):
        raise fields.unsupported("load_in_4bit", "without it or load_in_8bit it is")
    fields.one_of("bnb_4bit_quant_storage", ("uint8",), default="uint8")
    kind: Literal["nf4", "fp4"] = "fp4"
    if fields.one_of("bnb_4bit_quant_type", ("nf4", "fp4"), default="fp4") == "nf4":
        kind = "nf4"
    nested = fields.boolean("bnb_4bit_use_double_quant", default=False)
    return Quantisation(Scheme(kind=kind, source="bitsandbytes", nested=nested), skipped)


_TORCHAO: dict[str, tuple[WeightKind, InputKind | None]] = {
    "Int8WeightOnlyConfig": ("int8", None),
    "Int8DynamicActivationInt8WeightConfig": ("int8", "int8"),
    "Float8WeightOnlyConfig": ("fp8", None),
    "Float8DynamicActivationFloat8WeightConfig": ("fp8", "fp8"),
}


def _torchao(fields: ConfigFields) -> Quantisation:
    """torchao's tensors with a scale per row; int8 ones have zero points, which are 0."""
    preset = fields.nested("quant_type").nested("default")
    kind, rounded = _TORCHAO[preset.one_of("_type", tuple(_TORCHAO), default="")]
    values = preset.nested("_data")
    granularity = values.nested("granularity")
    granularity.one_of("_type", ("PerRow",), default="PerRow" if kind == "int8" else "")
    weight_type = values.nested("weight_dtype")
    weight_type.one_of("_data", ("float8_e4m3fn",), default="float8_e4m3fn")
    scheme = Scheme(
        kind=kind,
        source="compressed-tensors",
        zero_points=kind == "int8",
        widened=kind == "int8",
        activations=rounded == kind == "fp8",
        rounded_inputs=rounded if kind == "int8" else None,
    )
    # A name stands for every module whose name has it as a part.
    ignored = tuple(f"part:{name}" for name in fields.modules("modules_to_not_convert") if name)
    return Quantisation(scheme, ignored)


_NVFP4 = {"kind": "nvfp4", "group_size": NVFP4_GROUP, "widened": True}
_MODELOPT: dict[str, dict[str, Any]] = {
    "FP8": {"kind": "fp8", "activations": True, "static": True, "per_tensor": True},
    "FP8_PER_CHANNEL_PER_TOKEN": {"kind": "fp8", "activations": True, "flat_scales": True},
    "NVFP4": _NVFP4 | {"static": True, "rounded_inputs": "nvfp4"},
    "W4A16_NVFP4": _NVFP4,
}


def _modelopt(fields: ConfigFields) -> Quantisation:
    """NVIDIA ModelOpt's tensors, FP8 with the names of compressed-tensors, NVFP4 with names of its own."""
    algorithm = fields.one_of("quant_algo", tuple(_MODELOPT), default="")
    source: Literal["modelopt", "compressed-tensors"] = "modelopt" if "NVFP4" in algorithm else "compressed-tensors"
    # Names may have wildcards.
    names = fields.modules("ignore") + fields.modules("exclude_modules")
    ignored = tuple(f"re:{fnmatch.translate(name)}" if "*" in name else name for name in names)
    return Quantisation(Scheme(source=source, **_MODELOPT[algorithm]), ignored)


def _renamed(module: str, renames: Sequence[tuple[str, str]]) -> str:
    if module.startswith("re:"):
        return module
    name = f"{module}."
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name)
    return name.removesuffix(".")
