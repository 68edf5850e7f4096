"""Derive what a plan needs from the path that computes it: the fields of its structs that are not at their default.

A path declares the needs that it meets (`paths/path.py`). A new field of a struct is a need that no path has declared,
so the general path alone computes plans with it, until another path learns to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
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
# Fields whose need is a function of more than their default; the functions below compute them.
OF_VALUES: frozenset[Need] = frozenset(
    {
        "ForwardPlan.followed",  # a draft source gets the features: True
        "Row.tokens",  # more than one
        "Row.sample",  # a row samples nothing, and follows no row that may
        "Row.mask",  # a need of sampling
    }
)
# Filters of the draw matter only above temperature 0.
FILTERS: frozenset[Need] = frozenset(
    f"Sample.{name}"
    for name, parameter in PARAMETERS.items()
    if parameter.stage == "draw" and name in Sample.__struct_fields__
) - {"Sample.temperature"}


class Needs(NamedTuple):
    """Needs of a plan."""

    rows: frozenset[Need]  # of its forward
    sampling: frozenset[Need]  # of the sampling of its rows; empty while that is open


class _Fields:
    """Fields of a struct that are needs unless they are at their default; without one they always are."""

    def __init__(self, struct: type[msgspec.Struct], names: Iterable[str]) -> None:
        chosen = set(names)
        fields = [field for field in msgspec.structs.fields(struct) if field.name in chosen]
        self._needs = [f"{struct.__name__}.{field.name}" for field in fields]
        self._defaults = tuple(
            field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory() for field in fields
        )
        names = [field.name for field in fields]
        self._read: Callable[[Any], tuple[Any, ...]] = (
            attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, name) for name in names)
        )

    def add(self, values: Sequence[Any], needs: set[Need]) -> None:
        """Add the needs of `values` to `needs`."""
        found = list(map(self._read, values))
        if found.count(self._defaults) == len(found):
            return
        for own in found:
            needs.update(
                need for need, value, default in zip(self._needs, own, self._defaults, strict=True) if value != default
            )


def _plain(struct: type[msgspec.Struct]) -> _Fields:
    """Return the fields of a struct without a rule of their own."""
    stated = OF_THE_STEP | OF_EVERY_PATH | OF_VALUES | FILTERS
    return _Fields(struct, [name for name in struct.__struct_fields__ if f"{struct.__name__}.{name}" not in stated])


_PLAN, _ROW, _STATE, _SAMPLE, _NODE = map(_plain, STRUCTS)
_FILTERS = _Fields(Sample, [need.removeprefix("Sample.") for need in FILTERS])


def needs_of(plan: ForwardPlan) -> Needs:
    """Return the needs of a plan."""
    rows, needs = plan.rows, set[Need]()
    _PLAN.add([plan], needs)
    _ROW.add(rows, needs)
    if plan.followed:
        needs.add("ForwardPlan.followed")
    if [len(row.tokens) for row in rows].count(1) < len(rows):
        needs.add("Row.tokens")
    if [row.sample for row in rows if row.follows is None].count(None):
        needs.add("Row.sample")
    if "Row.state" in needs:
        _STATE.add([row.state for row in rows if row.state is not None], needs)
    return Needs(frozenset(needs), frozenset() if "Row.follows" in needs else sampling_needs(rows))


def sampling_needs(rows: Sequence[Row]) -> frozenset[Need]:
    """Return the needs of the sampling of rows, known or no longer open."""
    needs = set[Need]()
    samples = [row.sample for row in rows if row.sample is not None]
    _SAMPLE.add(samples, needs)
    drawn = [own for own in samples if own.temperature > 0]
    if drawn:
        _FILTERS.add(drawn, needs)
    if len(samples) != len(rows):
        needs.add("Row.sample")
    if [row.mask for row in rows].count(None) < len(rows):
        needs.add("Row.mask")
    nodes = [node for row in rows for node in row.nodes]
    if nodes:
        needs.add("Row.nodes")
        _NODE.add(nodes, needs)
    return frozenset(needs)
