"""The values of a goal, where they are few: what arrays of unique items can run out of. Knows goals and parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from ..budget import CompileBudget
from ..errors import GrammarError
from .formula import And, ExactlyOne, Formula, Or, atoms, evaluate
from .goals import SchemaCompiler
from .number_parts import NumberPart
from .string_regions import char_product, chars_of, few_texts
from .structure_parts import ArrayPart, ObjectPart

MANY = 16
FEW_ITEMS = 8  # of an array of which all values are listed
_WORDS: dict[str, Any] = {"null": None, "true": True, "false": False}
Canonical = tuple[str, Any]


def canonical(value: Any) -> Canonical:
    """Equal for values that JSON Schema calls equal: 1 and 1.0, objects in any order."""
    match value:
        case dict():
            return "structure", frozenset((name, canonical(inner)) for name, inner in value.items())
        case list():
            return "structure", tuple(canonical(inner) for inner in value)
        case bool() | None | str():
            return type(value).__name__, value
        case _:
            return "number", int(value) if value == int(value) else value


def value_of(form: Canonical) -> Any:
    """A value of which this is the canonical form."""
    kind, value = form
    if kind != "structure":
        return value
    return [value_of(inner) for inner in value] if isinstance(value, tuple) else {n: value_of(i) for n, i in value}


def distinct_values(world: SchemaCompiler, goal: Formula) -> tuple[Canonical, ...] | None:
    """All values, and of objects and arrays perhaps a few more; None when they may be more than `MANY`."""
    key = ("distinct", goal)
    if key not in world.memory:
        world.memory[key] = None  # what holds a value of itself has many, or none
        world.memory[key] = _distinct(world, goal)
    return world.memory[key]  # type: ignore[no-any-return]


def _distinct(world: SchemaCompiler, goal: Formula) -> tuple[Canonical, ...] | None:
    found: dict[Canonical, None] = {}
    for kind in ("string", "number", "object", "array", *_WORDS):
        typed = world.typed(goal, kind)
        if typed is False:
            continue
        if kind in _WORDS:
            found[canonical(_WORDS[kind])] = None
            continue
        values = None if typed is True else _of_kind(world, typed, kind)
        if values is None:
            return None
        found |= dict.fromkeys(values)
        if len(found) > MANY:
            return None
    return tuple(found)


def _of_kind(world: SchemaCompiler, typed: Formula, kind: str) -> list[Canonical] | None:
    if kind == "string":
        texts = _texts(typed)
        return None if texts is None else [canonical(text) for text in texts]
    values = _listed(world, typed)
    if values is None or kind != "number":
        return values
    # As they were compared: exactly.
    return [v for v in values if evaluate(typed, lambda part: part.holds(Decimal(repr(v[1]))))]  # noqa: B023


def _texts(typed: Formula) -> list[str] | None:
    parts = atoms(typed)
    budget = CompileBudget()
    try:
        found = char_product([chars_of(part) for part in parts], budget)
    except GrammarError:
        return None
    texts: list[str] = []
    for truths in found.truths:
        if evaluate(typed, dict(zip(parts, truths, strict=True)).__getitem__):
            some = few_texts(found.chars(truths), MANY)
            if some is None:
                return None
            texts += some
    return texts


def _listed(world: SchemaCompiler, typed: Formula) -> list[Canonical] | None:
    """All of which a formula over numbers, objects or arrays may hold."""
    if isinstance(typed, And):
        some = [values for part in typed.parts if (values := _listed(world, part)) is not None]
        return min(some, key=len, default=None)
    if isinstance(typed, Or | ExactlyOne):
        found: dict[Canonical, None] = {}
        for part in typed.parts:
            values = _listed(world, part)
            if values is None:
                return None
            found |= dict.fromkeys(values)
        return list(found)
    match typed:
        case NumberPart():
            return _numbers(typed)
        case ArrayPart():
            return _arrays(world, typed)
        case ObjectPart():
            return _objects(world, typed)
        case _:
            return None


def _numbers(part: NumberPart) -> list[Canonical] | None:
    if part.values is not None:
        return [canonical(int(value) if value == int(value) else float(value)) for value in part.values]
    if not part.integer or part.lower is None or part.upper is None:
        return None
    first, last = math.ceil(part.lower.value), math.floor(part.upper.value)
    return [canonical(number) for number in range(first, last + 1)] if last - first <= MANY else None


def _arrays(world: SchemaCompiler, part: ArrayPart) -> list[Canonical] | None:
    items: list[tuple[Canonical, ...]] = []
    most = FEW_ITEMS if part.most is None else part.most
    while len(items) < most:
        values = distinct_values(world, part.goal(len(items)))
        if values is None or len(items) == FEW_ITEMS:
            return None
        if not values:
            break
        items.append(values)
    else:
        if part.most is None:
            return None
    return _few(
        ("structure", chosen)
        for length in range(part.least, len(items) + 1)
        for chosen in itertools.product(*items[:length])
    )


def _objects(world: SchemaCompiler, part: ObjectPart) -> list[Canonical] | None:
    if not any(local.additional is False and not local.patterns for local in part.locals):
        return None
    members: list[list[tuple[str, Canonical] | None]] = []
    for name in part.names:
        values = distinct_values(world, part.name_goal(world, name))
        if values is None:
            return None
        members.append([*((name, value) for value in values), *([] if name in part.required else [None])])
    return _few(
        ("structure", frozenset(member for member in chosen if member is not None))
        for chosen in itertools.product(*members)
    )


def _few(values: Iterable[Canonical]) -> list[Canonical] | None:
    found = list(itertools.islice(values, MANY + 1))
    return found if len(found) <= MANY else None
