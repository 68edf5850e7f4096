"""Work ahead of the first token for schemas that list many values: their states, and combinations that are refused."""

from __future__ import annotations

from typing import Any

from ...automaton.automaton import Automaton
from ...errors import GrammarError
from ..document import Document, Location
from ..interface import SchemaCompiler
from ..keyword_set import MAX_COMBINED_VALUES
from .states import ListedContext, ListedStart, ValueSet
from .values import MAX_VALUE_DEPTH

_LISTING = frozenset(("enum", "const"))
_STRUCTURES = (dict, list)
MANY_STRUCTURES = 256  # given objects and arrays of which the states are made before the first token
MANY_VALUES = 2000  # given values of any type of which they are
MAX_PREPARED = 200_000  # members and items that are looked at for that


def given_values_of(schema: dict[str, Any]) -> list[Any]:
    """Return the values that a schema lists by `enum` and `const`."""
    return [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]


def check_depth(schema: dict[str, Any], pointer: str) -> None:
    """Refuse given values that are nested too deep for the automaton's stack. Raises GrammarError."""
    if _LISTING.isdisjoint(schema):
        return
    level = [value for value in given_values_of(schema) if isinstance(value, dict | list)]
    for _ in range(MAX_VALUE_DEPTH):
        if not level:
            return
        inner = [each for value in level for each in (value.values() if isinstance(value, dict) else value)]
        level = [value for value in inner if isinstance(value, dict | list)]
    raise GrammarError(f"given values nested deeper than {MAX_VALUE_DEPTH}", pointer=pointer)


def places_of_many_values(document: Document) -> list[Location]:
    """Return the subschemas that list many values."""
    found = []
    for location in document.having(_LISTING):
        values = given_values_of(location.schema)
        num_structures = sum(isinstance(value, _STRUCTURES) for value in values)
        if num_structures >= MANY_STRUCTURES or len(values) >= MANY_VALUES:
            found.append(location)
    return found


def lists_many_structures(document: Document) -> bool:
    """Return True if so many objects and arrays are given that not all of them can be combined with other schemas."""
    number = 0
    for location in document.having(_LISTING):
        number += sum(isinstance(value, _STRUCTURES) for value in given_values_of(location.schema))
    return number > MAX_COMBINED_VALUES


def prepare_listed(compiler: SchemaCompiler, automaton: Automaton) -> None:
    """Make the states of given objects and arrays while many of them are possible."""
    todo = [found.first for found in list(compiler.cache.values()) if isinstance(found, ListedContext)]
    left = MAX_PREPARED
    known: set[ValueSet] = set()
    while todo:
        values = todo.pop()
        if len(values.numbers) < MANY_STRUCTURES or values in known:
            continue
        known.add(values)
        for name, index in values.places():
            left -= len(values.numbers)
            if left < 0:
                return
            choice, targets = values.choice(name, index)
            automaton.edges_of(automaton.number(ListedStart(choice)))
            todo += targets
            todo += [context.first for context in choice.contexts()]
