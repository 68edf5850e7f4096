"""Entry point: JSON Schema to the start state of an automaton. What cannot be enforced is refused with its pointer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..automaton.actions import HEAD
from ..automaton.automaton import Automaton
from ..automaton.exploration import expand_some
from ..budget import INTERPRETED, count
from ..constraint import SchemaOptions
from ..errors import GrammarError
from ..regex.syntax.length_limits import length_limits
from .alternatives.limits import LimitCheck, may_be_too_complex, same_value
from .document import MAX_SAME_VALUE, Document, Location, read_schema
from .formula import conj
from .goals import GoalCompiler
from .keyword_set import MAX_CONTAINED
from .keywords import APPLICATORS, NUMBER_KEYWORDS, REFERENCES, UNEVALUATED_KEYWORDS, check_keywords, child
from .listed.preparation import check_depth, lists_many_structures, places_of_many_values, prepare_listed
from .nesting import MAX_START_DEPTH, needs_many_levels
from .number_parts import number_part
from .quick_checks import is_plain_object
from .strings.string_dfas import check_pattern
from .strings.string_states import prepare_format
from .value_states import ValueStart

# Keywords whose values need more than `check_keywords`.
_CHECKED = NUMBER_KEYWORDS | frozenset(
    [
        *("enum", "const", *REFERENCES, "pattern", "format", "patternProperties"),
        *("extends", "disallow", "contains"),
    ]
)
_REFERENCE, _PATTERN = frozenset(["$ref"]), frozenset(["pattern"])
MAX_EXPLORED = 1000  # configurations that are expanded ahead
TOO_DEEP = "the schema is nested too deep to be compiled"


def checked_document(schema: Mapping[str, Any] | bool | str) -> Document:
    """Return the document of a schema. Raises GrammarError if it is malformed or not supported."""
    try:
        document = Document(read_schema(schema))
        for location in document.all:
            check_location(location, document)
        _check_cycles(document)
    except RecursionError:
        raise GrammarError(TOO_DEEP, pointer="") from None
    return document


def schema_start(
    document: Document,
    whitespace: str,
    order: str,
    options: SchemaOptions,
    automaton: Automaton,
    *,
    deferred: bool = False,
) -> ValueStart:
    """Return the state before a value that is valid under the schema. It pops when the value is complete.

    `deferred`: one of many schemas, few of which a text reaches. The state of one that plainly has values is not
    expanded here. Raises GrammarError if the schema is unsatisfiable, too complex or not supported.
    """
    try:
        return _schema_start(document, whitespace, order, options, automaton, deferred)
    except RecursionError:
        raise GrammarError(TOO_DEEP, pointer="") from None


def _schema_start(
    document: Document, whitespace: str, order: str, options: SchemaOptions, automaton: Automaton, deferred: bool
) -> ValueStart:
    compiler = GoalCompiler(document, whitespace, order, options)
    compiler.refused = automaton.refused
    automaton.caches.append(compiler.caches)
    for location in document.having(UNEVALUATED_KEYWORDS):
        compiler.formula_at(location)  # raises GrammarError if it is too complex
    goal = compiler.goal(document.start, generated=True)
    deferred = deferred and is_plain_object(document, document.start)
    if needs_many_levels(document):
        deferred = False
        compiler.limited_level, goal = 0, conj([goal, compiler.within(MAX_START_DEPTH)])
    start = ValueStart(compiler, goal)
    if deferred or (compiler.satisfiable(goal) and _has_texts(automaton, automaton.number(start))):
        if not document.has_started:
            LimitCheck(compiler).check()
        _work_ahead(compiler, automaton, start)
        document.has_started = True
        if not automaton.refused:
            return start
    if refused := automaton.refused:
        # Some values may be valid, but only among those that were too complex to work out.
        pointer = refused[0].pointer or pattern_pointer(refused[0].patterns, document)
        if not pointer:
            LimitCheck(compiler).check()  # which knows more of the place
        raise GrammarError(refused[0].reason, pointer=pointer) from None
    closed = " when objects have no members but those that are listed (additional_properties)"
    raise GrammarError(f"no text at all satisfies the constraint{closed if compiler.closes_objects else ''}")


def _has_texts(automaton: Automaton, number: int) -> bool:
    """Expand a state. Return False if every byte is refused there."""
    automaton.fill(number)
    return automaton.tables.states.item(number, HEAD) >= 0 or bool(automaton.edges_of(number))


def _work_ahead(compiler: GoalCompiler, automaton: Automaton, start: ValueStart) -> None:
    """Make the states of many given values, and those nearest to the start where constraints may be too complex.

    What cannot be combined is refused with its pointer, or is left in `automaton.refused`.
    """
    document = compiler.document
    places, is_many = places_of_many_values(document), lists_many_structures(document)
    for location in document.all if is_many else ():
        for kind in ("object", "array"):
            compiler.typed(compiler.goal(location, generated=True), kind)
    if places or is_many or may_be_too_complex(document):
        expand_some(automaton, start, MAX_EXPLORED)
    for location in places:
        automaton.edges_of(automaton.number(ValueStart(compiler, compiler.goal(location, generated=True))))
    prepare_listed(compiler, automaton)


def pattern_pointer(patterns: frozenset[str], document: Document) -> str:
    """Return the pointer of the first of the patterns in the document, or of the root without any."""
    for location in document.having(_PATTERN):
        if length_limits(location.schema["pattern"]).pattern in patterns:
            return child(location.pointer, "pattern")
    return ""


def check_location(location: Location, document: Document) -> None:
    """Check one subschema before the first token. Raises GrammarError for what cannot be enforced."""
    schema, pointer = location.schema, location.pointer
    count(10 * INTERPRETED)
    check_keywords(schema, pointer)
    if isinstance(schema, bool) or _CHECKED.isdisjoint(schema):
        return
    check_depth(schema, pointer)
    if "$recursiveRef" in schema and (schema["$recursiveRef"] != "#" or location.draft not in (2019, None)):
        reason = "$recursiveRef must be '#', in a schema of 2019-09"
        raise GrammarError(reason, pointer=child(pointer, "$recursiveRef"))
    for keyword in REFERENCES:
        if keyword in schema:
            document.resolve(schema[keyword], location, keyword)
    if "pattern" in schema:
        _check_pattern(length_limits(schema["pattern"]).pattern, child(pointer, "pattern"))
    if "format" in schema:
        prepare_format(schema["format"])
    for pattern in schema.get("patternProperties", ()):
        _check_pattern(pattern, child(pointer, "patternProperties", pattern))
    if location.draft == 3:
        for keyword in ("extends", "disallow"):
            if keyword in schema:
                raise GrammarError(f"draft 3's {keyword!r} is not supported", pointer=child(pointer, keyword))
    if not NUMBER_KEYWORDS.isdisjoint(schema):
        number_part(schema, False, False, pointer)
    if "contains" in schema and (location.draft or 2020) >= 2019:
        _check_contained(schema, pointer)


def _check_contained(schema: dict[str, Any], pointer: str) -> None:
    """Refuse large bounds beside `contains`: the items that it finds are counted beside all items, state by state."""
    for keyword in ("minContains", "maxContains"):
        bound = schema.get(keyword, 0)
        if bound > MAX_CONTAINED and (keyword == "minContains" or bound < schema.get("maxItems", math.inf)):
            raise GrammarError(
                f"{keyword!r} of more than {MAX_CONTAINED} is not supported", pointer=child(pointer, keyword)
            )


def _check_pattern(pattern: str, pointer: str) -> None:
    try:
        check_pattern(pattern)
    except GrammarError as error:
        raise GrammarError(error.reason, pointer=pointer, position=error.position) from None


def _check_cycles(document: Document) -> None:
    """Refuse schemas that apply to a value only by themselves, and those nested too deep about one value.

    Raises GrammarError with the pointer of the reference that closes a cycle, or of the schema that is too deep.
    """
    done: set[int] = set()
    for start in document.having(_REFERENCE):
        if id(start.schema) not in done:
            path: dict[int, None] = {id(start.schema): None}
            todo = [(start, iter(same_value(document, start)))]
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
                is_leaf = not isinstance(target.schema, dict) or APPLICATORS.isdisjoint(target.schema)
                if not is_leaf and id(target.schema) not in done:
                    path[id(target.schema)] = None
                    todo.append((target, iter(same_value(document, target))))
