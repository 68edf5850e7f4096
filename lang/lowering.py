"""From expressions to the operations that travel, and what to call their results. Knows no state and sends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..runtime.protocol import session
from ..runtime.protocol.errors import RequestError
from .callbacks import Callback
from .choices import BuiltInMethod, ChoiceCallback
from .expr import Constant, Expr, GenExpr, RoleBeginExpr, RoleEndExpr, SelectExpr
from .result_types import ResultType, separated
from .sampling import gen_operation, select_operation
from .tools import ToolCallback, ToolOutcome


@dataclass(frozen=True, slots=True)
class Binding:
    """Operation `index` gives the variable `name`: `num_samples` texts read as `result`, or a choice.

    With `outcome` it is a call, and the value is there once the Ask after it is answered; so it is with `meta`, which
    a choices method of the user's own fills.
    """

    name: str
    index: int
    result: ResultType | None = None  # None: a choice
    num_samples: int = 1
    outcome: ToolOutcome | None = None
    meta: dict[str, Any] | None = None


@dataclass(slots=True)
class LoweredOperations:
    operations: list[session.Operation] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    callbacks: list[tuple[int, Callback]] = field(default_factory=list)  # what is called with which operation's answer
    open_role: str | None = None  # of the chat message that is open at the end


def lower(parts: Sequence[Expr], defaults: GenExpr, stream: bool, open_role: str | None) -> LoweredOperations:
    """Raises RequestError for a parameter out of range or a role that does not fit."""
    lowered = LoweredOperations(open_role=open_role)
    for part in parts:
        match part:
            case Constant(text):
                lowered.operations.append(session.Text(text))
            case RoleBeginExpr(role):
                if lowered.open_role is not None:
                    raise RequestError(
                        f"the {role} message begins inside the {lowered.open_role} message", param="role"
                    )
                lowered.open_role = role
                lowered.operations.append(session.RoleBegin(role))
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
            case _:
                raise AssertionError(f"an expression that cannot be lowered: {part!r}")
    return lowered


def _lower_gen(gen: GenExpr, defaults: GenExpr, stream: bool, into: LoweredOperations) -> None:
    operation, result = gen_operation(gen, defaults, stream)
    index = len(into.operations)
    into.operations.append(operation)
    if gen.reasoning is not None and operation.sampling.constraint is not None:
        raise RequestError("a constrained gen has no thoughts to separate", param="separate_reasoning")
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
        into.bindings.append(Binding(gen.name, index, result, operation.n))


def _lower_select(select: SelectExpr, defaults: GenExpr, into: LoweredOperations) -> None:
    index = len(into.operations)
    into.operations.append(select_operation(select, defaults))
    meta: dict[str, Any] | None = None
    if not isinstance(select.method, BuiltInMethod):
        meta = {}
        into.operations.append(session.Ask(chosen=True))
        into.callbacks.append((index, ChoiceCallback(select.choices, select.method, meta)))
    if select.name is not None:
        into.bindings.append(Binding(select.name, index, meta=meta))
