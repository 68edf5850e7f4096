"""Tools and tool choices in request bodies, and their conversion to `CallableTools`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from ...protocol.errors import RequestError
from ...protocol.sampling import AdditionalProperties, Constraint, JsonWhitespace, PropertyOrder
from ..chat.input import CallableTools
from .bodies import Body, Many, Text, json_text
from .schema_warnings import note_misspelled

Name = Annotated[Text, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


class SentBody(Body):
    """Body that knows the object which it was made of: chat templates get the fields and the order of the client."""

    _sent: dict[str, Any] | None = PrivateAttr(default=None)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_sent(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        body = handler(value)
        if isinstance(value, dict):
            body._sent = value
        return body

    @property
    def sent(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True) if self._sent is None else self._sent


class Function(SentBody):
    name: Name
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class Tool(SentBody):
    type: Literal["function"]
    function: Function

    @classmethod
    def of(cls, function: Function, sent: dict[str, Any] | None = None) -> Tool:
        """Return the tool of a function, which the chat template gets as `sent`; default: as the function was sent."""
        tool = cls.model_construct(type="function", function=function)
        tool._sent = {"type": "function", "function": function.sent if sent is None else sent}
        return tool


class FunctionName(Body):
    name: Name


class NamedChoice(Body):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: Many[NamedChoice]


class AllowedChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedChoice | AllowedChoice


def callable_tools(
    tools: list[Tool],
    choice: ToolChoice | None,
    *,
    parallel: bool,
    constrained: bool,
    additional_properties: AdditionalProperties | None = None,
    number_digits: int | None = None,
    json_whitespace: JsonWhitespace | None = None,
    inputs: Mapping[str, Constraint] | None = None,
) -> CallableTools | None:
    """Return the tools that may be called; None when no tool may be.

    `constrained`: the text has a constraint too, so a call must be recognised before it begins. The next three apply to
    the arguments' schemas. `inputs` are the constraints of arguments that have one in place of a schema. Raises
    RequestError for a choice of unknown tools.
    """

    def schema(function: Function) -> Constraint:
        """Build the arguments' constraint: always an object; a strict function's has the schema's order."""
        given = NO_ARGUMENTS if function.parameters is None else function.parameters
        if "type" not in given:
            given = {"type": "object", **given}
        text = json_text(given, f"tool {function.name!r}", param="tools")
        note_misspelled(f"tool {function.name}", text)
        order: PropertyOrder = "schema" if function.strict else "any"
        return Constraint("json_schema", text, order, additional_properties, number_digits, json_whitespace)

    functions = {tool.function.name: tool.function for tool in tools}
    if len(functions) < len(tools):
        raise RequestError("tools must have different names", param="tools")
    names, mode = _chosen(choice, list(functions))
    if mode == "none" or not names:
        return None
    chosen = [functions[name] for name in names]
    return CallableTools(
        definitions=[tool.sent for tool in tools],
        schemas={function.name: (inputs or {}).get(function.name) or schema(function) for function in chosen},
        forced=mode == "required",
        strict=constrained or any(function.strict for function in chosen),
        parallel=parallel and not isinstance(choice, NamedChoice),
    )


def _chosen(choice: ToolChoice | None, names: list[str]) -> tuple[list[str], Literal["none", "auto", "required"]]:
    match choice:
        case NamedChoice():
            wanted, mode = [choice.function.name], "required"
        case AllowedChoice():
            wanted, mode = [tool.function.name for tool in choice.allowed_tools.tools], choice.allowed_tools.mode
        case _:
            wanted, mode = names, choice or "auto"
    unknown = next((name for name in wanted if name not in names), None)
    if unknown is not None:
        raise RequestError(f"tool_choice names {unknown!r}, which is not among the tools {names}", param="tool_choice")
    if mode == "required" and not wanted:
        raise RequestError("tool_choice asks for a call, but there are no tools", param="tool_choice")
    return list(dict.fromkeys(wanted)), mode  # type: ignore[return-value]
