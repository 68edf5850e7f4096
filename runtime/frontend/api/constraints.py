"""Constraint fields of all dialects; a request may use one of them.

OpenAI's `response_format`; vLLM's `structured_outputs` and `guided_*`; SGLang's `regex`, `ebnf`, `json_schema`;
llama.cpp's `grammar`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field

from ...protocol.errors import RequestError
from ...protocol.sampling import AdditionalProperties, Constraint, ConstraintKind, JsonWhitespace, PropertyOrder
from .bodies import OF_SCHEMAS, SCHEMA_KINDS, Body, Many, NumberDigits, RequestBody, Text, json_text
from .schema_warnings import note_misspelled

Schema = dict[str, Any] | bool


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class NamedSchema(Body):
    name: Annotated[Text, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Text | None = None
    schema_: Annotated[Schema, Field(alias="schema")]
    strict: bool = False  # always enforced; strict also fixes the order of properties


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: NamedSchema


class StructuralTagFormat(Body):
    """Structural tag in either form: `structures` with `triggers`, or `format`. The grammar compiler parses it."""

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
    disable_any_whitespace: bool = False


_TOKEN, _PATTERN, _WHOLE_PATTERN = 0, 2, 3  # types of triggers, beside words
_ANYWHERE = re.compile(r"\^?\[\\s\\S\]\*\?\((?!\?)(.+)\)\[\\s\\S\]\*\$?", re.DOTALL)  # any text, a group, any text


class GrammarTrigger(Body):
    """llama-server's trigger of a lazy grammar: `type` 0 is a token, 1 a word, 2 a pattern, 3 one of the whole text.

    The grammar begins at the first group of a pattern of the whole text.
    """

    type: Annotated[int, Field(ge=0, le=3)]
    value: Text = ""
    token: Annotated[int, Field(ge=0, lt=1_000_000_000)] | None = None

    def mistake(self) -> str | None:
        """Return what is wrong with the trigger; None if nothing is."""
        if self.type == _WHOLE_PATTERN and self.pattern is None:
            return (
                "a pattern of the whole text, type 3, must be [\\s\\S]*?(...)[\\s\\S]* with one group that begins the "
                "grammar: give that as type 2"
            )
        if self.type == _TOKEN:
            return "a trigger of type 0 needs the number of its token" if self.token is None else None
        return None if self.value else "a trigger of type 1 or 2 needs a value"

    @property
    def pattern(self) -> str | None:
        """The pattern of what begins the grammar, wherever it is; None if the trigger has none."""
        if self.type != _WHOLE_PATTERN:
            return self.value if self.type == _PATTERN else None
        found = _ANYWHERE.fullmatch(self.value)
        return found[1] if found is not None and _is_balanced(found[1]) else None

    def written(self, grammar: str) -> str:
        """Return the trigger as an argument of `Lazy`. A grammar may name a token by its text or by its number."""
        if self.type == _TOKEN:
            name = self.value if re.fullmatch(r"<[^\[>\r\n][^>\r\n]*>", self.value) and self.value in grammar else ""
            return f"<[{self.token}]>" + (f", {name}" if name else "")
        text = self.value if self.pattern is None else self.pattern
        quoted = '"' + "".join(f"\\U{ord(letter):08x}" for letter in text) + '"'
        return quoted if self.pattern is None else f"Regex({quoted})"


def _is_balanced(pattern: str) -> bool:
    """Return True if every group that the pattern closes was opened in it, and every one that it opens is closed."""
    depth, is_escaped, is_in_class = 0, False, False
    for letter in pattern:
        if is_escaped or letter == "\\":
            is_escaped = not is_escaped
        elif is_in_class:
            is_in_class = letter != "]"
        elif letter == "[":
            is_in_class = True
        elif letter in "()":
            depth += 1 if letter == "(" else -1
            if depth < 0:
                return False
    return not (depth or is_escaped or is_in_class)


class RequestedConstraint(NamedTuple):
    """Constraint of one field. `source` None: the field is not set."""

    field: str
    kind: ConstraintKind
    source: Any
    order: PropertyOrder = "any"


class ConstraintFields(RequestBody):
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | Text | None = None
    guided_regex: Text | None = None
    guided_choice: Many[Text] | None = None
    guided_grammar: Text | None = None
    regex: Text | None = None
    ebnf: Text | None = None
    grammar: Text | None = None  # "" is llama.cpp's none
    grammar_lazy: bool = False  # the grammar holds from the first of the triggers on
    grammar_triggers: Many[GrammarTrigger] = Field(default_factory=list)
    json_schema: Schema | Text | None = None
    structural_tag: Text | dict[str, Any] | None = None
    additional_properties: AdditionalProperties | None = None  # applies to the schemas of tools too
    number_digits: NumberDigits = None
    json_whitespace: JsonWhitespace | None = None
    constrained_json_disable_any_whitespace: bool = False  # SGLang's name of json_whitespace="compact"

    def constraint(self) -> tuple[Constraint, str] | None:
        """Return the constraint and its field, or None. Raises RequestError for two constraints, unless they are the
        same text under two names, as guidance sends for older and newer servers; and for invalid Unicode.
        """
        given = [requested for requested in self._requested() if requested.source is not None]
        if not given:
            if (name := _given_option(self)) is not None and not self.has_other_schemas:
                raise RequestError(f"{name} {OF_SCHEMAS[name]}: give a schema or tools", param=name)
            return None
        if len({(each.kind, each.source) if isinstance(each.source, str) else each.field for each in given}) > 1:
            names = " and ".join(requested.field for requested in given)
            raise RequestError(f"{names} exclude one another: an output has one constraint", param=given[1].field)
        return self.as_constraint(*given[0])

    @property
    def has_other_schemas(self) -> bool:
        """Return True if the request has tools, whose parameters are schemas too."""
        return bool(getattr(self, "tools", None))

    def as_constraint(
        self, field: str, kind: ConstraintKind, source: Any, order: PropertyOrder = "any"
    ) -> tuple[Constraint, str]:
        """Build a constraint. Raises RequestError for invalid Unicode, and for options of schemas without a schema."""
        text = json_text(source, field)
        if kind == "json_schema":
            note_misspelled(field, text)
        if (name := _given_option(self)) is not None and kind not in SCHEMA_KINDS:
            raise RequestError(f"{name} {OF_SCHEMAS[name]}, and {field} has none", param=name)
        return Constraint(kind, text, order, self.additional_properties, self.number_digits, self.whitespace()), field

    def whitespace(self) -> JsonWhitespace | None:
        """Return the whitespace of JSON that the request asks for under any of its names."""
        of_vllm = self.structured_outputs is not None and self.structured_outputs.disable_any_whitespace
        return "compact" if of_vllm or self.constrained_json_disable_any_whitespace else self.json_whitespace

    def _grammar(self) -> str | None:
        """Return llama.cpp's grammar, behind free text if it is lazy. Raises RequestError for triggers that no `Lazy`
        has."""
        if not self.grammar_lazy:
            return self.grammar or None  # triggers say nothing then, as in llama-server
        if not self.grammar:
            raise RequestError("grammar_lazy needs a grammar", param="grammar_lazy")
        if not self.grammar_triggers:
            raise RequestError("grammar_lazy needs grammar_triggers", param="grammar_triggers")
        for index, trigger in enumerate(self.grammar_triggers):
            if (wrong := trigger.mistake()) is not None:
                raise RequestError(wrong, param=f"grammar_triggers[{index}]")
        if len({trigger.type == _TOKEN for trigger in self.grammar_triggers}) > 1:
            raise RequestError("triggers are all tokens, or all words and patterns", param="grammar_triggers")
        return lazy_grammar(self.grammar, [trigger.written(self.grammar) for trigger in self.grammar_triggers])

    def _requested(self) -> list[RequestedConstraint]:
        structured = self.structured_outputs or StructuredOutputs()
        any_object = '{"type": "object"}' if structured.json_object else None
        return [
            _from_format("response_format", self.response_format),
            RequestedConstraint("structured_outputs.json", "json_schema", structured.json_),
            RequestedConstraint("structured_outputs.json_object", "json_schema", any_object),
            RequestedConstraint("structured_outputs.regex", "regex", structured.regex),
            RequestedConstraint("structured_outputs.choice", "choices", structured.choice),
            RequestedConstraint("structured_outputs.grammar", "grammar", structured.grammar),
            RequestedConstraint("structured_outputs.structural_tag", "structural_tag", structured.structural_tag),
            RequestedConstraint("guided_json", "json_schema", self.guided_json),
            RequestedConstraint("guided_regex", "regex", self.guided_regex),
            RequestedConstraint("guided_choice", "choices", self.guided_choice),
            RequestedConstraint("guided_grammar", "grammar", self.guided_grammar),
            RequestedConstraint("regex", "regex", self.regex),
            RequestedConstraint("ebnf", "grammar", self.ebnf),
            RequestedConstraint("grammar", "grammar", self._grammar()),
            RequestedConstraint("json_schema", "json_schema", self.json_schema),
            RequestedConstraint("structural_tag", "structural_tag", self.structural_tag),
        ]


_NAMES_AND_TEXTS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|<[^>\n]*>|[A-Za-z0-9_-]+')


def lazy_grammar(text: str, triggers: Sequence[str]) -> str:
    """Return a grammar in GBNF of free text without some triggers, and then perhaps a text of the given grammar.

    Its rule `root` gets another name of the same length, so that positions in errors stay.
    """
    used = set(_NAMES_AND_TEXTS.findall(text))
    name = next(f"{first}oot" for first in "abcdefghijklmnopqstuvwxyz" if f"{first}oot" not in used)
    renamed = _NAMES_AND_TEXTS.sub(lambda found: name if found[0] == "root" else found[0], text)
    return f"{renamed}\nroot ::= Lazy({', '.join(triggers)}, {name})\n"


def _given_option(fields: ConstraintFields) -> str | None:
    """Return the first field that is set and says something of schemas."""
    return next((name for name in OF_SCHEMAS if getattr(fields, name) is not None), None)


def _from_format(field: str, requested: ResponseFormat | None) -> RequestedConstraint:
    match requested:
        case JsonObjectFormat():
            return RequestedConstraint(field, "json_schema", '{"type": "object"}')
        case JsonSchemaFormat(json_schema=named):
            return RequestedConstraint(field, "json_schema", named.schema_, "schema" if named.strict else "any")
        case StructuralTagFormat():
            return RequestedConstraint(field, "structural_tag", requested.model_dump())
        case _:
            return RequestedConstraint(field, "json_schema", None)
