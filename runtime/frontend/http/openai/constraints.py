"""What an output must match, in every dialect that clients speak: at most one may be given, and it is one Constraint.

OpenAI's `response_format`; vLLM's `structured_outputs` and `guided_*`; SGLang's `regex`, `ebnf`, `json_schema`.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from ....protocol.errors import RequestError
from ....protocol.sampling import Constraint, ConstraintKind
from ..bodies import Body, Many, Text

Schema = dict[str, Any] | bool


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class NamedSchema(Body):
    name: Annotated[Text, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Text | None = None
    schema_: Annotated[Schema, Field(alias="schema")]
    strict: bool = True  # either way the answer matches


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: NamedSchema


class StructuralTagFormat(Body):
    """Both forms: `structures` with `triggers`, and `format`. Read by the grammar compiler."""

    model_config = ConfigDict(extra="allow", strict=True)
    type: Literal["structural_tag"]


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat, Field(discriminator="type")
]


class StructuredOutputs(Body):
    json_: Annotated[Schema | Text | None, Field(alias="json")] = None
    regex: Text | None = None
    choice: Many[Text] | None = None
    grammar: Text | None = None
    structural_tag: Text | dict[str, Any] | None = None
    json_object: bool = False


class ConstraintFields(Body):
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | Text | None = None
    guided_regex: Text | None = None
    guided_choice: Many[Text] | None = None
    guided_grammar: Text | None = None
    regex: Text | None = None
    ebnf: Text | None = None
    json_schema: Schema | Text | None = None
    structural_tag: Text | dict[str, Any] | None = None

    def constraint(self) -> tuple[Constraint, str] | None:
        """The constraint and the field that asks for it. Raises RequestError for two at once, and one not Unicode."""
        given = [(field, kind, source) for field, kind, source in self._asked() if source is not None]
        if not given:
            return None
        if len(given) > 1:
            names = " and ".join(field for field, _, _ in given)
            raise RequestError(f"{names} exclude one another: an output has one constraint", param=given[1][0])
        return self.as_constraint(*given[0])

    @staticmethod
    def as_constraint(field: str, kind: ConstraintKind, source: Any) -> tuple[Constraint, str]:
        """Raises RequestError for text that is not Unicode."""
        text = source if isinstance(source, str) else json.dumps(source, ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON can say half a character
            raise RequestError(f"{field} holds text that is not Unicode", param=field) from None
        return Constraint(kind, text), field

    def _asked(self) -> list[tuple[str, ConstraintKind, Any]]:
        structured = self.structured_outputs or StructuredOutputs()
        outputs: list[tuple[str, ConstraintKind, Any]] = [
            ("json", "json_schema", structured.json_),
            ("json_object", "json_schema", '{"type": "object"}' if structured.json_object else None),
            ("regex", "regex", structured.regex),
            ("choice", "choices", structured.choice),
            ("grammar", "grammar", structured.grammar),
            ("structural_tag", "structural_tag", structured.structural_tag),
        ]
        return [
            ("response_format", *_of_format(self.response_format)),
            *((f"structured_outputs.{name}", kind, source) for name, kind, source in outputs),
            ("guided_json", "json_schema", self.guided_json),
            ("guided_regex", "regex", self.guided_regex),
            ("guided_choice", "choices", self.guided_choice),
            ("guided_grammar", "grammar", self.guided_grammar),
            ("regex", "regex", self.regex),
            ("ebnf", "grammar", self.ebnf),
            ("json_schema", "json_schema", self.json_schema),
            ("structural_tag", "structural_tag", self.structural_tag),
        ]


def _of_format(asked: ResponseFormat | None) -> tuple[ConstraintKind, Any]:
    match asked:
        case JsonObjectFormat():
            return "json_schema", '{"type": "object"}'
        case JsonSchemaFormat():
            return "json_schema", asked.json_schema.schema_
        case StructuralTagFormat():
            return "structural_tag", asked.model_dump()
        case _:
            return "json_schema", None
