"""The functions that generate: `gen`, `select`, and `separate_reasoning` around them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, ParamSpec, TypeVar, get_args

from ...runtime.protocol.errors import RequestError, did_you_mean
from ...runtime.protocol.sampling import PARAMETERS, AdditionalProperties, JsonWhitespace
from ..tools.declaration import AnyTool
from ..tools.tool_set import OnError, tool_set
from ..types.questions import typed_choices
from ..types.result_types import reasoning_format
from .attempts import OnInvalid, check_of
from .captures import ConstraintExpr, choice_of
from .choices import BuiltInMethod, Method, method_of, token_length_normalized
from .expr import (
    GEN_NAMES,
    RESULT,
    RUN_ARGUMENTS,
    Concat,
    Expr,
    GenExpr,
    ImageExpr,
    OnCut,
    SelectExpr,
    StringOrMany,
    parts_of,
)
from .format_marks import refuse_marks
from .image_files import image_file
from .symbols import known, texts_of

# Arguments that are text, in which a plan's symbols may stand.
_TEXT_ARGUMENTS = (
    "stop",
    "stop_regex",
    "bad_words",
    "dry_sequence_breakers",
    "regex",
    "grammar",
    "choices",
    "tool_result",
)
_JSON_OPTIONS: Mapping[str, Any] = {
    "additional_properties": get_args(AdditionalProperties),
    "number_digits": range(1001),
    "json_whitespace": get_args(JsonWhitespace),
}

P = ParamSpec("P")
T = TypeVar("T")


def _known_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function answer an argument that it does not take with the likeliest one."""
    names = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if len(args) == 1 and isinstance(args[0], list | tuple) and "name" in kwargs and "choices" not in kwargs:
            chosen: Callable[..., T] = function
            return chosen(choices=args[0], **kwargs)  # select(["a", "b"], name="x")
        for name in kwargs:
            if name not in names:
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {name!r}{did_you_mean(name, names)}"
                )
        return function(*args, **kwargs)

    return called


@_known_arguments
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: StringOrMany | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: StringOrMany | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    top_n_sigma: float | None = None,
    typical_p: float | None = None,
    xtc_probability: float | None = None,
    xtc_threshold: float | None = None,
    dynatemp_range: float | None = None,
    dynatemp_exponent: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    repetition_penalty: float | None = None,
    dry_multiplier: float | None = None,
    dry_base: float | None = None,
    dry_allowed_length: int | None = None,
    dry_penalty_last_n: int | None = None,
    dry_sequence_breakers: StringOrMany | None = None,
    logit_bias: Mapping[int | str, float] | None = None,
    bad_words: StringOrMany | None = None,
    allowed_token_ids: Sequence[int] | None = None,
    seed: int | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    lora: str | None = None,
    dtype: type | str | None = None,
    choices: Any = None,
    choices_method: Method | str | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | None = None,
    grammar: str | None = None,
    schema: Any = None,
    tools: Sequence[AnyTool] | None = None,
    tool_errors: OnError = "text",
    tool_result: str = RESULT,
    additional_properties: AdditionalProperties | None = None,
    number_digits: int | None = None,
    json_whitespace: JsonWhitespace | None = None,
    heal: bool = False,
    on_cut: OnCut = "raise",
    check: Callable[[Any], Any] | None = None,
    retries: int | None = None,
    on_invalid: OnInvalid | None = None,
) -> GenExpr | SelectExpr:
    """Generate text; with `name`, keep it as a variable.

    At most one of `dtype`, `choices`, `regex`, `json_schema`, `grammar`, `schema` and `tools` constrains the text.
    `dtype` (int, float, bool, str) and `schema` (a Pydantic model, dataclass, TypedDict, Literal, Enum, ...) make the
    variable a value of that type; a function as `schema` makes it the dict of its arguments. With `n` > 1 the variable
    is a list of the samples' values, and the first sample is appended to the state.

    `tools` are functions, sync or async, with type hints, or what `tool` declares. A call of one of them is generated
    as JSON and made; `tool_result`, with the returned value filled in, is appended. The returned value is the variable.
    An exception, or a call that was cut off, is appended as the result, or raised with `tool_errors="raise"`.

    `lora` is the name of a LoRA adapter that the runtime has loaded, which generates the text.

    `additional_properties` applies to `json_schema`, `schema` and `tools`. "closed" allows an object that lists
    properties no others, "schema" allows any others, as JSON Schema does. None is the runtime's default for
    `json_schema`, "closed" for the other two.

    `number_digits` are the digits that a number of `json_schema`, `schema` and `tools` may have before the point, and
    after it, beyond what its schema's bounds need. 0 is no limit, None the runtime's default.

    `json_whitespace` is that of their JSON: "compact" none, "bounded" at most one space after commas and colons,
    "spaced" exactly one, "any" all that JSON allows. None is the runtime's default.

    `heal`: the last tokens before may become longer ones; their text is not repeated. `choices` need none: they
    are tokenised with the text before them.

    A text of `regex`, `json_schema` or `grammar` that `max_tokens` cuts off before it is complete raises RequestError,
    code "invalid_result", when it is read. With on_cut="keep" it is the value as it is.

    `check` is called with the value, in a thread or, if it is async, in the program's event loop. An exception or a
    false result, other than None, makes the value invalid, as does a text that is not of the gen's type. Up to
    `retries` times the text is then removed and generated anew: with on_invalid="again" from the same text, with "tell"
    after the invalid text and a message with the error, or with what a function of both returns. Only the valid text
    stays. If there is none, the gen fails with code "invalid_result".

    Raises RequestError for arguments that exclude one another. Values out of range raise it once the gen is appended.
    """
    # The signature is written out for editors and type checkers; a test compares it with the table of parameters.
    given = _checked_arguments(locals())
    if isinstance(max_tokens, str):
        told = f"the second argument of gen is max_tokens, a number, got {max_tokens!r}: write regex=..., stop=..., say"
        raise RequestError(told, param="max_tokens")
    constraints = {
        "choices": choices,
        "dtype": dtype,
        "regex": regex,
        "json_schema": json_schema,
        "grammar": grammar,
        "schema": schema,
        "tools": tools,
    }
    _exclusive(**constraints)
    _check_json_options(
        [json_schema, schema, tools],
        additional_properties=additional_properties,
        number_digits=number_digits,
        json_whitespace=json_whitespace,
    )
    _check_on_cut(on_cut, regex, json_schema, grammar)
    if not isinstance(heal, bool):
        raise RequestError(f"heal must be True or False, got {heal!r}", param="heal")
    if heal and choices is not None:
        raise RequestError("choices are tokenised with the text before them: leave heal out", param="heal")
    checked = check_of(
        check, retries, on_invalid, is_typed=any(one is not None for one in (dtype, schema, json_schema))
    )
    if checked is not None and (choices is not None or tools is not None):
        kind = "choices" if tools is None else "tools"
        raise RequestError(f"check, retries and on_invalid exclude {kind}", param="check")
    if choices is not None:
        _refuse_sampling(given, tool_errors, tool_result)
        method = token_length_normalized if choices_method is None else choices_method
        selected = select(name, choices, 0.0 if temperature is None else temperature, method)
        if isinstance(selected, ConstraintExpr):
            raise RequestError("choices of gen must be strings; select takes expressions", param="choices")
        return replace(selected, seed=seed, lora=lora)
    if choices_method is not None:
        raise RequestError("choices_method says how choices are compared: give choices", param="choices_method")
    if tool_errors not in ("text", "raise"):
        raise RequestError(f"tool_errors must be 'text' or 'raise', got {tool_errors!r}", param="tool_errors")
    if tools is None:
        _refuse_tool_options(tool_errors, tool_result)
    return GenExpr(
        name=_checked_name(name),
        sampling=given,
        dtype=dtype,
        regex=texts_of(regex),
        json_schema=json_schema,
        grammar=texts_of(grammar),
        schema=schema,
        tools=None if tools is None else tool_set(tools),
        tool_errors=tool_errors,
        tool_result=texts_of(tool_result),
        additional_properties=additional_properties,
        number_digits=number_digits,
        json_whitespace=json_whitespace,
        heal=heal,
        on_cut=on_cut,
        check=checked,
    )


def _describe_parameters() -> str:
    """Describe the sampling parameters among gen's arguments, a line each."""
    rows = ((argument, PARAMETERS[name]) for name, argument in GEN_NAMES.items())
    return "\n".join(f"    {argument}: {row.meaning} ({row.values}, default {row.default!r})" for argument, row in rows)


gen.__doc__ = f"{inspect.cleandoc(gen.__doc__ or '')}\n\nSampling parameters:\n{_describe_parameters()}"


def gen_int(name: str | None = None, max_tokens: int | None = None, **options: Any) -> GenExpr | SelectExpr:
    """Generate an int: `gen` with dtype=int."""
    return gen(name, max_tokens, dtype=int, **options)


def gen_string(name: str | None = None, max_tokens: int | None = None, **options: Any) -> GenExpr | SelectExpr:
    """Generate a quoted string: `gen` with dtype=str. The variable is the text between the quotes."""
    return gen(name, max_tokens, dtype=str, **options)


@_known_arguments
def select(
    name: str | Sequence[str | Expr] | None = None,
    choices: Any = None,
    temperature: float = 0.0,
    choices_method: Method | str = token_length_normalized,
    lora: str | None = None,
) -> SelectExpr | ConstraintExpr:
    """Score every choice as a continuation, append one, and keep it as the variable `name`.

    `choices_method` is one of the three of the runtime, by object or name, or a callable as `ChoicesSamplingMethod`
    describes it. `lora` is the name of a LoRA adapter, which scores. Raises RequestError for an argument out of range.

    `choices` are strings, or an Enum, a Literal or bool, whose values the variable then has: an Enum's members are
    written as their strings, or by their names. `s.probabilities(name)` has the probability of each choice.

    Choices may be expressions too, such as `gen("b", regex=...)`. Then one of them is generated under one grammar
    instead of scored, and its captures are variables (see `seq`). `select([...])` makes no variable of its own.
    """
    if choices is None and isinstance(name, list | tuple):
        name, choices = None, name
    name = _checked_name(name)
    values = typed_choices(known(choices))
    given: Any = texts_of(known(choices)) if values is None else tuple(values)
    refuse_marks("choices", given)
    if isinstance(given, list | tuple) and any(isinstance(choice, Expr) for choice in given):
        if known(temperature) or choices_method is not token_length_normalized:
            raise RequestError(
                "choices that are expressions are generated, not scored: temperature and choices_method do not apply; "
                "give a temperature to the seq around select, or to run",
                param="temperature" if temperature else "choices_method",
            )
        if lora is not None:
            raise RequestError("choices that are expressions are generated: give lora to run", param="lora")
        return choice_of(name, given)
    is_many = isinstance(given, Iterable) and not isinstance(given, str | type)
    if not is_many or not given or not all(isinstance(choice, str) and choice for choice in given):
        raise RequestError(
            f"choices must be a sequence of non-empty strings, an Enum, a Literal or bool, got {given!r}",
            param="choices",
        )
    method = method_of(known(choices_method))
    if not 0.0 <= known(temperature) <= 100.0:
        raise RequestError(f"temperature must be between 0.0 and 100.0, got {temperature}", param="temperature")
    if temperature and not isinstance(method, BuiltInMethod):
        raise RequestError(
            "temperature must be 0 with a choices method of one's own, which decides by itself", param="temperature"
        )
    return SelectExpr(name=name, choices=tuple(given), temperature=temperature, method=method, lora=lora, values=values)


def separate_reasoning(expr: Expr | str | None = None, model_type: str = "qwen3") -> Concat:
    """Separate the thoughts in the text that the gens of `expr` generate: a gen `x` makes `x` and
    `x_reasoning_content`. Both are appended to the state as generated.

    Raises RequestError for an unknown `model_type`; constrained gens raise it once they are appended.
    """
    reasoning = reasoning_format(model_type)
    parts = () if expr is None else parts_of(expr)
    if any(isinstance(part, ConstraintExpr) for part in parts):
        raise RequestError("separate_reasoning needs gens without a constraint, not seq", param="separate_reasoning")
    return Concat(tuple(replace(part, reasoning=reasoning) if isinstance(part, GenExpr) else part for part in parts))


def image(source: Any) -> ImageExpr:
    """Append an image, for models that read images: in messages, between texts, and before forks.

    `source` is a path, the bytes of a PNG, JPEG, WebP or GIF file, a PIL image, or an array uint8 [H, W], [H, W, 3] or
    [H, W, 4]. Raises RequestError for another value and a file that cannot be read.
    """
    return ImageExpr(image_file(known(source)))


def video(path: object, num_frames: object = None) -> NoReturn:
    """Raise RequestError: SGLang's programs may hold videos, and no model here reads them."""
    raise RequestError(
        f"models read texts and images, and no videos: video({path!r})", param="video", code="unsupported"
    )


def _checked_name(name: Any) -> str | None:
    known(name)
    refuse_marks("name", name)
    if name is None or (isinstance(name, str) and name):
        return name
    raise RequestError(f"name must be a non-empty string, got {name!r}", param="name")


def _checked_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of gen's arguments that `run` takes too.

    Raises RequestError for one that holds an expression. A symbol may stand only where text does.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    for name, value in given.items():
        if name not in ("schema", "tools"):
            refuse_marks(name, value)
        if name not in _TEXT_ARGUMENTS:
            known(value)
    return {name: texts_of(value) for name, value in given.items() if name in RUN_ARGUMENTS}


def _refuse_sampling(given: Mapping[str, Any], tool_errors: str, tool_result: str) -> None:
    """Raise RequestError for an argument of gen that a choice cannot honour; one sample is what it makes."""
    _refuse_tool_options(tool_errors, tool_result)
    for name, value in given.items():
        if name in ("temperature", "seed", "return_logprob", "lora") or (name == "n" and value == 1):
            continue  # a choice has log-probabilities in any case
        raise RequestError(
            f"{name} = {value!r} does not apply to choices: all are scored, nothing else is generated, and one is "
            "appended",
            param=name,
        )


def _refuse_tool_options(tool_errors: str, tool_result: str) -> None:
    for name, value, default in (("tool_errors", tool_errors, "text"), ("tool_result", tool_result, RESULT)):
        if value != default:
            raise RequestError(f"{name} says what becomes of a tool's call: give tools", param=name)


def _check_json_options(schemas: Sequence[Any], **options: Any) -> None:
    """Refuse options of JSON out of range, and those without a schema."""
    for name, value in options.items():
        if value is None:
            continue
        values = _JSON_OPTIONS[name]
        if type(value) not in (str, int) or value not in values:
            among = "an int from 0 to 1000" if isinstance(values, range) else " or ".join(map(repr, values))
            raise RequestError(f"{name} must be {among}, got {value!r}", param=name)
        if all(schema is None for schema in schemas):
            raise RequestError(f"{name} is about the JSON of a schema: give json_schema, schema or tools", param=name)


def _check_on_cut(value: Any, *constraints: Any) -> None:
    if value not in get_args(OnCut):
        raise RequestError(f"on_cut must be 'raise' or 'keep', got {value!r}", param="on_cut")
    if value == "keep" and all(constraint is None for constraint in constraints):
        raise RequestError(
            "on_cut says what becomes of a text that max_tokens cuts off: give regex, json_schema or grammar",
            param="on_cut",
        )


def _exclusive(**constraints: Any) -> None:
    given = [name for name, value in constraints.items() if value is not None]
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)} exclude one another", param=given[1])
