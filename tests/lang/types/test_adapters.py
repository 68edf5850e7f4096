"""Adapters of types: what the grammar writes is read, what the type's library writes is admitted. Pydantic judges."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import ipaddress
import json
import pathlib
import uuid
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, Required, TypedDict, TypeVar

import annotated_types
import jsonschema
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from ramiform.lang.types.adapter import adapter_of
from ramiform.tests.lang.types.written import admits, constraint_of, written

T = TypeVar("T")
UTC = datetime.UTC


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = Field(9, ge=1, le=9)


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    share: float = Field(0.5, gt=0, lt=1)


class Owner(pydantic.BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    name: str = Field(alias="theName", min_length=1)
    since: datetime.datetime


class Pair(NamedTuple):
    first: Annotated[int, Field(ge=1, le=3)]
    second: str = "b"


class Tree(TypedDict, total=False):
    weight: Required[Annotated[int, Field(ge=1, le=3)]]
    at: datetime.time
    branches: list[Tree]


@dataclasses.dataclass
class Order:
    """An order of a customer."""

    count: Annotated[int, Field(ge=1, le=3, description="how many")]
    at: datetime.datetime
    price: decimal.Decimal
    key: uuid.UUID
    tree: Tree
    parts: list[Order] = dataclasses.field(default_factory=list)
    until: Optional[datetime.date] = None  # noqa: UP045 - the older spelling


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


class Model(pydantic.BaseModel, Generic[T]):
    content: T


class Record(msgspec.Struct):
    count: Annotated[int, msgspec.Meta(ge=3, le=5, description="how many")]
    at: datetime.datetime
    local: Annotated[datetime.datetime, msgspec.Meta(tz=False)]
    time: datetime.time
    lasts: datetime.timedelta
    share: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    price: decimal.Decimal
    key: uuid.UUID
    data: bytes
    parent: Record | None = None
    days: dict[datetime.date, set[str]] = {}
    numbers: dict[int, int] = {}


class First(msgspec.Struct, tag="first"):
    x: int


class Second(msgspec.Struct, tag="second"):
    x: str


@dataclasses.dataclass
class Meta:
    """A dataclass with msgspec's annotations."""

    x: Annotated[int, msgspec.Meta(ge=1, le=3)]
    y: list[Annotated[str, msgspec.Meta(pattern="^a+$")]]


class Frozen(pydantic.BaseModel, frozen=True):
    x: int


def limited(kind: Any, **bounds: Any) -> Any:
    return Annotated[kind, Field(**bounds)]


DAY, NOON = datetime.date(2020, 2, 10), datetime.datetime(2020, 2, 10, 12)
BOTH_WAYS: list[Any] = [
    *(int, bool, str, bytes, None, datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
    *(decimal.Decimal, uuid.UUID, pathlib.Path, complex, Color, Size, Literal["a", 1, True, None], Pair, Tree, Order),
    *(ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv4Interface),
    *(ipaddress.IPv6Interface, ipaddress.IPv6Network, pydantic.IPvAnyAddress),
    *(Box[int], Box[Order], Model[datetime.datetime], Owner, list[Owner], Record, list[Record], First | Second, Meta),
    *(tuple[int, ...], tuple[int, str], tuple[()], set[int], frozenset[str], set[frozenset[int]], set[Frozen]),
    *(dict[str, int], dict[int, int], dict[Color, int], dict[Size, int], dict[uuid.UUID, int], dict[bool, int]),
    *(dict[datetime.date, int], dict[datetime.datetime, int], dict[decimal.Decimal, int], dict[Literal["a"], int]),
    *(dict[limited(int, ge=-3, le=120), int], dict[limited(str, pattern="^a+$"), int], collections.deque[int]),
    *(int | str | None, Order | None, pydantic.AwareDatetime, pydantic.NaiveDatetime, pydantic.UUID4),
    *(
        pydantic.Base64Bytes,
        limited(int, ge=10**25),
        limited(str, pattern=r"^\d{2}-\w+$"),
        limited(bytes, max_length=3),
    ),
    *(Annotated[int, annotated_types.Interval(ge=3, lt=5)], Annotated[str, annotated_types.Len(2, 3)]),
    *(limited(datetime.date, ge=DAY, lt=datetime.date(2021, 3, 1)), limited(datetime.datetime, gt=NOON)),
    *(limited(datetime.datetime, ge=NOON.replace(tzinfo=UTC), le=datetime.datetime(2020, 2, 11, tzinfo=UTC)),),
    limited(datetime.time, ge=datetime.time(9), le=datetime.time(17, 30)),
]
# The library writes these in another of the forms that it reads.
ONE_WAY: list[Any] = [
    *(float, pydantic.FiniteFloat, limited(float, gt=0, lt=1), limited(float, gt=0, lt=1e-300)),
    *(limited(float, multiple_of=0.1), limited(decimal.Decimal, max_digits=5), pydantic.HttpUrl, pydantic.AnyUrl),
    *(limited(decimal.Decimal, max_digits=5, decimal_places=2), limited(decimal.Decimal, gt=0, lt=1)),
    *(limited(decimal.Decimal, multiple_of=decimal.Decimal("0.05")), limited(decimal.Decimal, max_digits=4, ge=100)),
    *(limited(decimal.Decimal, max_digits=4, decimal_places=4), set, dict, list, Any),
    limited(datetime.timedelta, ge=datetime.timedelta(hours=-1), lt=datetime.timedelta(minutes=7, microseconds=5)),
    Annotated[str, pydantic.StringConstraints(strip_whitespace=True, min_length=2, max_length=5)],
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [*BOTH_WAYS, *ONE_WAY], ids=str)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=8)
def test_what_the_grammar_writes_is_read_and_what_the_library_writes_is_admitted(kind: Any, seed: int) -> None:
    adapter = adapter_of(kind)
    text = written(constraint_of(adapter), seed)
    value = adapter.parse(text)
    if "multipleOf" not in adapter.schema_text:  # jsonschema divides by binary fractions
        jsonschema.validate(json.loads(text), adapter.schema)
    if not any(kind is one for one in ONE_WAY):
        assert admits(constraint_of(adapter), adapter.dump(value))
        assert adapter.parse(adapter.dump(value)) == value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (datetime.datetime, st.datetimes(timezones=st.none() | st.just(UTC))),
        (datetime.date, st.dates()),
        (datetime.time, st.times()),
        (datetime.timedelta, st.timedeltas(datetime.timedelta(days=-(10**8)), datetime.timedelta(days=5 * 10**8))),
        (decimal.Decimal, st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9)),
        (uuid.UUID, st.uuids()),
        (float, st.floats(-1e9, 1e9)),
        (ipaddress.IPv4Address, st.ip_addresses(v=4)),
        (ipaddress.IPv6Address, st.ip_addresses(v=6)),
        (dict[int, int], st.dictionaries(st.integers(-(10**17), 10**17), st.integers())),
        (
            ipaddress.IPv4Network,
            st.builds(
                lambda address, bits: ipaddress.ip_network((address, bits), strict=False),
                st.ip_addresses(v=4),
                st.integers(0, 32),
            ),
        ),
        (
            limited(datetime.date, gt=DAY, le=datetime.date(2031, 1, 7)),
            st.dates(datetime.date(2020, 2, 11), datetime.date(2031, 1, 7)),
        ),
        (dict[limited(int, ge=-1234, lt=98765), None], st.dictionaries(st.integers(-1234, 98764), st.none())),
    ],
    ids=str,
)
@given(data=st.data())
@settings(max_examples=40)
def test_every_value_may_be_written(kind: Any, values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    adapter = adapter_of(kind)
    value = data.draw(values)
    text = adapter.dump(value)
    assert admits(constraint_of(adapter), text), text
    assert adapter.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (limited(datetime.date, gt=DAY), '"2020-02-10"'),
        (limited(datetime.date, lt=DAY), '"2020-02-10"'),
        (datetime.date, '"2021-02-29"'),
        (pydantic.AwareDatetime, '"2020-01-01T00:00:00"'),
        (pydantic.NaiveDatetime, '"2020-01-01T00:00:00Z"'),
        (limited(datetime.time, le=datetime.time(9)), '"09:00:01"'),
        (pydantic.UUID4, '"0c6ab1e2-0c6a-1c6a-8c6a-0c6ab1e20c6a"'),
        (ipaddress.IPv4Network, '"10.0.0.1/8"'),
        (dict[int, int], '{"a": 1}'),
        (dict[limited(int, le=5), int], '{"6": 1}'),
        (limited(float, lt=1), "0.99999999999999999999"),
        (limited(decimal.Decimal, max_digits=3), '"1234"'),
        (Owner, '{"pet": {"lives": 3}, "theName": "a", "since": "2020-01-01T00:00:00"}'),
        (Meta, '{"x": 4, "y": []}'),
        (Pair, '[4, "a"]'),
    ],
    ids=str,
)
def test_what_the_parser_refuses_is_not_written(kind: Any, text: str) -> None:
    adapter = adapter_of(kind)
    with pytest.raises(ValueError, match=r".+"):
        adapter.parse(text)
    assert not admits(constraint_of(adapter), text)


def test_members_stand_in_the_order_of_their_declaration_with_their_descriptions() -> None:
    adapter = adapter_of(Order)
    order = adapter.schema["$defs"]["Order"]
    assert list(order["properties"]) == ["count", "at", "price", "key", "tree", "parts", "until"]
    assert order["properties"]["count"] == {"type": "integer", "minimum": 1, "maximum": 3, "description": "how many"}
    assert adapter.description == "An order of a customer."
    record = adapter_of(Record).schema["$defs"]["Record"]
    assert list(record["properties"])[:3] == ["count", "at", "local"]
    assert record["properties"]["count"] == {"type": "integer", "minimum": 3, "maximum": 5, "description": "how many"}
