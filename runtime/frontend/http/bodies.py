"""The JSON bodies of the native API, typed, and what they mean in the runtime's own values.

Strict: a number is no string, an unknown parameter is an error; null stands for "not given", and the native API's -1
for "none" ends here. Source: SGLang's native API.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, create_model, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ...protocol.errors import RequestError
from ...protocol.sampling import (
    MAX_STOP_REGEX,
    MAX_STOPS,
    PARAMETERS,
    AdditionalProperties,
    Api,
    Constraint,
    ConstraintKind,
    LogprobParams,
    Parameter,
    SamplingParams,
)
from ..text.generation import MAX_SAMPLES
from .peer_fields import PEER_FIELDS

MAX_BATCH = 4096
SCHEMA_KINDS: tuple[ConstraintKind, ...] = ("json_schema", "structural_tag")  # constraints with JSON schemas in them

TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
T = TypeVar("T")
Many = Annotated[list[T], Field(fail_fast=True)]  # one complaint is enough: there may be millions


def _unchanged(ids: list[int]) -> list[int]:
    """Return the ids. It is Python code, so that other threads can go on between the lists of a batch."""
    return ids


TokenIds = Annotated[Many[TokenId], AfterValidator(_unchanged)]
Priority = Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can say half a character
        raise ValueError("text that is not Unicode") from None
    return text


Text = Annotated[str, AfterValidator(_unicode)]


def described(**keywords: Any) -> Any:
    """Add JSON Schema keywords to a field in the OpenAPI document, for what is checked elsewhere in better words."""
    return Field(json_schema_extra=keywords)


def example(body: dict[str, Any], **keywords: Any) -> ConfigDict:
    """Show a body that is answered in the OpenAPI document: what "Try it out" begins with. `keywords`: further ones."""
    return ConfigDict(json_schema_extra={"examples": [body], **keywords})


def ranged(parameter: str) -> Any:
    """Describe the range of a sampling parameter."""
    row = PARAMETERS[parameter]
    if row.off is not None:
        return described(minimum=row.off, maximum=row.maximum, **{"not": {"const": 0}})
    lowest = {"exclusiveMinimum" if row.exclusive_minimum else "minimum": row.minimum}
    return described(**lowest, **({} if row.maximum is None else {"maximum": row.maximum}))


LogitBias = Annotated[
    dict[str, Annotated[float, ranged("logit_bias")]], described(propertyNames={"pattern": "^[0-9]{1,10}$"})
]
Stop = (
    Annotated[Text, described(minLength=1)]
    | Annotated[Many[Annotated[Text, described(minLength=1)]], described(maxItems=MAX_STOPS)]
)
Pattern = Annotated[Text, described(minLength=1, maxLength=MAX_STOP_REGEX, format="regex")]
StopRegex = Pattern | Annotated[Many[Pattern], described(maxItems=MAX_STOPS)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    absent: ClassVar[tuple[bool | None, ...]] = (None,)  # what stands for "not given"

    @model_validator(mode="before")
    @classmethod
    def _only_what_is_given(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: item for key, item in value.items() if not cls.asks_for_nothing(key, item)}

    @classmethod
    def asks_for_nothing(cls, name: str, value: Any) -> bool:
        """Return whether the member means the same as its absence."""
        return any(value is nothing for nothing in cls.absent)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The description says so too."""
        described = handler(core)
        schema = handler.resolve_ref_schema(described)
        nothing = {"enum": [*cls.absent]} if len(cls.absent) > 1 else {"type": "null"}
        for name, field in schema.get("properties", {}).items():
            if name not in schema.get("required", ()) and nothing not in field.get("anyOf", ()):
                about = {key: field.pop(key) for key in ("title", "description", "default") if key in field}
                schema["properties"][name] = {"anyOf": [field, nothing], **about}
        return described


class RequestBody(Body):
    """A route's whole body: fields of other servers are accepted while they ask for nothing (`peer_fields`).

    Of each of `exactly_one` a request has one field. The document leaves `undocumented` fields out: those that only
    a base class has use for.
    """

    exactly_one: ClassVar[tuple[tuple[str, ...], ...]] = ()
    undocumented: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def asks_for_nothing(cls, name: str, value: Any) -> bool:
        if name in PEER_FIELDS and name not in cls.model_fields:
            return PEER_FIELDS[name].asks_for_nothing(value)
        return super().asks_for_nothing(name, value)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = super().__get_pydantic_json_schema__(core, handler)
        schema = handler.resolve_ref_schema(described)
        for name in cls.undocumented:
            del schema["properties"][name]
        nothing = {"enum": [*cls.absent]}
        choices = [
            [
                {
                    "title": f"with {given}",
                    "required": [given],
                    "properties": {name: {"not": nothing} if name == given else nothing for name in names},
                }
                for given in names
            ]
            for names in cls.exactly_one
        ]
        if len(choices) == 1:
            schema["oneOf"] = choices[0]
        elif choices:
            schema["allOf"] = [{"oneOf": each} for each in choices]
        return described


_STRUCTURED = {"logit_bias": LogitBias, "stop": Stop, "stop_regex": StopRegex, "stop_token_ids": TokenIds}


def sampling_fields(api: Api) -> dict[str, Any]:
    """Return the pydantic fields of an API's sampling parameters: by name, type and default."""
    return {name: _field(row, api) for row in PARAMETERS.values() if (name := row.name_in(api)) is not None}


def _field(row: Parameter, api: Api) -> tuple[Any, Any]:
    if row.name in _STRUCTURED:
        empty = {} if row.name == "logit_bias" else []
        return _STRUCTURED[row.name], empty if api == "native" else Field(default_factory=type(empty))
    if row.type is bool:
        return bool, row.default
    number = Annotated[float if row.type is float else int, ranged(row.name)]
    if row.off is not None:
        return number, row.off
    return (number if row.default is not None else number | None), row.default


def sampling_params(body: BaseModel, api: Api, **others: Any) -> SamplingParams:
    """Build the parameters that a body asks for; `others` replace its values.

    Raises RequestError naming the parameter that is out of range.
    """
    values = {
        row.name: _value(row, getattr(body, name))
        for row in PARAMETERS.values()
        if (name := row.name_in(api)) is not None
    }
    return SamplingParams(**values | others)


def _value(row: Parameter, value: Any) -> Any:
    if row.off is not None and value == row.off:
        return None
    if isinstance(value, dict):
        return {token_id(key): bias for key, bias in value.items()}
    if isinstance(row.default, tuple):
        return (value,) if isinstance(value, str) else tuple(value)
    return value


NativeSampling = create_model("NativeSampling", __base__=RequestBody, **sampling_fields("native"))


class SamplingBody(NativeSampling):
    n: Annotated[int, described(minimum=1, maximum=MAX_SAMPLES)] = 1
    regex: str | None = None
    json_schema: str | dict[str, Any] | None = None
    ebnf: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    additional_properties: AdditionalProperties | None = None

    def params(self) -> SamplingParams:
        """Raises RequestError naming the parameter that is out of range."""
        return sampling_params(self, "native", constraint=self._constraint())

    def _constraint(self) -> Constraint | None:
        asked: list[tuple[str, ConstraintKind, str | dict[str, Any] | None]] = [
            ("regex", "regex", self.regex),
            ("json_schema", "json_schema", self.json_schema),
            ("ebnf", "grammar", self.ebnf),
            ("structural_tag", "structural_tag", self.structural_tag),
        ]
        given = [(name, kind, source) for name, kind, source in asked if source is not None]
        if self.additional_properties is not None and (not given or given[0][1] not in SCHEMA_KINDS):
            raise RequestError(
                "additional_properties says how a schema is read: give json_schema or structural_tag",
                param="additional_properties",
            )
        if not given:
            return None
        if len(given) > 1:
            names = " and ".join(name for name, _, _ in given)
            raise RequestError(f"{names} exclude one another", param=given[1][0])
        [(name, kind, source)] = given
        text = source if isinstance(source, str) else json.dumps(source, ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON can say half a character
            raise RequestError(f"{name} holds text that is not Unicode", param=name) from None
        return Constraint(kind, text, additional_properties=self.additional_properties)


class GenerateBody(RequestBody):
    """One prompt or a batch of them; what may differ between them is one value for all or a list of their length."""

    absent = (None, False)  # clients send what they do not use as false, e.g. `return_hidden_states`
    exactly_one = (("text", "input_ids"),)
    model_config = example(
        {"text": "The capital of France is", "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
    )
    text: Text | Annotated[Many[Text], described(minItems=1, maxItems=MAX_BATCH)] | None = None
    input_ids: Annotated[TokenIds | Many[TokenIds], described(minItems=1)] | None = None
    sampling_params: SamplingBody | Many[SamplingBody] = SamplingBody()
    return_logprob: bool | Many[bool] = False
    logprob_start_len: int | Many[int] = -1
    top_logprobs_num: int | Many[int] = 0
    token_ids_logprob: TokenIds | Many[TokenIds] | None = None
    return_text_in_logprobs: bool = False
    stream: bool = False
    rid: Text | Many[Text] | None = None
    priority: Priority | Many[Priority] = 0
    extra_key: Text | Many[Text] | None = None

    def prompts(self) -> list[str] | list[list[int]]:
        """Raises RequestError unless exactly one of `text` and `input_ids` is given."""
        if (self.text is None) == (self.input_ids is None):
            raise RequestError("give either text or input_ids", param="text" if self.text is None else "input_ids")
        if self.text is not None:
            prompts: list[Any] = [self.text] if isinstance(self.text, str) else self.text
        else:
            ids = self.input_ids or []
            prompts = ids if ids and isinstance(ids[0], list) else [ids]
        if not 1 <= len(prompts) <= MAX_BATCH:
            param = "input_ids" if self.text is None else "text"
            raise RequestError(f"a batch holds 1 to {MAX_BATCH} prompts, got {len(prompts)}", param=param)
        return prompts

    @property
    def is_batch(self) -> bool:
        given = self.text if self.text is not None else self.input_ids
        return isinstance(given, list) and (self.text is not None or (bool(given) and isinstance(given[0], list)))

    def asked_ids(self, num_prompts: int) -> list[list[int] | None]:
        """`token_ids_logprob` for each prompt. Raises RequestError when it is a list of another length."""
        given = self.token_ids_logprob
        if given and isinstance(given[0], list):
            return self.each("token_ids_logprob", num_prompts)
        return [given] * num_prompts  # type: ignore[list-item]

    def each(self, field: str, num_prompts: int) -> list[Any]:
        """The value of `field` for each prompt. Raises RequestError when it is a list of another length."""
        value = getattr(self, field)
        if not isinstance(value, list):
            return [value] * num_prompts
        if len(value) != num_prompts:
            raise RequestError(f"{field} has {len(value)} entries for {num_prompts} prompts", param=field)
        return value


def logprob_params(
    wanted: bool, start: int, num_top: int, asked: list[int] | None, num_prompt: int
) -> LogprobParams | None:
    """Raises RequestError when `start` is outside the prompt."""
    if not wanted:
        return None
    if not -1 <= start <= num_prompt:
        raise RequestError(
            f"logprob_start_len must be -1 or a position of the prompt of {num_prompt} tokens, got {start}",
            param="logprob_start_len",
        )
    return LogprobParams(
        num_top=num_top, prompt_from=None if start in (-1, num_prompt) else start, of=tuple(asked or ())
    )


class AbortBody(Body):
    rid: str | None = None
    abort_all: bool = False


def token_id(key: str) -> int:
    """A key of `logit_bias`. Raises RequestError."""
    if not key.isdecimal() or not key.isascii() or len(key) > 10:
        raise RequestError(f"logit_bias maps token ids, as strings, to numbers; got {key!r}", param="logit_bias")
    return int(key)
