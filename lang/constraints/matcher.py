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
    RuleNode,
    captures,
)

MAX_INSTRUCTIONS = 100_000
MAX_STEPS = 20_000_000  # of one text

_TEXT, _CHARS, _JUMP, _SPLIT, _NOTE, _CALL, _RETURN, _END = range(8)
# What a note says: a capture begins or ends, a loop begins, begins a repetition, or ends.
_BEGIN, _CLOSE, _LOOP, _AGAIN, _AFTER = range(5)
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

    def match(self, text: str) -> dict[str, Any]:
        """Return the text of each capture, None where it did not occur, a list of these inside a repetition.

        Raises ValueError if the text is not one of the constraints.
        """
        path = self._search(text)
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

    def _search(self, text: str) -> _Path:
        """Return the notes on the preferred way through the program. Raises ValueError if there is none."""
        code = self._code
        stacks: list[tuple[int, int]] = [(-1, -1)]  # of calls: the instruction to return to, and the stack below
        numbers: dict[tuple[int, int], int] = {}
        tried: set[tuple[int, int, int]] = set()
        todo = [_State(0, 0, 0, None)]
        steps = 0
        furthest = 0
        while todo:
            at, position, stack, path = todo.pop()
            while True:
                steps += 1
                operation, first, second = code[at]
                if operation == _CHARS:
                    if position == len(text):
                        break
                    point = ord(text[position])
                    if not any(low <= point <= high for low, high in first):
                        break
                    position += 1
                    at += 1
                elif operation == _TEXT:
                    if not text.startswith(first, position):
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
                    return path
                else:
                    break
            furthest = max(furthest, position)
            if steps > MAX_STEPS:
                raise ValueError("the text takes too many steps to read")
        if furthest == len(text):
            raise ValueError("it ends too early")
        raise ValueError(f"it does not match at {text[furthest : furthest + 20]!r}, after {furthest} characters")


@dataclass(slots=True)
class _Scope:
    """Values of captures, of the whole text or of one repetition."""

    values: dict[str, Any]
    starts: dict[str, int] = field(default_factory=dict)
