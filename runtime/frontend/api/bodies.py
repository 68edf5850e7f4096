"""Base classes of JSON bodies, and the bodies of the native API. Source: SGLang's native API.

Validation is strict: a string is no number, and an unknown parameter is an error. null means "not given". The native
API's -1 for "none" is converted here.
"""

from __future__ import annotations

import json
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, create_model, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ...protocol.core import ModelInfo, RequestOptions
from ...protocol.errors import RequestError
from ...protocol.sampling import (
    MAX_BAD_WORD,
    MAX_BAD_WORDS,
    MAX_BREAKER,
    MAX_BREAKERS,
    MAX_STOP_REGEX,
    MAX_STOPS,
    PARAMETERS,
    AdditionalProperties,
    Api,
    Constraint,
    ConstraintKind,
    JsonWhitespace,
    LogprobParams,
    Parameter,
    SamplingParams,
)
from ..chat.input import ChatOptions
from ..text.generation import MAX_SAMPLES
from ..text.pictures import ImageSource
from .peer_fields import PEER_FIELDS
from .schema_warnings import note_misspelled

MAX_BATCH = 4096
SCHEMA_KINDS: tuple[ConstraintKind, ...] = ("json_schema", "structural_tag")  # constraints that contain JSON schemas

# Fields that say something of the schemas of a request, and what.
OF_SCHEMAS = {
    "additional_properties": "says how a schema is read",
    "number_digits": "says how the numbers of JSON are written",
    "json_whitespace": "says how JSON is written",
}

TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
T = TypeVar("T")
Many = Annotated[list[T], Field(fail_fast=True)]  # report one error: there may be millions


def _unchanged(ids: list[int]) -> list[int]:
    """Return the ids. This Python call lets other threads run between the lists of a batch."""
    return ids


TokenIds = Annotated[Many[TokenId], AfterValidator(_unchanged)]
Priority = Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]


def _unicode(text: str) -> str:
    """Return the text. Raises ValueError for a lone surrogate, which JSON can express and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("text that is not Unicode") from None
    return text


Text = Annotated[str, AfterValidator(_unicode)]


def json_text(value: Any, name: str, *, param: str | None = None) -> str:
    """Return a string unchanged, any other value as JSON. Raises RequestError for invalid Unicode in `name`."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    try:
        return _unicode(text)
    except ValueError as error:
        raise RequestError(f"{name} holds {error}", param=param or name) from None


def described(**keywords: Any) -> Any:
    """Add JSON Schema keywords to a field of the OpenAPI document. Use it for checks made elsewhere with better
    messages.
    """
    return Field(json_schema_extra=keywords)


def example(body: dict[str, Any], **keywords: Any) -> ConfigDict:
    """Show an example body in the OpenAPI document, the initial text of "Try it out". `keywords` are added to the
    schema.
    """
    return ConfigDict(json_schema_extra={"examples": [body], **keywords})


def ranged(parameter: str) -> Any:
    """Describe the range of a sampling parameter in the OpenAPI document."""
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
    """Base of JSON bodies. Unknown members are errors; members with a value in `absent` are dropped."""

    model_config = ConfigDict(extra="forbid", strict=True)
    absent: ClassVar[tuple[bool | None, ...]] = (None,)  # values that mean "not given"

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: item for key, item in value.items() if not cls.is_neutral(key, item)}

    @classmethod
    def is_neutral(cls, name: str, value: Any) -> bool:
        """Return True if the member means the same as its absence."""
        return any(value is neutral for neutral in cls.absent)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the values that mean "not given" to the OpenAPI document."""
        described = handler(core)
        schema = handler.resolve_ref_schema(described)
        neutral = {"enum": [*cls.absent]} if len(cls.absent) > 1 else {"type": "null"}
        for name, field in schema.get("properties", {}).items():
            if name not in schema.get("required", ()) and neutral not in field.get("anyOf", ()):
                about = {key: field.pop(key) for key in ("title", "description", "default") if key in field}
                schema["properties"][name] = {"anyOf": [field, neutral], **about}
        return described


class RequestBody(Body):
    """Body of a whole request. Fields of other servers are accepted at neutral values (`peer_fields`).

    A request has exactly one field of each group in `exactly_one`. The OpenAPI document omits `undocumented` fields,
    which only a base class uses.
    """

    exactly_one: ClassVar[tuple[tuple[str, ...], ...]] = ()
    undocumented: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def is_neutral(cls, name: str, value: Any) -> bool:
        if name in PEER_FIELDS and name not in cls.model_fields:
            return PEER_FIELDS[name].is_neutral(value)
        return super().is_neutral(name, value)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = super().__get_pydantic_json_schema__(core, handler)
        schema = handler.resolve_ref_schema(described)
        for name in cls.undocumented:
            del schema["properties"][name]
        neutral = {"enum": [*cls.absent]}
        choices = [
            [
                {
                    "title": f"with {given}",
                    "required": [given],
                    "properties": {name: {"not": neutral} if name == given else neutral for name in names},
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


class StreamedBody(RequestBody):
    """Body of a request whose answer may be read as a stream."""

    stream: bool = False

    def delivery(self) -> RequestOptions:
        """Return how tokens come: as they are made if the answer is a stream, else in bulk."""
        return RequestOptions(in_bulk=not self.stream)


ChatOptionFields = create_model(
    "ChatOptionFields",
    __base__=Body,
    **{each.name: (get_type_hints(ChatOptions)[each.name], each.default) for each in fields(ChatOptions)},  # type: ignore[call-overload]
)


class ChatOptionsBody(ChatOptionFields):
    """Body with the fields that `ChatOptions` declares."""

    def chat_options(self) -> ChatOptions:
        return ChatOptions(**self.model_dump(include=set(ChatOptionFields.model_fields)))


BadWord = Annotated[Text, described(minLength=1, maxLength=MAX_BAD_WORD)]
Breaker = Annotated[Text, described(minLength=1, maxLength=MAX_BREAKER)]
_STRUCTURED = {
    "logit_bias": LogitBias,
    "bad_words": Annotated[Many[BadWord], described(maxItems=MAX_BAD_WORDS)],
    "dry_sequence_breakers": Annotated[Many[Breaker], described(maxItems=MAX_BREAKERS)],
    "allowed_token_ids": TokenIds,
    "stop": Stop,
    "stop_regex": StopRegex,
    "stop_token_ids": TokenIds,
}


def sampling_fields(api: Api) -> dict[str, Any]:
    """Return the pydantic fields of an API's sampling parameters: by name, type and default."""
    return {name: _field(row, api) for row in PARAMETERS.values() if (name := row.name_in(api)) is not None}


def _field(row: Parameter, api: Api) -> tuple[Any, Any]:
    if row.name in _STRUCTURED:
        default = dict if row.name == "logit_bias" else partial(list, row.default)
        return _STRUCTURED[row.name], default() if api == "native" else Field(default_factory=default)
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


NumberDigits = Annotated[int | None, described(minimum=0, maximum=1000), Field(ge=0, le=1000)]  # 0 is no limit


class SamplingBody(NativeSampling):
    """Sampling parameters of the native API."""

    n: Annotated[int, described(minimum=1, maximum=MAX_SAMPLES)] = 1
    regex: str | None = None
    json_schema: str | dict[str, Any] | None = None
    ebnf: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    additional_properties: AdditionalProperties | None = None
    number_digits: NumberDigits = None
    json_whitespace: JsonWhitespace | None = None

    def params(self, num_continued: int = 0) -> SamplingParams:
        """Convert to SamplingParams, after `num_continued` tokens of the output. Raises RequestError naming the
        parameter that is out of range."""
        least = self.min_new_tokens
        if least > 0:
            least = max(0, least - num_continued)
        return sampling_params(self, "native", constraint=self._constraint(), min_new_tokens=least)

    def _constraint(self) -> Constraint | None:
        asked: list[tuple[str, ConstraintKind, str | dict[str, Any] | None]] = [
            ("regex", "regex", self.regex),
            ("json_schema", "json_schema", self.json_schema),
            ("ebnf", "grammar", self.ebnf),
            ("structural_tag", "structural_tag", self.structural_tag),
        ]
        given = [(name, kind, source) for name, kind, source in asked if source is not None]
        option = next((name for name in OF_SCHEMAS if getattr(self, name) is not None), None)
        if option is not None and (not given or given[0][1] not in SCHEMA_KINDS):
            raise RequestError(f"{option} {OF_SCHEMAS[option]}: give json_schema or structural_tag", param=option)
        if not given:
            return None
        if len(given) > 1:
            names = " and ".join(name for name, _, _ in given)
            raise RequestError(f"{names} exclude one another", param=given[1][0])
        [(name, kind, source)] = given
        text = json_text(source, name)
        if kind == "json_schema":
            note_misspelled(name, text)
        return Constraint(
            kind,
            text,
            additional_properties=self.additional_properties,
            number_digits=self.number_digits,
            whitespace=self.json_whitespace,
        )


class SessionParams(Body):
    """Request that a request continues: the finished one `rid` of the session `id`, none without a `rid`.

    `offset` cuts the continued tokens as the end of a Python slice does. `drop_previous_output` leaves its output out.
    `replace` forgets the requests that continued the same one.
    """

    id: Text
    rid: Text | None = None
    offset: int | None = None
    replace: bool = False
    drop_previous_output: bool = False


class GenerateBody(StreamedBody):
    """Body of `/generate`: a prompt or a batch. A per-prompt field has one value for all prompts, or a list of the
    batch's length."""

    absent = (None, False)  # clients send unused switches as false, e.g. `return_hidden_states`
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
    token_details: bool = False
    return_routed_experts: bool | Many[bool] = False
    routed_experts_start_len: Annotated[int, Field(ge=0)] | Many[Annotated[int, Field(ge=0)]] = 0
    rid: Text | Many[Text] | None = None
    priority: Priority | Many[Priority] = 0
    extra_key: Text | Many[Text] | None = None
    lora_path: Text | Many[Text | None] | None = None  # names of LoRA adapters
    session_params: SessionParams | None = None
    session_id: Text | None = None
    continued_tokens: Annotated[int, Field(ge=0)] | Many[Annotated[int, Field(ge=0)]] = 0
    # Data URLs, base64 or URLs: of one prompt one or a list, of a batch a list with one or a list for each prompt.
    image_data: Annotated[Text | Many[Text | Many[Text] | None] | None, described(type="null")] = None

    def images(self, num_prompts: int) -> list[list[ImageSource]]:
        """Return the images of each prompt, which its text or ids have places for. Raises RequestError."""
        given = self.image_data
        if not given:
            return [[] for _ in range(num_prompts)]
        if not self.is_batch:
            given = [given] if isinstance(given, str) or any(isinstance(each, str) for each in given) else given
        if isinstance(given, str) or len(given) != num_prompts:
            message = f"image_data has an entry for each prompt, of which there are {num_prompts}"
            raise RequestError(message, param="image_data")
        lists: list[Any] = [[each] if isinstance(each, str) else each or [] for each in given]
        if any(not isinstance(one, str) for each in lists for one in each):
            raise RequestError("image_data: the images of a prompt are texts", param="image_data")
        names = ["image_data"] if num_prompts == 1 else [f"image_data[{index}]" for index in range(num_prompts)]
        return [
            [ImageSource(one, f"{name}[{number}]") for number, one in enumerate(each)]
            for name, each in zip(names, lists, strict=True)
        ]

    def prompts(self) -> list[str] | list[list[int]]:
        """Return the prompts. Raises RequestError unless exactly one of `text` and `input_ids` is given."""
        if (self.text is None) == (self.input_ids is None):
            raise RequestError("give either text or input_ids", param="text" if self.text is None else "input_ids")
        if self.text is not None and self.continued_tokens:
            raise RequestError("continued_tokens needs input_ids", param="continued_tokens")
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

    def logprob_token_ids(self, num_prompts: int) -> list[list[int] | None]:
        """Return `token_ids_logprob` of each prompt. Raises RequestError for a list of another length."""
        given = self.token_ids_logprob
        if given and isinstance(given[0], list):
            return self.per_prompt("token_ids_logprob", num_prompts)
        return [given] * num_prompts  # type: ignore[list-item]

    def routed_from(self, num_prompts: int) -> list[int | None]:
        """Return the first token of each prompt whose experts are wanted; None: none are. Raises RequestError for a
        list of another length."""
        names = ("return_routed_experts", "routed_experts_start_len")
        wanted, first = (self.per_prompt(name, num_prompts) for name in names)
        return [start if is_wanted else None for is_wanted, start in zip(wanted, first, strict=True)]

    def per_prompt(self, field: str, num_prompts: int) -> list[Any]:
        """Return the value of `field` for each prompt. Raises RequestError for a list of another length."""
        value = getattr(self, field)
        if not isinstance(value, list):
            return [value] * num_prompts
        if len(value) != num_prompts:
            raise RequestError(f"{field} has {len(value)} entries for {num_prompts} prompts", param=field)
        return value


def logprob_params(
    wanted: bool, start: int, num_top: int, asked: list[int] | None, num_prompt: int, *, details: bool = False
) -> LogprobParams | None:
    """Build the log-probability options of a prompt. Raises RequestError when `start` is outside the prompt, and for
    `details` without log-probabilities."""
    if not wanted:
        if details:
            raise RequestError("token_details needs return_logprob", param="token_details")
        return None
    if not -1 <= start <= num_prompt:
        raise RequestError(
            f"logprob_start_len must be -1 or a position of the prompt of {num_prompt} tokens, got {start}",
            param="logprob_start_len",
        )
    return LogprobParams(
        num_top=num_top,
        prompt_from=None if start in (-1, num_prompt) else start,
        of=tuple(asked or ()),
        details=details,
    )


def require_adapter(info: ModelInfo, name: str) -> None:
    """Raise RequestError unless a LoRA adapter of that name is loaded."""
    if all(name != adapter.name for adapter in info.adapters):
        raise RequestError(f"no LoRA adapter {name!r} is loaded", param="lora_path")


class AbortBody(Body):
    """Body of `/abort_request`."""

    rid: str | None = None
    abort_all: bool = False


def token_id(key: str) -> int:
    """Parse a key of `logit_bias`. Raises RequestError."""
    if not key.isdecimal() or not key.isascii() or len(key) > 10:
        raise RequestError(f"logit_bias maps token ids, as strings, to numbers; got {key!r}", param="logit_bias")
    return int(key)
