"""The schema compiler: subschemas to goals, goals to formulas over parts, and whether any value satisfies them.

Everything is worked out lazily, when the text first reaches a value, and cached.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from ..automaton.automaton import ControlState
from ..budget import INTERPRETED, count
from ..constraint import SchemaOptions
from ..errors import GrammarError
from .alternatives.conditions import joined_conditions, negated
from .alternatives.independent import object_search
from .alternatives.scalars import with_joined_alternatives
from .array_states import MAX_STRUCTURES, ArrayContext, ArrayState, has_too_few_values, is_plain_array
from .closed_objects import generated_formula
from .document import MAX_SAME_VALUE, Document, Location
from .formula import (
    And,
    ExactlyOne,
    Formula,
    Not,
    Or,
    ResultCodes,
    atoms,
    bits_reader,
    conj,
    disj,
    evaluate,
    neg,
    one,
    substitute,
)
from .interface import VALUE_TYPES, GeneratedNode, SchemaCompiler, SchemaNode, located
from .keyword_set import KeywordSet, LiteralValues, enum_formula, object_with, unlisted
from .keywords import APPLICATORS, KEYWORDS, TYPE_KEYWORDS, UNEVALUATED_KEYWORDS, child
from .listed.evaluation import SparseTruths, part_truth
from .listed.finite_values import Canonical, has_room, value_of
from .listed.simplification import lists_values, with_listed_values, without_excluded
from .listed.states import ListedStyle, listed_start, value_choice
from .listed.unlike_states import unlike_start
from .listed.values import GivenValue, ListedPart
from .nesting import DepthGoals
from .number_parts import candidates as number_candidates
from .number_parts import join_numbers, number_product, number_universe
from .objects.object_context import ObjectContext, is_plain
from .objects.object_states import ObjectState
from .quick_checks import are_disjoint, combination_key, content_key, is_bare_reference, quick_satisfiable
from .strings.string_parts import StringPart, join_strings, leaves_some, likely_texts, merged_texts, string_combinations
from .strings.string_parts import candidates as string_candidates
from .structure_parts import ArrayPart, ObjectPart
from .unevaluated import unevaluated
from .value_states import result_codes

MAX_SATISFIABLE_DEPTH = 40
# Keywords that say something of a value by themselves.
_CONSTRAINING = frozenset(KEYWORDS) - {"definitions", "$defs", "then", "else"}
NODE_STEPS = 100 * INTERPRETED  # steps counted for an operation on a goal for which nothing is charged


class GoalCompiler(SchemaCompiler):
    """The schema compiler over one document."""

    def __init__(self, document: Document, whitespace: str, order: str, options: SchemaOptions) -> None:
        super().__init__(document, whitespace, order, options)
        self._combinations: dict[Hashable, Hashable] = {}
        self._expanding: list[int] = []
        self._satisfiable: dict[Formula, bool] = {}
        self._in_progress: dict[Formula, None] = {}
        self._depths = DepthGoals(document)
        self.caches += [self._combinations, self._satisfiable]

    # Subschemas to goals and formulas.

    def goal(self, location: Location, *, generated: bool = False) -> Formula:
        schema = location.schema
        if isinstance(schema, bool):
            return schema
        if _CONSTRAINING.isdisjoint(schema):
            return True
        if is_bare_reference(location) and "$id" not in schema:
            # One node for all references to a schema, so that what many of them lead to is worked out once.
            return self.goal(self.document.resolve(schema["$ref"], location, "$ref"), generated=generated)
        key: Hashable = id(schema), location.base, location.scope
        content = content_key(schema) if len(schema) <= 6 else None
        differs = generated and (self.closes_objects or self.integers_as_digits) and not _is_unaffected(content)
        if content is None and key not in self._combinations:
            self._combinations[key] = combination_key(self.document, location)
        shared = content or self._combinations.get(key)
        key = (location.draft, shared) if shared else key  # drafts differ in what is an integer
        key = ("generated", key) if differs else key
        node = self.nodes.get(key)
        if node is None:
            node = self.nodes[key] = GeneratedNode(self, location) if differs else SchemaNode(location)
        return node

    def goal_of(self, schema: dict[str, Any]) -> Formula:
        return self.goal(Location(self.keep_alive(schema), "", "", (), self.document.start.draft))

    def within(self, depth: int) -> Formula:
        return self._depths.goal(self, depth)

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
            count(NODE_STEPS)
            try:
                with located(node):
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

        if "$ref" in schema and location.ref_is_alone:
            return target("$ref")
        parts: list[Formula] = []
        lists_texts = _lists_texts(schema)
        if not lists_texts and not TYPE_KEYWORDS.isdisjoint(schema):
            parts.append(KeywordSet(self, location, location.draft or 2020))
        if not APPLICATORS.isdisjoint(schema):
            if "enum" in schema:
                values = [text for text in schema["enum"] if isinstance(text, str)] if lists_texts else schema["enum"]
                parts.append(enum_formula(self, values, child(location.pointer, "enum")))
            if "const" in schema and (location.draft or 6) >= 6:
                parts.append(enum_formula(self, [schema["const"]], child(location.pointer, "const")))
            if "$ref" in schema:
                parts.append(target("$ref"))
            for keyword in ("$dynamicRef", "$recursiveRef"):
                if keyword in schema:
                    parts.append(target(keyword))
            for name, join in (("allOf", conj), ("anyOf", disj), ("oneOf", one)):
                if name in schema:
                    branches = [document.inside(location, value, name, n) for n, value in enumerate(schema[name])]
                    if name == "oneOf" and are_disjoint(document, branches, location):
                        join = disj
                    parts.append(join(self.formula_at(branch) for branch in branches))
            if "not" in schema:
                parts.append(neg(inner(schema["not"], "not")))
            if "if" in schema and (location.draft or 7) >= 7 and ("then" in schema or "else" in schema):
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
        if isinstance(goal, SchemaNode) and isinstance(formula := self._formula_of(goal), KeywordSet | LiteralValues):
            return formula.typed(kind)  # a part already, and cached
        key = ("typed", goal, kind)
        found = self.cache.get(key)
        if found is None:
            num_before = len(self.refused)
            found = self.over_parts(goal, kind)
            with located(goal):
                if kind in ("string", "number"):
                    found = self._simplified(with_joined_alternatives(found), kind)
                elif lists_values(found):
                    found = with_listed_values(self, found)
                    if not isinstance(found, ListedPart):
                        found = self._simplified(self._without_listed(found), kind)
            self.cache[key] = found
            if len(self.refused) > num_before:
                self.cache["refused", goal, kind] = self.refused[num_before]
        return found

    def refusal(self, goal: Formula, kind: str) -> GrammarError | None:
        """Return the error of a combination in `typed` that is too complex, if any, while errors are collected."""
        self.typed(goal, kind)
        found: GrammarError | None = self.cache.get(("refused", goal, kind))
        return found

    def over_parts(self, goal: Formula, kind: str) -> Formula:
        key = ("over parts", goal, kind)
        found = self.cache.get(key)
        if found is None:
            count(NODE_STEPS)
            with located(goal):
                found = substitute(goal, lambda node: self._typed_node(node, kind))
                if kind in ("object", "array"):
                    found = self._simplified(found, kind)
            self.cache[key] = found
        return found

    def _without_listed(self, formula: Formula) -> Formula:
        if isinstance(formula, ObjectPart | ArrayPart):
            return formula
        return substitute(formula, lambda part: unlisted(self, part) if isinstance(part, ListedPart) else part)

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
                return False  # the grammar is refused
        keywords = tuple(dict.fromkeys(each for part in parts for each in part.keywords))
        key = ("joined", frozenset(keywords))
        if key not in self.cache:
            self.cache[key] = ObjectPart(keywords) if kind == "object" else ArrayPart(keywords)
        return self.cache[key]

    def _refuse(self, error: GrammarError, parts: Iterable[Any]) -> None:
        error.patterns = frozenset().union(*(part.all_patterns for part in parts if isinstance(part, StringPart)))
        self.refused.add(error)

    def _simplified(self, formula: Formula, kind: str) -> Formula:
        """Join conjunctions of parts into one part, distributing it over the first disjunction beside it."""
        if isinstance(formula, And):
            if kind == "object" and any(isinstance(part, Not) for part in formula.parts):
                parts = [self._simplified(part, kind) if isinstance(part, Not) else part for part in formula.parts]
                if (positive := conj(parts)) is not formula:
                    return self._simplified(positive, kind)
            apart = Or | ExactlyOne | Not | ListedPart
            plain = [part for part in formula.parts if not isinstance(part, apart)]
            joined = self.join_parts(plain, kind) if plain else True
            if joined is False:
                return False
            if kind == "object" and len(formula.parts) > 1:
                choices = joined_conditions(self, formula, joined.required if isinstance(joined, ObjectPart) else ())
                if choices is not formula:
                    return self._simplified(choices, kind)
            others = [part for part in formula.parts if isinstance(part, apart)]
            if kind in ("string", "number"):
                joined, others = without_excluded(joined, others)
                if joined is False:
                    return False
            alternatives = [part for part in others if isinstance(part, Or | ExactlyOne)]
            if kind == "object" and (len(alternatives) > 1 or any(isinstance(p, ExactlyOne) for p in alternatives)):
                # Apart, alternatives that share no names can be looked at one after the other, and what all of an
                # `ExactlyOne` need keeps none of them open.
                return conj([joined, *(self._simplified(part, kind) for part in others)])
            if joined is True or not alternatives:
                return conj([joined, *(self._simplified(part, kind) for part in others)])
            spread = alternatives[0]
            inside = merged_texts(spread) if kind == "string" else spread.parts
            pushed = [self._simplified(conj([joined, inner]), kind) for inner in inside]
            rest = [self._simplified(part, kind) for part in others if part is not spread]
            return conj([disj(pushed) if isinstance(spread, Or) else one(pushed), *rest])
        if isinstance(formula, Or):
            simplified = [self._simplified(part, kind) for part in formula.parts]
            if kind == "string" and all(isinstance(p, StringPart) and p.texts is not None for p in simplified):
                return StringPart(texts=frozenset().union(*(p.texts for p in simplified)))
            return disj(simplified)
        if isinstance(formula, ExactlyOne):
            return one(self._simplified(part, kind) for part in formula.parts)
        if isinstance(formula, Not):
            inner = self._simplified(formula.part, kind)
            positive = negated(self, inner) if isinstance(inner, ObjectPart) else None
            return neg(inner) if positive is None else positive
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
        if isinstance(goal, Or):
            return any(self.satisfiable(part) for part in goal.parts)
        if isinstance(goal, And) and self._depths.excludes(self, goal):
            self._satisfiable[goal] = False
            return False
        count(NODE_STEPS)
        self._in_progress[goal] = None
        num_before = self.num_assumptions
        try:
            with located(goal):
                found = any(self._has_values(self.typed(goal, kind), kind) for kind in VALUE_TYPES)
        finally:
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
                if kind == "number":
                    read = bits_reader([formula], parts)
                    return any(map(read, number_product(number_universe(parts), tuple(parts)).accepted))
                found = string_combinations(tuple(parts))
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
        result: ResultCodes,
        unlike: frozenset[Any] = frozenset(),
    ) -> ControlState | None:
        state = self._any_structure(kind, formulas, result)
        if state is None or not unlike:
            return state
        others: Iterable[Any] = unlike
        if isinstance(state, ObjectState | ArrayState):
            try:
                return unlike_start(state, unlike)
            except GrammarError:  # which is a ValueError too
                raise
            except ValueError:  # its end is searched for, with the others as parts of its formula
                others = sorted(unlike, key=repr)[:MAX_STRUCTURES]
        need = conj([formulas[0], neg(self.typed(self.one_of(others), kind))])
        need = with_listed_values(self, need) if lists_values(need) else need
        if not isinstance(need, ListedPart):
            need = self._simplified(self._without_listed(need), kind)
        return None if need is False else self._any_structure(kind, (need, *formulas[1:]), result)

    def _any_structure(self, kind: str, formulas: tuple[Formula, ...], result: ResultCodes) -> ControlState | None:
        key = (kind, formulas, id(result))
        if key not in self.cache:
            num_before = self.num_assumptions
            state = self._structure_start(kind, formulas, result)
            if not self.is_idle and num_before != self.num_assumptions:
                return state  # depends on an assumption of the running search
            self.cache[key] = state
        return self.cache[key]  # type: ignore[no-any-return]

    def _structure_start(self, kind: str, formulas: tuple[Formula, ...], result: ResultCodes) -> ControlState | None:
        if isinstance(formulas[0], ListedPart):
            return self._listed_start(kind, formulas[0], formulas[1:], result)
        formulas = tuple(self._without_listed(formula) for formula in formulas)
        need = self._of_parts_with_values(formulas[0])
        if need is False:
            return None
        formulas = (need, *formulas[1:])
        if kind == "object":
            context = ObjectContext(self, formulas, result)
            state = ObjectState(object_search(context), context.all_parts)
            return state if state.is_possible() else None
        array = ArrayContext(self, formulas, result).start()
        return array if array.is_possible() else None

    def _listed_start(
        self, kind: str, need: ListedPart, tracked: tuple[Formula, ...], result: ResultCodes
    ) -> ControlState | None:
        """Return the state before one of the given values, which end with the truths of tracked formulas."""
        unknown: set[GivenValue] = set()

        def truth(part: Any, value: GivenValue) -> bool | None:
            found = part_truth(self, part, value)
            if found is None:
                unknown.add(value)
            return found

        truths = SparseTruths(tracked, lambda part: part.values if isinstance(part, ListedPart) else None, truth)
        codes = [(value, truths.bits(value)) for value in need.values]
        known = tuple((value, result.of_bits(bits)) for value, bits in codes if value not in unknown)
        others = any(not isinstance(formula, bool | ListedPart) for formula in tracked)
        digits = need.digits or (
            others and (self.document.start.draft or 2020) <= 4
        )  # until draft 4, 1.0 is no integer
        style = ListedStyle(self, self.schema_order or need.ordered, digits)
        return listed_start(kind, value_choice(style, known)) if known else None

    def _of_parts_with_values(self, formula: Formula) -> Formula:
        """Return the formula without the parts of which it is known that no value satisfies them."""

        def possible(part: ObjectPart | ArrayPart) -> Formula:
            too_few = isinstance(part, ArrayPart) and has_too_few_values(self, part)
            return part if part.has_values(self) and not too_few else False

        return substitute(formula, possible)

    def _has_structures(self, kind: str, formula: Formula) -> bool:
        if isinstance(formula, ListedPart):
            return True
        if self._of_parts_with_values(formula) is False:
            return False
        if is_plain(formula) if kind == "object" else is_plain_array(self, formula):
            return True
        return self.structure_start(kind, (formula,), result_codes(self, ())) is not None


def _lists_texts(schema: dict[str, Any]) -> bool:
    """Return True if only the strings among the values of `enum` are allowed, and nothing more is said of them."""
    is_string = schema.get("type") == "string" and schema.get("nullable") is not True
    return is_string and "enum" in schema and TYPE_KEYWORDS & schema.keys() == {"type"}


def _is_unaffected(content: Hashable) -> bool:
    """Return True if `SchemaOptions` change nothing for a small schema with this content."""
    return content is not None and not any(
        (name == "type" and value == "integer") or (name == "const" and kind in ("int", "float"))
        for name, kind, value in content  # type: ignore[attr-defined]
    )
