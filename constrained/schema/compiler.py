"""Nodes: subschemas as atoms of formulas. By a written node the output is written; others are conditions about it.

Knows where a schema is; not what it demands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .document import Location
from .formula import And, Formula, conj

if TYPE_CHECKING:
    from .goals import SchemaCompiler


class SchemaNode:
    """A schema that demands something. Compared by identity."""

    __slots__ = ("location", "typed", "whole")

    def __init__(self, location: Location) -> None:
        self.location = location
        self.whole: Formula | None = None
        self.typed: dict[str, Formula] = {}


class GeneratedNode(SchemaNode):
    """Schemas that a whole value is written by, all of them at once, under the world's `SchemaOptions`.

    Several where an object gets a member's schema from more than one place: only together they say which members the
    value lists.
    """

    __slots__ = ("parts", "world")

    def __init__(self, world: SchemaCompiler, location: Location, parts: tuple[GeneratedNode, ...] = ()) -> None:
        super().__init__(location)
        self.world = world
        self.parts = parts or (self,)


def joined_goal(goals: Iterable[Formula]) -> Formula:
    """The conjunction of what is asked of one value, with its written nodes made one."""
    goal = conj(goals)
    if not isinstance(goal, And):
        return goal
    written = [part for part in goal.parts if isinstance(part, GeneratedNode)]
    if len(written) < 2:
        return goal
    others = [part for part in goal.parts if not isinstance(part, GeneratedNode)]
    return conj([written[0].world.joint(written), *others])
