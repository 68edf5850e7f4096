"""Schemas as formulas: what a value must satisfy, worked out where a text first comes to it.

A `Node` is a schema; a goal is a formula over nodes. For one type of values a goal is a formula over parts: what is
asked of strings, numbers, objects or arrays. Knows keywords; no bytes, no states.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from .constraint import SchemaOptions
from .errors import GrammarError
from .formula import And, Formula, Not, One, Or, atoms, conj, disj, evaluate, neg, one, substitute
from .schema_atoms import LOCAL, Local, Values
from .schema_document import Document, Location
from .schema_glance import APPLICATORS, surely_has_values
from .schema_keywords import TABLE
from .schema_nodes import Node, WrittenNode
from .schema_number_parts import candidates as number_candidates
from .schema_number_parts import join_numbers
from .schema_numbers import number_combinations
from .schema_parts import ArrayPart, ObjectPart
from .schema_string_parts import StringPart, join_strings
from .schema_string_parts import candidates as string_candidates
from .schema_unevaluated import unevaluated
from .schema_written import written
from .string_regions import leaves_some, likely_texts, string_combinations, texts_together

VALUE_TYPES = ("null", "true", "false", "number", "string", "object", "array")
MAX_SAME_INSTANCE = 100  # schemas applied to one value inside each other
MAX_SATISFIABLE_DEPTH = 40


class World:
    """One schema's nodes, and what is known of them."""

    def __init__(self, document: Document, whitespace: str, order: str, options: SchemaOptions) -> None:
        self.document = document
        self.spaces = {"compact": 0, "bounded": 1, "any": 2}[whitespace]
        self.closes = options.additional_properties == "closed"
        self.writes_digits = options.integers == "digits"
        self.in_order = order == "schema"
        self.memory: dict[Hashable, Any] = {}
        self._nodes: dict[Hashable, Node] = {}
        self._expanding: list[int] = []
        self._satisfiable: dict[Formula, bool] = {}
        self._open: dict[Formula, None] = {}
        self.num_assumed = 0  # how often a goal was taken to have no value, while that was being asked
        self.refused: list[GrammarError] = []  # what was left out of what may come, as too complex

    # Schemas to goals.

    def goal(self, location: Location, *, written: bool = False) -> Formula:
        """What a schema demands, as a formula over nodes. `written`: of a value that is written by the schema, in the
        reading that the options ask for; else of one that a condition is about."""
        schema = location.schema
        if isinstance(schema, bool):
            return schema
        if all(name not in TABLE or name in ("definitions", "$defs", "then", "else") for name in schema):
            return True
        key: Hashable = (id(schema), location.base, location.scope)
        content = self._content(schema) if len(schema) <= 6 else None
        differs = written and (self.closes or self.writes_digits) and not self._is_settled(content)
        key = ("written", content or key) if differs else content or key
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = WrittenNode(self, location) if differs else Node(location)
        return node

    def joint(self, nodes: list[WrittenNode]) -> WrittenNode:
        """All of the nodes of one value."""
        parts = tuple(dict.fromkeys(part for node in nodes for part in node.parts))
        key = ("joint", frozenset(parts))
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = WrittenNode(self, parts[0].location, parts)
        assert isinstance(found, WrittenNode)
        return found

    def _content(self, schema: Mapping[str, Any]) -> Hashable:
        """Equal for small schemas that demand the same, whatever they say beside; None for others."""
        content = []
        for name, value in schema.items():
            if name in TABLE:
                if isinstance(value, dict | list) or name in ("$ref", "$dynamicRef"):
                    return None
                content.append((name, type(value).__name__, value))
        return tuple(sorted(content, key=lambda item: item[0]))

    def _is_settled(self, content: Hashable) -> bool:
        """Whether the options change nothing for a small schema with this content."""
        return content is not None and not any(
            (name == "type" and value == "integer") or (name == "const" and kind in ("int", "float"))
            for name, kind, value in content  # type: ignore[attr-defined]
        )

    def given(self, schema: Mapping[str, Any]) -> Formula:
        """The goal of a schema of our own making."""
        location = Location(schema, "", "")
        self.keep(schema)  # type: ignore[arg-type]
        return self.goal(location)

    def whole(self, node: Node) -> Formula:
        """What a node demands, as a formula over `Local`s and `Values`."""
        if node.whole is None:
            if id(node) in self._expanding:
                raise GrammarError("the schema refers to itself without an end", pointer=node.location.pointer)
            if len(self._expanding) > MAX_SAME_INSTANCE:
                raise GrammarError("schemas nested deeper than is supported", pointer=node.location.pointer)
            self._expanding.append(id(node))
            try:
                if isinstance(node, WrittenNode):
                    node.whole = written(self, [part.location for part in node.parts])
                else:
                    node.whole = self._expanded(node.location)
            finally:
                self._expanding.pop()
        return node.whole

    def _expanded(self, location: Location) -> Formula:
        schema, document = location.schema, self.document

        def inner(value: Any, *path: str | int) -> Formula:
            goal = self.goal(document.inside(location, value, *path))
            return self.whole(goal) if isinstance(goal, Node) else goal

        def target(keyword: str) -> Formula:
            goal = self.goal(document.resolve(schema[keyword], location, keyword))
            return self.whole(goal) if isinstance(goal, Node) else goal

        if "$ref" in schema and document.ref_is_alone:
            return target("$ref")
        parts: list[Formula] = []
        if not LOCAL.isdisjoint(schema):
            parts.append(Local(self, location, document.draft or 2020))
        if not APPLICATORS.isdisjoint(schema):
            if "enum" in schema:
                parts.append(self.one_of(schema["enum"]))
            if "const" in schema and (document.draft or 6) >= 6:
                parts.append(self.one_of([schema["const"]]))
            if "$ref" in schema:
                parts.append(target("$ref"))
            if "$dynamicRef" in schema:
                parts.append(target("$dynamicRef"))
            for name, join in (("allOf", conj), ("anyOf", disj), ("oneOf", one)):
                if name in schema:
                    parts.append(join([inner(value, name, n) for n, value in enumerate(schema[name])]))
            if "not" in schema:
                parts.append(neg(inner(schema["not"], "not")))
            if "if" in schema and (document.draft or 7) >= 7 and ("then" in schema or "else" in schema):
                condition = inner(schema["if"], "if")
                if "then" in schema:
                    parts.append(disj([neg(condition), inner(schema["then"], "then")]))
                if "else" in schema:
                    parts.append(disj([condition, inner(schema["else"], "else")]))
            for keyword in ("dependentSchemas", "dependencies"):
                for name, value in schema.get(keyword, {}).items():
                    if isinstance(value, dict | bool):
                        parts.append(disj([neg(self.has_object_with(name)), inner(value, keyword, name)]))
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            parts.append(unevaluated(self, location))
        return conj(parts)

    def demanded(self, location: Location) -> Formula:
        """What a schema demands, as `whole` says it."""
        goal = self.goal(location)
        return self.whole(goal) if isinstance(goal, Node) else goal

    def local(self, schema: dict[str, Any], location: Location, *, written: bool = False, draft: int = 2020) -> Formula:
        """The keywords of a schema of our own making, which stands where `location` does."""
        return Local(self, Location(schema, location.pointer, location.base, location.scope), draft, written)

    def keep(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Schemas are known by their identity, so those of our own making must live as long as we do."""
        self.memory["kept", id(schema)] = schema
        return schema

    def has_object_with(self, name: str) -> Formula:
        """Objects with a member of that name."""
        key = ("has", name)
        if key not in self.memory:
            goal = self.given({"type": "object", "required": [name]})
            assert isinstance(goal, Node)
            self.memory[key] = self.whole(goal)
        return self.memory[key]

    def one_of(self, values: list[Any], *, written: bool = False) -> Formula:
        """The values of an `enum`."""
        simple = [value for value in values if not isinstance(value, dict | list)]
        parts: list[Formula] = [Values(simple, written and self.writes_digits)] if simple else []
        for value in values:
            if isinstance(value, dict):
                schema: dict[str, Any] = {"type": "object", "required": list(value), "additionalProperties": False}
                schema["properties"] = {name: {"enum": [inner]} for name, inner in value.items()}
            elif isinstance(value, list):
                schema = {"type": "array", "items": False, "minItems": len(value)}
                schema |= {"prefixItems": [{"enum": [inner]} for inner in value]} if value else {}
            else:
                continue
            parts.append(self.local(self.keep(schema), Location(schema, "", ""), written=written))
        return disj(parts)

    def structure_start(self, kind: str, formulas: tuple[Formula, ...], result: Any) -> Any:
        """The state after the opening bracket of an object or array; None when there is no such value."""
        raise NotImplementedError

    def has_structures(self, kind: str, formula: Formula) -> bool:
        """Whether there are objects or arrays of which a formula over their parts holds."""
        raise NotImplementedError

    @property
    def is_settled(self) -> bool:
        """Whether no goal is being looked for a value of."""
        return not self._open

    # Goals, type by type.

    def typed(self, goal: Formula, kind: str) -> Formula:
        """A goal as a formula over the parts of one type of values, in which as much as possible is joined."""
        if goal is True or goal is False:
            return goal
        if isinstance(goal, Node) and type(whole := self.whole(goal)) is Local:
            return whole.typed(kind)  # which is a part already, and remembered
        key = ("typed", goal, kind)
        found = self.memory.get(key)
        if found is None:
            found = self.memory[key] = self._normal(substitute(goal, lambda node: self._typed_node(node, kind)), kind)
        return found

    def _typed_node(self, node: Node, kind: str) -> Formula:
        found = node.typed.get(kind)
        if found is None:
            found = node.typed[kind] = substitute(self.whole(node), lambda atom: atom.typed(kind))
        return found

    def join(self, parts: list[Any], kind: str) -> Formula:
        if kind in ("string", "number"):
            try:
                return join_strings(parts) if kind == "string" else join_numbers(parts)
            except GrammarError as error:
                self._refuse(error, parts)
                return False  # refusing all is safe, where what is asked together cannot be worked out
        together = tuple(dict.fromkeys(local for part in parts for local in part.locals))
        key = ("joined", frozenset(together))
        if key not in self.memory:
            self.memory[key] = ObjectPart(together) if kind == "object" else ArrayPart(together)
        return self.memory[key]

    def _refuse(self, error: GrammarError, parts: Iterable[Any]) -> None:
        error.patterns = frozenset().union(*(part.patterns for part in parts if isinstance(part, StringPart)))
        self.refused.append(error)

    def _normal(self, formula: Formula, kind: str) -> Formula:
        """Conjunctions joined into one part, also with each of the alternatives beside them."""
        if isinstance(formula, And):
            plain = [part for part in formula.parts if not isinstance(part, Or | One | Not)]
            joined = self.join(plain, kind) if plain else True
            if joined is False:
                return False
            others = [part for part in formula.parts if isinstance(part, Or | One | Not)]
            spread = next((part for part in others if isinstance(part, Or | One)), None)
            if joined is True or spread is None:
                return conj([joined, *(self._normal(part, kind) for part in others)])
            alternatives = texts_together(spread) if kind == "string" else spread.parts
            pushed = [self._normal(conj([joined, inner]), kind) for inner in alternatives]
            rest = [self._normal(part, kind) for part in others if part is not spread]
            return conj([disj(pushed) if isinstance(spread, Or) else one(pushed), *rest])
        if isinstance(formula, Or):
            alternatives = [self._normal(part, kind) for part in formula.parts]
            if kind == "string" and all(isinstance(p, StringPart) and p.texts is not None for p in alternatives):
                return StringPart(texts=frozenset().union(*(p.texts for p in alternatives)))
            return disj(alternatives)
        if isinstance(formula, One):
            return one(self._normal(part, kind) for part in formula.parts)
        if isinstance(formula, Not):
            return neg(self._normal(formula.part, kind))
        return formula

    # Whether there are such values at all.

    def satisfiable(self, goal: Formula) -> bool:
        """False only when no value can satisfy the goal; True when that is not found out."""
        if goal is True or goal is False:
            return bool(goal)
        known = self._satisfiable.get(goal)
        if known is not None:
            return known
        is_one = type(goal) is Node or (isinstance(goal, WrittenNode) and len(goal.parts) == 1)
        if is_one and surely_has_values(self.document, goal.location):
            self._satisfiable[goal] = True
            return True
        if goal in self._open:
            self.num_assumed += 1  # a value inside itself would have no end, so there is another or none
            return False
        if len(self._open) > MAX_SATISFIABLE_DEPTH:
            return True
        self._open[goal] = None
        assumed = self.num_assumed
        found = any(self._has_values(self.typed(goal, kind), kind) for kind in VALUE_TYPES)
        del self._open[goal]
        if found or self.num_assumed == assumed or not self._open:
            self._satisfiable[goal] = found
        return found

    def _has_values(self, formula: Formula, kind: str) -> bool:
        if formula is True or formula is False:
            return bool(formula)
        if kind == "string" and (texts := string_candidates(formula)) is not None:
            return any(evaluate(formula, lambda part: part.holds(text)) for text in texts)  # noqa: B023
        if kind == "number" and (values := number_candidates(formula)) is not None:
            return any(evaluate(formula, lambda part: part.holds(value)) for value in values)  # noqa: B023
        if kind in ("object", "array"):
            return self.has_structures(kind, formula)
        if isinstance(formula, And | Or | One | Not):
            parts = atoms(formula)
            try:
                if kind == "string" and (
                    leaves_some(formula)
                    or any(
                        evaluate(formula, lambda part: part.holds(text))  # noqa: B023
                        for text in likely_texts(parts)
                    )
                ):
                    return True
                found = string_combinations(tuple(parts)) if kind == "string" else number_combinations(parts)
            except GrammarError as error:
                self._refuse(error, parts)
                return False  # as in `join`
            return any(evaluate(formula, dict(zip(parts, truth, strict=True)).__getitem__) for truth in found)
        return True
