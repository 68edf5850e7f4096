"""Conditions on members of an object, without negations: as positive parts, and as one choice by the value of a tag."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..formula import And, Formula, Not, Or, conj, disj, neg
from ..interface import SchemaCompiler, SchemaNode
from ..quick_checks import are_disjoint
from ..structure_parts import ObjectKeywords, ObjectPart


def negated(compiler: SchemaCompiler, part: ObjectPart) -> Formula | None:
    """Return the objects that do not satisfy a part, as positive parts, or None if it has more than member goals."""
    if not all(_has_member_goals_only(each) for each in part.keywords):
        return None
    ways: list[Formula] = []
    for each in part.ranked:
        for name in dict.fromkeys((*each.properties, *each.required)):
            goal = each.properties.get(name, True)
            if name in each.required or goal is not True:
                required = () if name in each.required else (name,)
                ways.append(_member(compiler, each, name, neg(goal), required))
    return disj(ways)


def _has_member_goals_only(keywords: ObjectKeywords) -> bool:
    has_limits = keywords.requires or keywords.least or keywords.most is not None or keywords.ordered
    goals = (*keywords.patterns.values(), keywords.additional, keywords.names)
    return not has_limits and all(goal is True for goal in goals)


def _member(
    compiler: SchemaCompiler, like: ObjectKeywords, name: str, goal: Formula, required: tuple[str, ...]
) -> Formula:
    """Return the part of objects whose member `name` satisfies a goal."""
    keywords = ObjectKeywords(like.document, {name: goal}, {}, True, True, required, {}, 0, None, False)
    keywords = compiler.cache.setdefault(("object", *keywords.key), keywords)
    return compiler.join_parts([ObjectPart((keywords,))], "object")


def joined_conditions(compiler: SchemaCompiler, formula: And, required: Iterable[str]) -> Formula:
    """Write conditions on one tag that exclude each other as one choice: the tag has one of their values, or another.

    `required` are names that the object has in any case. Conditions are disjunctions of a negated part and others.
    Those by which one member requires others become one part.
    """
    formula = _with_dependencies(compiler, formula)
    if not isinstance(formula, And):
        return formula
    groups: dict[str, list[tuple[Or, ObjectPart]]] = {}
    for clause in formula.parts:
        part = _condition(clause)
        if part is not None:
            groups.setdefault(next(iter(part.names)), []).append((clause, part))
    rewritten: dict[Formula, Formula] = {}
    for tag, clauses in groups.items():
        if len(clauses) > 1 and _exclude_each_other(compiler, tag, [part for _, part in clauses]):
            rewritten |= dict.fromkeys((clause for clause, _ in clauses), True)
            rewritten[clauses[0][0]] = _choice(compiler, tag, clauses, tag in required)
    return conj(rewritten.get(part, part) for part in formula.parts) if rewritten else formula


def _with_dependencies(compiler: SchemaCompiler, formula: And) -> Formula:
    """Join the conditions that only say that one member requires others."""
    requires: dict[str, dict[str, None]] = {}
    others: list[Formula] = []
    for clause in formula.parts:
        found = _dependency(clause)
        if found is None:
            others.append(clause)
        else:
            requires.setdefault(found[0], {}).update(found[1])
            like = found[2]
    if not requires:
        return formula
    mapping = {name: tuple(needed) for name, needed in requires.items()}
    keywords = ObjectKeywords(like.document, {}, {}, True, True, (), mapping, 0, None, False)
    keywords = compiler.cache.setdefault(("object", *keywords.key), keywords)
    return conj([compiler.join_parts([ObjectPart((keywords,))], "object"), *others])


def _dependency(clause: Formula) -> tuple[str, dict[str, None], ObjectKeywords] | None:
    """Return the name and what it requires if a clause only says that one member requires others."""
    if not isinstance(clause, Or) or len(clause.parts) != 2:
        return None
    absent, needed = clause.parts if isinstance(clause.parts[0], Not) else reversed(clause.parts)
    if not isinstance(absent, Not) or not isinstance(needed, ObjectPart):
        return None
    condition = absent.part
    if not isinstance(condition, ObjectPart) or len(condition.required) != 1:
        return None
    if not all(each.only_require for each in (*condition.keywords, *needed.keywords)):
        return None
    return next(iter(condition.required)), needed.required, needed.keywords[0]


def _condition(clause: Formula) -> ObjectPart | None:
    """Return the part that a clause negates, if it is a condition on one member only."""
    if not isinstance(clause, Or):
        return None
    parts = [part.part for part in clause.parts if isinstance(part, Not) and isinstance(part.part, ObjectPart)]
    if len(parts) != 1 or len(parts[0].keywords) != 1 or len(parts[0].names) != 1:
        return None
    (keywords,) = parts[0].keywords
    return parts[0] if _has_member_goals_only(keywords) and keywords.properties else None


def _exclude_each_other(compiler: SchemaCompiler, tag: str, parts: Sequence[ObjectPart]) -> bool:
    goals = [part.keywords[0].properties[tag] for part in parts]
    locations = [goal.location for goal in goals if isinstance(goal, SchemaNode)]
    return len(locations) == len(goals) and are_disjoint(compiler.document, locations)


def _choice(compiler: SchemaCompiler, tag: str, clauses: list[tuple[Or, ObjectPart]], is_required: bool) -> Formula:
    ways: list[Formula] = []
    absent: list[Formula] = []  # what holds if the tag is absent
    like = clauses[0][1].keywords[0]
    goals: list[Formula] = []
    for clause, part in clauses:
        (keywords,) = part.keywords
        then = disj(other for other in clause.parts if other != Not((part,)))
        goal = keywords.properties[tag]
        goals.append(goal)
        ways.append(conj([_member(compiler, like, tag, goal, (tag,)), then]))
        if tag not in keywords.required:
            absent.append(then)
    other = conj(neg(goal) for goal in goals)
    if is_required or absent:
        ways.append(_member(compiler, like, tag, other, (tag,)))
        if not is_required:
            ways.append(conj([_member(compiler, like, tag, False, ()), *absent]))
    else:
        ways.append(_member(compiler, like, tag, other, ()))
    return disj(ways)
