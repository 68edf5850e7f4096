"""Tool calls as values, and their readers for JSON, Python and tags."""

from __future__ import annotations

import ast
import json
import secrets
from dataclasses import dataclass
from typing import Any

MAX_PYTHON_CHARACTERS = 1 << 16
_PYTHON_LITERALS = {"True": True, "False": False, "None": None}
_JSON_LITERALS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class ToolCall:
    """A call of the tool `name`. `has_texts`: the arguments are all texts, to which `typed_call` gives types."""

    name: str
    arguments: str  # JSON text of an object
    has_texts: bool = False


def new_tool_call_id() -> str:
    """Return a random id."""
    return f"call_{secrets.token_hex(12)}"


def read_json_calls(text: str) -> list[ToolCall]:
    """Parse the calls in `text`: an object, an array of them, or several in a row.

    Calls in a row are separated by `;`, commas or blanks. Raises ValueError for anything else, and for no call.
    """
    calls: list[ToolCall] = []
    at = _skip_separators(text, 0)
    while at < len(text):
        value, at = _read_value(text, at)
        calls += [_json_call(item) for item in (value if isinstance(value, list) else [value])]
        at = _skip_separators(text, at)
    if not calls:
        raise ValueError("no call")
    return calls


def read_python_calls(text: str) -> list[ToolCall]:
    """Parse calls like `[get_weather(city="Paris"), add(a=1, b=2)]`, or one a line, without running them.

    Raises ValueError unless `text` is such calls with literal keyword arguments; JSON's literals are allowed too.
    """
    text = text.strip()
    if len(text) > MAX_PYTHON_CHARACTERS:
        raise ValueError(f"more than {MAX_PYTHON_CHARACTERS} characters")
    try:
        body = ast.parse(text).body
        lines = [each.value for each in body if isinstance(each, ast.Expr)]
        calls = lines[0].elts if len(lines) == 1 and isinstance(lines[0], ast.List) else lines
        if not calls or len(lines) < len(body):
            raise ValueError("not a list of calls")
        return [_python_call(_JsonLiterals().visit(each)) for each in calls]
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"not Python: {error}") from None


def read_tagged(text: str, begin: str, separator: str, end: str) -> list[tuple[str, str]]:
    """Parse pairs `begin NAME separator BODY end` with blanks between them. Raises ValueError for anything else."""
    pairs = []
    rest = text.strip()
    while rest:
        if not rest.startswith(begin):
            raise ValueError("no call")
        name, separated, rest = rest.removeprefix(begin).partition(separator)
        body, ended, rest = rest.partition(end)
        if not (separated and ended):
            raise ValueError("no call")
        pairs.append((name, body))
        rest = rest.lstrip()
    return pairs


def call_of_texts(name: str, arguments: list[tuple[str, str]]) -> ToolCall:
    """Return a call whose arguments are all texts. `typed_call` gives them their types."""
    return ToolCall(name.strip(), json.dumps(dict(arguments), ensure_ascii=False), has_texts=True)


def typed_call(call: ToolCall, schema: str | None) -> ToolCall:
    """Read the texts of a call's arguments as JSON, but for those that are strings in `schema`, a JSON schema's text.

    A text that is no JSON stays a string.
    """
    described = json.loads(schema) if schema else {}
    properties = described.get("properties") if isinstance(described, dict) else None
    values = json.loads(call.arguments)
    for name, text in values.items():
        if not _takes_text(properties.get(name) if isinstance(properties, dict) else None):
            values[name] = _PYTHON_LITERALS[text] if text in _PYTHON_LITERALS else json_or_text(text)
    return ToolCall(call.name, json.dumps(values, ensure_ascii=False))


def _takes_text(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    kinds = schema.get("type", ())
    if "string" in ([kinds] if isinstance(kinds, str) else kinds):
        return True
    if any(isinstance(value, str) for value in (*schema.get("enum", ()), schema.get("const"))):
        return True
    return any(_takes_text(each) for name in ("anyOf", "oneOf") for each in schema.get(name, ()))


def json_or_text(text: str) -> Any:
    """Return `text` as JSON, or as it is if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_arguments(text: str) -> str:
    """Return `text` stripped. Raises ValueError unless it is one JSON object."""
    text = text.strip()
    value, end = _read_value(text, 0)
    if not isinstance(value, dict) or end != len(text):
        raise ValueError("the arguments are not a JSON object")
    return text


def _skip_separators(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n;,":
        at += 1
    return at


def _read_value(text: str, at: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except RecursionError:
        raise ValueError("JSON that is too deep") from None


def _json_call(item: Any) -> ToolCall:
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = item["function"]
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise ValueError("no call")
    arguments = item.get("arguments", item.get("parameters", {}))
    if isinstance(arguments, str):
        return ToolCall(item["name"], read_arguments(arguments))
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are not a JSON object")
    return ToolCall(item["name"], json.dumps(arguments, ensure_ascii=False))


class _JsonLiterals(ast.NodeTransformer):
    """Replaces `true`, `false` and `null` by their values."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in _JSON_LITERALS:
            return ast.copy_location(ast.Constant(_JSON_LITERALS[node.id]), node)
        return node


def _python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with keyword arguments")
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("not a call with keyword arguments")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return ToolCall(ast.unparse(node.func), json.dumps(arguments, ensure_ascii=False, allow_nan=False))
