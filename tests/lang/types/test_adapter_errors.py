"""Types without a schema are refused with the member's path, texts that are not of the type with the member's too."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

import ramiform
from ramiform import ProgramState, RequestError, Scripted, gen
from ramiform.lang.types.adapter import NamedField, adapter_of, fields_adapter, json_text, nested
from ramiform.tests.lang.types.written import admits, constraint_of, written


@dataclasses.dataclass
class Inner:
    name: str
    lock: threading.Lock


@dataclasses.dataclass
class Outer:
    inners: list[Inner]
    parent: Outer | None = None


class Call(NamedTuple):
    function: Callable[[int], int]


class Keys(TypedDict):
    points: dict[tuple[int, int], str]


class Record(msgspec.Struct):
    count: Annotated[int, pydantic.Field(ge=1)]


class Priced(pydantic.BaseModel):
    price: float = pydantic.Field(ge=0)
    tags: list[int] = []


class Shop(pydantic.BaseModel):
    items: list[Priced]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Outer, r"Outer\.inners\[\]\.lock is "),
        (list[Outer], r"list\[.*Outer\]\[\]\.inners\[\]\.lock is "),
        (Call, r"Call\.function is "),
        (Keys, r"Keys\.points is dict\[tuple"),
        (set[list[int]], "items cannot be of the type list"),
        (Record, r"write pydantic\.Field for msgspec\.Meta"),
        (
            Annotated[datetime.date, pydantic.Field(gt=datetime.date(2020, 1, 2), lt=datetime.date(2020, 1, 3))],
            "nothing is",
        ),
        (pydantic.Json[int], "JSON inside a string"),
        (functools.partial(int), "without a JSON Schema|with a JSON Schema"),
        (Annotated[float, msgspec.Meta(multiple_of=0.1)], "write Decimal or int"),
    ],
    ids=str,
)
def test_a_type_without_a_schema_is_refused_with_the_member_that_has_none(kind: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        adapter_of(kind, "tools")
    assert caught.value.param == "tools"
    assert "tools must be a Pydantic model" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (Shop, '{"items": [{"price": 1}, {"price": -1}]}', r"^items\[1\]\.price: Input should be greater"),
        (Shop, '{"items": [{"price": 1, "tags": ["a"]}]}', r"^items\[0\]\.tags\[0\]: "),
        (Shop, '{"items": [{"pri', r"Invalid JSON"),
        (list[int], '["a", "b", "c", "d"]', r"^\[0\]: .*; \[1\]: .*; and 1 more$"),
        (msgspec.defstruct("One", [("xs", list[int])]), '{"xs": [1, "a"]}', r"^xs\[1\]: Expected `int`"),
    ],
    ids=str,
)
def test_a_text_of_another_type_is_an_error_with_the_path(kind: Any, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adapter_of(kind).parse(text)


def test_a_program_sees_the_path_in_an_invalid_result() -> None:
    def buy(s: ProgramState) -> None:
        s += gen("shop", schema=Shop)
        s["shop"]

    with pytest.raises(RequestError, match=r"is not of type Shop: items\[0\]\.price: ") as caught:
        ramiform.function(buy).run(backend=Scripted(['{"items": [{"price": -1}]}']))
    assert caught.value.code == "invalid_result"


NOWHERE = object()


def named_fields() -> dict[str, NamedField]:
    return {
        "when": NamedField(datetime.datetime, description="the day"),
        "shop": NamedField(Shop | None, None),
        "record": NamedField(msgspec.defstruct("One", [("x", int)])),
        "other": NamedField(list[Annotated[int, pydantic.Field(ge=1, le=2)]], NOWHERE),
    }


def test_named_fields_of_several_libraries_are_one_object() -> None:
    adapter = fields_adapter("buy", named_fields())
    assert list(adapter.schema["properties"]) == ["when", "shop", "record", "other"]
    assert adapter.schema["required"] == ["when", "record"]
    assert adapter.schema["additionalProperties"] is False
    assert adapter.schema["properties"]["when"]["description"] == "the day"
    assert adapter.schema["properties"]["shop"]["default"] is None
    assert "default" not in adapter.schema["properties"]["other"]
    values = adapter.parse('{"record": {"x": 1}, "when": "2020-01-01T00:00:00"}')
    assert list(values) == ["when", "shop", "record", "other"]
    assert values["when"] == datetime.datetime(2020, 1, 1)
    assert values["record"].x == 1
    assert values["other"] is NOWHERE


@pytest.mark.parametrize("seed", range(20))
def test_what_the_grammar_of_named_fields_writes_is_read_and_written_again(seed: int) -> None:
    adapter = fields_adapter("buy", named_fields())
    values = adapter.parse(written(constraint_of(adapter), seed))
    given = {name: value for name, value in values.items() if value is not NOWHERE}
    text = adapter.dump(given)
    assert adapter.parse(text) == values
    assert admits(constraint_of(adapter), text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"when": "2020-01-01T00:00:00"}', r"^record: it is required"),
        ('{"when": 1, "record": {"x": "a"}, "more": 1}', r"^more: there is no such member"),
        ('{"when": "2020-01-01T00:00:00", "record": {"x": "a"}}', r"^record\.x: Expected `int`"),
        ('{"when": "2020-01-01T00:00:00", "record": {"x": 1}, "other": [3]}', r"^other\[0\]: Input should be less"),
        ('{"when": "2020', "."),
        ("[]", "Expected `object`"),
    ],
)
def test_named_fields_that_are_not_of_their_types_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fields_adapter("buy", named_fields()).parse(text)


def test_a_named_field_without_a_schema_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match=r"the argument 'x' of buy: .*Inner\.lock is ") as caught:
        fields_adapter("buy", {"x": NamedField(Inner)})
    assert caught.value.param == "tools"


def test_no_fields_are_an_empty_object() -> None:
    adapter = fields_adapter("wait", {})
    assert adapter.schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert adapter.parse("{}") == {}


def test_definitions_with_one_name_are_kept_apart() -> None:
    def thing(kind: Any) -> Any:
        leaf = dataclasses.make_dataclass("Leaf", [("x", kind)])
        return dataclasses.make_dataclass("Thing", [("leaf", leaf), ("more", list[leaf])])

    schemas = {name: adapter_of(thing(kind)).schema for name, kind in (("a", int), ("b", str), ("c", int))}
    bodies, definitions = nested(schemas)
    whole = {"type": "object", "properties": bodies, "$defs": definitions}
    assert "$defs" not in json.dumps(bodies).replace("#/$defs/", "")
    import jsonschema

    good = {name: {"leaf": {"x": x}, "more": [{"x": x}]} for name, x in (("a", 1), ("b", "s"), ("c", 2))}
    jsonschema.validate(good, whole)
    for name in "abc":
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(good | {name: {"leaf": {"x": None}, "more": []}}, whole)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(good | {"b": good["a"]}, whole)


def test_values_become_json_text() -> None:
    assert json_text({"a": datetime.date(2020, 1, 1)}) == '{"a":"2020-01-01"}'
    assert json_text([Priced(price=1)]) == '[{"price":1.0,"tags":[]}]'
    with pytest.raises(TypeError):
        json_text(object())


def test_without_pydantic_msgspec_reads_types_and_names_what_it_cannot() -> None:
    source = """
import sys
sys.modules["pydantic"] = None
import dataclasses, datetime, fractions
import ramiform
from typing import Annotated
from ramiform.lang.types.adapter import adapter_of
@dataclasses.dataclass
class Meeting:
    at: datetime.datetime
    who: list[str]
adapter = adapter_of(Meeting)
assert adapter.parse(adapter.dump(Meeting(datetime.datetime(2020, 1, 1), ["a"]))).who == ["a"]
try:
    adapter_of(fractions.Fraction)
except ramiform.RequestError as error:
    assert "install pydantic" in str(error), error
else:
    raise SystemExit("a type without a schema has an adapter")
"""
    subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, timeout=120)


def test_functions_and_names_are_no_types() -> None:
    for kind in (len, lambda: None, "Shop", types.MethodType(Shop.model_dump, Shop(items=[]))):
        with pytest.raises(RequestError, match="schema must be"):
            adapter_of(kind)
