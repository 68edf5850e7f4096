"""The Quantisation that config.json's `quantization_config` describes.

Formats: compressed-tensors (`float-quantized`, `int-quantized`, `naive-quantized`, `pack-quantized` and
`mxfp4-pack-quantized`), AWQ's `gemm`, GPTQ's first version, bitsandbytes, and transformers' `fp8` by blocks of 128 x
128. Settings that are not computed here are refused by name and value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from ..config_fields import ConfigFields
from .blockwise import FP8_BLOCK
from .mxfp4 import MXFP4_GROUP
from .rounding import GROUP_SIZES
from .scheme import Quantisation, Scheme

_GROUP_SIZES = (256, *GROUP_SIZES)
_METHODS = ("compressed-tensors", "awq", "gptq", "fp8", "bitsandbytes", "mxfp4")
_ROUTERS = ("gate", "router", "shared_expert_gate")
_LISTS = ("modules_to_not_convert", "ignored_layers", "ignore", "llm_int8_skip_modules")
_LAYERS_ONLY = ("lm_head",)  # every writer lists it; here the head is never quantised


def parse_quantisation(fields: ConfigFields, renames: Sequence[tuple[str, str]] = ()) -> Quantisation | None:
    """Read the quantisation; None for a dense checkpoint. `renames` are those of the family's tensors.

    Raises CheckpointError, naming the field.
    """
    if not fields.raw:
        return None
    lists = {name: _modules(fields, name) for name in _LISTS if name in fields.raw}
    renamed = {name: [_renamed(module, renames) for module in modules] for name, modules in lists.items()}
    fields = fields.updated(renamed)
    method = fields.one_of("quant_method", _METHODS, default=_METHODS[0])
    match method:
        case "awq":
            return _awq(fields)
        case "gptq":
            return _gptq(fields)
        case "fp8":
            return _fp8(fields)
        case "bitsandbytes":
            return _bitsandbytes(fields)
        case "mxfp4":  # gpt-oss: its experts alone, whatever else the list of unconverted modules says
            return Quantisation(Scheme(kind="mxfp4", source="mxfp4"), (r"re:(?!.*\.experts\.)",))
        case _:
            return _compressed_tensors(fields)


def _awq(fields: ConfigFields) -> Quantisation:
    fields.one_of("version", ("gemm", "GEMM"), default="gemm")
    if not fields.boolean("zero_point", default=True):
        raise fields.unsupported("zero_point", "without one is")
    scheme = Scheme(kind="int4", source="awq", group_size=_four_bits(fields, "bits", "group_size"))
    # A name stands for every module whose name holds it (AutoAWQ, vLLM). Routers are dense anyway, and "gate" is in the
    # names of experts' matrices too.
    names = [name for name in _modules(fields, "modules_to_not_convert") if name.strip(".")]
    held = [name for name in names if name.strip(".").rpartition(".")[2] not in _ROUTERS]
    ends = [(name.rstrip("."), r"(?:\.|$)" if name.endswith(".") else "") for name in held]
    return Quantisation(scheme, tuple(f"re:.*{re.escape(name)}{end}" for name, end in ends))


def _gptq(fields: ConfigFields) -> Quantisation:
    fields.one_of("checkpoint_format", ("gptq",), default="gptq")
    return Quantisation(
        Scheme(
            kind="int4",
            source="gptq",
            group_size=_four_bits(fields, "bits", "group_size"),
            act_order=fields.boolean("desc_act", default=False),
        ),
    )


def _fp8(fields: ConfigFields) -> Quantisation:
    static = fields.one_of("activation_scheme", ("dynamic", "static"), default="dynamic") == "static"
    fields.one_of("fmt", ("e4m3",), default="e4m3")
    names = _modules(fields, "modules_to_not_convert") + _modules(fields, "ignored_layers")
    # A name stands for the modules below it too, or is the end of one (transformers).
    ignored = tuple(f"part:{name}" for name in names if name and name not in _LAYERS_ONLY)
    if fields.raw.get("weight_block_size") is None:
        scheme = Scheme(kind="fp8", source="compressed-tensors", activations=True, static=static, per_tensor=True)
        return Quantisation(scheme, ignored)
    _equal(fields, "weight_block_size", [FP8_BLOCK, FP8_BLOCK])
    if static:
        raise fields.unsupported("activation_scheme", "'static' with scales by block is")
    return Quantisation(Scheme(kind="fp8", source="fp8", activations=True), ignored)


def _bitsandbytes(fields: ConfigFields) -> Quantisation:
    # A name of the list stands for the modules below it too, in any part of the model.
    names = _modules(fields, "llm_int8_skip_modules")
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


def _four_bits(fields: ConfigFields, bits: str, group_size: str) -> int:
    _equal(fields, bits, 4)
    size = fields.raw.get(group_size)
    if size not in _GROUP_SIZES:
        raise fields.unsupported(group_size, f"supported: {', '.join(map(str, _GROUP_SIZES))}; {size!r} is")
    return int(size)


def _compressed_tensors(fields: ConfigFields) -> Quantisation:
    groups = fields.nested("config_groups")
    if len(groups.raw) != 1:
        raise groups.unsupported(", ".join(groups.raw) or "{}", "other than one group is")
    group = groups.nested(next(iter(groups.raw)))
    if group.raw.get("targets") != ["Linear"]:
        raise group.unsupported("targets", f"supported: ['Linear']; {group.raw.get('targets')!r} is")
    for field in ("sparsity_config", "transform_config"):
        if fields.raw.get(field):
            raise fields.unsupported(field, "it is")
    _kv_cache(fields.nested("kv_cache_scheme"))
    weights, inputs = group.nested("weights"), group.nested("input_activations")
    if group.raw.get("output_activations"):
        raise group.unsupported("output_activations", "it is")
    kind = weights.one_of("type", ("int", "float"), default="int")
    bits = weights.count("num_bits", default=8)
    formats = {
        ("float", 8): ("float-quantized", "naive-quantized"),
        ("int", 8): ("int-quantized", "naive-quantized"),
        ("int", 4): ("pack-quantized",),
        ("float", 4): ("mxfp4-pack-quantized",),
    }
    if (kind, bits) not in formats:
        raise weights.unsupported("num_bits", f"{bits} bits of {kind} are")
    fields.one_of("format", formats[kind, bits], default=formats[kind, bits][0])
    activations, static = _activations(inputs, kind)
    ignored = tuple(name for name in _modules(fields, "ignore") if name not in _LAYERS_ONLY)
    symmetric = weights.boolean("symmetric", default=True)
    if bits == 4:
        if activations:
            raise group.unsupported("input_activations", "with 4-bit weights they are")
        return Quantisation((_mxfp4_scheme if kind == "float" else _int4_scheme)(weights, symmetric=symmetric), ignored)
    if not symmetric:
        raise weights.unsupported("symmetric", "8 bits with zero points are")
    strategy = weights.one_of("strategy", ("channel", "tensor"), default="tensor")
    return Quantisation(
        Scheme(
            kind="fp8" if kind == "float" else "int8",
            source="compressed-tensors",
            activations=activations,
            static=static,
            per_tensor=strategy == "tensor",
        ),
        ignored,
    )


def _mxfp4_scheme(weights: ConfigFields, *, symmetric: bool) -> Scheme:
    weights.one_of("strategy", ("group",), default="group")
    _equal(weights, "group_size", MXFP4_GROUP)
    if not symmetric:
        raise weights.unsupported("symmetric", "MXFP4 with zero points is")
    return Scheme(kind="mxfp4", source="compressed-tensors", group_size=MXFP4_GROUP)


def _int4_scheme(weights: ConfigFields, *, symmetric: bool) -> Scheme:
    # "weight" and "static" rounded columns in another order, and grouped neighbours all the same.
    act_order = weights.raw.get("actorder") or None
    if act_order not in (None, True, "group", "dynamic", "weight", "static"):
        raise weights.unsupported("actorder", f"{act_order!r} is")
    weights.one_of("strategy", ("group",), default="group")
    return Scheme(
        kind="int4",
        source="compressed-tensors",
        group_size=_four_bits(weights, "num_bits", "group_size"),
        zero_points=not symmetric,
        act_order=act_order in (True, "group", "dynamic"),
    )


def _kv_cache(scheme: ConfigFields) -> None:
    """Check the announced FP8 KV scales. The setting `kv_dtype` decides if KV is quantised."""
    if scheme.raw:
        scheme.one_of("type", ("float",), default="int")
        _equal(scheme, "num_bits", 8)
        if not scheme.boolean("symmetric", default=True):
            raise scheme.unsupported("symmetric", "keys and values with zero points are")


def _activations(inputs: ConfigFields, kind: str) -> tuple[bool, bool]:
    """Return whether inputs are quantised, and with one stored scale, not by token as they come."""
    if not inputs.raw:
        return False, False
    inputs.one_of("type", (kind,), default="int")
    _equal(inputs, "num_bits", 8)
    dynamic = inputs.raw.get("dynamic") or False
    if dynamic not in (True, False):
        raise inputs.unsupported("dynamic", f"supported: true and false; {dynamic!r} is")
    inputs.one_of("strategy", ("token",) if dynamic else ("tensor",), default="tensor")
    if not inputs.boolean("symmetric", default=True):
        raise inputs.unsupported("symmetric", "inputs with zero points are")
    return True, not dynamic


def _modules(fields: ConfigFields, field: str) -> list[str]:
    """Return a list of modules that stay dense; "re:" begins a pattern."""
    names = fields.raw.get(field) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise fields.invalid(field, "must list names of modules")
    for name in names:
        try:
            re.compile(name.removeprefix("re:") if name.startswith("re:") else "")
        except re.error as error:
            raise fields.invalid(field, f"must list names and patterns, not {name!r} ({error})") from None
    return names


def _renamed(module: str, renames: Sequence[tuple[str, str]]) -> str:
    if module.startswith("re:"):
        return module
    name = f"{module}."
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name)
    return name.removesuffix(".")


def _equal(fields: ConfigFields, field: str, wanted: Any) -> None:
    if fields.raw.get(field) != wanted:
        raise fields.unsupported(field, f"supported: {wanted!r}; {fields.raw.get(field)!r} is")
