"""The schema compiler: subschemas to goals, goals to formulas over parts, and whether any value satisfies them.

Everything is worked out lazily, when the text first reaches a value, and cached.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from ..automaton.automaton import ControlState
from ..constraint import SchemaOptions
from ..errors import GrammarError
from .array_states import MAX_STRUCTURES, ArrayContext, ArrayState, has_too_few_values, is_plain_array
from .closed_objects import generated_formula
from .document import MAX_SAME_VALUE, Document, Location
from .finite_values import Canonical, has_room, value_of
from .formula import And, ExactlyOne, Formula, Not, Or, Truths, atoms, conj, disj, evaluate, neg, one, substitute
from .interface import VALUE_TYPES, GeneratedNode, SchemaCompiler, SchemaNode
from .keyword_set import KeywordSet, enum_formula, object_with
from .keywords import APPLICATORS, KEYWORDS, TYPE_KEYWORDS, UNEVALUATED_KEYWORDS
from .number_parts import candidates as number_candidates
from .number_parts import join_numbers, number_combinations
from .object_context import ObjectContext, is_plain
from .object_states import ObjectEndSearch, ObjectState
from .quick_checks import quick_satisfiable
from .string_parts import StringPart, join_strings, leaves_some, likely_texts, merged_texts, string_combinations
from .string_parts import candidates as string_candidates
from .structure_parts import ArrayPart, ObjectPart
from .unevaluated import unevaluated
from .unique.unlike_states import unlike_start
from .value_states import result_codes

MAX_SATISFIABLE_DEPTH = 40


class GoalCompiler(SchemaCompiler):
    """The schema compiler over one document."""

    def __init__(self, document: Document, whitespace: str, order: str, options: SchemaOptions) -> None:
        super().__init__(document, whitespace, order, options)
        self._nodes: dict[Hashable, SchemaNode] = {}
        self._expanding: list[int] = []
        self._satisfiable: dict[Formula, bool] = {}
        self._in_progress: dict[Formula, None] = {}

    # Subschemas to goals and formulas.

    def goal(self, location: Location, *, generated: bool = False) -> Formula:
        schema = location.schema
        if isinstance(schema, bool):
            return schema
        if all(name not in KEYWORDS or name in ("definitions", "$defs", "then", "else") for name in schema):
            return True
        key: Hashable = (id(schema), location.base, location.scope)
        content = _content(schema) if len(schema) <= 6 else None
        differs = generated and (self.closes_objects or self.integers_as_digits) and not _is_unaffected(content)
        key = ("generated", content or key) if differs else content or key
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = GeneratedNode(self, location) if differs else SchemaNode(location)
        return node

    def goal_of(self, schema: dict[str, Any]) -> Formula:
        return self.goal(Location(self.keep_alive(schema), "", ""))

    def formula_at(self, location: Location) -> Formula:
        goal = self.goal(location)
        return self._formula_of(goal) if isinstance(goal, SchemaNode) else goal

    def _formula_of(self, node: SchemaNode) -> Formula:
        """Expand a node to a formula over `KeywordSet`s and `LiteralValues`."""
        if node.formula is None:
            if id(node) in self._expanding:
                raise GrammarError("the schema refers to itself without an end", pointer=node.location.pointer)
            if len(self._expanding) > MAX_SAME_VALUE:
                raise GrammarError(
                    "schemas of one value nested deeper than is supported", pointer=node.location.pointer
                )
            self._expanding.append(id(node))
            try:
                if isinstance(node, GeneratedNode):
                    node.formula = generated_formula(self, [part.location for part in node.parts])
                else:
                    node.formula = self._expanded(node.location)
            finally:
                self._expanding.pop()
        return node.formula

    def _expanded(self, location: Location) -> Formula:
        schema, document = location.schema, self.document

        def inner(value: Any, *path: str | int) -> Formula:
            return self.formula_at(document.inside(location, value, *path))

        def target(keyword: str) -> Formula:
            return self.formula_at(document.resolve(schema[keyword], location, keyword))

        if "$ref" in schema and document.ref_is_alone:
            return target("$ref")
        parts: list[Formula] = []
        if not TYPE_KEYWORDS.isdisjoint(schema):
            parts.append(KeywordSet(self, location, document.draft or 2020))
        if not APPLICATORS.isdisjoint(schema):
            if "enum" in schema:
                parts.append(enum_formula(self, schema["enum"]))
            if "const" in schema and (document.draft or 6) >= 6:
                parts.append(enum_formula(self, [schema["const"]]))
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
                        parts.append(disj([neg(object_with(self, name)), inner(value, keyword, name)]))
        if not UNEVALUATED_KEYWORDS.isdisjoint(schema):
            parts.append(unevaluated(self, location))
        return conj(parts)

    # Goals of one type of values.

    def typed(self, goal: Formula, kind: str) -> Formula:
        if goal is True or goal is False:
            return goal
        if isinstance(goal, SchemaNode) and type(formula := self._formula_of(goal)) is KeywordSet:
            return formula.typed(kind)  # a part already, and cached
        key = ("typed", goal, kind)
        found = self.cache.get(key)
        if found is None:
            found = self.cache[key] = self._simplified(
                substitute(goal, lambda node: self._typed_node(node, kind)), kind
            )
        return found

    def _typed_node(self, node: SchemaNode, kind: str) -> Formula:
        found = node.typed.get(kind)
        if found is None:
            found = node.typed[kind] = substitute(self._formula_of(node), lambda atom: atom.typed(kind))
        return found

    def join_parts(self, parts: list[Any], kind: str) -> Formula:
        if kind in ("string", "number"):
            try:
                return join_strings(parts) if kind == "string" else join_numbers(parts)
            except GrammarError as error:
                self._refuse(error, parts)
                return False  # too complex to work out: allowing no value is safe
        keywords = tuple(dict.fromkeys(each for part in parts for each in part.keywords))
        key = ("joined", frozenset(keywords))
        if key not in self.cache:
            self.cache[key] = ObjectPart(keywords) if kind == "object" else ArrayPart(keywords)
        return self.cache[key]

    def _refuse(self, error: GrammarError, parts: Iterable[Any]) -> None:
        error.patterns = frozenset().union(*(part.patterns for part in parts if isinstance(part, StringPart)))
        self.refused.append(error)

    def _simplified(self, formula: Formula, kind: str) -> Formula:
        """Join conjunctions of parts into one part, distributing it over the first disjunction beside it."""
        if isinstance(formula, And):
            plain = [part for part in formula.parts if not isinstance(part, Or | ExactlyOne | Not)]
            joined = self.join_parts(plain, kind) if plain else True
            if joined is False:
                return False
            others = [part for part in formula.parts if isinstance(part, Or | ExactlyOne | Not)]
            spread = next((part for part in others if isinstance(part, Or | ExactlyOne)), None)
            if joined is True or spread is None:
                return conj([joined, *(self._simplified(part, kind) for part in others)])
            alternatives = merged_texts(spread) if kind == "string" else spread.parts
            pushed = [self._simplified(conj([joined, inner]), kind) for inner in alternatives]
            rest = [self._simplified(part, kind) for part in others if part is not spread]
            return conj([disj(pushed) if isinstance(spread, Or) else one(pushed), *rest])
        if isinstance(formula, Or):
            alternatives = [self._simplified(part, kind) for part in formula.parts]
            if kind == "string" and all(isinstance(p, StringPart) and p.texts is not None for p in alternatives):
                return StringPart(texts=frozenset().union(*(p.texts for p in alternatives)))
            return disj(alternatives)
        if isinstance(formula, ExactlyOne):
            return one(self._simplified(part, kind) for part in formula.parts)
        if isinstance(formula, Not):
            return neg(self._simplified(formula.part, kind))
        return formula

    # Satisfiability.

    def satisfiable(self, goal: Formula) -> bool:
        if goal is True or goal is False:
            return bool(goal)
        known = self._satisfiable.get(goal)
        if known is not None:
            return known
        is_single = type(goal) is SchemaNode or (isinstance(goal, GeneratedNode) and len(goal.parts) == 1)
        if is_single and quick_satisfiable(self.document, goal.location):
            self._satisfiable[goal] = True
            return True
        if goal in self._in_progress:
            self.num_assumptions += 1  # a value that needs one of itself inside would be infinite
            return False
        if len(self._in_progress) > MAX_SATISFIABLE_DEPTH:
            return True
        self._in_progress[goal] = None
        num_before = self.num_assumptions
        found = any(self._has_values(self.typed(goal, kind), kind) for kind in VALUE_TYPES)
        del self._in_progress[goal]
        if found or self.num_assumptions == num_before or not self._in_progress:
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
            return self._has_structures(kind, formula)
        if isinstance(formula, And | Or | ExactlyOne | Not):
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
                return False  # as in `join_parts`
            return any(evaluate(formula, dict(zip(parts, truth, strict=True)).__getitem__) for truth in found)
        return True

    def satisfiable_unlike(self, goal: Formula, unlike: frozenset[Canonical]) -> bool:
        if not unlike or isinstance(goal, bool):
            return self.satisfiable(goal)
        if has_room(self, goal, len(unlike)):
            return True
        key = ("unlike", goal, unlike)
        if key not in self.cache:
            simple = neg(self.one_of(form for form in unlike if form[0] != "structure"))
            other = conj([goal, simple])
            scalars = conj([other, self.goal_of({"type": ["null", "boolean", "number", "string"]})])
            self.cache[key] = self.satisfiable(scalars) or any(
                (typed := self.typed(other, kind)) is not False
                and self.structure_start(kind, (typed,), result_codes(self, ()), unlike) is not None
                for kind in ("object", "array")
            )
        return self.cache[key]  # type: ignore[no-any-return]

    def one_of(self, forms: Iterable[Canonical]) -> Formula:
        values = [value_of(form) for form in sorted(forms, key=repr)]
        return self.goal_of({"enum": values}) if values else False

    @property
    def is_idle(self) -> bool:
        return not self._in_progress

    # Objects and arrays.

    def structure_start(
        self,
        kind: str,
        formulas: tuple[Formula, ...],
        result: Callable[[Truths], int],
        unlike: frozenset[Any] = frozenset(),
    ) -> ControlState | None:
        state = self._any_structure(kind, formulas, result)
        if state is None or not unlike:
            return state
        try:
            return unlike_start(state, unlike)
        except ValueError:
            # The end of such a structure is searched for, with the others as parts of its formula.
            others = neg(self.typed(self.one_of(sorted(unlike, key=repr)[:MAX_STRUCTURES]), kind))
            formulas = self._simplified(conj([formulas[0], others]), kind), *formulas[1:]
            return None if formulas[0] is False else self._any_structure(kind, formulas, result)

    def _any_structure(
        self, kind: str, formulas: tuple[Formula, ...], result: Callable[[Truths], int]
    ) -> ObjectState | ArrayState | None:
        key = (kind, formulas, id(result))
        if key not in self.cache:
            num_before = self.num_assumptions
            state = self._structure_start(kind, formulas, result)
            if state is None and not self.is_idle and num_before != self.num_assumptions:
                return None  # depends on an assumption of the running search
            self.cache[key] = state
        return self.cache[key]  # type: ignore[no-any-return]

    def _structure_start(
        self, kind: str, formulas: tuple[Formula, ...], result: Callable[[Truths], int]
    ) -> ObjectState | ArrayState | None:
        if not self._parts_have_values(formulas[0]):
            return None
        if kind == "object":
            context = ObjectContext(self, formulas, result)
            state = ObjectState(ObjectEndSearch(context), context.all_parts)
            return state if state.is_possible(True) else None
        array = ArrayContext(self, formulas, result).start()
        return array if array.is_possible() else None

    def _parts_have_values(self, formula: Formula) -> bool:
        """Return False only if the formula is unsatisfiable because single parts of it are."""

        def may_hold(part: ObjectPart | ArrayPart) -> bool | None:
            too_few = isinstance(part, ArrayPart) and has_too_few_values(self, part)
            return None if part.has_values(self) and not too_few else False

        return evaluate(formula, may_hold) is not False

    def _has_structures(self, kind: str, formula: Formula) -> bool:
        if not self._parts_have_values(formula):
            return False
        if is_plain(formula) if kind == "object" else is_plain_array(self, formula):
            return True
        return self.structure_start(kind, (formula,), result_codes(self, ())) is not None


def _content(schema: Mapping[str, Any]) -> Hashable:
    """Return a key that small schemas with the same keywords share, or None for schemas that hold others."""
    content = []
    for name, value in schema.items():
        if name in KEYWORDS:
            if isinstance(value, dict | list) or name in ("$ref", "$dynamicRef"):
                return None
            content.append((name, type(value).__name__, value))
    return tuple(sorted(content, key=lambda item: item[0]))


def _is_unaffected(content: Hashable) -> bool:
    """Return True if `SchemaOptions` change nothing for a small schema with this content."""
    return content is not None and not any(
        (name == "type" and value == "integer") or (name == "const" and kind in ("int", "float"))
        for name, kind, value in content  # type: ignore[attr-defined]
    )
