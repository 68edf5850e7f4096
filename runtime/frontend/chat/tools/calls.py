"""Tool calls as values, and their readers for JSON and Python.

A reader returns the calls at the beginning of a text and the position after them. It raises ValueError where there are
none. JSON is read as models write it: also with Python's literals, commas before a closing bracket, line breaks within
strings, and in a fence.
"""

from __future__ import annotations

import ast
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from .schemas import ArgumentsSchema

MAX_PYTHON_CHARACTERS = 1 << 16
_JSON_LITERALS = {"true": True, "false": False, "null": None}
_JSON_STRING = r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
STRING = rf"{_JSON_STRING}|'(?:[^'\\]|\\.)*+(?:'|\\?\Z)"  # of JSON and Python
_SEPARATORS = re.compile(r"(?:[\s;,]|```\w*)*+")
_CLOSING_FENCE = re.compile(r"\s*```(?!\w)")
_BRACKETS = re.compile(rf"{_JSON_STRING}|[\[\]{{}}]", re.DOTALL)
_PYTHON_BRACKETS = re.compile(rf"{STRING}|[\[\]{{}}]", re.DOTALL)
_SINGLE_QUOTED = re.compile(r"[\[{\s]*'")
_HABITS = re.compile(rf"{_JSON_STRING}|,(?=\s*+[\]}}])|\b(?:True|False|None)\b", re.DOTALL)
JSON_BEGIN = re.compile(r"\s*(?:```\w*\s*)?(?:\[\s*)?\{")
_REPAIRED = {"True": "true", "False": "false", "None": "null", ",": ""}


@dataclass(frozen=True)
class ToolCall:
    """A call of the tool `name`. `has_texts`: the arguments are all texts, to which `typed_call` gives types."""

    name: str
    arguments: str  # JSON text of an object
    has_texts: bool = False


Reader = Callable[[str], tuple[list[ToolCall], int]]


def new_tool_call_id() -> str:
    """Return a random id."""
    return f"call_{secrets.token_hex(12)}"


def json_text(value: Any) -> str:
    """Return a value as JSON, with escapes only where it is no Unicode. Raises ValueError for NaN and infinity."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def load_json(text: str) -> Any:
    """Return the value of a JSON text as models write it. Raises ValueError."""
    try:
        try:
            return _DECODER.decode(text)
        except ValueError:
            if _SINGLE_QUOTED.match(text):
                return _python_value(text)
            return _DECODER.decode(_HABITS.sub(lambda found: _REPAIRED.get(found[0], found[0]), text))
    except RecursionError:
        raise ValueError("JSON that is too deep") from None


def json_or_text(text: str) -> Any:
    """Return `text` as JSON, or as it is if it is none."""
    try:
        return load_json(text)
    except ValueError:
        return text


def value_end(text: str, at: int) -> int:
    """Return the position after the object or array that begins at `at`. Raises ValueError unless one does."""
    if text[at : at + 1] not in ("{", "["):
        raise ValueError("no value")
    tokens = _PYTHON_BRACKETS if _SINGLE_QUOTED.match(text, at) else _BRACKETS
    depth = 0
    for token in tokens.finditer(text, at):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    raise ValueError("a value that does not end")


def find_unquoted(
    text: str, marker: re.Pattern[str], quoted: re.Pattern[str], start: int
) -> tuple[re.Match[str] | None, int]:
    """Return the first marker from `start` on that no quoted text holds, if it is known, and where to search for it
    when more text follows."""
    for found in marker.finditer(text, start):
        at = found.start()
        places = (each.span() for each in quoted.finditer(text))
        begin, end = next((place for place in places if place[1] > at), (at, at))
        if begin >= at:
            return found, at
        if end == len(text):  # what quotes it may go on
            return None, at
        start = at + 1
    return None, start


def read_arguments(text: str) -> str:
    """Return one JSON object as text. Raises ValueError for anything else."""
    text = text.strip()
    value = load_json(text)
    if not isinstance(value, dict):
        raise ValueError("the arguments are not a JSON object")
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return json_text(value)
    return text


def read_json_calls(text: str, at: int = 0) -> tuple[list[ToolCall], int]:
    """Read calls from `at` on: an object, an array of them, or several in a row.

    Calls in a row are separated by `;`, commas or blanks.
    """
    calls: list[ToolCall] = []
    end = at
    while text[(at := skip_separators(text, at)) : at + 1] in ("{", "["):
        try:
            after = value_end(text, at)
            value = load_json(text[at:after])
            read = [read_json_call(item) for item in (value if isinstance(value, list) else [value])]
        except ValueError:
            if calls:
                break
            raise
        calls += read
        at = end = after if (fence := _CLOSING_FENCE.match(text, after)) is None else fence.end()
    if not calls:
        raise ValueError("no call")
    return calls, end


def read_json_call(item: Any) -> ToolCall:
    """Return the call that a JSON value is. Raises ValueError for another value."""
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = item["function"]
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise ValueError("no call")
    arguments = item.get("arguments", item.get("parameters", {}))
    if isinstance(arguments, str):
        return ToolCall(item["name"], read_arguments(arguments or "{}"))
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are not a JSON object")
    return ToolCall(item["name"], json_text(arguments))


def read_python_calls(text: str) -> tuple[list[ToolCall], int]:
    """Read calls like `[get_weather(city="Paris"), add(a=1, b=2)]`, or one a line, without running them.

    The whole text has to be such calls with literal keyword arguments; JSON's literals are allowed too.
    """
    source = text.strip()
    if len(source) > MAX_PYTHON_CHARACTERS:
        raise ValueError(f"more than {MAX_PYTHON_CHARACTERS} characters")
    try:
        body = ast.parse(source).body
        lines = [each.value for each in body if isinstance(each, ast.Expr)]
        calls = lines[0].elts if len(lines) == 1 and isinstance(lines[0], (ast.List, ast.Tuple)) else lines
        if not calls or len(lines) < len(body):
            raise ValueError("not a list of calls")
        return [_python_call(_JsonLiterals().visit(each)) for each in calls], len(text)
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"not Python: {error}") from None


def call_of_texts(name: str, arguments: list[tuple[str, str]]) -> ToolCall:
    """Return a call whose arguments are all texts. `typed_call` gives them their types."""
    return ToolCall(name.strip(), json_text(dict(arguments)), has_texts=True)


def typed_call(call: ToolCall, schema: ArgumentsSchema) -> ToolCall:
    """Read the texts of a call's arguments as JSON, but for those that are strings in the schema.

    A text that is no JSON stays a string. An argument that may be null is null where its text says so.
    """
    values = json.loads(call.arguments)
    for name, text in values.items():
        if text in ("null", "None") and schema.takes_null(name):
            values[name] = None
        elif not schema.takes_text(name):
            values[name] = json_or_text(text)
    return ToolCall(call.name, json_text(values))


def skip_separators(text: str, at: int) -> int:
    """Return the position after blanks, commas, `;` and fences."""
    found = _SEPARATORS.match(text, at)
    return at if found is None else found.end()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)


class _JsonLiterals(ast.NodeTransformer):
    """Replaces `true`, `false` and `null` by their values."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in _JSON_LITERALS:
            return ast.copy_location(ast.Constant(_JSON_LITERALS[node.id]), node)
        return node


def _python_value(text: str) -> Any:
    """Return the value of a Python literal. Raises ValueError."""
    if len(text) > MAX_PYTHON_CHARACTERS:
        raise ValueError(f"more than {MAX_PYTHON_CHARACTERS} characters")
    try:
        value = ast.literal_eval(_JsonLiterals().visit(ast.parse(text.strip(), mode="eval")))
        return json.loads(json_text(value))
    except (SyntaxError, MemoryError, TypeError) as error:
        raise ValueError(f"not Python: {error}") from None


def _python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with keyword arguments")
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("not a call with keyword arguments")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return ToolCall(ast.unparse(node.func), json_text(arguments))
