"""The chat messages that programs write, whole or in parts: `system`, `user`, `assistant`, or any other role."""

from __future__ import annotations

from collections.abc import Iterable

from ..tools.declaration import AnyTool
from ..tools.tool_set import tool_set
from .expr import Concat, Expr, RoleBeginExpr, RoleEndExpr, parts_of
from .format_marks import refuse_marks
from .symbols import texts_of


def role(name: str, expr: Expr | str | None, *, tools: Iterable[AnyTool] | None = None) -> Concat:
    """Return a whole chat message, of any role that the model's chat template has, such as "tool".

    The first message of a chat may offer `tools`, which the chat template describes to the model.
    """
    refuse_marks("role", name)
    return Concat(
        (
            RoleBeginExpr(texts_of(name), None if tools is None else tool_set(tools)),
            *(() if expr is None else parts_of(expr)),
            RoleEndExpr(name),
        )
    )


def system(expr: Expr | str | None = None, *, tools: Iterable[AnyTool] | None = None) -> Concat:
    """Return a whole system message. As the first message of a chat it may offer `tools`."""
    return role("system", expr, tools=tools)


def user(expr: Expr | str | None = None, *, tools: Iterable[AnyTool] | None = None) -> Concat:
    """Return a whole user message. As the first message of a chat it may offer `tools`."""
    return role("user", expr, tools=tools)


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
