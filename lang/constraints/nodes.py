"""Nodes of composed constraints: patterns, JSON and the parts of a program all become these.

Both the grammar that is sent and the matcher that finds the captures are made of nodes, so they describe the same
texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...runtime.protocol.errors import RequestError

Ranges = tuple[tuple[int, int], ...]  # of code points, sorted and apart
MAX_CODE_POINT = 0x10FFFF
MAX_REPEAT = 1_000
_SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True, slots=True)
class LiteralNode:
    """A text as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class CharNode:
    """Matches one character of the ranges."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class JoinNode:
    """Nodes one after another; without parts the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class EitherNode:
    """Matches one of the nodes, an earlier one rather than a later one."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class LoopNode:
    """A node `least` to `most` times (None: any number of times), as often as possible, or as seldom if `lazy`.

    `names` are the captures inside, whose values are lists with an item for each repetition.
    """

    part: Node
    least: int
    most: int | None
    lazy: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CaptureNode:
    """A node whose text is kept under a name."""

    name: str
    part: Node


@dataclass(frozen=True, slots=True)
class RuleNode:
    """A reference to a rule by its name, for what is used many times or contains itself."""

    name: str


@dataclass(frozen=True, slots=True)
class RecursiveNode:
    """A reference to a rule, of whose captures a dict is kept under a name."""

    name: str
    rule: str


Node = LiteralNode | CharNode | JoinNode | EitherNode | LoopNode | CaptureNode | RuleNode | RecursiveNode
EMPTY_NODE = JoinNode(())


@dataclass(frozen=True)
class Constraints:
    """The node of a whole text, and the rules that its nodes refer to."""

    whole: Node
    rules: tuple[tuple[str, Node], ...] = ()


def _without_surrogates(pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    first, last = _SURROGATES
    for low, high in pairs:
        if high < first or low > last:
            yield low, high
            continue
        if low < first:
            yield low, first - 1
        if high > last:
            yield last + 1, high


def ranges_of(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Return sorted, merged ranges without surrogates, which no text contains."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(_without_surrogates(pairs)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return tuple(_without_surrogates(merged))


def complement(ranges: Ranges) -> Ranges:
    """Return the characters that are not in the ranges."""
    found = []
    start = 0
    for low, high in ranges:
        found.append((start, low - 1))
        start = high + 1
    found.append((start, MAX_CODE_POINT))
    return ranges_of((low, high) for low, high in found if low <= high)


def characters(text: str) -> Ranges:
    """Return the characters of the text as ranges."""
    return ranges_of((ord(character), ord(character)) for character in text)


ANY_CHARACTER = complement(())


def join(parts: Iterable[Node]) -> Node:
    """Concatenate nodes; neighbouring literals become one."""
    kept: list[Node] = []
    for part in parts:
        for inner in part.parts if isinstance(part, JoinNode) else (part,):
            if isinstance(inner, LiteralNode) and kept and isinstance(last := kept[-1], LiteralNode):
                kept[-1] = LiteralNode(last.text + inner.text)
            elif inner != LiteralNode(""):
                kept.append(inner)
    return kept[0] if len(kept) == 1 else JoinNode(tuple(kept))


def either(parts: Iterable[Node]) -> Node:
    """Return the choice of one node."""
    kept = tuple(parts)
    return kept[0] if len(kept) == 1 else EitherNode(kept)


def maybe(part: Node) -> Node:
    """Return the node or the empty text, the node rather."""
    return EitherNode((part, EMPTY_NODE))


def loop(part: Node, least: int, most: int | None, *, lazy: bool = False, names: tuple[str, ...] = ()) -> Node:
    """Repeat a node. Raises RequestError beyond the bound on repetitions."""
    if max(least, most or 0) > MAX_REPEAT:
        raise RequestError(f"a repeat of more than {MAX_REPEAT} times inside seq: {least} to {most}", param="repeat")
    if names or not (least == most == 1):
        return LoopNode(part, least, most, lazy, names)
    return part


def captures(node: Node) -> Iterator[str]:
    """Yield the names of the captures inside a node."""
    match node:
        case CaptureNode(name=name, part=part):
            yield name
            yield from captures(part)
        case RecursiveNode(name=name):
            yield name
        case LoopNode(part=part):
            yield from captures(part)
        case JoinNode(parts=parts) | EitherNode(parts=parts):
            for one in parts:
                yield from captures(one)


def derives(node: Node, rules: Mapping[str, Node], without: frozenset[str], *, empty: bool = False) -> bool:
    """Return whether some text, or the empty one, is of the node, without the rules of these names."""
    match node:
        case LiteralNode(text=text):
            return not (empty and text)
        case CharNode():
            return not empty
        case JoinNode(parts=parts):
            return all(derives(part, rules, without, empty=empty) for part in parts)
        case EitherNode(parts=parts):
            return any(derives(part, rules, without, empty=empty) for part in parts)
        case LoopNode(part=part, least=least):
            return least == 0 or derives(part, rules, without, empty=empty)
        case CaptureNode(part=part):
            return derives(part, rules, without, empty=empty)
        case RuleNode(name=name) | RecursiveNode(rule=name):
            found = None if name in without else rules.get(name)
            return found is not None and derives(found, rules, without | {name}, empty=empty)


def begins_with(node: Node, rules: Mapping[str, Node], rule: str, seen: set[str]) -> bool:
    """Return whether the rule may come in the node before any character. `seen`: rules that are not looked at again."""
    match node:
        case JoinNode(parts=parts):
            for part in parts:
                if begins_with(part, rules, rule, seen):
                    return True
                if not derives(part, rules, frozenset([rule]), empty=True):
                    return False
        case EitherNode(parts=parts):
            return any(begins_with(part, rules, rule, seen) for part in parts)
        case LoopNode(part=part) | CaptureNode(part=part):
            return begins_with(part, rules, rule, seen)
        case RuleNode(name=name) | RecursiveNode(rule=name) if name == rule:
            return True
        case RuleNode(name=name) | RecursiveNode(rule=name) if name in rules and name not in seen:
            seen.add(name)
            return begins_with(rules[name], rules, rule, seen)
    return False
