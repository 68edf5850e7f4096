"""Lists of all values of a goal that has only a few. Arrays of unique items can run out of these."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from ...budget import CompileBudget
from ...errors import GrammarError
from ..formula import And, ExactlyOne, Formula, Or, atoms, evaluate
from ..interface import SchemaCompiler
from ..number_parts import NumberPart
from ..strings.string_parts import StringPart, char_product, chars_of, ends_soon, few_texts
from ..structure_parts import ArrayPart, ObjectPart
from .values import ListedPart, json_value

_MAX_VALUES = 16
MAX_COUNTED = 1024  # values of a goal that are counted, if items must differ
MAX_ROOM = 1000  # strings of a goal that are counted
MAX_ITEMS = 8  # of an array whose values are listed
_WORDS: dict[str, Any] = {"null": None, "true": True, "false": False}
Canonical = tuple[str, Any]  # type name and hashable content


def canonical(value: Any) -> Canonical:
    """Return a form that is equal for values that JSON Schema calls equal: 1 and 1.0, objects in any order."""
    match value:
        case dict():
            return "structure", frozenset((name, canonical(inner)) for name, inner in value.items())
        case list():
            return "structure", tuple(canonical(inner) for inner in value)
        case bool() | None | str():
            return type(value).__name__, value
        case float() if value.is_integer():  # as it is written: a large one is not its digits in binary
            return "number", int(Decimal(repr(value)))
        case _:
            return "number", int(value) if value == int(value) else value


def value_of(form: Canonical) -> Any:
    """Return a value with this canonical form."""
    kind, value = form
    if kind != "structure":
        return value
    return [value_of(inner) for inner in value] if isinstance(value, tuple) else {n: value_of(i) for n, i in value}


def finite_values(compiler: SchemaCompiler, goal: Formula, most: int = _MAX_VALUES) -> tuple[Canonical, ...] | None:
    """Return all values of a goal, perhaps with more objects and arrays, or None if they may exceed `most`."""
    key = ("finite values", goal, most)
    if key not in compiler.cache:
        compiler.cache[key] = None  # a recursive goal has many values or none
        compiler.cache[key] = _finite_values(compiler, goal, most)
    return compiler.cache[key]  # type: ignore[no-any-return]


def may_have_more_values(compiler: SchemaCompiler, goal: Formula, number: int) -> bool:
    """Return False if no more values than this number satisfy a goal. Beyond `MAX_COUNTED` they are not counted."""
    if has_room(compiler, goal, number) or number >= MAX_COUNTED:
        return True
    values = finite_values(compiler, goal, _MAX_VALUES if number < _MAX_VALUES else MAX_COUNTED)
    return values is None or len(values) > number


def needed_exclusions(compiler: SchemaCompiler, goals: list[Formula], forms: list[Canonical]) -> list[Canonical]:
    """Return the earlier items that goals of an item must exclude so that no text is a dead end: no structures.

    A string need not be excluded if more strings begin with it than an array can hold. The same holds for every
    beginning of a number if it has no exponent: one excluded number is enough to write all without.
    """
    goals = [goal for goal in goals if goal is not False]
    kept = [form for form in forms if form[0] not in ("structure", "str", "number")]
    strings = [compiler.typed(goal, "string") for goal in goals]
    kept += [form for form in forms if form[0] == "str" and any(ends_soon(typed, form[1]) for typed in strings)]
    numbers = [form for form in forms if form[0] == "number"]
    is_open = all(compiler.typed(goal, "number") in (True, False) for goal in goals)
    return kept + (sorted(numbers, key=repr)[:1] if is_open else numbers)


def has_room(compiler: SchemaCompiler, goal: Formula, number: int) -> bool:
    """Return True if it is plain that more values than this number satisfy a goal."""
    key = ("room", goal)
    room = compiler.cache.get(key)
    if room is None:
        room = compiler.cache[key] = max(_room(compiler.typed(goal, kind)) for kind in ("string", "number"))
    return bool(room > number)


def _room(typed: Formula) -> float:
    """Return a lower bound on the number of strings or numbers of a part."""
    if typed is True:
        return math.inf
    listed = getattr(typed, "texts", None) or getattr(typed, "values", None)
    if listed is not None:
        return len(listed)
    if isinstance(typed, StringPart):
        found = _texts(typed, MAX_ROOM)
        return MAX_ROOM if found is None else len(found)
    return typed.least_count() if isinstance(typed, NumberPart) else 0


def _finite_values(compiler: SchemaCompiler, goal: Formula, most: int) -> tuple[Canonical, ...] | None:
    found: dict[Canonical, None] = {}
    for kind in ("string", "number", "object", "array", *_WORDS):
        typed = compiler.typed(goal, kind)
        if typed is False:
            continue
        if kind in _WORDS:
            found[canonical(_WORDS[kind])] = None
            continue
        values = None if typed is True else _values_of_type(compiler, typed, kind, most)
        if values is None:
            return None
        found |= dict.fromkeys(values)
        if len(found) > most:
            return None
    return tuple(found)


def _values_of_type(compiler: SchemaCompiler, typed: Formula, kind: str, most: int) -> list[Canonical] | None:
    if kind == "string":
        texts = _texts(typed, most)
        return None if texts is None else [canonical(text) for text in texts]
    values = _listed(compiler, typed, most)
    if values is None or kind != "number":
        return values
    # `_listed` gives a superset; parts compare exact decimals.
    return [v for v in values if evaluate(typed, lambda part: part.holds(Decimal(repr(v[1]))))]  # noqa: B023


def _texts(typed: Formula, most: int) -> list[str] | None:
    parts = atoms(typed)
    budget = CompileBudget()
    try:
        found = char_product([chars_of(part) for part in parts], budget)
    except GrammarError:
        return None
    texts: list[str] = []
    for truths in found.truths:
        if evaluate(typed, dict(zip(parts, truths, strict=True)).__getitem__):
            some = few_texts(found.chars(truths), most)
            if some is None:
                return None
            texts += some
    return texts


def _listed(compiler: SchemaCompiler, typed: Formula, most: int) -> list[Canonical] | None:
    """Return a superset of the numbers, objects or arrays that satisfy a formula, or None if it is large."""
    if isinstance(typed, And):
        some = [values for part in typed.parts if (values := _listed(compiler, part, most)) is not None]
        return min(some, key=len, default=None)
    if isinstance(typed, Or | ExactlyOne):
        found: dict[Canonical, None] = {}
        for part in typed.parts:
            values = _listed(compiler, part, most)
            if values is None:
                return None
            found |= dict.fromkeys(values)
        return list(found)
    match typed:
        case NumberPart():
            return _numbers(typed, most)
        case ArrayPart():
            return _arrays(compiler, typed, most)
        case ObjectPart():
            return _objects(compiler, typed, most)
        case ListedPart():
            return _few((canonical(json_value(value)) for value in typed.values), most)
        case _:
            return None


def _numbers(part: NumberPart, most: int) -> list[Canonical] | None:
    if part.values is not None:
        return [canonical(int(value) if value == int(value) else float(value)) for value in part.values]
    integers = part.few_integers(most) if part.integer else None
    return None if integers is None else list(map(canonical, integers))


def _arrays(compiler: SchemaCompiler, part: ArrayPart, limit: int) -> list[Canonical] | None:
    items: list[tuple[Canonical, ...]] = []
    most = MAX_ITEMS if part.most is None else part.most
    while len(items) < most:
        values = finite_values(compiler, part.goal(len(items)), limit)
        if values is None or len(items) == MAX_ITEMS:
            return None
        if not values:
            break
        items.append(values)
    else:
        if part.most is None:
            return None
    return _few(
        (
            ("structure", chosen)
            for length in range(part.least, len(items) + 1)
            for chosen in itertools.product(*items[:length])
        ),
        limit,
    )


def _objects(compiler: SchemaCompiler, part: ObjectPart, most: int) -> list[Canonical] | None:
    if not part.is_closed:
        return None
    members: list[list[tuple[str, Canonical] | None]] = []
    for name in part.names:
        values = finite_values(compiler, part.goal_under(compiler, name), most)
        if values is None:
            return None
        members.append([*((name, value) for value in values), *([] if name in part.required else [None])])
    return _few(
        (
            ("structure", frozenset(member for member in chosen if member is not None))
            for chosen in itertools.product(*members)
        ),
        most,
    )


def _few(values: Iterable[Canonical], most: int) -> list[Canonical] | None:
    found = list(itertools.islice(values, most + 1))
    return found if len(found) <= most else None
