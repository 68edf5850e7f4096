"""Calls written as Python: `[get_weather(city="Paris"), add(a=1, b=2)]`. Parsed, never run."""

from __future__ import annotations

import ast
import json

from ..chat.tools.calls import ToolCall

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
