"""Derive what a plan needs from the path that computes it: the fields of its structs that are not at their default.

A path declares the needs that it meets (`paths/path.py`). A new field of a struct is a need that no path has declared,
so the general path alone computes plans with it, until another path learns to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
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
# Needs that depend on more than a field's default: when some of the structs have them.
OF_VALUES: dict[Need, Callable[[Sequence[Any]], bool]] = {
    "ForwardPlan.followed": lambda plans: True in [plan.followed for plan in plans],  # a draft source gets the features
    "Row.tokens": lambda rows: [len(row.tokens) for row in rows].count(1) < len(rows),
    # A row samples nothing.
    "Row.sample": lambda rows: (
        None in [row.sample for row in rows] and any(row.sample is None and row.follows is None for row in rows)
    ),
}
# Needs of rows that their sampling has, and those of them that their forward has not.
OF_SAMPLING: frozenset[Need] = frozenset({"Row.sample", "Row.mask", "Row.nodes"})
OF_SAMPLING_ONLY: frozenset[Need] = frozenset({"Row.mask"})
# Filters of the draw matter only above temperature 0.
FILTERS: frozenset[Need] = frozenset(
    f"Sample.{name}" for name in Sample.__struct_fields__ if name in PARAMETERS and PARAMETERS[name].stage == "draw"
) - {"Sample.temperature"}
NO_NEEDS: frozenset[Need] = frozenset()


class Needs(NamedTuple):
    """Needs of a plan."""

    rows: frozenset[Need]  # of its forward
    sampling: frozenset[Need]  # of the sampling of its rows; empty while that is open


class _Conditions:
    """Needs of structs of one type: the fields that are not at their default, and those that conditions state."""

    def __init__(self, struct: type[msgspec.Struct], names: Collection[str]) -> None:
        fields = [field for field in msgspec.structs.fields(struct) if field.name in names]
        self._needs = [f"{struct.__name__}.{field.name}" for field in fields]
        # Nothing equals the default of a field that has none: it is always a need.
        self._defaults = tuple(
            field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory() for field in fields
        )
        read = [field.name for field in fields]
        if len(read) == 1:  # of one name, `attrgetter` would return no tuple
            read, self._defaults = 2 * read, 2 * self._defaults
        self._read = attrgetter(*read) if read else None
        self._stated = [(need, has) for need, has in OF_VALUES.items() if need.startswith(f"{struct.__name__}.")]

    def of(self, values: Sequence[Any]) -> frozenset[Need]:
        """Return the needs that some of the values have."""
        needs = [need for need, have in self._stated if have(values)] if self._stated else []
        if self._read is None:
            return frozenset(needs)
        found = list(map(self._read, values))
        if found.count(self._defaults) != len(found):
            columns = zip(self._needs, zip(*found, strict=True), self._defaults, strict=False)
            needs += [need for need, column, default in columns if any(value != default for value in column)]
        return frozenset(needs) if needs else NO_NEEDS


def conditions_of(struct: type[msgspec.Struct]) -> _Conditions:
    """Return the needs of a struct: every field that is not stated otherwise."""
    stated = OF_THE_STEP | OF_EVERY_PATH | FILTERS | OF_VALUES.keys()
    return _Conditions(struct, [name for name in struct.__struct_fields__ if f"{struct.__name__}.{name}" not in stated])


_PLAN, _ROW, _STATE, _SAMPLE, _NODE = map(conditions_of, STRUCTS)
_FILTERS = _Conditions(Sample, {need.removeprefix("Sample.") for need in FILTERS})


def needs_of(plan: ForwardPlan) -> Needs:
    """Return the needs of a plan."""
    rows = plan.rows
    of_rows = _ROW.of(rows)
    needs = _PLAN.of([plan]) | (of_rows - OF_SAMPLING_ONLY)
    if "Row.state" in needs:
        needs |= _STATE.of([row.state for row in rows if row.state is not None])
    return Needs(needs, NO_NEEDS if "Row.follows" in needs else _sampling_needs(rows, of_rows))


def sampling_needs(rows: Sequence[Row]) -> frozenset[Need]:
    """Return the needs of the sampling of rows that is no longer open."""
    return _sampling_needs(rows, _ROW.of(rows))


def _sampling_needs(rows: Sequence[Row], of_rows: frozenset[Need]) -> frozenset[Need]:
    samples = [row.sample for row in rows if row.sample is not None]
    needs = _of_samples(samples) | (of_rows & OF_SAMPLING)
    if len(samples) < len(rows):
        needs |= {"Row.sample"}
    if "Row.nodes" in needs:
        needs |= _NODE.of([node for row in rows for node in row.nodes])
    return needs


_last_samples: tuple[list[Sample], frozenset[Need]] = [], NO_NEEDS  # those of the last call, and their needs


def _of_samples(samples: list[Sample]) -> frozenset[Need]:
    """Return the needs of samples. Those of a step are most often the objects of the step before."""
    global _last_samples
    last, needs = _last_samples
    if samples != last:
        drawn = [own for own in samples if own.temperature > 0]
        needs = _SAMPLE.of(samples) | (_FILTERS.of(drawn) if drawn else NO_NEEDS)
        _last_samples = samples, needs
    return needs
