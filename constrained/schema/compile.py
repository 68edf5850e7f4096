"""JSON Schema to the states of an automaton. Everything a schema demands is enforced, or refused with its pointer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..automaton.automaton import Automaton, ControlState
from ..constraint import SchemaOptions
from ..errors import GrammarError
from .array_states import ArrayContext, is_plain_array
from .document import Document, Location, read_schema
from .formula import Formula, evaluate
from .goals import SchemaCompiler
from .keywords import check_keywords, child
from .number_parts import number_part
from .object_context import ObjectContext, is_plain
from .object_states import ObjectState
from .string_dfas import pattern_dfa
from .value_states import ResultCodes, ValueStart, result_codes

MAX_SAME_VALUE = 100  # schemas inside each other that apply to one value


def check_cycles(document: Document) -> None:
    """Raises GrammarError with the pointer of a reference that closes a circle, or of a schema that is too deep."""
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
    """What a schema applies to the very value that it is applied to, and where it says so."""
    schema: dict[str, Any] = location.schema
    for keyword in ("$ref", "$dynamicRef"):
        if keyword in schema:
            yield child(location.pointer, keyword), document.resolve(schema[keyword], location, keyword)
    if "$ref" in schema and document.ref_is_alone:
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


class GoalCompiler(SchemaCompiler):
    """A world whose objects and arrays have states."""

    def structure_start(self, kind: str, formulas: tuple[Formula, ...], result: ResultCodes) -> ControlState | None:
        """The state after the opening bracket. None when there is no such value."""
        key = (kind, formulas, id(result))
        if key not in self.memory:
            assumed = self.num_assumed
            state = self._structure_start(kind, formulas, result)
            if state is None and not self.is_settled and assumed != self.num_assumed:
                return None  # while other goals are taken to have no value
            self.memory[key] = state
        return self.memory[key]  # type: ignore[no-any-return]

    def _structure_start(self, kind: str, formulas: tuple[Formula, ...], result: ResultCodes) -> ControlState | None:
        if not self._parts_have_values(formulas[0]):
            return None
        if kind == "object":
            context = ObjectContext(self, formulas, result)
            state = ObjectState(context, context.everything)
            return state if state.is_possible(True) else None
        array = ArrayContext(self, formulas, result).start()
        return array if array.is_possible() else None

    def _parts_have_values(self, formula: Formula) -> bool:
        """False only when there is nothing of which it holds: each part is asked by itself."""
        return evaluate(formula, lambda part: None if part.has_values(self) else False) is not False

    def has_structures(self, kind: str, formula: Formula) -> bool:
        if not self._parts_have_values(formula):
            return False
        if is_plain(formula) if kind == "object" else is_plain_array(self, formula):
            return True
        return self.structure_start(kind, (formula,), result_codes(self, ())) is not None


def schema_start(
    schema: Mapping[str, Any] | bool | str,
    whitespace: str,
    order: str,
    automaton: Automaton,
    options: SchemaOptions,
) -> ValueStart:
    """The state before a value that is valid under the schema; it pops when the value is over. Raises GrammarError."""
    document = Document(read_schema(schema))
    for location in document.all:
        _check(location, document)
    check_cycles(document)
    world = GoalCompiler(document, whitespace, order, options)
    for location in document.all:
        if isinstance(location.schema, dict) and not _UNEVALUATED.isdisjoint(location.schema):
            world.demanded(location)  # which may be too complex
    goal = world.goal(document.start, written=True)
    start = ValueStart(world, goal)
    if world.satisfiable(goal) and automaton.edges_of(automaton.number(start)):
        return start
    if refused := [*world.refused, *automaton.refused]:
        # There may be such texts, but not among those that could be worked out.
        pointer = refused[0].pointer or _place_of(refused[0].patterns, document)
        raise GrammarError(refused[0].reason, pointer=pointer) from None
    closed = " when objects have no members but those that are listed (additional_properties)" if world.closes else ""
    raise GrammarError(f"no text at all satisfies the constraint{closed}")


def _place_of(patterns: frozenset[str], document: Document) -> str:
    """The pointer of one of the patterns; of the schema itself when there are none."""
    for location in document.all:
        if isinstance(location.schema, dict) and location.schema.get("pattern") in patterns:
            return child(location.pointer, "pattern")
    return ""


def _check(location: Any, document: Document) -> None:
    """Raises GrammarError for what cannot be enforced, so that nothing is found out later."""
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
    if document.draft == 3:
        for keyword in ("extends", "disallow"):
            if keyword in schema:
                raise GrammarError(f"draft 3's {keyword!r} is not supported", pointer=child(pointer, keyword))
    if "$recursiveRef" in schema:
        raise GrammarError("$recursiveRef is not supported", pointer=child(pointer, "$recursiveRef"))
    if not _NUMBERS.isdisjoint(schema):
        number_part(schema, False, False, pointer)


_NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "divisibleBy"))

_UNEVALUATED = frozenset(("unevaluatedProperties", "unevaluatedItems"))


def _check_pattern(pattern: str, pointer: str) -> None:
    try:
        pattern_dfa(pattern)
    except GrammarError as error:
        raise GrammarError(str(error), pointer=pointer, position=error.position) from None
