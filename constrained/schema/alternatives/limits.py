"""Checks before the first token: whether alternatives and conditions that apply together are too many to work out.

Goals are worked out when a text reaches them, and a combination that is too complex would end the output only then. So
schemas of which many apply to one value are worked out here, with all their alternatives at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

from ...automaton.automaton import Automaton
from ...errors import GrammarError
from ...regex.counted_chars import MAX_PRODUCT_STATES
from ...regex.syntax.length_limits import length_limits
from ..array_states import MAX_ITEM_GOALS, is_plain_array
from ..document import Document, Location
from ..formula import Formula, ResultCodes, atoms
from ..goals import GoalCompiler
from ..interface import SchemaNode
from ..keywords import APPLICATORS, REFERENCES, child
from ..number_parts import NumberPart
from ..objects.name_states import MAX_NAME_KINDS, MemberNames
from ..objects.object_context import ObjectContext, is_plain
from ..objects.object_states import ObjectState
from ..quick_checks import is_bare_reference
from ..strings.string_dfas import any_string, combinations, format_chars, most_states, pattern_dfa
from ..strings.string_parts import string_dfa
from ..strings.string_states import string_start
from ..structure_parts import ArrayPart, ObjectPart
from ..value_states import number_start, result_codes
from .object_search import MAX_PARTS

MAX_SCHEMAS = 40  # of one value that are never too many
MAX_TESTS = 8  # patterns and formats of one value that are never too many
_Test = tuple[str, Any]  # keyword and value of what an automaton is made of
_AUTOMATA = frozenset(("pattern", "format", "multipleOf", "divisibleBy"))
_TESTS = _AUTOMATA | frozenset(("propertyNames", "contains"))
_NAME_TESTS = frozenset(("propertyNames", "patternProperties"))
_ALL_TESTS = _TESTS | _NAME_TESTS
_NAMED_BY_PATTERN, _CONTAINS = frozenset(["patternProperties"]), frozenset(["contains"])
# Of a schema without these, nothing but its own keywords applies to one value.
_SEVERAL = (APPLICATORS - {"enum", "const"}) | {"patternProperties"}
_ITEMS = ("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems")
_OTHER_ITEMS = frozenset(_ITEMS) - {"items"}
_OF_SAME_VALUE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
_WITH_MANY = ("allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies")  # which may apply many schemas to a value
_MAX_LISTED = 256  # schemas of one value whose members are compared
MAX_MEETINGS = 1000  # sets of schemas of one value that are looked at, beside those of single schemas


_AddStates = Callable[[Automaton, tuple[Formula, ...], ResultCodes], int | None]


class Weight(NamedTuple):
    """Number of schemas that apply to one value, and of the patterns, formats and divisors in them."""

    schemas: int
    tests: int

    @property
    def is_large(self) -> bool:
        """True if these may be too many together."""
        return self.schemas > MAX_SCHEMAS or self.tests > MAX_TESTS


NO_WEIGHT = Weight(0, 0)


def _sum(weights: Iterable[Weight]) -> Weight:
    several = list(weights)
    return Weight(sum(each.schemas for each in several), sum(each.tests for each in several))


def _num_tests(schema: dict[str, Any]) -> int:
    if _ALL_TESTS.isdisjoint(schema):
        return 0
    return len(schema.get("patternProperties", ())) + sum(keyword in schema for keyword in _TESTS)


def may_be_too_complex(document: Document) -> bool:
    """Return True if tests that may meet in one value or name have a product that may be too large."""
    tests = {test for location in document.having(_AUTOMATA) for test in _own_tests(location.schema)}
    tests |= {test for location in document.having(_NAMED_BY_PATTERN) for test in _name_tests(location.schema)}
    if not _is_large(tests) and len(document.having(_CONTAINS)) <= MAX_ITEM_GOALS:
        return False  # not even all of them together
    meetings = _Meetings(document)
    return any(meetings.are_large_at(each) for each in document.with_keywords if not is_bare_reference(each))


def _own_tests(schema: dict[str, Any]) -> list[_Test]:
    """Return the tests of the value itself."""
    found = {keyword: schema[keyword] for keyword in _AUTOMATA if keyword in schema}
    if "pattern" in found:
        found["pattern"] = length_limits(found["pattern"]).pattern
    return [*found.items()]


def _name_tests(schema: dict[str, Any]) -> list[_Test]:
    """Return the tests of the names of members by `patternProperties`."""
    return [("pattern", pattern) for pattern in schema.get("patternProperties", ())]


class _Meetings:
    """Sets of schemas that apply to one value together, and whether the product of their tests may be large."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._known: set[frozenset[int]] = set()
        self._most = MAX_MEETINGS + len(document.with_keywords)

    def are_large_at(self, location: Location) -> bool:
        """Return True if the tests of a value under a schema, or of one inside that several apply to, may be many."""
        schema = location.schema
        if _SEVERAL.isdisjoint(schema) and _OTHER_ITEMS.isdisjoint(schema) and type(schema.get("items")) is not list:
            return _is_large(set(_own_tests(schema)))
        todo = [[location]]
        while todo:
            together = _closure(self._document, *todo.pop())
            key = frozenset(id(inner.schema) for inner in together)
            if key in self._known:
                continue
            self._known.add(key)
            if len(self._known) > self._most or self._are_large_together(together):
                return True
            todo += (group for group in (self._items(together), *self._members(together)) if len(group) > 1)
        return False

    def _are_large_together(self, together: list[Location]) -> bool:
        own = {test for inner in together for test in _own_tests(inner.schema)}
        names = {test for inner in together for test in _name_tests(inner.schema)}
        for name in _closure(self._document, *self._parts(together, "propertyNames")):
            names.update(_own_tests(name.schema))
        num_contained = sum("contains" in inner.schema for inner in together)
        return num_contained > MAX_ITEM_GOALS or _is_large(own) or _is_large(names)

    def _parts(self, together: list[Location], *keywords: str) -> list[Location]:
        """Return the schemas that are the values of keywords, or listed by them."""
        found: list[Location] = []
        for inner in together:
            for keyword in keywords:
                value = inner.schema.get(keyword)
                if isinstance(value, dict):
                    found.append(self._document.inside(inner, value, keyword))
                elif isinstance(value, list):
                    found += [self._document.inside(inner, part, keyword, n) for n, part in enumerate(value)]
        return found

    def _items(self, together: list[Location]) -> list[Location]:
        """Return the schemas of all items: they may meet where items are counted by what they satisfy."""
        return self._parts(together, *_ITEMS)

    def _members(self, together: list[Location]) -> Iterator[list[Location]]:
        """Yield the schemas of each member that is listed, and of one that is not."""
        if len(together) == 1 and "patternProperties" not in together[0].schema:
            return
        members: dict[str, list[Location]] = {}
        at_any_name: list[Location] = []
        others: list[tuple[dict[str, Any], Location]] = []  # with the names that they are not about
        for inner in together:
            listed = inner.schema.get("properties", {})
            for name, value in listed.items():
                members.setdefault(name, []).append(self._document.inside(inner, value, "properties", name))
            for name, value in inner.schema.get("patternProperties", {}).items():
                at_any_name.append(self._document.inside(inner, value, "patternProperties", name))
            others += [(listed, part) for part in self._parts([inner], "additionalProperties", "unevaluatedProperties")]
        yield [*at_any_name, *(part for _, part in others)]
        for name, parts in members.items():
            yield [*parts, *at_any_name, *(part for listed, part in others if name not in listed)]


def _names_may_be_too_complex(schema: dict[str, Any]) -> bool:
    """Return False if the names of an object surely can be told apart by the tests of one schema."""
    patterns = schema.get("patternProperties", ())
    if "propertyNames" in schema or not APPLICATORS.isdisjoint(schema) or 1 << len(patterns) > MAX_NAME_KINDS:
        return True
    dfas = [any_string(), *map(pattern_dfa, patterns)]
    return math.prod(dfa.num_states for dfa in dfas) > MAX_PRODUCT_STATES


def _is_large(tests: Set[_Test]) -> bool:
    """Return True if the product of the automata of several tests may have too many states."""
    return len(tests) > 1 and math.prod(_num_states(*test) for test in tests) > MAX_PRODUCT_STATES


def _num_states(keyword: str, value: Any) -> int:
    if keyword == "pattern":
        return most_states(value)
    if keyword == "format":
        chars = format_chars(value)
        return 1 if chars is None else chars.num_states
    return NumberPart(multiples=frozenset([Decimal(repr(value))])).num_states()


def _closure(document: Document, *locations: Location) -> list[Location]:
    """Return the schemas that apply to one value where these do, up to `_MAX_LISTED`."""
    found: dict[int, Location] = {}
    todo = list(locations)
    while todo and len(found) < _MAX_LISTED:
        inner = todo.pop()
        if isinstance(inner.schema, dict) and id(inner.schema) not in found:
            found[id(inner.schema)] = inner
            todo += (part for _, part in same_value(document, inner))
    return list(found.values())


_number_start = partial(number_start, digits=None)


class LimitCheck:
    """Works out the goals of one document that many schemas make up. Raises GrammarError with the pointer of one."""

    def __init__(self, compiler: GoalCompiler) -> None:
        self._compiler, self._document = compiler, compiler.document
        self._weights: dict[int, Weight] = {}
        self._heaviest: dict[int, Weight] = {}
        self._checked: set[Formula] = set()
        self._checked_objects: set[Formula] = set()

    def check(self) -> None:
        """Check all schemas of the document."""
        document = self._document
        several, tested = document.having(_SEVERAL), document.having(_ALL_TESTS)
        if tested:
            meeting = [location for location in tested if "pattern" in location.schema and "format" in location.schema]
            for location in (*several, *meeting):
                if self._weight(location).tests > 1:
                    self._check_scalars(location)
            for location in document.having(_NAME_TESTS):
                if _names_may_be_too_complex(location.schema):
                    self._check_names(location)
        num_tests = [_num_tests(location.schema) for location in tested]
        if len(document.with_keywords) <= MAX_SCHEMAS and sum(num_tests) <= MAX_TESTS:
            return
        weights = [self._weight(location) for location in several]
        most_schemas = max((each.schemas for each in weights), default=1)
        most_tests = max((*num_tests, *(each.tests for each in weights)), default=0)
        for location, weight in zip(several, weights, strict=True):
            # Each of the schemas of a value brings at most one schema of a member.
            if not Weight(weight.schemas * most_schemas, weight.schemas * most_tests).is_large:
                continue
            if self._is_heavy(location):
                self._check(self._compiler.goal(location, generated=True), location)

    # Weights, counted without working anything out.

    def _weight(self, location: Location) -> Weight:
        schema = location.schema
        if isinstance(schema, bool):
            return NO_WEIGHT
        found = self._weights.get(id(schema))
        if found is None and _SEVERAL.isdisjoint(schema):
            found = self._weights[id(schema)] = Weight(1, _num_tests(schema))
        elif found is None:
            self._weights[id(schema)] = NO_WEIGHT  # of a recursive schema
            schemas, tests = 1, _num_tests(schema)
            for _, part in same_value(self._document, location):
                inner = self._weight(part)
                schemas, tests = schemas + inner.schemas, tests + inner.tests
            found = self._weights[id(schema)] = Weight(schemas, tests)
        return found

    def _is_heavy(self, location: Location) -> bool:
        weight = self._weight(location)
        if weight.is_large or weight.schemas <= 1 or not self._heaviest_member(location).is_large:
            return weight.is_large
        members: dict[str, list[Weight]] = {}
        for inner in _closure(self._document, location):
            for name, value in inner.schema.get("properties", {}).items():
                if isinstance(value, dict):
                    at = self._document.inside(inner, value, "properties", name)
                    members.setdefault(name, []).append(self._weight(at))
        return any(_sum(weights).is_large for weights in members.values())

    def _heaviest_member(self, location: Location) -> Weight:
        """Return no less than the weight of any member: the heaviest of each schema of the value together."""
        schema = location.schema
        if isinstance(schema, bool):
            return NO_WEIGHT
        found = self._heaviest.get(id(schema))
        if found is None:
            members = schema.get("properties", {}).items()
            own = [self._weight(self._document.inside(location, value, "properties", name)) for name, value in members]
            heaviest = Weight(max([0, *(each.schemas for each in own)]), max([0, *(each.tests for each in own)]))
            parts = [self._heaviest_member(part) for _, part in same_value(self._document, location)]
            found = self._heaviest[id(schema)] = _sum([heaviest, *parts])
        return found

    # Goals.

    def _check_scalars(self, location: Location) -> None:
        """Refuse a schema whose constraints on one string or number are too complex together."""
        self._check_kinds(self._compiler.goal(location), location, {"string": string_start, "number": _number_start})

    def _check_kinds(self, goal: Formula, location: Location, starts: dict[str, _AddStates]) -> None:
        compiler, automaton = self._compiler, Automaton()
        num_refused = len(compiler.refused)
        for kind, add_states in starts.items():
            formula, refused = compiler.typed(goal, kind), compiler.refusal(goal, kind)
            if refused is not None:
                raise GrammarError(refused.reason, pointer=refused.pointer or _nearest(location))
            if math.prod(part.num_states() for part in atoms(formula)) > MAX_PRODUCT_STATES:  # else none is too large
                add_states(automaton, (formula,), result_codes(compiler, ()))
        for error in (*compiler.refused[num_refused:], *automaton.refused):
            raise GrammarError(error.reason, pointer=location.pointer)

    def _check_names(self, location: Location) -> None:
        """Refuse a schema whose tests of the names of one object are too complex together."""
        formula = self._compiler.typed(self._compiler.goal(location, generated=True), "object")
        parts = tuple(part for part in atoms(formula) if isinstance(part, ObjectPart))
        if parts:
            refused = MemberNames(self._compiler, parts, list_names=not is_plain(formula)).refused
            if refused is not None:
                raise GrammarError(refused.reason, pointer=_nearest(location, *_NAME_TESTS))

    def _check(self, goal: Formula, location: Location) -> None:
        if isinstance(goal, bool) or goal in self._checked:
            return
        self._checked.add(goal)
        compiler = self._compiler
        num_before = len(compiler.refused)
        try:
            self._check_strings((goal,))
            self._check_kinds(goal, location, {"number": _number_start})
            self._check_array(compiler.typed(goal, "array"), location)
            members = compiler.typed(goal, "object")
            inner = [] if members in self._checked_objects else list(self._of_object(members, location))
            self._checked_objects.add(members)
        except GrammarError as error:
            raise GrammarError(error.reason, pointer=error.pointer or location.pointer) from None
        if len(compiler.refused) > num_before:
            first = compiler.refused[num_before]
            raise GrammarError(first.reason, pointer=first.pointer or location.pointer)
        for goals, need in inner:
            if self._weight_of(goals).is_large:
                self._check(need(), location)

    def _weight_of(self, goals: tuple[Formula, ...]) -> Weight:
        nodes = (node for goal in goals for node in atoms(goal) if isinstance(node, SchemaNode))
        return _sum(self._weight(node.location) for node in nodes)

    def _check_strings(self, goals: tuple[Formula, ...]) -> None:
        """Raise GrammarError if the patterns and formats of goals are too complex together."""
        if self._weight_of(goals).tests <= MAX_TESTS:
            return
        parts = dict.fromkeys(part for goal in goals for part in atoms(self._compiler.typed(goal, "string")))
        tests = [replace(part, least=0, most=None) for part in parts if part.patterns or part.formats or part.choices]
        if len(tests) > 1:
            combinations(any_string(), [string_dfa(test) for test in dict.fromkeys(tests)])

    def _of_object(
        self, formula: Formula, location: Location
    ) -> Iterator[tuple[tuple[Formula, ...], Callable[[], Formula]]]:
        """Yield the goals of each member that has several, with what it needs."""
        if isinstance(formula, bool):
            return
        result = result_codes(self._compiler, ())
        if is_plain(formula):
            context = ObjectContext(self._compiler, (formula,), result)
        else:
            state = self._compiler.structure_start("object", (formula,), result)
            if not isinstance(state, ObjectState):
                return  # no object, or given values
            context, most = state.search.context, state.search.num_together
            if most > MAX_PARTS:
                reason = f"more than {MAX_PARTS} constraints apply to one object together ({most})"
                raise GrammarError(reason, pointer=_nearest(location))
        if context.names.refused is not None:
            raise GrammarError(context.names.refused.reason, pointer=_nearest(location, *_NAME_TESTS))
        for name in (*context.names.named, *(context.names.other(kind) for kind in context.names.kinds)):
            certain, open_goals = context.open_goals(name)
            if len(open_goals) > 1:
                goals = tuple(goal for goal, _ in open_goals)
                self._check_strings(goals)
                yield goals, partial(context.need, certain, open_goals, name, 0)

    def _check_array(self, formula: Formula, location: Location) -> None:
        if isinstance(formula, bool) or is_plain_array(self._compiler, formula):
            return
        parts = [part for part in atoms(formula) if isinstance(part, ArrayPart)]
        if not parts:
            return  # given arrays only
        contained = {goal for part in parts for goal, _, _ in part.contains}
        indices = range(max(part.num_item_goals for part in parts))
        goals_at = (contained | {part.goal(index) for part in parts} for index in indices)
        num_goals = max(sum(not isinstance(goal, bool) for goal in goals) for goals in goals_at)
        if num_goals > MAX_ITEM_GOALS or len(parts) > MAX_ITEM_GOALS:
            reason = f"more than {MAX_ITEM_GOALS} constraints apply to the items of one array together"
            raise GrammarError(reason, pointer=_nearest(location, "contains"))


def _nearest(location: Location, *keywords: str) -> str:
    """Return the pointer of the keyword of a schema that brings the most to a limit, or of the schema itself."""
    several = [name for name in _WITH_MANY if name in location.schema]
    found = [*(name for name in sorted(keywords) if name in location.schema), *several]
    return child(location.pointer, found[0]) if found else location.pointer


def same_value(document: Document, location: Location) -> list[tuple[str, Location]]:
    """Return the subschemas that a schema applies to the value itself, with the pointers of their keywords."""
    if APPLICATORS.isdisjoint(location.schema):
        return []
    found = document.applied.get(id(location.schema))
    if found is None:
        found = document.applied[id(location.schema)] = list(_same_value(document, location))
    return found


def _same_value(document: Document, location: Location) -> Iterator[tuple[str, Location]]:
    schema, pointer = location.schema, location.pointer
    for keyword in REFERENCES:
        if keyword in schema:
            yield f"{pointer}/{keyword}", document.resolve(schema[keyword], location, keyword)
    if "$ref" in schema and location.ref_is_alone:
        return
    for keyword in _OF_SAME_VALUE:
        value = schema.get(keyword)
        if value is None:
            continue
        parts: Iterable[tuple[str | int, Any]] = ()
        if isinstance(value, list):
            parts = enumerate(value)
        elif keyword.startswith("dependen") and isinstance(value, dict):
            parts = value.items()
        elif isinstance(value, dict):
            yield f"{pointer}/{keyword}", document.inside(location, value, keyword)
        for name, part in parts:
            if isinstance(part, dict):
                inner = document.inside(location, part, keyword, name)
                yield inner.pointer, inner
