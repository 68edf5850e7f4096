"""Values of texts that grow: whatever the pieces, items are those of the whole, and partial objects only grow."""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from ramiform.lang.types.result_types import of_schema
from ramiform.lang.types.value_streams import value_stream


class Item(BaseModel):
    name: str
    price: float = 1.0


class Order(BaseModel):
    number: int = Field(alias="id")
    items: list[Item]
    due: datetime.date
    note: str | None = None


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    label: str


class Row(TypedDict):
    kind: Literal["row"]
    cells: list[str]


class Pair(msgspec.Struct, frozen=True):
    left: int
    right: str


def stream(kind: Any, text: str, size: int) -> list[Any]:
    made = value_stream(kind)
    found = [value for at in range(0, len(text), size) for value in made.feed(text[at : at + size])]
    return [*found, *made.end(of_schema(kind).parse(text))]


json_items = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 9999) | st.text(st.sampled_from('a",\\[]{}é\n'), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from('k"]'), max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.lists(json_items, max_size=5), st.integers(1, 7), st.booleans())
def test_items_are_those_of_the_whole_however_it_is_cut(items: list[Any], size: int, spaced: bool) -> None:
    text = json.dumps(items, indent=1 if spaced else None, ensure_ascii=False)
    made = value_stream(list[Any])
    found, told = [], 0
    for at in range(0, len(text), size):
        found += made.feed(text[at : at + size])
        assert items[: len(found)] == found
        told = max(told, len(found))
    assert found == items == json.loads(text)


def test_an_item_is_there_as_soon_as_the_mark_behind_it() -> None:
    made = value_stream(Annotated[list[Item], Field(max_length=9)])
    assert list(made.feed('[{"name": "a", "price": 2}')) == []
    assert list(made.feed(", {")) == [Item(name="a", price=2.0)]
    assert list(made.feed('"name": "]"}]')) == [Item(name="]")]
    assert list(made.end([])) == []


def test_an_item_that_is_not_of_its_type_is_an_error() -> None:
    made = value_stream(list[Item])
    with pytest.raises(ValueError, match="price"):
        list(made.feed('[{"name": "a", "price": "x"}, '))


@pytest.mark.parametrize(
    ("kind", "items"), [(tuple[int, ...], [1, 23]), (set[str], ["a", "b"]), (list[list[int]], [[1], [], [2, 3]])]
)
def test_arrays_of_every_kind_have_items(kind: Any, items: list[Any]) -> None:
    assert stream(kind, json.dumps(items), 1) == items


def test_objects_grow_member_by_member() -> None:
    text = '{"id": 12, "items": [{"name": "ab", "price": 2.5}, {"name": "c"}], "due": "2026-01-02", "note": "hi"}'
    found = stream(Order, text, 1)
    assert all(isinstance(one, Order) for one in found)
    assert found[-1] == of_schema(Order).parse(text)
    assert found[0].number is None
    numbers = [one.number for one in found if one.number is not None]
    assert set(numbers) == {12}  # never 1
    seen = [[(item.name, item.price) for item in one.items or ()] for one in found]
    assert [("a", None)] in seen
    assert [("ab", 2.5), ("c", None)] in seen
    assert [("ab", 2.5), ("c", 1.0)] in seen  # whole: with its default
    assert {one.due for one in found} == {None, datetime.date(2026, 1, 2)}
    assert [one.note for one in found if one.note is not None][:2] == ["", "h"]


@pytest.mark.parametrize(
    ("kind", "text", "first"),
    [
        (Point, '{"x": 12, "label": "ab"}', {"x": 12, "label": "a"}),
        (Pair, '{"left": 12, "right": "ab"}', {"left": 12, "right": "a"}),
        (Row, '{"kind": "row", "cells": ["a", "b"]}', {"kind": "row", "cells": ["a"]}),
        (Point | Item, '{"name": "ab", "price": 3}', {"name": "a", "price": None}),
        (dict[str, list[int]], '{"a": [1, 2], "b": [3]}', {"a": [1]}),
    ],
)
def test_classes_of_every_kind_grow(kind: Any, text: str, first: dict[str, Any]) -> None:
    found = stream(kind, text, 1)
    assert found[-1] == of_schema(kind).parse(text)
    plain = [one if isinstance(one, dict) else _members(one) for one in found]
    assert first in plain


def _members(one: Any) -> dict[str, Any]:
    names = getattr(one, "__struct_fields__", None) or type(one).__annotations__
    return {name: getattr(one, name) for name in names}


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), json_items), st.integers(1, 5))
def test_partial_data_is_a_beginning_of_the_whole(data: dict[str, Any], size: int) -> None:
    text = json.dumps(data)
    made = value_stream(Any)
    last = 0
    for at in range(0, len(text), size):
        for value in made.feed(text[at : at + size]):
            whole = list(value.items())[:-1]
            assert whole == list(data.items())[: len(whole)]
            assert len(value) >= last
            last = len(value)
