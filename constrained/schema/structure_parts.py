"""What schemas ask of objects and arrays, as values that can be joined. Knows keywords and goals; no states."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .compiler import joined_goal
from .formula import Formula, conj, evaluate
from .string_dfas import pattern_chars

FAR = 1 << 30

if TYPE_CHECKING:
    from .document import Document
    from .goals import SchemaCompiler
    from .keyword_set import KeywordSet


@dataclass(frozen=True, eq=False)
class ObjectKeywords:
    """Of one schema. Goals are formulas over nodes."""

    document: Document
    properties: dict[str, Formula]
    patterns: dict[str, Formula]
    additional: Formula
    names: Formula
    required: tuple[str, ...]
    requires: dict[str, tuple[str, ...]]  # a name -> those that must come with it
    least: int
    most: int | None
    ordered: bool  # members come in the order of the properties

    @property
    def demands_nothing(self) -> bool:
        """Mentioned names demand something, too: where there are some, they come once and in their order."""
        demands = self.properties or self.required or self.requires or self.least or self.most is not None
        goals = (*self.patterns.values(), self.additional, self.names)
        return not demands and all(goal is True for goal in goals)

    @property
    def place(self) -> tuple[int, list[tuple[int, str]]]:
        """Where it stands among others of one object. Says nothing of when it was made."""
        places = self.document.places
        # Names that the schema does not know are those of items that have come, and must not again.
        return -len(self.properties), [(places.get(name, len(places)), name) for name in self.properties]

    def goal(self, name: str | None, matched: frozenset[Any]) -> Formula:
        """Of the value under a name, or under any other name, that matches these of the patterns."""
        goals = [goal for pattern, goal in self.patterns.items() if pattern in matched]
        if name is not None and name in self.properties:
            goals.append(self.properties[name])
        elif not goals:
            goals.append(self.additional)
        return joined_goal(goals)


@dataclass(frozen=True, eq=False)
class ObjectPart:
    """All of `locals` hold. One object for the same of them in a world."""

    locals: tuple[ObjectKeywords, ...]

    @cached_property
    def ordered(self) -> tuple[ObjectKeywords, ...]:
        return self.locals if len(self.locals) == 1 else tuple(sorted(self.locals, key=lambda local: local.place))

    @cached_property
    def least(self) -> int:
        return max(local.least for local in self.locals)

    @cached_property
    def most(self) -> int | None:
        return min((local.most for local in self.locals if local.most is not None), default=None)

    @cached_property
    def required(self) -> dict[str, None]:
        return {name: None for local in self.ordered for name in local.required}

    @cached_property
    def names(self) -> dict[str, None]:
        """All that are mentioned, in the schema's order."""
        found: dict[str, None] = {}
        for local in self.ordered:
            found |= dict.fromkeys(local.properties)
        for local in self.ordered:
            found |= dict.fromkeys(local.required)
            for name, others in local.requires.items():
                found |= dict.fromkeys((name, *others))
        return found

    @cached_property
    def requires(self) -> bool:
        """Whether some names require others."""
        return any(local.requires for local in self.locals)

    @cached_property
    def is_tight(self) -> bool:
        """Whether what is required may take more room than there is, or more names be asked for than may come."""
        limited = any(
            local.names is not True
            or local.additional is not True
            or any(goal is not True for goal in local.patterns.values())
            for local in self.locals
        )
        return self.requires or (limited and self.least > len(self.required))

    @cached_property
    def patterns(self) -> dict[str, None]:
        return {pattern: None for local in self.ordered for pattern in local.patterns}

    @cached_property
    def name_goals(self) -> list[Formula]:
        return [local.names for local in self.ordered if local.names is not True]

    def goal(self, name: str | None, matched: frozenset[Any]) -> Formula:
        return joined_goal(local.goal(name, matched) for local in self.ordered)

    def name_goal(self, world: SchemaCompiler, name: str) -> Formula:
        """Of the value under a given name: False when the name may not be."""
        if not self.patterns and not self.name_goals and len(self.locals) == 1:
            (local,) = self.locals
            return local.properties.get(name, local.additional)
        for goal in self.name_goals:
            if not evaluate(world.typed(goal, "string"), lambda part: part.holds(name)):
                return False
        return self.goal(name, frozenset(p for p in self.patterns if pattern_chars(p).accepts(name)))

    def has_values(self, world: SchemaCompiler) -> bool:
        """False only if no object at all satisfies it."""
        if self.most is not None and (self.most < self.least or self.most < len(self.required)):
            return False
        if not all(world.satisfiable(self.name_goal(world, name)) for name in self.required):
            return False
        nameless = any(world.typed(goal, "string") is False for goal in self.name_goals)
        closed = any(local.additional is False and not local.patterns for local in self.locals)
        if self.least > len(self.required) and (nameless or closed):
            return sum(world.satisfiable(self.name_goal(world, name)) for name in self.names) >= self.least
        return True


@dataclass(frozen=True, eq=False)
class ArrayKeywords:
    """Of one schema. Goals are formulas over nodes."""

    first: tuple[Formula, ...]
    rest: Formula
    least: int
    most: int | None
    unique: bool
    contains: tuple[Formula, int, int | None] | None

    @property
    def demands_nothing(self) -> bool:
        demands = self.least or self.most is not None or self.unique or self.contains
        return not demands and all(goal is True for goal in (*self.first, self.rest))

    def goal(self, index: int) -> Formula:
        return self.first[index] if index < len(self.first) else self.rest


@dataclass(frozen=True, eq=False)
class ArrayPart:
    """All of `locals` hold. One object for the same of them in a world."""

    locals: tuple[ArrayKeywords, ...]

    @cached_property
    def least(self) -> int:
        return max(local.least for local in self.locals)

    @cached_property
    def most(self) -> int | None:
        return min((local.most for local in self.locals if local.most is not None), default=None)

    @cached_property
    def unique(self) -> bool:
        return any(local.unique for local in self.locals)

    @cached_property
    def contains(self) -> tuple[tuple[Formula, int, int | None], ...]:
        return tuple(local.contains for local in self.locals if local.contains is not None)

    @cached_property
    def num_kinds(self) -> int:
        """From this index less one on, items differ no more."""
        return 1 + max(len(local.first) for local in self.locals)

    @cached_property
    def num_alike(self) -> int:
        """From this index on, items differ no more; lengths matter no more either, but for a maximum."""
        return max(max(len(local.first), local.least, (local.most or -1) + 1) for local in self.locals)

    def goal(self, index: int) -> Formula:
        return joined_goal(local.goal(index) for local in self.locals)

    def has_values(self, world: SchemaCompiler) -> bool:
        """False only if no array at all satisfies it."""
        num_kinds = self.num_kinds
        most = FAR if self.most is None else self.most
        for index in range(num_kinds):
            if index < most and not world.satisfiable(self.goal(index)):
                most = index
        if most < self.least:
            return False
        for looked_for, least, at_most in self.contains:
            if least > most or (at_most is not None and at_most < least):
                return False
            places = range(min(most, num_kinds))
            if least and not any(world.satisfiable(conj([self.goal(index), looked_for])) for index in places):
                return False
        return True


def object_part(world: SchemaCompiler, local: KeywordSet) -> Formula:
    schema, location = local.location.schema, local.location

    def goal(value: Any, *path: str, written: bool = local.written) -> Formula:
        return world.goal(world.document.inside(location, value, *path), written=written)

    requires: dict[str, tuple[str, ...]] = {}
    for keyword in ("dependentRequired", "dependencies"):
        for name, others in schema.get(keyword, {}).items():
            if isinstance(others, list | str):
                names = (others,) if isinstance(others, str) else tuple(others)
                requires[name] = (*requires.get(name, ()), *names)
    required = schema.get("required", [])
    if local.draft == 3:
        inner = schema.get("properties", {}).items()
        required = [n for n, v in inner if isinstance(v, dict) and v.get("required") is True]
    most = schema.get("maxProperties")
    names = schema.get("propertyNames", True)
    made = ObjectKeywords(
        world.document,
        {n: goal(v, "properties", n) for n, v in schema.get("properties", {}).items()},
        {n: goal(v, "patternProperties", n) for n, v in schema.get("patternProperties", {}).items()},
        goal(schema.get("additionalProperties", True), "additionalProperties"),
        goal(names, "propertyNames", written=False),
        tuple(required) if isinstance(required, list) else (),
        requires,
        int(schema.get("minProperties", 0)),
        None if most is None else int(most),
        local.written and world.closes and schema.get("additionalProperties") is False,
    )
    if made.demands_nothing:
        return True
    # Schemas that ask for the same have one part, so that a formula sees that they are the same.
    by_name = (made.properties, made.patterns, made.requires)
    key = (*(tuple(each.items()) for each in by_name), made.additional, made.names, made.required)
    part = world.memory.setdefault(("object", *key, made.least, made.most, made.ordered), made)
    return world.join([ObjectPart((part,))], "object")


def array_part(world: SchemaCompiler, local: KeywordSet) -> Formula:
    schema, location = local.location.schema, local.location

    def goal(value: Any, *path: str | int, written: bool = local.written) -> Formula:
        return world.goal(world.document.inside(location, value, *path), written=written)

    items, first_name = schema.get("items", True), "prefixItems"
    first, rest = schema.get("prefixItems", []) if local.draft >= 2020 else [], items
    if isinstance(items, list):
        first, first_name, rest = items, "items", schema.get("additionalItems", True)
    most, contains = schema.get("maxItems"), None
    if "contains" in schema and local.draft >= 6:
        limits = local.draft >= 2019
        found_most = schema.get("maxContains") if limits else None
        contains = (
            goal(schema["contains"], "contains", written=False),  # a condition: what it finds is written by `items`
            int(schema.get("minContains", 1)) if limits else 1,
            None if found_most is None else int(found_most),
        )
    made = ArrayKeywords(
        tuple(goal(value, first_name, n) for n, value in enumerate(first)),
        goal(rest, "items" if rest is items else "additionalItems"),
        int(schema.get("minItems", 0)),
        None if most is None else int(most),
        schema.get("uniqueItems") is True,
        contains,
    )
    if made.demands_nothing:
        return True
    key = (made.first, made.rest, made.least, made.most, made.unique, made.contains)
    part = world.memory.setdefault(("array", *key), made)
    return world.join([ArrayPart((part,))], "array")
