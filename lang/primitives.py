"""The functions that programs write: `gen`, `select`, chat roles, and the questions of `decide`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, get_args

from ..runtime.protocol.decisions import Level, Option, Pick, Predicate, Question, Rate, check
from ..runtime.protocol.errors import RequestError
from ..runtime.protocol.sampling import PARAMETERS, AdditionalProperties
from .choices import BuiltInMethod, Method, method_of, token_length_normalized
from .expr import (
    GEN_NAMES,
    RESULT,
    RUN_ARGUMENTS,
    Concat,
    Expr,
    GenExpr,
    RoleBeginExpr,
    RoleEndExpr,
    SelectExpr,
    StringOrMany,
    parts_of,
)
from .search.attempts import OnInvalid, check_of
from .tools.tool_set import OnError, Tool, tool_set
from .types.result_types import reasoning_format


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
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[int | str, float] | None = None,
    seed: int | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: Method | str | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | None = None,
    grammar: str | None = None,
    schema: Any = None,
    tools: Sequence[Tool] | None = None,
    tool_errors: OnError = "text",
    tool_result: str = RESULT,
    additional_properties: AdditionalProperties | None = None,
    check: Callable[[Any], Any] | None = None,
    retries: int | None = None,
    on_invalid: OnInvalid | None = None,
) -> GenExpr | SelectExpr:
    """Generate text; with `name`, keep it as a variable.

    At most one of `dtype`, `choices`, `regex`, `json_schema`, `grammar`, `schema` and `tools` constrains the text.
    `dtype` (int, float, bool, str) and `schema` (a Pydantic model, dataclass, TypedDict, Literal, Enum, ...) make the
    variable a value of that type. With `n` > 1 the variable is a list of the samples' values, and the first sample is
    appended to the state.

    `tools` are functions, sync or async, with type hints. A call of one of them is generated as JSON and made;
    `tool_result`, with the returned value filled in, is appended. The returned value is the variable. An exception is
    appended as the result, or raised with `tool_errors="raise"`.

    `additional_properties` applies to `json_schema`, `schema` and `tools`. "closed" allows an object that lists
    properties no others, "schema" allows any others, as JSON Schema does. None is the runtime's default for
    `json_schema`, "closed" for the other two.

    `check` is called with the value, in a thread or, if it is async, in the program's event loop. An exception or a
    false result, other than None, makes the value invalid, as does a text that is not of the gen's type. Up to
    `retries` times the text is then removed and generated anew: with on_invalid="again" from the same text, with "tell"
    after the invalid text and a message with the error, or with what a function of both returns. Only the valid text
    stays. If there is none, the gen fails with code "invalid_result".

    Raises RequestError for arguments that exclude one another. Values out of range raise it once the gen is appended.
    """
    # The signature is written out for editors and type checkers; a test compares it with the table of parameters.
    given = {name: value for name, value in locals().items() if name in RUN_ARGUMENTS and value is not None}
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
    _check_additional_properties(additional_properties, json_schema, schema, tools)
    checked = check_of(
        check, retries, on_invalid, is_typed=any(one is not None for one in (dtype, schema, json_schema))
    )
    if checked is not None and (choices is not None or tools is not None):
        kind = "choices" if tools is None else "tools"
        raise RequestError(f"check, retries and on_invalid exclude {kind}", param="check")
    if choices is not None:
        method = token_length_normalized if choices_method is None else choices_method
        selected = select(name, choices, 0.0 if temperature is None else temperature, method)
        return replace(selected, seed=seed)
    if tool_errors not in ("text", "raise"):
        raise RequestError(f"tool_errors must be 'text' or 'raise', got {tool_errors!r}", param="tool_errors")
    return GenExpr(
        name=_checked_name(name),
        sampling=given,
        dtype=dtype,
        regex=regex,
        json_schema=json_schema,
        grammar=grammar,
        schema=schema,
        tools=None if tools is None else tool_set(tools),
        tool_errors=tool_errors,
        tool_result=tool_result,
        additional_properties=additional_properties,
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


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: Method | str = token_length_normalized,
) -> SelectExpr:
    """Score every choice as a continuation, append one, and keep it as the variable `name`.

    `choices_method` is one of the three of the runtime, by object or name, or a callable as `ChoicesSamplingMethod`
    describes it. Raises RequestError for an argument out of range.
    """
    if isinstance(choices, str) or not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise RequestError(f"choices must be a sequence of non-empty strings, got {choices!r}", param="choices")
    method = method_of(choices_method)
    if not 0.0 <= temperature <= 100.0:
        raise RequestError(f"temperature must be between 0.0 and 100.0, got {temperature}", param="temperature")
    if temperature and not isinstance(method, BuiltInMethod):
        raise RequestError(
            "temperature must be 0 with a choices method of one's own, which decides by itself", param="temperature"
        )
    return SelectExpr(name=_checked_name(name), choices=tuple(choices), temperature=temperature, method=method)


def separate_reasoning(expr: Expr | str | None = None, model_type: str = "qwen3") -> Concat:
    """Separate the thoughts in the text that the gens of `expr` generate: a gen `x` makes `x` and
    `x_reasoning_content`. Both are appended to the state as generated.

    Raises RequestError for an unknown `model_type`; constrained gens raise it once they are appended.
    """
    reasoning = reasoning_format(model_type)
    parts = () if expr is None else parts_of(expr)
    return Concat(tuple(replace(part, reasoning=reasoning) if isinstance(part, GenExpr) else part for part in parts))


def role(name: str, expr: Expr | str | None) -> Concat:
    """Return a whole chat message, of any role that the model's chat template has, such as "tool"."""
    return Concat((RoleBeginExpr(name), *(() if expr is None else parts_of(expr)), RoleEndExpr(name)))


def system(expr: Expr | str | None = None) -> Concat:
    """Return a whole system message."""
    return role("system", expr)


def user(expr: Expr | str | None = None) -> Concat:
    """Return a whole user message."""
    return role("user", expr)


def assistant(expr: Expr | str | None = None) -> Concat:
    """Return a whole assistant message."""
    return role("assistant", expr)


def system_begin() -> RoleBeginExpr:
    """Begin a system message."""
    return RoleBeginExpr("system")


def system_end() -> RoleEndExpr:
    """End a system message."""
    return RoleEndExpr("system")


def user_begin() -> RoleBeginExpr:
    """Begin a user message."""
    return RoleBeginExpr("user")


def user_end() -> RoleEndExpr:
    """End a user message."""
    return RoleEndExpr("user")


def assistant_begin() -> RoleBeginExpr:
    """Begin an assistant message."""
    return RoleBeginExpr("assistant")


def assistant_end() -> RoleEndExpr:
    """End an assistant message."""
    return RoleEndExpr("assistant")


def predicate(instructions: str) -> Predicate:
    """Return a yes-or-no question. Its answer has a `probability`."""
    return Predicate(instructions=instructions)


def pick(instructions: str, choices: Sequence[str | bool] | Mapping[str, str]) -> Pick:
    """Return a question for one of the choices; a mapping describes its keys.

    Its answer has `choice`, `confidence` and `probabilities`.
    """
    return Pick(
        instructions=instructions, choices=tuple(Option(value, text) for value, text in _described("choices", choices))
    )


def rate(instructions: str, levels: Sequence[str] | Mapping[str, str]) -> Rate:
    """Return a question for a level of a scale that counts from 0; a mapping describes its keys.

    Its answer has `score` (the expected level), `confidence` and `probabilities`.
    """
    return Rate(
        instructions=instructions, levels=tuple(Level(label, text) for label, text in _described("levels", levels))
    )


def questions_of(given: Mapping[str, Any]) -> tuple[Question, ...]:
    """Return the named questions of `s.decide`; a string is a predicate. Raises RequestError naming an invalid one."""
    asked = []
    for name, question in given.items():
        question = predicate(question) if isinstance(question, str) else question
        if not isinstance(question, Predicate | Pick | Rate):
            raise RequestError(f"{name} must be a string, predicate, pick or rate, got {question!r}", param=name)
        try:
            check([question])
        except RequestError as error:
            raise RequestError(f"{name}: {error}", param=name) from None
        asked.append(type(question)(**{**_fields(question), "name": name}))
    check(asked)
    return tuple(asked)


def image(path: object) -> NoReturn:
    """Raise RequestError: SGLang's programs may hold images, and no model here reads them."""
    _refuse("image", path)


def video(path: object, num_frames: object = None) -> NoReturn:
    """Raise RequestError: SGLang's programs may hold videos, and no model here reads them."""
    _refuse("video", path)


def _fields(question: Question) -> dict[str, Any]:
    return {field: getattr(question, field) for field in question.__struct_fields__}


def _described(param: str, given: Sequence[Any] | Mapping[str, str]) -> list[tuple[Any, str | None]]:
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise RequestError(f"{param} must be a sequence or a mapping, got {given!r}", param=param)
    return list(given.items()) if isinstance(given, Mapping) else [(value, None) for value in given]


def _refuse(kind: str, path: object) -> NoReturn:
    raise RequestError(f"models read text only: {kind}({path!r})", param=kind, code="unsupported")


def _checked_name(name: str | None) -> str | None:
    if name is not None and not (isinstance(name, str) and name):
        raise RequestError(f"name must be a non-empty string, got {name!r}", param="name")
    return name


def _check_additional_properties(value: Any, *schemas: Any) -> None:
    if value is None:
        return
    if value not in get_args(AdditionalProperties):
        raise RequestError(
            f"additional_properties must be 'closed' or 'schema', got {value!r}", param="additional_properties"
        )
    if all(schema is None for schema in schemas):
        raise RequestError(
            "additional_properties says how a schema is read: give json_schema, schema or tools",
            param="additional_properties",
        )


def _exclusive(**constraints: Any) -> None:
    given = [name for name, value in constraints.items() if value is not None]
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)} exclude one another", param=given[1])
