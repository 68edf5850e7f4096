"""From expressions to the operations that travel, and what to call their results. Knows no state and sends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..runtime.protocol import session
from ..runtime.protocol.errors import RequestError
from .dtypes import ResultType
from .expr import Constant, Expr, Gen, RoleBegin, RoleEnd, Select
from .sampling import lower_gen, lower_select


@dataclass(frozen=True, slots=True)
class Binding:
    """Operation `index` gives the variable `name`: a choice, or `num_samples` texts read as `result`."""

    name: str
    index: int
    result: ResultType | None = None  # None: a choice
    num_samples: int = 1


@dataclass(frozen=True, slots=True)
class Lowered:
    operations: list[session.Operation]
    bindings: list[Binding]
    open_role: str | None  # of the chat message that is open at the end


def lower(parts: Sequence[Expr], defaults: Gen, stream: bool, open_role: str | None) -> Lowered:
    """Raises RequestError for a parameter out of range or a role that does not fit."""
    operations: list[session.Operation] = []
    bindings: list[Binding] = []
    for part in parts:
        match part:
            case Constant(text):
                operations.append(session.Text(text))
            case RoleBegin(role):
                if open_role is not None:
                    raise RequestError(f"the {role} message begins inside the {open_role} message", param="role")
                open_role = role
                operations.append(session.RoleBegin(role))
            case RoleEnd(role):
                if open_role != role:
                    where = "outside any message" if open_role is None else f"inside the {open_role} message"
                    raise RequestError(f"the {role} message ends {where}", param="role")
                open_role = None
                operations.append(session.RoleEnd())
            case Gen():
                lowered = lower_gen(part, defaults, stream)
                if part.name is not None:
                    bindings.append(Binding(part.name, len(operations), lowered.result, lowered.operation.n))
                operations.append(lowered.operation)
            case Select():
                if part.name is not None:
                    bindings.append(Binding(part.name, len(operations)))
                operations.append(lower_select(part, defaults))
            case _:
                raise AssertionError(f"an expression that cannot be lowered: {part!r}")
    return Lowered(operations, bindings, open_role)
