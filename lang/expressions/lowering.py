"""Lowering: expressions become the operations that are sent, with the variables that their answers make."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from ...runtime.protocol import session
from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.sampling import PARAMETERS, LogprobParams, Parameter, SamplingParams
from ..operations.source_location import program_location
from ..tools.call_format import offer
from ..tools.tool_set import ToolCallback, ToolOutcome
from ..types.result_types import ResultType, separated
from .attempts import CheckedAttempts
from .callbacks import Callback
from .captures import CUTTING_ARGUMENTS, CapturedTexts, ConstraintExpr, compiled
from .choices import BuiltInMethod, ChoiceCallback
from .expr import GEN_NAMES, RUN_ARGUMENTS, Constant, Expr, GenExpr, ImageExpr, RoleBeginExpr, RoleEndExpr, SelectExpr
from .format_marks import refuse_marks

T = TypeVar("T")

Defaults = Mapping[str, Any]  # sampling arguments by gen's names, for what a gen does not say


def check_defaults(defaults: Defaults) -> None:
    """Raise RequestError for a sampling argument of `run` that no gen could have."""
    for name, value in defaults.items():
        others = {"max_tokens": value} if name == "min_tokens" else {}
        gen_operation(GenExpr(), {name: value, **others}, stream=False)


def defaults_of(run_arguments: Mapping[str, Any]) -> Defaults:
    """Return the sampling arguments of `run` by gen's names."""
    return {RUN_ARGUMENTS[name]: value for name, value in run_arguments.items()}


@dataclass(frozen=True, slots=True)
class Binding:
    """The variable `name` that operation `index` makes: `num_samples` texts parsed as `result`, or a choice.

    With `outcome` it is the result of a tool, with `meta` the decision of a user's own choices method, which fills it;
    both come with the answer of the Ask after the operation.
    """

    name: str
    index: int
    result: ResultType | None = None  # None: a choice
    num_samples: int = 1
    outcome: ToolOutcome | None = None
    meta: dict[str, Any] | None = None
    attempts: CheckedAttempts | None = None
    captured: bool = False  # it is a part of the text, beside others
    values: Mapping[str, Any] | None = None  # what the choices stand for

    @property
    def answered_by(self) -> int:
        """Return the operation whose answer has the value."""
        return self.index if self.outcome is None and self.meta is None else self.index + 1

    def value_of(self, done: session.Done) -> Any:
        """Return the value that an answer makes. Raises ValueError or KeyError for a text that is not of the type."""
        if self.outcome is not None:
            return self.outcome.result
        if self.result is None:
            choice = done.text if done.choice is None else done.choice.text
            return choice if self.values is None else self.values[choice]
        values = [self.result.value(one.text, is_cut=one.finish.type == "length") for one in done.sequences or ()]
        return values if self.num_samples > 1 else values[0]


@dataclass(slots=True)
class LoweredOperations:
    """Operations with the variables and callbacks that belong to them."""

    operations: list[session.Operation] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    callbacks: list[tuple[int, Callback]] = field(default_factory=list)  # by the operation whose answer they take
    checks: list[tuple[int, CheckedAttempts]] = field(default_factory=list)  # by the checked Gen
    open_role: str | None = None  # role of the chat message that is open at the end
    ended_role: str | None = None  # role of the chat message that has ended just there


def lower(
    parts: Sequence[Expr], defaults: Defaults, stream: bool, open_role: str | None, ended_role: str | None = None
) -> LoweredOperations:
    """Lower expressions; `open_role` is the role of the chat message that is open before them, `ended_role` that of the
    one that has ended just before them. Warns of a gen that comes between a user's message and the assistant's.

    Raises RequestError for a parameter out of range, and for a message inside another one.
    """
    lowered = LoweredOperations(open_role=open_role, ended_role=ended_role)
    for part in parts:
        if lowered.ended_role in ("user", "system", "tool") and isinstance(part, GenExpr | SelectExpr | ConstraintExpr):
            _warn_outside(lowered.ended_role)
        lowered.ended_role = part.role if isinstance(part, RoleEndExpr) else None
        match part:
            case Constant(text):
                lowered.operations.append(session.Text(text))
            case ImageExpr(data):
                lowered.operations.append(session.AppendImage(data))
            case RoleBeginExpr(role, tools):
                if lowered.open_role is not None:
                    raise RequestError(
                        f"the {role} message begins inside the {lowered.open_role} message", param="role"
                    )
                lowered.open_role = role
                lowered.operations.append(session.RoleBegin(role, None if tools is None else offer(tools)))
            case RoleEndExpr(role):
                if lowered.open_role != role:
                    where = (
                        "outside any message"
                        if lowered.open_role is None
                        else f"inside the {lowered.open_role} message"
                    )
                    raise RequestError(f"the {role} message ends {where}", param="role")
                lowered.open_role = None
                lowered.operations.append(session.RoleEnd())
            case GenExpr():
                _lower_gen(part, defaults, stream, lowered)
            case SelectExpr():
                _lower_select(part, defaults, lowered)
            case ConstraintExpr():
                _lower_constraint(part, defaults, stream, lowered)
            case _:
                raise AssertionError(f"unknown expression: {part!r}")
    return lowered


def _warn_outside(role: str) -> None:
    """Warn that the model is asked behind a message and outside any, once for each line that does so."""
    file, _, line = program_location().rpartition(":")
    message = f"a gen or select stands after the {role} message and outside any: write s += assistant(gen(...))"
    warnings.warn_explicit(message, RuntimeWarning, file, int(line))


def _lower_gen(gen: GenExpr, defaults: Defaults, stream: bool, into: LoweredOperations) -> None:
    operation, result = gen_operation(gen, defaults, stream or gen.streamed)
    index = len(into.operations)
    attempts: CheckedAttempts | None = None
    if gen.check is not None:
        gen.check.check_operation(operation)
        operation = msgspec.structs.replace(operation, stream=False, checked=True)
        valid = result if gen.reasoning is None else separated(result, gen.reasoning)[1]
        attempts = CheckedAttempts(gen.check, operation, _checked_type(gen, valid), gen.name, into.open_role)
        into.checks.append((index, attempts))
    into.operations.append(operation)
    if gen.reasoning is not None and operation.sampling.constraint is not None:
        raise RequestError("separate_reasoning needs a gen without a constraint", param="separate_reasoning")
    if gen.tools is not None:
        if operation.n > 1:
            raise RequestError(f"a gen with tools makes one call, not n = {operation.n}", param="n")
        outcome = ToolOutcome()
        into.operations.append(session.Ask())
        into.callbacks.append((index, ToolCallback(gen.tools, gen.tool_errors, gen.tool_result, outcome)))
        if gen.name is not None:
            into.bindings.append(Binding(gen.name, index, outcome=outcome))
    elif gen.name is not None:
        if gen.reasoning is not None:
            thought, result = separated(result, gen.reasoning)
            into.bindings.append(Binding(f"{gen.name}_reasoning_content", index, thought, operation.n))
        into.bindings.append(Binding(gen.name, index, result, operation.n, attempts=attempts))


def _checked_type(gen: GenExpr, result: ResultType) -> ResultType:
    """Return the type as which a checked gen's text is parsed: its own; with `json_schema` complete JSON, as text."""
    if gen.json_schema is None:
        return result

    def parse(text: str) -> str:
        json.loads(text, strict=False)
        return text

    return ResultType("json_schema", parse)


def _lower_constraint(expr: ConstraintExpr, defaults: Defaults, stream: bool, into: LoweredOperations) -> None:
    made = compiled(expr)
    gen = GenExpr(sampling=expr.sampling, grammar=made.grammar, heal=expr.heal)
    uncut = {name: value for name, value in defaults.items() if name not in CUTTING_ARGUMENTS}
    operation, _ = gen_operation(gen, uncut, stream)
    index = len(into.operations)
    into.operations.append(operation)
    texts = CapturedTexts(made.matcher)
    for name, result in expr.results.items():
        reading = functools.partial(texts.stream, name, result)
        part = ResultType(f"seq with {name} ({result.name})", texts.parser(name, result), stream=reading)
        into.bindings.append(Binding(name, index, part, operation.n, captured=True))


def _lower_select(select: SelectExpr, defaults: Defaults, into: LoweredOperations) -> None:
    index = len(into.operations)
    into.operations.append(select_operation(select, defaults))
    meta: dict[str, Any] | None = None
    if not isinstance(select.method, BuiltInMethod):
        meta = {}
        into.operations.append(session.Ask(chosen=True))
        into.callbacks.append((index, ChoiceCallback(select.choices, select.method, meta)))
    if select.name is not None:
        into.bindings.append(Binding(select.name, index, meta=meta, values=select.values))


def gen_operation(gen: GenExpr, defaults: Defaults, stream: bool) -> tuple[session.Gen, ResultType]:
    """Return the operation of a gen, and the type of its result. `defaults` hold where the gen says nothing.

    Raises RequestError naming the parameter that is out of range, of the wrong type, or not supported.
    """

    pick = {**defaults, **{name: value for name, value in gen.sampling.items() if value is not None}}.get
    constraint, result = gen.constraint()
    if constraint is not None and gen.additional_properties is not None:
        constraint = msgspec.structs.replace(constraint, additional_properties=gen.additional_properties)
    if constraint is not None and gen.number_digits is not None:
        constraint = msgspec.structs.replace(constraint, number_digits=gen.number_digits)
    if constraint is not None and gen.json_whitespace is not None:
        constraint = msgspec.structs.replace(constraint, whitespace=gen.json_whitespace)
    given = {
        name: _field_value(PARAMETERS[name], value)
        for name, argument in GEN_NAMES.items()
        if (value := pick(argument)) is not None
    }
    given["stop"] = (*(given.get("stop") or ()), *result.stop)
    sampling = _build(SamplingParams, given)
    if constraint is not None:
        # Checked here as well, because the runtime closes the connection on a message that it cannot decode.
        if not isinstance(constraint.source, str):
            raise RequestError(f"{constraint.kind} must be a string, got {constraint.source!r}", param=constraint.kind)
        sampling = msgspec.structs.replace(sampling, constraint=constraint)
    n = 1 if pick("n") is None else pick("n")
    if type(n) is not int or n < 1:
        raise RequestError(f"n must be a positive integer, got {n!r}", param="n")
    logprobs = _logprobs(pick("return_logprob"), pick("top_logprobs_num"), pick("logprob_start_len"))
    if defaults.get("details_of_draws"):  # of the program, whose tokens are recorded
        logprobs = msgspec.structs.replace(logprobs or LogprobParams(), details=True)
    texts = logprobs is not None and bool(pick("return_text_in_logprobs"))
    ahead = defaults.get("num_api_spec_tokens")  # of the program, see `function`
    operation = session.Gen(
        sampling=sampling,
        logprobs=logprobs,
        n=n,
        stream=stream,
        token_texts=texts,
        num_api_spec_tokens=ahead,
        lora=checked_lora(pick("lora")),
        heal=gen.heal,
        routed_experts=bool(defaults.get("routed_experts")),  # likewise
    )
    if gen.heal and sampling.stop_regex:
        raise RequestError("heal and stop_regex exclude one another: give stop", param="heal")
    return operation, result


def checked_lora(name: Any) -> str | None:
    """Return the name of a LoRA adapter. Raises RequestError for a value that is none."""
    if name is not None and not (isinstance(name, str) and name):
        raise RequestError(f"lora must be the name of an adapter, got {name!r}", param="lora")
    return name


def select_operation(select: SelectExpr, defaults: Defaults) -> session.Select:
    """Return the operation of a select. For a user's own choices method it only scores the choices."""
    method: session.ChoicesMethod = "token_length_normalized"
    if isinstance(select.method, BuiltInMethod):
        method = select.method.name
    elif getattr(select.method, "requires_unconditional_logprobs", False):
        method = "unconditional_likelihood_normalized"
    return _build(
        session.Select,
        {
            "choices": select.choices,
            "method": method,
            "append": isinstance(select.method, BuiltInMethod),
            "temperature": select.temperature,
            "seed": defaults.get("seed") if select.seed is None else select.seed,
            "lora": checked_lora(defaults.get("lora") if select.lora is None else select.lora),
        },
    )


def _logprobs(wanted: bool | None, num_top: int | None, prompt_from: int | None) -> LogprobParams | None:
    """Return the parameters if log-probabilities, alternatives or the prompt's are wanted and not switched off."""
    prompt_from = None if prompt_from == -1 else prompt_from  # -1: the output's only
    if wanted or (wanted is None and (num_top or prompt_from is not None)):
        return _build(LogprobParams, {"num_top": num_top, "prompt_from": prompt_from})
    return None


def _build(struct: Callable[..., T], values: dict[str, Any]) -> T:
    """Build a struct through msgspec, which checks types; None values are left at their defaults.

    Raises RequestError naming the field that is out of range or of the wrong type.
    """
    try:
        return msgspec.convert({name: value for name, value in values.items() if value is not None}, struct)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, RequestError):
            raise error.__cause__ from None
        # msgspec ends its message with the path of the field: "... - at `$.top_p`"
        message, _, path = str(error).rpartition(" - at `$.")
        field = path.rstrip("`").partition("[")[0]
        raise RequestError(f"{field} = {values.get(field)!r}: {message}", param=field) from None


def _field_value(parameter: Parameter, value: Any) -> Any:
    """Convert an argument of `gen` to the type of the parameter's field."""
    if value is None or (parameter.off is not None and value == parameter.off):
        return None
    if isinstance(parameter.default, dict):
        return _with_int_keys(value)
    if isinstance(parameter.default, tuple):
        refuse_marks(parameter.name, value)  # it may come from `run`
        return tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
    return value


def _with_int_keys(bias: Mapping[int | str, float]) -> dict[int, float]:
    try:
        return {int(token): value for token, value in bias.items()}
    except (ValueError, AttributeError):
        raise RequestError(f"logit_bias must map token ids to numbers, got {bias!r}", param="logit_bias") from None
