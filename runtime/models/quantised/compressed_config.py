"""The Quantisation that compressed-tensors' config groups describe, as llm-compressor writes them."""

from __future__ import annotations

from dataclasses import replace

from ..config_fields import ConfigFields
from .blockwise import FP8_BLOCK
from .int4 import STORED_GROUP_SIZES
from .mxfp4 import MXFP4_GROUP
from .rounding import NVFP4_GROUP
from .scheme import InputKind, Quantisation, Scheme, WeightKind

_EVERY_LINEAR = "re:"
_FORMATS = {
    ("float", 8): ("float-quantized", "naive-quantized", "mxfp8-quantized"),
    ("int", 8): ("int-quantized", "naive-quantized", "pack-quantized"),
    ("int", 4): ("pack-quantized", "int-quantized", "naive-quantized"),
    ("int", 2): ("pack-quantized",),
    ("float", 4): ("mxfp4-pack-quantized", "nvfp4-pack-quantized"),
}


def parse_compressed_tensors(fields: ConfigFields) -> Quantisation | None:
    """Read the groups; None where only keys and values have scales. Raises CheckpointError, naming the field."""
    groups, kv_scales = fields.nested("config_groups"), fields.nested("kv_cache_scheme")
    for field in ("sparsity_config", "transform_config"):
        if fields.raw.get(field):
            raise fields.unsupported(field, "it is")
    _check_kv_cache(kv_scales)
    if not groups.raw:
        if kv_scales.raw:
            return None
        raise groups.unsupported("{}", "no group at all is")
    found: list[tuple[str, Scheme]] = []
    for name in groups.raw:
        group = groups.nested(name)
        scheme = _scheme(group, fields)
        found += [(target, scheme) for target in _targets(group)]
    # A name comes before a pattern, and a pattern before all linear layers.
    found.sort(key=lambda item: (item[0] == _EVERY_LINEAR, item[0].startswith("re:")))
    ignored = tuple(fields.modules("ignore"))
    if len(found) == 1 and found[0][0] == _EVERY_LINEAR:
        return Quantisation(found[0][1], ignored)
    rest: tuple[tuple[str, None], ...] = () if found[-1][0] == _EVERY_LINEAR else ((_EVERY_LINEAR, None),)
    return Quantisation(found[0][1], ignored, overrides=(*found, *rest))


def _targets(group: ConfigFields) -> list[str]:
    targets = group.modules("targets")
    for target in targets:
        if target != "Linear" and not target.startswith("re:") and "." not in target:
            raise group.unsupported("targets", f"supported: 'Linear', names and 're:' patterns; {target!r} is")
    if not targets:
        raise group.invalid("targets", "must list modules")
    return [_EVERY_LINEAR if target == "Linear" else target for target in targets]


def _scheme(group: ConfigFields, fields: ConfigFields) -> Scheme:
    weights, inputs = group.nested("weights"), group.nested("input_activations")
    if group.raw.get("output_activations"):
        raise group.unsupported("output_activations", "it is")
    kind = weights.one_of("type", ("int", "float"), default="int")
    bits = weights.count("num_bits", default=8)
    if (kind, bits) not in _FORMATS:
        raise weights.unsupported("num_bits", f"{bits} bits of {kind} are")
    own = group if group.raw.get("format") else fields
    format_ = own.one_of("format", _FORMATS[kind, bits], default=_FORMATS[kind, bits][0])
    rounded, static = _inputs(inputs)
    match kind, bits:
        case "float", 4:
            return _fp4_scheme(weights, format_, rounded, static=static)
        case "float", _:
            return _fp8_scheme(weights, inputs, format_, rounded, static=static)
    return _integer_scheme(weights, bits, format_, rounded, static=static)


def _inputs(inputs: ConfigFields) -> tuple[InputKind | None, bool]:
    """Return how inputs are rounded, and whether with one stored scale, not as they come."""
    if not inputs.raw:
        return None, False
    kind, bits = inputs.one_of("type", ("int", "float"), default="int"), inputs.count("num_bits", default=8)
    if not inputs.boolean("symmetric", default=True):
        raise inputs.unsupported("symmetric", "inputs with zero points are")
    dynamic = inputs.raw.get("dynamic") or False
    if (kind, bits) == ("float", 4):
        if inputs.one_of("strategy", ("group", "tensor_group"), default="tensor") == "tensor_group":
            inputs.exactly("group_size", NVFP4_GROUP)
            return "nvfp4", True
        inputs.exactly("group_size", MXFP4_GROUP)
        return "mxfp4", False
    if bits != 8:
        raise inputs.unsupported("num_bits", f"{bits} bits of {kind} are")
    if dynamic not in (True, False):
        raise inputs.unsupported("dynamic", f"supported: true and false; {dynamic!r} is")
    strategies = ("token", "group") if dynamic and kind == "float" else ("token",) if dynamic else ("tensor",)
    if inputs.one_of("strategy", strategies, default="tensor") == "group":
        return ("mxfp8" if inputs.raw.get("group_size") == MXFP4_GROUP else "fp8"), False
    return ("int8" if kind == "int" else "fp8"), not dynamic


def _fp4_scheme(weights: ConfigFields, format_: str, rounded: InputKind | None, *, static: bool) -> Scheme:
    if not weights.boolean("symmetric", default=True):
        raise weights.unsupported("symmetric", "four bits of float with zero points are")
    is_nv = format_.startswith("nvfp4")
    weights.one_of("strategy", ("tensor_group",) if is_nv else ("group",), default="group")
    size = NVFP4_GROUP if is_nv else MXFP4_GROUP
    weights.exactly("group_size", size)
    return Scheme(
        kind="nvfp4" if is_nv else "mxfp4",
        source="compressed-tensors",
        group_size=size,
        widened=is_nv,
        static=static,
        rounded_inputs=rounded,
    )


def _fp8_scheme(
    weights: ConfigFields, inputs: ConfigFields, format_: str, rounded: InputKind | None, *, static: bool
) -> Scheme:
    if not weights.boolean("symmetric", default=True):
        raise weights.unsupported("symmetric", "8 bits with zero points are")
    if format_ == "mxfp8-quantized":
        weights.one_of("strategy", ("group",), default="tensor")
        weights.exactly("group_size", MXFP4_GROUP)
        plain = Scheme(kind="fp8", source="compressed-tensors", group_size=MXFP4_GROUP, widened=True, exponents=True)
        return replace(plain, rounded_inputs=rounded)
    strategy = weights.one_of("strategy", ("channel", "tensor", "block", "group"), default="tensor")
    if strategy in ("channel", "tensor"):
        return _by_row("fp8", rounded, static=static, per_tensor=strategy == "tensor")
    if strategy == "block":
        weights.exactly("block_structure", [FP8_BLOCK, FP8_BLOCK])
        if static:
            raise inputs.unsupported("dynamic", "stored scales of inputs with weights by block are")
        return Scheme(kind="fp8", source="fp8", activations=rounded is not None, scale_name="weight_scale")
    size = weights.count("group_size")
    return Scheme(
        kind="fp8", source="compressed-tensors", group_size=size, widened=True, static=static, rounded_inputs=rounded
    )


def _by_row(kind: WeightKind, rounded: InputKind | None, *, static: bool, per_tensor: bool) -> Scheme:
    """Return the scheme of 8 bits with a scale per row or tensor, and inputs of the same kind or as they come."""
    same = rounded == kind
    return Scheme(
        kind=kind,
        source="compressed-tensors",
        activations=same,
        static=static,
        per_tensor=per_tensor,
        widened=static and not same,
        rounded_inputs=None if same else rounded,
    )


def _integer_scheme(
    weights: ConfigFields, bits: int, format_: str, rounded: InputKind | None, *, static: bool
) -> Scheme:
    # "weight" and "static" rounded columns in another order, and grouped neighbours all the same.
    act_order = weights.raw.get("actorder") or None
    if act_order not in (None, True, "group", "dynamic", "weight", "static"):
        raise weights.unsupported("actorder", f"{act_order!r} is")
    symmetric = weights.boolean("symmetric", default=True)
    strategy = weights.one_of("strategy", ("group", "channel", "tensor"), default="group" if bits < 8 else "tensor")
    size = weights.count("group_size") if strategy == "group" else None
    is_packed = format_ == "pack-quantized"
    if bits == 8 and not is_packed and symmetric and strategy != "group":
        return _by_row("int8", rounded, static=static, per_tensor=strategy == "tensor")
    kinds: dict[int, WeightKind] = {2: "int2", 4: "int4"}
    computed = bits == 4 and is_packed and strategy != "tensor" and (size is None or size in STORED_GROUP_SIZES)
    return Scheme(
        kind=kinds.get(bits, "int8") if is_packed else "int8",
        source="compressed-tensors",
        group_size=size,
        zero_points=not symmetric,
        act_order=act_order in (True, "group", "dynamic"),
        per_tensor=strategy == "tensor",
        widened=not computed or static,
        packed=is_packed,
        static=static,
        rounded_inputs=rounded,
    )


def _check_kv_cache(scheme: ConfigFields) -> None:
    """Check the announced FP8 KV scales. The setting `kv_dtype` decides if KV is quantised."""
    if scheme.raw:
        scheme.one_of("type", ("float",), default="int")
        scheme.exactly("num_bits", 8)
        if not scheme.boolean("symmetric", default=True):
            raise scheme.unsupported("symmetric", "keys and values with zero points are")
