"""Derive what a plan needs from the path that computes it: the fields of its structs that are not at their default.

A path declares the needs that it meets (`paths/path.py`). A new field of a struct is a need that no path has declared,
so the general path alone computes plans with it, until another path learns to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ..protocol.sampling import PARAMETERS
from ..scheduler.plan import DraftNode, ForwardPlan, Row, RowState, Sample

Need = str  # "Struct.field"
STRUCTS: tuple[type[msgspec.Struct], ...] = (ForwardPlan, Row, RowState, Sample, DraftNode)

# Fields that the step handles by itself, whichever path computes its rows (`in_flight_step.py`).
OF_THE_STEP: frozenset[Need] = frozenset(
    f"ForwardPlan.{name}" for name in ("step", "copies", "states", "window_copies", "num_decodes", "end_tokens")
) | {"Row.draft", "Row.draws"}
# Fields that every path reads, and what they hold is no further need.
OF_EVERY_PATH: frozenset[Need] = frozenset(
    {"ForwardPlan.rows", "Row.rid", "Row.first_position", "Row.pages", "RowState.slot"}
    | {"Sample.draw", "Sample.temperature", "DraftNode.draw"}
)
# Needs that depend on more than a field's default: when `x`, the struct, has them.
OF_VALUES: dict[Need, str] = {
    "ForwardPlan.followed": "x.followed",  # a draft source gets the features
    "Row.tokens": "len(x.tokens) != 1",
    "Row.sample": "x.sample is None and x.follows is None",  # the row samples nothing
}
# Needs of a row's sampling; the row's Sample and nodes have further ones.
OF_SAMPLING: dict[Need, str] = {
    "Row.sample": "x.sample is None",
    "Row.mask": "x.mask is not None",
    "Row.nodes": "x.nodes",
}
# Filters of the draw matter only above temperature 0.
FILTERS: frozenset[Need] = frozenset(
    f"Sample.{name}" for name in Sample.__struct_fields__ if name in PARAMETERS and PARAMETERS[name].stage == "draw"
) - {"Sample.temperature"}
NOTHING: frozenset[Need] = frozenset()


class Needs(NamedTuple):
    """Needs of a plan."""

    rows: frozenset[Need]  # of its forward
    sampling: frozenset[Need]  # of the sampling of its rows; empty while that is open


class _Conditions:
    """Needs of structs of one type, by the condition on which one has each.

    The conditions are compiled, as dataclasses compile their methods: a step of one row takes a quarter of a
    millisecond, and reading twenty fields by name would take a twentieth of it.
    """

    def __init__(self, conditions: Mapping[Need, str]) -> None:
        self._has: dict[Need, Callable[[Any], Any]] = {
            need: eval(f"lambda x: {condition}") for need, condition in conditions.items()
        }
        any_of = " or ".join(f"({condition})" for condition in conditions.values()) or "False"
        self._select: Callable[[Sequence[Any]], list[Any]] = eval(f"lambda values: [x for x in values if {any_of}]")

    def of(self, values: Sequence[Any]) -> frozenset[Need]:
        """Return the needs that some of the values have."""
        found = self._select(values)
        return frozenset(need for need, has in self._has.items() if any(map(has, found))) if found else NOTHING


def conditions_of(struct: type[msgspec.Struct]) -> dict[Need, str]:
    """Return the conditions of a struct's needs: of every field that is not stated otherwise, that it is not at its
    default, and of one without a default, that it is there."""
    conditions = {}
    for field in msgspec.structs.fields(struct):
        need = f"{struct.__name__}.{field.name}"
        if need in OF_VALUES:
            conditions[need] = OF_VALUES[need]
        elif need in FILTERS:
            conditions[need] = f"x.temperature > 0 and {_departs(field)}"
        elif need not in OF_THE_STEP | OF_EVERY_PATH | {"Row.mask"}:
            conditions[need] = _departs(field)
    return conditions


def _departs(field: msgspec.structs.FieldInfo) -> str:
    """Return the condition on which a field is not at its default."""
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if default is msgspec.NODEFAULT:
        return "True"
    if default is None:
        return f"x.{field.name} is not None"
    return f"x.{field.name} != {default!r}" if default else f"x.{field.name}"


def _compiled(struct: type[msgspec.Struct]) -> _Conditions:
    """Return the needs of a struct."""
    return _Conditions(conditions_of(struct))


_PLAN, _ROW, _STATE, _SAMPLE, _NODE = map(_compiled, STRUCTS)
_SAMPLING = _Conditions(OF_SAMPLING)


def needs_of(plan: ForwardPlan) -> Needs:
    """Return the needs of a plan."""
    rows = plan.rows
    needs = _PLAN.of([plan]) | _ROW.of(rows)
    if "Row.state" in needs:
        needs |= _STATE.of([row.state for row in rows if row.state is not None])
    return Needs(needs, NOTHING if "Row.follows" in needs else sampling_needs(rows))


def sampling_needs(rows: Sequence[Row]) -> frozenset[Need]:
    """Return the needs of the sampling of rows, known or no longer open."""
    needs = _SAMPLING.of(rows) | _SAMPLE.of([row.sample for row in rows if row.sample is not None])
    if "Row.nodes" in needs:
        needs |= _NODE.of([node for row in rows for node in row.nodes])
    return needs
