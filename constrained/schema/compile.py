"""Entry point: JSON Schema to the start state of an automaton. What cannot be enforced is refused with its pointer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..automaton.automaton import Automaton
from ..constraint import SchemaOptions
from ..errors import GrammarError
from .document import MAX_SAME_VALUE, Document, Location, read_schema
from .goals import GoalCompiler
from .keywords import NUMBER_KEYWORDS, UNEVALUATED_KEYWORDS, check_keywords, child
from .number_parts import number_part
from .string_dfas import pattern_dfa
from .value_states import ValueStart


def schema_start(
    schema: Mapping[str, Any] | bool | str,
    whitespace: str,
    order: str,
    automaton: Automaton,
    options: SchemaOptions,
) -> ValueStart:
    """Return the state before a value that is valid under the schema. It pops when the value is complete.

    Raises GrammarError if the schema is malformed, unsatisfiable, too complex or not supported.
    """
    document = Document(read_schema(schema))
    for location in document.all:
        _check(location, document)
    _check_cycles(document)
    compiler = GoalCompiler(document, whitespace, order, options)
    for location in document.all:
        if isinstance(location.schema, dict) and not UNEVALUATED_KEYWORDS.isdisjoint(location.schema):
            compiler.formula_at(location)  # raises GrammarError if it is too complex
    goal = compiler.goal(document.start, generated=True)
    start = ValueStart(compiler, goal)
    if compiler.satisfiable(goal) and automaton.edges_of(automaton.number(start)):
        return start
    if refused := [*compiler.refused, *automaton.refused]:
        # Some values may be valid, but only among those that were too complex to work out.
        pointer = refused[0].pointer or _pattern_pointer(refused[0].patterns, document)
        raise GrammarError(refused[0].reason, pointer=pointer) from None
    closed = " when objects have no members but those that are listed (additional_properties)"
    raise GrammarError(f"no text at all satisfies the constraint{closed if compiler.closes_objects else ''}")


def _pattern_pointer(patterns: frozenset[str], document: Document) -> str:
    """Return the pointer of the first of the patterns in the document, or of the root without any."""
    for location in document.all:
        if isinstance(location.schema, dict) and location.schema.get("pattern") in patterns:
            return child(location.pointer, "pattern")
    return ""


def _check(location: Location, document: Document) -> None:
    """Check one subschema before the first token. Raises GrammarError for what cannot be enforced."""
    schema, pointer = location.schema, location.pointer
    check_keywords(schema, pointer)
    if not isinstance(schema, dict):
        return
    for keyword in ("$ref", "$dynamicRef"):
        if keyword in schema:
            document.resolve(schema[keyword], location, keyword)
    if "pattern" in schema:
        _check_pattern(schema["pattern"], child(pointer, "pattern"))
    for pattern in schema.get("patternProperties", ()):
        _check_pattern(pattern, child(pointer, "patternProperties", pattern))
    if location.draft == 3:
        for keyword in ("extends", "disallow"):
            if keyword in schema:
                raise GrammarError(f"draft 3's {keyword!r} is not supported", pointer=child(pointer, keyword))
    if "$recursiveRef" in schema:
        raise GrammarError("$recursiveRef is not supported", pointer=child(pointer, "$recursiveRef"))
    if not NUMBER_KEYWORDS.isdisjoint(schema):
        number_part(schema, False, False, pointer)


def _check_pattern(pattern: str, pointer: str) -> None:
    try:
        pattern_dfa(pattern)
    except GrammarError as error:
        raise GrammarError(str(error), pointer=pointer, position=error.position) from None


def _check_cycles(document: Document) -> None:
    """Refuse schemas that apply to a value only by themselves, and those nested too deep about one value.

    Raises GrammarError with the pointer of the reference that closes a cycle, or of the schema that is too deep.
    """
    done: set[int] = set()
    for start in document.all:
        if isinstance(start.schema, dict) and "$ref" in start.schema and id(start.schema) not in done:
            path: dict[int, None] = {id(start.schema): None}
            todo = [(start, _same_value(document, start))]
            while todo:
                location, inner = todo[-1]
                found = next(inner, None)
                if found is None:
                    todo.pop()
                    path.pop(id(location.schema))
                    done.add(id(location.schema))
                    continue
                pointer, target = found
                if id(target.schema) in path:
                    raise GrammarError("the schema refers to itself without an end", pointer=pointer)
                if len(todo) > MAX_SAME_VALUE:
                    raise GrammarError("schemas of one value nested deeper than is supported", pointer=pointer)
                if isinstance(target.schema, dict) and id(target.schema) not in done:
                    path[id(target.schema)] = None
                    todo.append((target, _same_value(document, target)))


def _same_value(document: Document, location: Location) -> Iterator[tuple[str, Location]]:
    """Yield the subschemas that a schema applies to the value itself, with the pointers of their keywords."""
    schema: dict[str, Any] = location.schema
    for keyword in ("$ref", "$dynamicRef"):
        if keyword in schema:
            yield child(location.pointer, keyword), document.resolve(schema[keyword], location, keyword)
    if "$ref" in schema and location.ref_is_alone:
        return
    for keyword in ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"):
        value = schema.get(keyword)
        parts: list[tuple[str | int, Any]] = []
        if isinstance(value, list):
            parts = list(enumerate(value))
        elif keyword.startswith("dependen") and isinstance(value, dict):
            parts = list(value.items())
        elif isinstance(value, dict):
            yield child(location.pointer, keyword), document.inside(location, value, keyword)
        for name, inner in parts:
            if isinstance(inner, dict):
                yield child(location.pointer, keyword, name), document.inside(location, inner, keyword, name)
