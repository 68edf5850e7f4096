"""Finds the captures in a text that constraints have generated.

The text is read as a backtracking matcher such as `re` reads it: an earlier alternative and one more repetition are
tried first. A place of the program is tried once at each position of the text, so the time is bounded by their product.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...runtime.protocol.errors import RequestError
from .nodes import (
    CaptureNode,
    CharNode,
    Constraints,
    EitherNode,
    JoinNode,
    LiteralNode,
    LoopNode,
    Node,
    RecursiveNode,
    RuleNode,
    captures,
)

MAX_INSTRUCTIONS = 100_000
MAX_STEPS = 20_000_000  # of one text

_TEXT, _CHARS, _JUMP, _SPLIT, _NOTE, _CALL, _RETURN, _END = range(8)
# What a note says: a capture begins or ends, a loop begins, begins a repetition, or ends, a tree begins or ends.
_BEGIN, _CLOSE, _LOOP, _AGAIN, _AFTER, _TREE, _LEAVE = range(7)
_Path = tuple[Any, ...] | None  # (previous path, note, position)


class _State(NamedTuple):
    instruction: int
    position: int
    stack: int
    path: _Path


class CaptureMatcher:
    """The program of constraints: `match` returns the texts of the captures by name."""

    def __init__(self, constraints: Constraints) -> None:
        self._code: list[tuple[int, Any, Any]] = []
        self._calls: list[tuple[int, str]] = []
        self._emit(constraints.whole)
        self._add(_END)
        starts = {}
        for name, node in constraints.rules:
            starts[name] = len(self._code)
            self._emit(node)
            self._add(_RETURN)
        for at, name in self._calls:
            self._code[at] = (_CALL, starts[name], None)
        self._names = tuple(captures(constraints.whole))
        self._names_of_rule = {name: tuple(captures(node)) for name, node in constraints.rules}

    def match(self, text: str) -> dict[str, Any]:
        """Return the text of each capture, None where it did not occur, a list of these inside a repetition.

        For a tree it is a dict of these, of the captures of its rule.

        Raises ValueError if the text is not one of the constraints.
        """
        path = self.search(text)
        notes = []
        while path is not None:
            path, note, position = path
            notes.append((note, position))
        found = _Scope(dict.fromkeys(self._names))
        scopes = [found]
        loops: list[tuple[tuple[str, ...], list[dict[str, Any]]]] = []
        for (kind, detail), position in reversed(notes):
            match kind:
                case 0:  # _BEGIN
                    scopes[-1].starts[detail] = position
                case 1:  # _CLOSE
                    scopes[-1].values[detail] = text[scopes[-1].starts[detail] : position]
                case 2:  # _LOOP
                    loops.append((detail, []))
                    scopes.append(_Scope({}))
                case 3:  # _AGAIN
                    scopes[-1] = _Scope(dict.fromkeys(detail))
                    loops[-1][1].append(scopes[-1].values)
                case 4:  # _AFTER
                    scopes.pop()
                    names, rows = loops.pop()
                    scopes[-1].values.update({name: [row[name] for row in rows] for name in names})
                case 5:  # _TREE
                    scopes.append(_Scope(dict.fromkeys(self._names_of_rule[detail[1]])))
                case 6:  # _LEAVE
                    tree = scopes.pop().values
                    scopes[-1].values[detail] = tree
        return found.values

    # The program

    def _add(self, operation: int, first: Any = None, second: Any = None) -> int:
        if len(self._code) >= MAX_INSTRUCTIONS:
            raise RequestError("seq is too large: its repeats, written out, are too many", param="parts")
        self._code.append((operation, first, second))
        return len(self._code) - 1

    def _emit(self, node: Node) -> None:
        match node:
            case LiteralNode(text=text):
                self._add(_TEXT, text)
            case CharNode(ranges=ranges):
                self._add(_CHARS, ranges)
            case JoinNode(parts=parts):
                for part in parts:
                    self._emit(part)
            case EitherNode(parts=(*firsts, last)):
                ends = []
                for part in firsts:
                    split = self._add(_SPLIT)
                    self._emit(part)
                    ends.append(self._add(_JUMP))
                    self._code[split] = (_SPLIT, split + 1, len(self._code))
                self._emit(last)
                for end in ends:
                    self._code[end] = (_JUMP, len(self._code), None)
            case LoopNode():
                self._emit_loop(node)
            case CaptureNode(name=name, part=part):
                self._add(_NOTE, (_BEGIN, name))
                self._emit(part)
                self._add(_NOTE, (_CLOSE, name))
            case RuleNode(name=name):
                self._calls.append((self._add(_CALL), name))
            case RecursiveNode(name=name, rule=rule):
                self._add(_NOTE, (_TREE, (name, rule)))
                self._calls.append((self._add(_CALL), rule))
                self._add(_NOTE, (_LEAVE, name))

    def _emit_loop(self, node: LoopNode) -> None:
        if node.names:
            self._add(_NOTE, (_LOOP, node.names))
        for _ in range(node.least):
            self._emit_turn(node)
        splits = []
        if node.most is None:
            split = self._add(_SPLIT)
            self._emit_turn(node)
            self._add(_JUMP, split)
            splits.append(split)
        else:
            for _ in range(node.most - node.least):
                splits.append(self._add(_SPLIT))
                self._emit_turn(node)
        for split in splits:
            ways = split + 1, len(self._code)
            self._code[split] = (_SPLIT, *(reversed(ways) if node.lazy else ways))
        if node.names:
            self._add(_NOTE, (_AFTER, node.names))

    def _emit_turn(self, node: LoopNode) -> None:
        if node.names:
            self._add(_NOTE, (_AGAIN, node.names))
        self._emit(node.part)

    # The search

    def search(self, text: str) -> _Path:
        """Return the notes on the preferred way through the program. Raises ValueError if there is none."""
        search = MatchSearch()
        path = self.advance(search, text, is_whole=True)
        if path is not None:
            return path[0]
        if search.furthest == len(text):
            raise ValueError("it ends too early")
        furthest = search.furthest
        raise ValueError(f"it does not match at {text[furthest : furthest + 20]!r}, after {furthest} characters")

    def advance(self, search: MatchSearch, text: str, *, is_whole: bool) -> tuple[_Path] | None:
        """Go on with a search; `text` is all text so far. Return the notes on the preferred way through a whole text.

        Of a text that may go on, the ways that are still possible become `search.ways`, the preferred one first. Raises
        ValueError for a text that takes too many steps.
        """
        code, stacks, numbers = self._code, search.stacks, search.numbers
        tried: set[tuple[int, int, int]] = set()
        todo, search.ways = search.ways[::-1], []
        while todo:
            at, position, stack, path = todo.pop()
            while True:
                search.steps += 1
                operation, first, second = code[at]
                if operation == _CHARS:
                    if position == len(text):
                        search.ways.append(_State(at, position, stack, path))
                        break
                    point = ord(text[position])
                    if not any(low <= point <= high for low, high in first):
                        break
                    position += 1
                    at += 1
                elif operation == _TEXT:
                    if not text.startswith(first, position):
                        if first.startswith(text[position:]):
                            search.ways.append(_State(at, position, stack, path))
                        break
                    position += len(first)
                    at += 1
                elif operation == _SPLIT:
                    if (at, position, stack) in tried:
                        break
                    tried.add((at, position, stack))
                    todo.append(_State(second, position, stack, path))
                    at = first
                elif operation == _JUMP:
                    at = first
                elif operation == _NOTE:
                    path = (path, first, position)
                    at += 1
                elif operation == _CALL:
                    frame = (at + 1, stack)
                    if frame not in numbers:
                        numbers[frame] = len(stacks)
                        stacks.append(frame)
                    at, stack = first, numbers[frame]
                elif operation == _RETURN:
                    at, stack = stacks[stack]
                elif position == len(text):
                    if is_whole:
                        return (path,)
                    search.ways.append(_State(at, position, stack, path))
                    break
                else:
                    break
            search.furthest = max(search.furthest, position)
            if search.steps > MAX_STEPS:
                raise ValueError("the text takes too many steps to read")
        return None


class MatchSearch:
    """Where a search through a text is: `ways` go on behind the text so far."""

    def __init__(self) -> None:
        self.ways = [_State(0, 0, 0, None)]
        self.stacks: list[tuple[int, int]] = [(-1, -1)]  # of calls: the instruction to return to, and the stack below
        self.numbers: dict[tuple[int, int], int] = {}
        self.steps = 0
        self.furthest = 0


class CaptureSearch:
    """Finds the captures of one name in a text that grows, each once no rest of the text can change it."""

    def __init__(self, matcher: CaptureMatcher, name: str) -> None:
        self._matcher = matcher
        self._name = name
        self._search = MatchSearch()
        self._text = ""
        self._num_found = 0

    def feed(self, piece: str) -> list[str]:
        """Take more of the text; return the texts of the captures that are certain now. Raises ValueError."""
        self._text += piece
        self._matcher.advance(self._search, self._text, is_whole=False)
        ways = [self._closed(way.path) for way in self._search.ways]
        certain = []
        for places in zip(*ways, strict=False):
            if any(place != places[0] for place in places):
                break
            certain.append(places[0])
        new, self._num_found = certain[self._num_found :], len(certain)
        return [self._text[begin:end] for begin, end in new]

    def rest(self) -> list[str]:
        """Return the captures of the whole text that are not returned yet. Raises ValueError."""
        found = self._closed(self._matcher.search(self._text))
        return [self._text[begin:end] for begin, end in found[self._num_found :]]

    def _closed(self, path: _Path) -> list[tuple[int, int]]:
        """Return where the captures of the name are that have ended on a way."""
        notes = []
        while path is not None:
            path, note, position = path
            notes.append((note, position))
        found: list[tuple[int, int]] = []
        begin = depth = 0  # captures inside trees are those of their dicts
        for (kind, detail), position in reversed(notes):
            if kind == _LEAVE:
                depth -= 1
            if depth == 0 and self._name == (detail[0] if kind == _TREE else detail):
                if kind in (_BEGIN, _TREE):
                    begin = position
                else:
                    found.append((begin, position))
            if kind == _TREE:
                depth += 1
        return found


@dataclass(slots=True)
class _Scope:
    """Values of captures, of the whole text or of one repetition."""

    values: dict[str, Any]
    starts: dict[str, int] = field(default_factory=dict)
