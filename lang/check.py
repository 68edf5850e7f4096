"""What can be told wrong of a recorded program before it runs. Knows operations; errors name the program's line."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ..runtime.protocol import session
from ..runtime.protocol.errors import RequestError
from ..runtime.protocol.sampling import Constraint
from .operation_log import OperationLog


def check_recorded(logs: Sequence[OperationLog], *, is_whole: bool = True) -> None:
    """Raises RequestError for a variable made twice by one state, a pattern, schema or grammar that is none, and, in
    a program that is whole, a message that is not ended."""
    for log in logs:
        _check_names(log)
        for operation, place in zip(log.operations, log.places, strict=True):
            if isinstance(operation, session.Gen) and operation.sampling.constraint is not None:
                _check_constraint(operation.sampling.constraint, place)
        if is_whole:
            _check_roles(log)


def _check_names(log: OperationLog) -> None:
    first: dict[str, int] = {}
    for op, name in log.names.items():
        if name in first and log.places[first[name]] == log.places[op]:
            raise _wrong(log.places[op], f"the variable {name!r} is generated again by the same line", name)
        if name in first:
            earlier = log.places[first[name]]
            raise _wrong(log.places[op], f"the variable {name!r} is generated again; first at {earlier}", name)
        first[name] = op


def _check_roles(log: OperationLog) -> None:
    open_at: int | None = None
    for op, operation in enumerate(log.operations):
        if isinstance(operation, session.RoleBegin):
            open_at = op
        elif isinstance(operation, session.RoleEnd):
            open_at = None
    if open_at is not None:
        operation = log.operations[open_at]
        assert isinstance(operation, session.RoleBegin)
        raise _wrong(log.places[open_at], f"the {operation.role} message is never ended", "role")


def _check_constraint(constraint: Constraint, place: str) -> None:
    """What is wrong whatever the engine: the runtime knows the rest."""
    source = constraint.source
    match constraint.kind:
        case "regex":
            try:
                re.compile(source)
            except (re.error, RecursionError, OverflowError) as error:
                if r"\p" not in source.lower():  # Unicode classes are the engine's to judge
                    raise _wrong(place, f"regex {source!r}: {error}", "regex") from None
        case "json_schema":
            try:
                schema = json.loads(source)
            except ValueError as error:
                raise _wrong(place, f"json_schema {source!r} is no JSON: {error}", "json_schema") from None
            if not isinstance(schema, dict | bool):
                raise _wrong(place, f"json_schema must be an object, got {source!r}", "json_schema")
        case "grammar":
            if not source.strip():
                raise _wrong(place, "the grammar is empty", "grammar")


def _wrong(place: str, message: str, param: str) -> RequestError:
    return RequestError(f"{place}: {message}", param=param, code="invalid_program")
