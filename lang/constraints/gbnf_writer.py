"""Writes constraints as one grammar in the notation of llama.cpp, which the runtime and other servers read."""

from __future__ import annotations

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
    Ranges,
    RecursiveNode,
    RuleNode,
)

MAX_GRAMMAR = 1 << 17  # characters, the runtime's bound
MAX_PARENTHESES = 20  # deeper parts become rules of their own


def grammar_text(constraints: Constraints) -> str:
    """Return the grammar's text. Raises RequestError if it is too long."""
    return _GrammarWriter().write(constraints)


class _GrammarWriter:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._num_characters = 0

    def write(self, constraints: Constraints) -> str:
        self._rule("root", constraints.whole)
        for name, node in constraints.rules:
            self._rule(name, node)
        return "\n".join(self._lines)

    def _rule(self, name: str, node: Node) -> None:
        line = f"{name} ::= {self._text(node, 0)}"
        self._num_characters += len(line) + 1
        if self._num_characters > MAX_GRAMMAR:
            raise RequestError(f"seq is too large: its grammar has more than {MAX_GRAMMAR} characters", param="parts")
        self._lines.append(line)

    def _text(self, node: Node, depth: int) -> str:
        """Return the text of a node, in parentheses where it has several parts."""
        match node:
            case LiteralNode(text=text):
                return f'"{"".join(map(_in_quotes, text))}"'
            case CharNode(ranges=ranges):
                return _class(ranges)
            case RuleNode(name=name) | RecursiveNode(rule=name):
                return name
            case CaptureNode(part=part):
                return self._text(part, depth)
            case LoopNode(part=part, least=least, most=most):
                return self._text(part, depth) + _bounds(least, most)
            case JoinNode(parts=parts) if not parts:
                return '""'
        if depth == MAX_PARENTHESES:
            name = f"part-{len(self._lines)}-{self._num_characters}"
            self._lines.append("")  # keeps the place, so that names differ
            at = len(self._lines) - 1
            self._rule(name, node)
            self._lines[at] = self._lines.pop()
            return name
        separator = " | " if isinstance(node, EitherNode) else " "
        return f"({separator.join(self._text(part, depth + 1) for part in node.parts)})"


def _bounds(least: int, most: int | None) -> str:
    match least, most:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
    return f"{{{least},{'' if most is None else most}}}"


def _class(ranges: Ranges) -> str:
    if not ranges:
        raise RequestError("a set of characters inside seq is empty, so nothing matches it", param="regex")
    pairs = (_escaped(low) if low == high else f"{_escaped(low)}-{_escaped(high)}" for low, high in ranges)
    return f"[{''.join(pairs)}]"


def _in_quotes(character: str) -> str:
    # Private-use characters stay as they are: a plan's symbols are found by them.
    return _escaped(ord(character)) if character in '"\\' or ord(character) < 32 else character


def _escaped(point: int) -> str:
    character = chr(point)
    if character.isascii() and character.isalnum():
        return character
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
