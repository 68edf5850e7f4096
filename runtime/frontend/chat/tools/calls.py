"""A tool call as a value, and reading one from the JSON that models write."""

from __future__ import annotations

import ast
import json
import secrets
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: str  # JSON text of an object


def new_tool_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def read_json_calls(text: str) -> list[ToolCall]:
    """The calls in `text`: an object, an array of them, or several after one another, parted by `;`, commas or
    blanks. Raises ValueError when there is anything else, or no call."""
    calls: list[ToolCall] = []
    at = _skip(text, 0)
    while at < len(text):
        value, at = _value(text, at)
        calls += [_call(item) for item in (value if isinstance(value, list) else [value])]
        at = _skip(text, at)
    if not calls:
        raise ValueError("no call")
    return calls


def read_arguments(text: str) -> str:
    """The JSON object that `text` is. Raises ValueError when it is none."""
    text = text.strip()
    value, end = _value(text, 0)
    if not isinstance(value, dict) or end != len(text):
        raise ValueError("the arguments are no JSON object")
    return text


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n;,":
        at += 1
    return at


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except RecursionError:
        raise ValueError("JSON that is too deep") from None


def _call(item: Any) -> ToolCall:
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = item["function"]
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise ValueError("no call")
    arguments = item.get("arguments", item.get("parameters", {}))
    if isinstance(arguments, str):
        return ToolCall(item["name"], read_arguments(arguments))
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are no JSON object")
    return ToolCall(item["name"], json.dumps(arguments, ensure_ascii=False))


MAX_PYTHON_CHARACTERS = 1 << 16


def read_python_calls(text: str) -> list[ToolCall]:
    """Raises ValueError unless `text` is a list of calls with literal keyword arguments."""
    text = text.strip()
    if len(text) > MAX_PYTHON_CHARACTERS:
        raise ValueError("too long")
    try:
        expression = ast.parse(text, mode="eval").body
        if not isinstance(expression, ast.List) or not expression.elts:
            raise ValueError("no list of calls")
        return [_python_call(element) for element in expression.elts]
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"no Python: {error}") from None


def _python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with keyword arguments")
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("no call with keyword arguments")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return ToolCall(ast.unparse(node.func), json.dumps(arguments, ensure_ascii=False, allow_nan=False))
