"""The formula of a value that is written, as opposed to one that a condition is about: integers are digits, and objects
that list members are closed, where the options say so.

An object is closed against the members of all subschemas that apply to it: each alternative (a branch of `anyOf` or
`oneOf`, `then` or `else`) is a conjunction with a remainder of its own, without any negation. Conditions keep JSON
Schema's meaning. Knows keywords; no states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from .document import Location
from .formula import Formula, conj, disj, neg, one
from .keyword_set import LOCAL, KeywordSet
from .quick_checks import NUMBER_KEYWORDS, are_disjoint
from .unevaluated import unevaluated

if TYPE_CHECKING:
    from .goals import SchemaCompiler

MAX_ALTERNATIVES = 32  # of one object; where there are more, their members are taken together
MAX_COMPARED = 64  # branches of a `oneOf`, of which no two may hold at once
MAX_MIXED = 3  # branches of which several may hold at once; of more, those of one branch are written


@dataclass(frozen=True)
class ListedMembers:
    """The names and patterns that some schemas together list for an object's members, and the names they require."""

    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()  # names whose schema is false
    lists: bool = False
    says_rest: bool = False  # they say what other members are, so nothing is left to close
    least: int = 0

    def __or__(self, other: ListedMembers) -> ListedMembers:
        return ListedMembers(
            _merged(self.names, other.names),
            _merged(self.patterns, other.patterns),
            _merged(self.required, other.required),
            _merged(self.forbidden, other.forbidden),
            self.lists or other.lists,
            self.says_rest or other.says_rest,
            max(self.least, other.least),
        )

    @property
    def are_closed(self) -> bool:
        """Not where an object then could not have as many members as it must."""
        possible = {*self.names, *self.required} - {*self.forbidden}
        has_room = bool(self.patterns) or self.least <= len(possible)
        return self.lists and not self.says_rest and has_room


Alternatives = dict[ListedMembers, Formula]  # what is listed, and a formula under which that is so
NOTHING = ListedMembers()


class SplitFormula(NamedTuple):
    """A schema's demands on a value that other schemas apply to as well: one formula, and alternatives of which it is
    the disjunction."""

    formula: Formula
    alternatives: Alternatives


def generated_formula(world: SchemaCompiler, locations: Iterable[Location]) -> Formula:
    """Return the formula of a value that is written by these schemas together."""
    parts = [_part(world, location) for location in locations]
    formula = conj(part.formula for part in parts)
    alternatives: Alternatives = {NOTHING: True}
    for part in parts:
        alternatives = _both(alternatives, part.alternatives)
    if not any(members.are_closed for members in alternatives):
        return formula
    alternatives = _grouped(alternatives)
    if len(alternatives) == 1:
        [members] = alternatives
        return _closed(world, formula, members)
    return disj(
        _closed(world, condition, members) if members.are_closed else condition
        for members, condition in alternatives.items()
    )


def _closed(world: SchemaCompiler, formula: Formula, members: ListedMembers) -> Formula:
    names = dict.fromkeys(_merged(members.names, members.required), True)
    patterns = dict.fromkeys(members.patterns, True)
    if isinstance(formula, KeywordSet):  # one part of an object is quicker than two
        location, draft = formula.location, formula.draft
        own = location.schema
        names = {**own.get("properties", {}), **{name: True for name in names if name not in own.get("properties", {})}}
        patterns = {**patterns, **own.get("patternProperties", {})}
    else:
        location, draft, own = Location({}, "", ""), 2020, {}
    rest = {**own, "properties": names, "patternProperties": patterns, "additionalProperties": False}
    local = world.local(world.keep(rest), location, written=True, draft=draft)
    return local if isinstance(formula, KeywordSet) else conj([formula, local])


def _part(world: SchemaCompiler, location: Location) -> SplitFormula:
    key = ("written", id(location.schema), location.base, location.scope)
    found: SplitFormula | None = world.memory.get(key)
    if found is None:
        found = world.memory[key] = _make_part(world, location)
    return found


def _make_part(world: SchemaCompiler, location: Location) -> SplitFormula:
    schema, document = location.schema, world.document
    if isinstance(schema, bool):
        return _plain(schema)
    if "$ref" in schema and document.ref_is_alone:
        return _part(world, document.resolve(schema["$ref"], location, "$ref"))
    own: list[Formula] = []
    if not LOCAL.isdisjoint(schema):
        own.append(KeywordSet(world, location, document.draft or 2020, written=True))
    if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
        own.append(unevaluated(world, location, written=True))
    formula = conj(own)
    direct = _direct(schema) if world.closes else NOTHING
    alternatives: Alternatives = {NOTHING if "properties" in schema else direct: formula}
    formulas = [formula]
    for keyword in schema:  # names come in the order in which the schema has them
        if keyword == "properties":
            alternatives = _both(alternatives, {direct: True})
        elif keyword in _KEYWORDS:
            part = _KEYWORDS[keyword](world, location, keyword)
            formulas.append(part.formula)
            alternatives = _both(alternatives, part.alternatives)
    return SplitFormula(conj(formulas), alternatives)


def _plain(formula: Formula) -> SplitFormula:
    return SplitFormula(formula, {NOTHING: formula})


def _direct(schema: Mapping[str, Any]) -> ListedMembers:
    """Collect the members that a schema itself names. One that only forbids members lists none."""
    required = [*names] if isinstance(names := schema.get("required"), list) else []
    for keyword in ("dependentRequired", "dependencies"):
        for others in schema.get(keyword, {}).values():
            required += [others] if isinstance(others, str) else others if isinstance(others, list) else []
    return ListedMembers(
        tuple(schema.get("properties", ())),
        tuple(schema.get("patternProperties", ())),
        tuple(dict.fromkeys(required)),
        tuple(name for name, value in schema.get("properties", {}).items() if value is False),
        any(
            schema.get(keyword) == {} or any(value is not False for value in schema.get(keyword, {}).values())
            for keyword in ("properties", "patternProperties")
        ),
        "additionalProperties" in schema or "unevaluatedProperties" in schema,
        int(schema.get("minProperties", 0)),
    )


# Keywords that apply schemas to the value itself.


def _reference(world: SchemaCompiler, location: Location, keyword: str) -> SplitFormula:
    return _part(world, world.document.resolve(location.schema[keyword], location, keyword))


def _values(world: SchemaCompiler, location: Location, keyword: str) -> SplitFormula:
    value = location.schema[keyword]
    if keyword == "const" and (world.document.draft or 6) < 6:
        return _plain(True)
    formula = world.one_of(value if keyword == "enum" else [value], written=True)
    return SplitFormula(
        formula, {ListedMembers(says_rest=world.closes): formula}
    )  # an object that is given has all its members


def _all_of(world: SchemaCompiler, location: Location, keyword: str) -> SplitFormula:
    branches = _branches(world, location, keyword)
    switch = _switch(world, location, branches)
    parts = [_part(world, inner) for inner in branches if inner not in switch]
    if switch:
        parts.append(_switched(world, switch))
    alternatives: Alternatives = {NOTHING: True}
    for part in parts:
        alternatives = _both(alternatives, part.alternatives)
    return SplitFormula(conj(part.formula for part in parts), alternatives)


def _switch(world: SchemaCompiler, location: Location, branches: list[Location]) -> list[Location]:
    """Return the branches that are `if` and `then` alone, if no object satisfies the conditions of two of them."""
    found = [inner for inner in branches if isinstance(inner.schema, dict) and inner.schema.keys() == {"if", "then"}]
    if not 1 < len(found) <= MAX_COMPARED or not world.closes or (world.document.draft or 7) < 7:
        return []
    if location.schema.get("type") != "object":
        return []
    conditions = [world.document.inside(inner, inner.schema["if"], "if") for inner in found]
    if not all(are_disjoint(world.document, a, b, location) for a, b in combinations(conditions, 2)):
        return []
    return found


def _switched(world: SchemaCompiler, branches: list[Location]) -> SplitFormula:
    """The branches of a switch: one of them holds, or none; not each with each of the others."""
    parts = [_part(world, inner) for inner in branches]
    held: list[tuple[ListedMembers, Formula]] = []
    failed: list[Formula] = []
    for inner in branches:
        inside = world.document.inside(inner, inner.schema["if"], "if")
        condition = world.demanded(inside)
        then = _part(world, world.document.inside(inner, inner.schema["then"], "then"))
        held += _both({_listed(world, inside): condition}, then.alternatives).items()
        failed.append(neg(condition))
    return SplitFormula(conj(part.formula for part in parts), _joined([*held, (NOTHING, conj(failed))]))


def _any_of(world: SchemaCompiler, location: Location, keyword: str) -> SplitFormula:
    branches = _branches(world, location, keyword)
    parts = [_part(world, inner) for inner in branches]
    formula = disj(part.formula for part in parts)
    if not any(_matters(part) for part in parts):
        return _plain(formula)
    alternatives = _either(part.alternatives for part in parts)
    if len(parts) <= MAX_MIXED:
        for size in range(2, len(parts) + 1):
            for chosen in combinations(range(len(parts)), size):
                pairs = combinations((branches[number] for number in chosen), 2)
                if not any(are_disjoint(world.document, a, b) for a, b in pairs):
                    alternatives = _either([alternatives, _mixed([parts[number] for number in chosen])])
    return SplitFormula(formula, alternatives)


def _mixed(parts: list[SplitFormula]) -> Alternatives:
    """Branches that hold at once, where they then list more members than one of them."""
    together: Alternatives = {NOTHING: True}
    for part in parts:
        together = _both(together, part.alternatives)
    known = {members for part in parts for members in part.alternatives}
    return {
        members: condition for members, condition in together.items() if members not in known and not members.says_rest
    }


def _one_of(world: SchemaCompiler, location: Location, keyword: str) -> SplitFormula:
    branches = _branches(world, location, keyword)
    parts = [_part(world, inner) for inner in branches]
    exactly: Formula = True
    if len(branches) > MAX_COMPARED or not all(
        are_disjoint(world.document, a, b) for a, b in combinations(branches, 2)
    ):
        exactly = one(world.demanded(inner) for inner in branches)
    is_all = exactly is not True and not any(_is_read_differently(inner.schema) for inner in branches)
    formula = exactly if is_all else conj([exactly, disj(part.formula for part in parts)])
    if not any(_matters(part) for part in parts):
        return _plain(formula)
    if exactly is True:
        return SplitFormula(formula, _either(part.alternatives for part in parts))
    refused = [neg(world.demanded(inner)) for inner in branches]
    return SplitFormula(
        formula,
        _joined(
            (members, conj([condition, *refused[:number], *refused[number + 1 :]]))
            for number, part in enumerate(parts)
            for members, condition in part.alternatives.items()
        ),
    )


def _is_read_differently(schema: Any) -> bool:
    """Return True if the options may change what a schema, or one in it, means; also where it is unclear."""
    if isinstance(schema, list):
        return any(map(_is_read_differently, schema))
    if not isinstance(schema, dict):
        return isinstance(schema, int | float) or schema == "integer"
    return not _READ_DIFFERENTLY.isdisjoint(schema) or any(
        _is_read_differently(value) for name, value in schema.items() if name not in NUMBER_KEYWORDS
    )


_READ_DIFFERENTLY = frozenset(("properties", "patternProperties", "$ref", "$dynamicRef"))


def _not(world: SchemaCompiler, location: Location, keyword: str) -> SplitFormula:
    [inner] = _branches(world, location, keyword)
    return _plain(neg(world.demanded(inner)))


def _if(world: SchemaCompiler, location: Location, keyword: str) -> SplitFormula:
    schema, document = location.schema, world.document
    if (document.draft or 7) < 7:
        return _plain(True)
    inside = document.inside(location, schema["if"], "if")
    condition, listed = world.demanded(inside), _listed(world, inside) if world.closes else NOTHING
    then, otherwise = (
        _part(world, document.inside(location, schema[name], name)) if name in schema else _plain(True)
        for name in ("then", "else")
    )
    formula = conj([disj([neg(condition), then.formula]), disj([condition, otherwise.formula])])
    held, failed = (
        _both({listed: condition}, then.alternatives),
        _both({NOTHING: neg(condition)}, otherwise.alternatives),
    )
    return SplitFormula(formula, _either([held, failed]))


def _dependent(world: SchemaCompiler, location: Location, keyword: str) -> SplitFormula:
    formulas: list[Formula] = []
    alternatives: Alternatives = {NOTHING: True}
    for name, value in location.schema[keyword].items():
        if isinstance(value, dict | bool):
            part, has = _part(world, world.document.inside(location, value, keyword, name)), world.has_object_with(name)
            formulas.append(disj([neg(has), part.formula]))
            alternatives = _both(alternatives, _either([_both({NOTHING: has}, part.alternatives), {NOTHING: neg(has)}]))
    return SplitFormula(conj(formulas), alternatives)


_KEYWORDS = {
    "enum": _values,
    "const": _values,
    "$ref": _reference,
    "$dynamicRef": _reference,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "dependentSchemas": _dependent,
    "dependencies": _dependent,
}


def _branches(world: SchemaCompiler, location: Location, keyword: str) -> list[Location]:
    value = location.schema[keyword]
    if isinstance(value, list):
        return [world.document.inside(location, inner, keyword, number) for number, inner in enumerate(value)]
    return [world.document.inside(location, value, keyword)]


def _listed(world: SchemaCompiler, location: Location) -> ListedMembers:
    """Collect the members that a condition names, in all subschemas that it applies to the value."""
    schema = location.schema
    if isinstance(schema, bool):
        return NOTHING
    is_alone = "$ref" in schema and world.document.ref_is_alone
    listed = NOTHING if is_alone else _direct(schema)
    for keyword in schema:
        if keyword in ("$ref", "$dynamicRef"):
            listed |= _listed(world, world.document.resolve(schema[keyword], location, keyword))
        elif keyword in ("allOf", "anyOf", "oneOf") and not is_alone:
            for inner in _branches(world, location, keyword):
                listed |= _listed(world, inner)
    return listed


# Alternatives together.


def _matters(part: SplitFormula) -> bool:
    return any(members != NOTHING for members in part.alternatives)


def _both(a: Alternatives, b: Alternatives) -> Alternatives:
    if min(len(a), len(b)) > 1 and len(a) * len(b) > MAX_ALTERNATIVES:
        a, b = _fewest(a), _fewest(b)
    pairs: list[tuple[ListedMembers, Formula]] = []
    for x, p in a.items():
        added = _joined((x | y, q) for y, q in b.items())  # what lists nothing more is one alternative
        pairs += ((members, conj([p, q])) for members, q in added.items())
    return _joined(pairs)


def _either(several: Iterable[Alternatives]) -> Alternatives:
    return _joined(pair for alternatives in several for pair in alternatives.items())


def _fewest(alternatives: Alternatives) -> Alternatives:
    """Those that are closed as one, with the members of all of them, and those that are not."""
    found: Alternatives = {}
    for says_rest in (False, True):
        members, conditions = NOTHING, []
        for each, condition in alternatives.items():
            if each.says_rest is says_rest:
                members |= each
                conditions.append(condition)
        if conditions:
            found[members] = disj(conditions)
    return found


def _grouped(alternatives: Alternatives) -> Alternatives:
    """Alternatives that allow the same members as one, whichever of these they require."""
    groups: dict[Any, list[tuple[ListedMembers, Formula]]] = {}
    for members, condition in alternatives.items():
        allowed = frozenset((*members.names, *members.required)), frozenset(members.patterns)
        groups.setdefault(allowed if members.are_closed else None, []).append((members, condition))
    return {pairs[0][0]: disj(condition for _, condition in pairs) for pairs in groups.values()}


def _joined(pairs: Iterable[tuple[ListedMembers, Formula]]) -> Alternatives:
    found: Alternatives = {}
    for members, condition in pairs:
        if condition is not False:
            found[members] = disj([found.get(members, False), condition])
    return found or {NOTHING: False}


def _merged(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    return a if not b else b if not a else tuple(dict.fromkeys((*a, *b)))
