"""Random types: every text of their grammar is read, as a value of the type that is admitted when written again."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import ipaddress
import itertools
import uuid
from typing import Annotated, Any, Literal, NamedTuple, Optional

import jsonschema
import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field
from typing_extensions import TypedDict  # a Pydantic model has no other one before Python 3.12

from ramiform.lang.types.adapter import adapter_of
from ramiform.tests.lang.types.written import admits, constraint_of, written

numbers = itertools.count()


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


HASHABLE: list[Any] = [
    *(int, str, datetime.date, uuid.UUID, ipaddress.IPv4Address, Color, Literal["a", "b"]),
    *(Annotated[int, Field(ge=-3, le=400)], Annotated[str, Field(min_length=1, max_length=4, description="short")]),
]
PLAIN: list[Any] = [
    *HASHABLE,
    *(bool, None, datetime.datetime, datetime.time, datetime.timedelta, decimal.Decimal, Literal[1, None]),
    *(Annotated[float, Field(gt=0, lt=1, multiple_of=0.25)], Annotated[str, Field(pattern="^[a-c]{2,3}$")]),
    Annotated[datetime.date, Field(ge=datetime.date(2024, 2, 29), lt=datetime.date(2025, 1, 1))],
]
names = st.lists(st.sampled_from(["a", "b_1", "name", "Größe", "kind_of"]), min_size=1, max_size=3, unique=True)


@st.composite
def classes(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Any:
    """A class with one to three members, some with defaults."""
    fields = {name: draw(inner) for name in draw(names)}
    title = f"Made{next(numbers)}"
    defaults = draw(st.integers(0, len(fields)))
    optional = list(fields)[len(fields) - defaults :]
    fields |= {name: Optional[fields[name]] for name in optional}  # noqa: UP045 - None | None is none
    match draw(st.sampled_from(["dataclass", "model", "typed dict", "named tuple"])):
        case "dataclass":
            made = [(n, k, dataclasses.field(default=None)) if n in optional else (n, k) for n, k in fields.items()]
            return dataclasses.make_dataclass(title, made)
        case "model":
            members: Any = {n: (k, None if n in optional else ...) for n, k in fields.items()}
            return pydantic.create_model(title, **members)
        case "typed dict":
            total = draw(st.booleans())
            return TypedDict(title, fields, total=total)  # type: ignore[operator, misc]
        case _:
            return NamedTuple(title, list(fields.items()))  # type: ignore[misc]


@st.composite
def tagged_unions(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Any:
    """A union of two models, told apart by a member that has a default."""
    models = []
    for tag in ("x", "y"):
        members: Any = {"tag": (Literal[tag], tag), "content": (draw(inner), ...)}
        models.append(pydantic.create_model(f"Tagged{next(numbers)}", **members))
    return Annotated[models[0] | models[1], Field(discriminator="tag")]


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.sampled_from(HASHABLE)
    return st.one_of(
        inner.map(lambda kind: list[kind]),
        inner.map(lambda kind: Annotated[list[kind], Field(min_length=1, max_length=2)]),
        st.lists(inner, min_size=1, max_size=3).map(lambda kinds: tuple[tuple(kinds)]),  # type: ignore[misc]
        inner.map(lambda kind: tuple[kind, ...]),
        keys.map(lambda kind: set[kind]),
        keys.map(lambda kind: frozenset[kind]),
        st.tuples(keys, inner).map(lambda pair: dict[pair[0], pair[1]]),  # type: ignore[name-defined]
        inner.map(lambda kind: Optional[kind]),  # noqa: UP045
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1] if pair[0] is not None else Optional[pair[1]]),  # noqa: UP045
        classes(inner),
        tagged_unions(inner),
    )


types = st.recursive(st.sampled_from(PLAIN), containers, max_leaves=5)


@pytest.mark.exhaustive
@given(kind=types, seed=st.integers(0, 2**32))
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_what_the_grammar_of_a_random_type_writes_is_a_value_of_it(kind: Any, seed: int) -> None:
    adapter = adapter_of(kind)
    constraint = constraint_of(adapter)
    text = written(constraint, seed)
    value = adapter.parse(text)
    jsonschema.Draft202012Validator.check_schema(adapter.schema)
    again = adapter.dump(value)
    assert admits(constraint, again), (text, again)
    assert adapter.parse(again) == value


LIMITED: list[Any] = [
    *(int, str, bool, float, bytes, None, datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
    *(uuid.UUID, decimal.Decimal, Color, Annotated[int, msgspec.Meta(ge=2, lt=40, description="few")]),
    *(Annotated[datetime.datetime, msgspec.Meta(tz=False)], Annotated[str, msgspec.Meta(pattern="^a+$")]),
]


@st.composite
def structs(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Any:
    """A msgspec.Struct with one to three members, some with defaults."""
    fields: list[Any] = [(name, draw(inner)) for name in draw(names)]
    if draw(st.booleans()):
        fields[-1] = (fields[-1][0], Optional[fields[-1][1]], None)  # noqa: UP045
    options: Any = {"rename": draw(st.sampled_from([None, "camel"])), "array_like": draw(st.booleans())}
    return msgspec.defstruct(f"Struct{next(numbers)}", fields, **options)


def lists(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda kind: list[kind]),
        inner.map(lambda kind: dict[datetime.date, kind]),
        inner.map(lambda kind: tuple[kind, int]),
        inner.map(lambda kind: Optional[kind]),  # noqa: UP045
        structs(inner),
    )


@pytest.mark.exhaustive
@given(kind=structs(st.recursive(st.sampled_from(LIMITED), lists, max_leaves=4)), seed=st.integers(0, 2**32))
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_what_the_grammar_of_a_random_struct_writes_is_a_value_of_it(kind: Any, seed: int) -> None:
    adapter = adapter_of(kind)
    value = adapter.parse(written(constraint_of(adapter), seed))
    assert isinstance(value, kind)
    assert adapter.parse(adapter.dump(value)) == value
