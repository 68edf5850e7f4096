"""Custom tools, of one text: free, or of a grammar. The model calls them as functions of a string, `input`."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import Field

from .....protocol.sampling import Constraint
from ....api.bodies import Body, Text
from ....api.constraints import TextFormat
from ....api.tool_fields import Function, Name, Tool

_BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_LOW = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# Whole characters of a JSON string: an escape may be cut, and so may a pair of surrogates.
_CHARACTERS = re.compile(
    rf'(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{{4}}|\\u[dD][89abAB][0-9a-fA-F]{{2}}{_LOW})*+', re.DOTALL
)


class GrammarInput(Body):
    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: Text


class CustomTool(Body):
    type: Literal["custom"]
    name: Name
    description: Text | None = None
    format: Annotated[TextFormat | GrammarInput, Field(discriminator="type")] | None = None

    def to_tool(self) -> Tool:
        """Convert to a tool of a chat request, which shows the grammar to the model."""
        text: dict[str, Any] = {"type": "string"}
        if isinstance(self.format, GrammarInput):
            kind = "A text of this Lark grammar" if self.format.syntax == "lark" else "A text that this pattern matches"
            text["description"] = f"{kind}:\n{self.format.definition}"
        sent: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            sent["description"] = self.description
        sent["parameters"] = {
            "type": "object",
            "properties": {"input": text},
            "required": ["input"],
            "additionalProperties": False,
        }
        return Tool.of(
            Function.model_construct(strict=self.constraint is not None, **{"description": None} | sent), sent
        )

    @property
    def constraint(self) -> Constraint | None:
        """The constraint of the arguments under a grammar; None without one."""
        if not isinstance(self.format, GrammarInput):
            return None
        around = {"before": '{"input": "', "after": '"}'}
        return Constraint("tool_input", json.dumps(self.format.model_dump(exclude={"type"}) | around))


def input_arguments(text: str) -> str:
    """Return the arguments of a call with this input, as the model writes them."""
    return json.dumps({"input": text}, ensure_ascii=False)


class InputReader:
    """Reads the input out of the arguments of a call as they come."""

    def __init__(self) -> None:
        self.text = ""  # the input so far
        self._arguments = ""
        self._read: int | None = None  # in `_arguments`, once the input has begun

    def feed(self, arguments: str) -> str:
        """Return what is certain of the input after more arguments."""
        self._arguments += arguments
        if self._read is None:
            begin = _BEGIN.match(self._arguments)
            if begin is None:
                return ""
            self._read = begin.end()
        found = _CHARACTERS.match(self._arguments, self._read)
        assert found is not None
        self._read = found.end()
        text: str = json.loads(f'"{found[0]}"', strict=False)
        self.text += text
        return text

    def finish(self) -> str:
        """Return the rest of the input: all arguments if they are not of one string."""
        if self._read is not None:
            return ""
        self.text = self._arguments
        try:
            value = json.loads(self._arguments)
        except (ValueError, RecursionError):
            return self.text
        if isinstance(value, dict) and isinstance(value.get("input"), str):
            self.text = value["input"]
        return self.text
