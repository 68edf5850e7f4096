"""Unions of classes: a text is one of the classes, in its order, with its tag; a naive reader and Pydantic judge."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import types
import typing
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,  # a Pydantic model has no other one before Python 3.12
    Union,
    get_args,
    get_origin,
)

import msgspec
import pydantic
import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

import ramiform
from ramiform import ProgramState, Scripted, gen
from ramiform.lang.types.adapter import adapter_of
from ramiform.lang.types.descriptions import result_text
from ramiform.lang.types.members import members, parts
from ramiform.runtime.protocol.sampling import Constraint
from ramiform.tests.lang.types.written import admits, constraint_of, written


class Search(BaseModel):
    """A question for the index."""

    kind: Literal["search"] = "search"
    query: str = Field(description="the words to look for")
    limit: int = 10


@dataclasses.dataclass
class Calc:
    expression: str
    digits: int = 2
    kind: Literal["calc"] = "calc"


class Person(BaseModel):
    name: str
    age: int = 0


class Pet(BaseModel):
    age: int
    name: str
    tame: bool
    owner: Person | None = None


class Place(BaseModel):
    tame: bool
    name: str = ""
    parts: list[Place | Person] = []


class Note(TypedDict):
    name: str
    lines: NotRequired[list[int]]


class Leaf(BaseModel):
    value: int


class Node(BaseModel):
    left: Node | Leaf
    right: Node | Leaf | None = None


class Small(BaseModel):
    size: Literal["s", "xs"] = "s"
    count: int = 0


class Large(BaseModel):
    size: Literal["l", "xl"] = "l"
    count: int = 0


class First(msgspec.Struct, tag="first"):
    x: int
    y: int = 0


class Second(msgspec.Struct, tag="second"):
    y: int
    x: int = 0


UNIONS: list[Any] = [
    Search | Calc,
    Person | Pet,
    Person | Pet | Place,
    list[Person | Pet],
    Person | None,
    list[Search | Calc | None],
    dict[str, Note | Pet],
    Node | Leaf,
    Small | Large,
    Place,
    list[Person] | list[Pet] | Place,
    Annotated[Search | Calc, Field(discriminator="kind")] | None,
    First | Second | None,
]


# The naive reader: what a text of a type is, by the annotations of its classes alone.


class Pairs(list[Any]):
    """The members of a JSON object as they stand."""


def fields_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the members of a class in their order: the type of each, and whether it must be there."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if typing.is_typeddict(kind) or hasattr(kind, "__required_keys__"):
        return {
            n: (get_args(h)[0] if get_origin(h) is NotRequired else h, n in kind.__required_keys__)
            for n, h in hints.items()
        }
    if dataclasses.is_dataclass(kind):
        bare = {f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING}
        return {name: (hint, name in bare) for name, hint in hints.items()}
    if issubclass(kind, msgspec.Struct):
        tagged = {"type": (Literal[kind.__struct_config__.tag], True)}
        return tagged | {f.encode_name: (f.type, f.required) for f in msgspec.structs.fields(kind)}
    return {name: (hints[name], field.is_required()) for name, field in kind.model_fields.items()}


def reads(kind: Any, value: Any, ordered: bool = True) -> bool:
    """Return whether a JSON value, objects as `Pairs`, is of the type: objects closed and, if `ordered`, in order."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return reads(parts[0], value, ordered)
    if origin in (Union, types.UnionType):
        return any(reads(part, value, ordered) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is list:
        return type(value) is list and all(reads(parts[0], one, ordered) for one in value)
    if origin is dict:
        return isinstance(value, Pairs) and all(reads(parts[1], one, ordered) for _, one in value)
    if kind in (int, str, bool, type(None)):
        return type(value) is kind
    fields = fields_of(kind)
    if not isinstance(value, Pairs):
        return False
    names = [name for name, _ in value]
    known = [name for name in fields if name in names]
    complete = all(name in names for name, (_, required) in fields.items() if required)
    fits = names == known if ordered else sorted(names) == sorted(known)
    return fits and complete and all(reads(fields[name][0], one, ordered) for name, one in value)


def lacks_no_tag(kinds: tuple[Any, ...], value: Any) -> bool:
    """Return whether the members of one literal value are there, if the value is of a class of several that has any."""
    classes = [kind for kind in kinds if isinstance(kind, type) and kind is not type(None)]
    if len(classes) < 2 or not isinstance(value, Pairs):
        return True
    names = {name for name, _ in value}
    tags = {
        c: {n for n, (h, _) in fields_of(c).items() if get_origin(h) is Literal and len(get_args(h)) == 1}
        for c in classes
    }
    return any(tags[one] <= names for one in classes if reads(one, value))


def is_whole(kind: Any, value: Any, given: Any) -> bool:
    """Return whether a parsed value is of a class that reads the JSON value, with all its members.

    Of classes that differ in the order of their members alone, Pydantic may choose either.
    """
    if isinstance(given, Pairs) and not isinstance(value, dict):
        members = [(name, one) for name, one in given if name != "type"]  # a Struct's tag
        whole = all(is_whole(kind, getattr(value, name), one) for name, one in members)
        return whole and reads(type(value), given, ordered=False)
    if isinstance(given, Pairs):
        return value.keys() == {n for n, _ in given} and all(is_whole(kind, value[n], one) for n, one in given)
    if isinstance(given, list):
        return len(value) == len(given) and all(map(is_whole, itertools.repeat(kind), value, given))
    return type(value) is type(given) and bool(value == given)


def check(kind: Any, seeds: range) -> set[str]:
    """Draw texts of a type, judge each, and return the classes of the values."""
    adapter, classes = adapter_of(kind), set()
    constraint = constraint_of(adapter)
    for seed in seeds:
        text = written(constraint, seed)
        given = json.loads(text, object_pairs_hook=Pairs)
        assert reads(kind, given), text
        assert lacks_no_tag(get_args(kind), given), text
        value = adapter.parse(text)
        assert is_whole(kind, value, given), (text, value)
        assert admits(constraint, adapter.dump(value)), text
        classes.add(type(value[0] if isinstance(value, list) and value else value).__name__)
    return classes


@pytest.mark.parametrize("kind", UNIONS, ids=str)
def test_a_text_of_a_union_is_one_of_its_classes_and_so_is_the_value(kind: Any) -> None:
    found = check(kind, range(12))
    if get_origin(kind) in (Union, types.UnionType):
        assert len(found) > 1, found


SCALARS: list[Any] = [int, str, bool, Literal["a"], Literal["b"], Literal[1, 2], list[int]]
NAMES = ["a", "b", "c", "kind", "type_"]


def random_type(rng: random.Random, depth: int, made: list[str]) -> Any:
    """Return a random type of classes, unions, lists and scalars; a class may refer to itself by its name."""
    chosen = rng.random()
    if depth == 0 or chosen < 0.2:
        return rng.choice(SCALARS)
    if chosen < 0.3:
        return list[random_type(rng, depth - 1, made)]  # type: ignore[misc]
    if chosen < 0.65:
        parts = [random_class(rng, depth - 1, made) for _ in range(rng.randint(2, 4))]
        return Union[tuple(rng.sample([*parts, None], len(parts)))]  # noqa: UP007 - of a tuple
    return random_class(rng, depth - 1, made)


def random_class(rng: random.Random, depth: int, made: list[str]) -> Any:
    names = rng.sample(NAMES, rng.randint(1, 3))
    title = f"Random{len(made)}"
    made.append(title)
    kinds = {name: random_type(rng, depth, made) for name in names}
    defaults = {name for name in names[1:] if rng.random() < 0.5}
    kinds |= {n: Union[kinds[n], None] for n in defaults if get_origin(kinds[n]) is not Literal}  # noqa: UP007
    default = {name: get_args(kinds[name])[0] if get_origin(kinds[name]) is Literal else None for name in defaults}
    if rng.random() < 0.3:
        fields: Any = [(n, k, default[n]) if n in defaults else (n, k) for n, k in kinds.items()]
        fields.sort(key=len)  # those with a default come last
        return dataclasses.make_dataclass(title, fields)
    if rng.random() < 0.4:
        return TypedDict(title, {n: NotRequired[k] if n in defaults else k for n, k in kinds.items()})  # type: ignore[operator, misc]
    members: Any = {n: (k, default[n] if n in defaults else ...) for n, k in kinds.items()}
    return pydantic.create_model(title, **members)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(40))
def test_random_unions_are_one_of_their_classes(seed: int) -> None:
    rng = random.Random(seed)
    parts = [random_class(rng, 2, []) for _ in range(rng.randint(2, 9))]
    check(Union[tuple(parts)], range(4))  # noqa: UP007 - of a tuple


@pytest.mark.parametrize("kind", UNIONS, ids=str)
def test_a_description_has_the_members_of_every_class(kind: Any) -> None:
    lines = [line.strip().partition(" (")[0] for line in result_text(kind).splitlines()]
    for one in parts(kind):
        if isinstance(one, type) and members(one):
            assert {f"- {name}" for name in fields_of(one)} <= set(lines)
    assert len(lines) <= 16  # a recursive class stands there once


def test_the_description_of_a_union() -> None:
    assert result_text(list[Search | Calc] | None) == (
        "Answer with list of Search or Calc or null, as JSON, and nothing else.\n"
        "Search: A question for the index.\n"
        '- kind (one of "search")\n'
        "- query (string): the words to look for\n"
        "- limit (integer)\n"
        "Calc:\n"
        "- expression (string)\n"
        "- digits (integer)\n"
        '- kind (one of "calc")'
    )


def test_a_class_that_allows_further_members_stays_open() -> None:
    class Open(BaseModel, extra="allow"):
        x: int

    kind: Any = Open | Person
    constraint = constraint_of(adapter_of(kind))
    assert admits(constraint, '{"x": 1, "more": [2]}')
    assert adapter_of(kind).parse('{"x": 1, "more": [2]}') == Open(x=1, more=[2])  # type: ignore[call-arg]
    assert not admits(constraint, '{"name": "a", "more": [2]}')


def test_the_meaning_of_a_schema_that_is_given_as_a_dict_stays() -> None:
    schema = {"anyOf": [{"type": "object", "properties": {name: {"type": "integer"}}} for name in "ab"]}
    assert admits(Constraint("json_schema", json.dumps(schema), "any", "closed"), '{"a": 1, "b": 2}')


def test_members_that_are_named_like_keywords_are_members() -> None:
    class Odd(BaseModel):
        properties: dict[str, int]
        anyOf: list[int]
        default: Person | Pet

    class Even(BaseModel):
        default: int

    kind: Any = Odd | Even
    text = '{"properties": {"a": 1}, "anyOf": [1], "default": {"age": 1, "name": "b", "tame": true}}'
    assert admits(constraint_of(adapter_of(kind)), text)
    assert adapter_of(kind).parse(text).default == Pet(age=1, name="b", tame=True)
    check(kind, range(4))


def test_a_program_gets_the_class_that_was_written() -> None:
    @ramiform.function
    def program(s: ProgramState) -> None:
        s += gen("x", schema=list[Search | Calc])

    text = '[{"kind": "calc", "expression": "1"}, {"kind": "search", "query": "q"}]'
    assert program.run(backend=Scripted([text]))["x"] == [Calc("1"), Search(query="q")]


@pytest.mark.slow
def test_the_model_that_ships_writes_one_of_the_classes(runtime: Any, backend: Any) -> None:
    class Ask(BaseModel):
        about: Annotated[str, Field(max_length=8)] = ""
        kind: Literal["ask"] = "ask"

    class Count(BaseModel):
        kind: Literal["count"] = "count"
        number: Annotated[int, Field(ge=0, le=99)]

    @ramiform.function
    def program(s: ProgramState) -> None:
        s += "JSON: " + gen("x", schema=Ask | Count, n=8, max_tokens=60, temperature=1.5, seed=1)

    values = program.run()["x"]
    assert {type(value) for value in values} == {Ask, Count}
    assert all("kind" in value.model_fields_set for value in values)
