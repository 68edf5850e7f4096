"""Allocation of a layer with a recurrent state, alone or beside attention."""

from __future__ import annotations

from dataclasses import replace

from ..linear import JoinedLinear, Linear
from ..recurrent.config import RecurrentConfig
from ..recurrent.layer import projection_modules
from ..recurrent.parallel import joined_projections, scaled_mlp
from ..recurrent.selective import allocate_recurrent
from .linears import Allocator
from .mlp import allocate_mlp
from .values import BlockNorms, LayerParameters


def recurrent_layer(make: Allocator, index: int, norms: BlockNorms) -> LayerParameters:
    """Allocate layer `index`, which has a recurrent state in place of attention."""
    config, own = make.config, make.config.recurrent
    assert own is not None
    return LayerParameters(
        norms=norms,
        qkv=_input_projection(make, index, own),
        qk_norm_HD=None,
        o=_output_projection(make, index, own),
        mlp=allocate_mlp(make, index),
        recurrent=allocate_recurrent(own, config.norm_eps, device=make.device, dtype=make.dtype),
        part=config.part(index),
    )


def with_recurrence(make: Allocator, index: int, attending: LayerParameters) -> LayerParameters:
    """Add a recurrent state to a layer that attends."""
    config, own, like = make.config, make.config.recurrent, make.tensor(0)
    assert own is not None
    output = _output_projection(make, index, own)
    recurrent = _input_projection(make, index, own), output
    qkv, o = joined_projections(config, (attending.qkv, attending.o), recurrent, like)
    state = allocate_recurrent(own, config.norm_eps, device=make.device, dtype=make.dtype)
    return replace(attending, qkv=qkv, o=o, mlp=scaled_mlp(config, attending.mlp, like), recurrent=state)


def _input_projection(make: Allocator, index: int, own: RecurrentConfig) -> Linear:
    """Allocate the input projection: one product, where its stored modules have one format."""
    E, modules, quantisation = make.config.hidden_size, projection_modules(own), make.config.quantisation
    schemes = [quantisation and quantisation.scheme_of(f"model.layers.{index}.{name}") for name, _ in modules]
    if len(set(schemes)) == 1 and not (schemes[0] is not None and schemes[0].source == "fp8"):
        return make.linear(index, " ".join(name for name, _ in modules), [own.projected], E, own.projection_bias)
    parts = [make.linear(index, name, [size], E, own.projection_bias) for name, size in modules]
    return JoinedLinear(tuple(parts), tuple(size for _, size in modules))


def _output_projection(make: Allocator, index: int, own: RecurrentConfig) -> Linear:
    return make.rows(index, f"{own.family.block}.out_proj", make.config.hidden_size, own.inner, own.output_bias)
