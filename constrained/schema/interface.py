"""Interface of the schema compiler, and schema nodes: subschemas as atoms of goals.

A goal is a formula over nodes: what one value must satisfy. The compiler specialises goals by the type of the value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sized
from typing import Any

from ..automaton.automaton import ControlState
from ..automaton.layout import LIMITED_LEVEL
from ..constraint import SchemaOptions
from ..errors import GrammarError, Refusals, StatesExhaustedError
from .document import Document, Location
from .formula import And, Formula, ResultCodes, atoms, conj
from .keywords import child

# Keywords that a text is tested by, and those that bring the tests of several schemas together.
_TESTS = ("multipleOf", "divisibleBy", "pattern", "format", "patternProperties", "propertyNames")
_SEVERAL = ("allOf", "oneOf", "anyOf", "not", "if", "$ref")
ONE_SPACE = 3  # as a number of spaces: one has to come
VALUE_TYPES = ("null", "true", "false", "number", "string", "object", "array")


class SchemaCompiler(ABC):
    """Compiles one schema lazily: goals to formulas over parts, and formulas to automaton states.

    `cache` holds results by keys that begin with the name of their kind. `num_assumptions` counts how often a goal was
    assumed unsatisfiable while its own satisfiability was being decided: a negative result that relied on one holds
    only for that search. `refused` collects or raises the errors of combinations that are too complex (`Refusals`).
    """

    def __init__(self, document: Document, whitespace: str, order: str, options: SchemaOptions) -> None:
        self.document = document
        self.spaces = {"compact": 0, "bounded": 1, "any": 2, "spaced": ONE_SPACE}[options.whitespace or whitespace]
        self.closes_objects = options.additional_properties == "closed"
        self.integers_as_digits = options.integers == "digits"
        self.number_digits = options.number_digits
        self.schema_order = order == "schema"
        self.cache: dict[Hashable, Any] = {}
        self.nodes = Nodes()
        self.caches: list[Sized] = [self.cache, self.nodes]  # what grows with the outputs
        self.num_assumptions = 0
        self.limited_level = LIMITED_LEVEL
        self.refused = Refusals()

    @abstractmethod
    def goal(self, location: Location, *, generated: bool = False) -> Formula:
        """Return the goal of a subschema.

        `generated`: values are written by the schema, so `SchemaOptions` apply. Otherwise the schema is a condition.
        """

    @abstractmethod
    def goal_of(self, schema: dict[str, Any]) -> Formula:
        """Return the goal of a schema that is not part of the document."""

    @abstractmethod
    def within(self, depth: int) -> Formula:
        """Return the goal of the values that are nested at most so deep."""

    @abstractmethod
    def formula_at(self, location: Location) -> Formula:
        """Return the formula of a subschema over `KeywordSet`s and `LiteralValues`."""

    @abstractmethod
    def typed(self, goal: Formula, kind: str) -> Formula:
        """Return a goal as a formula over the parts of one of `VALUE_TYPES`, with conjunctions joined."""

    @abstractmethod
    def over_parts(self, goal: Formula, kind: str) -> Formula:
        """Return a goal as a formula over parts that tells the truth of single values.

        It need not tell what values there are: strings and numbers are not joined, given values not compared with
        other parts.
        """

    @abstractmethod
    def join_parts(self, parts: list[Any], kind: str) -> Formula:
        """Return the conjunction of parts of one type as one part, or False if no value satisfies it."""

    @abstractmethod
    def satisfiable(self, goal: Formula) -> bool:
        """Return False only if no value satisfies the goal, True also if that is unknown."""

    @abstractmethod
    def satisfiable_unlike(self, goal: Formula, unlike: frozenset[Any]) -> bool:
        """Return False only if no value satisfies the goal but those with these canonical forms."""

    @abstractmethod
    def one_of(self, forms: Iterable[Any]) -> Formula:
        """Return the goal of the values with these canonical forms."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """True while no satisfiability search is running."""

    @abstractmethod
    def structure_start(
        self,
        kind: str,
        formulas: tuple[Formula, ...],
        result: ResultCodes,
        unlike: frozenset[Any] = frozenset(),
    ) -> ControlState | None:
        """Return the state after the opening bracket of an object or array, or None if there is no such value.

        The first formula must hold; the value ends with the result code of the truths of the others. It must not equal
        one of `unlike`, which are canonical forms.
        """

    def keep_alive(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Keep a derived schema for the compiler's lifetime, because schemas are identified by `id`."""
        self.cache["kept", id(schema)] = schema
        return schema


class SchemaNode:
    """A subschema as an atom of goals, compared by identity. `formula` and `typed` cache its expansions."""

    __slots__ = ("formula", "location", "typed")

    def __init__(self, location: Location) -> None:
        self.location = location
        self.formula: Formula | None = None
        self.typed: dict[str, Formula] = {}


class GeneratedNode(SchemaNode):
    """A node whose value is generated under the compiler's `SchemaOptions`.

    It has several `parts` where a member gets schemas from several places: an object is closed against the members that
    all of them list.
    """

    __slots__ = ("_parts", "compiler")

    def __init__(self, compiler: SchemaCompiler, location: Location, parts: tuple[GeneratedNode, ...] = ()) -> None:
        super().__init__(location)
        self.compiler = compiler
        self._parts = parts

    @property
    def parts(self) -> tuple[GeneratedNode, ...]:
        """The nodes that a joint node joins, else the node alone (not stored: it would hold itself)."""
        return self._parts or (self,)


class located:  # noqa: N801
    """Context that adds a pointer to errors without one: the keyword in the goals' schemas most likely at fault."""

    __slots__ = ("_goals",)

    def __init__(self, *goals: Formula) -> None:
        self._goals = goals

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, GrammarError) or isinstance(error, StatesExhaustedError) or error.pointer is not None:
            return
        nodes = [atom for goal in self._goals for atom in atoms(goal) if isinstance(atom, SchemaNode)]
        if not nodes:
            return
        nested = (node.parts if isinstance(node, GeneratedNode) else (node,) for node in nodes)
        places = [part.location for parts in nested for part in parts]
        named = [child(at.pointer, name) for at in places for name in _TESTS if name in at.schema]
        named += [child(at.pointer, name) for at in places for name in _SEVERAL if name in at.schema]
        found = GrammarError(error.reason, pointer=named[0] if named else places[0].pointer)
        found.patterns = error.patterns
        raise found from None


def joined_goal(goals: Iterable[Formula]) -> Formula:
    """Return the conjunction of the goals of one value, with its generated nodes merged into one."""
    goal = conj(goals)
    if not isinstance(goal, And):
        return goal
    generated = [part for part in goal.parts if isinstance(part, GeneratedNode)]
    if len(generated) < 2:
        return goal
    compiler = generated[0].compiler
    parts = tuple(dict.fromkeys(part for node in generated for part in node.parts))
    key = ("joint", frozenset(parts))
    joint = compiler.nodes.get(key)
    if joint is None:
        joint = compiler.nodes[key] = GeneratedNode(compiler, parts[0].location, parts)
    return conj([joint, *(part for part in goal.parts if not isinstance(part, GeneratedNode))])


class Nodes(dict[Hashable, SchemaNode]):
    """The nodes of a compiler. A recursive schema's nodes hold each other by their expansions, until it is cleared."""

    def clear(self) -> None:
        for node in self.values():
            node.formula = None
            node.typed.clear()
        super().clear()
