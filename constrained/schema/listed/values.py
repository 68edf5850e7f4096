"""Given JSON values, each one object for all equal values of a compiler, and the parts that list objects or arrays.

JSON Schema calls 1 and 1.0 equal, and objects whose members come in any order.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from decimal import Decimal
from typing import Any

from ...regex.charset import has_surrogates
from ..interface import SchemaCompiler

MAX_VALUE_DEPTH = 120  # arrays and objects inside each other
WORD_VALUES = {"null": None, "true": True, "false": False}


class GivenValue:
    """A JSON value of the schema. Two of one compiler are equal exactly if they are the same object.

    `kind` is one of `VALUE_TYPES`. `content` is a text, a number, the items of an array, or the members of an object
    as pairs, in the order in which they were first written. `can_be_spelled` is False if a text in it has an unpaired
    surrogate, because JSON in UTF-8 cannot spell it.
    """

    __slots__ = ("can_be_spelled", "content", "kind")

    def __init__(self, kind: str, content: Any, can_be_spelled: bool) -> None:
        self.kind, self.content, self.can_be_spelled = kind, content, can_be_spelled


def given_value(compiler: SchemaCompiler, value: Any) -> GivenValue:
    """Return the given value of a JSON value."""
    match value:
        case dict():
            pairs = tuple((name, given_value(compiler, inner)) for name, inner in value.items())
            spelled = all(inner.can_be_spelled and not has_surrogates(name) for name, inner in pairs)
            return _known(compiler, ("object", frozenset(pairs)), pairs, spelled)
        case list():
            items = tuple(given_value(compiler, inner) for inner in value)
            return _known(compiler, ("array", items), items, all(inner.can_be_spelled for inner in items))
        case str():
            return _known(compiler, ("string", value), value, not has_surrogates(value))
        case None | True | False:
            kind = next(kind for kind, word in WORD_VALUES.items() if word is value)
            return _known(compiler, (kind, None), None, True)
        case _:
            number = Decimal(value) if isinstance(value, int | Decimal) else Decimal(repr(value))
            number = abs(number) if number == 0 else number  # -0.0 equals 0
            return _known(compiler, ("number", number), number, True)


def _known(compiler: SchemaCompiler, key: tuple[str, Hashable], content: Any, can_be_spelled: bool) -> GivenValue:
    known = compiler.cache.setdefault("given values", {})
    found = known.get(key)
    if found is None:
        found = known[key] = GivenValue(key[0], content, can_be_spelled)
    return found  # type: ignore[no-any-return]


def json_value(value: GivenValue) -> Any:
    """Return a given value as Python has it; whole numbers are ints."""
    match value.kind:
        case "object":
            return {name: json_value(inner) for name, inner in value.content}
        case "array":
            return [json_value(inner) for inner in value.content]
        case "number":
            whole = value.content == value.content.to_integral_value()
            return int(value.content) if whole else float(value.content)
        case "string":
            return value.content
        case _:
            return WORD_VALUES[value.kind]


class ListedPart:
    """Part that holds for given objects or arrays. A compiler makes one part for the same values and options.

    `digits`: integers in them are written in digits only. `ordered`: members come in the order of the given value.
    `pointer` is that of a keyword that lists them, for error messages.
    """

    __slots__ = ("digits", "ordered", "pointer", "values")

    def __init__(self, values: Collection[GivenValue], digits: bool, ordered: bool, pointer: str) -> None:
        self.values = dict.fromkeys(values)
        self.digits, self.ordered, self.pointer = digits, ordered, pointer


def listed_part(
    compiler: SchemaCompiler, values: Iterable[GivenValue], digits: bool, ordered: bool, pointer: str
) -> ListedPart | bool:
    """Return the part that holds for these objects or arrays, or False if there are none that can be spelled."""
    kept = [value for value in values if value.can_be_spelled]
    if not kept:
        return False
    key = ("listed", frozenset(kept), digits, ordered)
    if key not in compiler.cache:
        compiler.cache[key] = ListedPart(kept, digits, ordered, pointer)
    return compiler.cache[key]  # type: ignore[no-any-return]
