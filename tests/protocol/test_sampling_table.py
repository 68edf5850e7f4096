"""The table of sampling parameters: its rows are the fields, and each one's range is checked by name."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.sampling import PARAMETERS, DrawParams, Parameter, SamplingParams
from ramiform.runtime.scheduler.plan import Sample

RANGED = [row for row in PARAMETERS.values() if row.minimum is not None]


def test_every_field_but_the_constraint_is_a_row() -> None:
    assert set(PARAMETERS) == set(SamplingParams.__struct_fields__) - {"constraint"}
    for row in PARAMETERS.values():
        assert row.default == getattr(SamplingParams(), row.name)
        assert row.meaning


def test_the_plan_carries_every_parameter_of_the_draw_but_the_seed() -> None:
    drawn = {row.name for row in PARAMETERS.values() if row.stage == "draw"}
    assert drawn - {"seed"} == set(DrawParams.__struct_fields__) <= set(Sample.__struct_fields__)


def values_outside(row: Parameter) -> list[Any]:
    assert row.minimum is not None
    outside = [row.minimum if row.exclusive_minimum else row.minimum - 1]
    if row.maximum is not None:
        outside.append(row.maximum + 1)
    if row.type is float:
        outside.append(math.nan)
    return [{5: value} for value in outside] if row.name == "logit_bias" else outside


@pytest.mark.parametrize("row", RANGED, ids=lambda row: row.name)
def test_a_value_out_of_range_is_refused_by_name(row: Parameter) -> None:
    for value in values_outside(row):
        with pytest.raises(RequestError, match=row.name) as caught:
            SamplingParams(**{row.name: value})
        assert caught.value.param == row.name


@pytest.mark.parametrize("row", RANGED, ids=lambda row: row.name)
def test_both_ends_of_a_range_are_allowed(row: Parameter) -> None:
    ends = [end for end in (row.minimum, row.maximum) if end is not None]
    for end in ends[row.exclusive_minimum :]:
        value = {5: end} if row.name == "logit_bias" else end
        assert getattr(SamplingParams(**{row.name: value}), row.name) == value


def test_parameters_travel_by_name() -> None:
    params = SamplingParams(temperature=0.5, top_k=3, seed=7, stop=("a",))
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(params))
    assert set(decoded) == set(SamplingParams.__struct_fields__)
    assert msgspec.convert(decoded, SamplingParams) == params


def test_a_draw_is_plain_only_while_every_parameter_has_its_default() -> None:
    """A parameter that is added takes its rows off the short way to their log-probabilities."""
    assert DrawParams().is_plain_draw
    for field in msgspec.structs.fields(DrawParams):
        changed = 5 if field.default is None else field.default / 2 + 0.1
        assert not DrawParams(**{field.name: changed}).is_plain_draw, field.name
