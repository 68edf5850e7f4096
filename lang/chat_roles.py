"""Chat messages, whole or by their two ends. How a role is written is the model's chat template's business."""

from __future__ import annotations

from .expr import Concat, Expr, RoleBegin, RoleEnd, parts_of


def role(name: str, expr: Expr | str | None) -> Concat:
    """A whole chat message, of any role that the model's chat template knows: "tool", "developer"."""
    return Concat((RoleBegin(name), *(() if expr is None else parts_of(expr)), RoleEnd(name)))


def system(expr: Expr | str | None = None) -> Concat:
    return role("system", expr)


def user(expr: Expr | str | None = None) -> Concat:
    return role("user", expr)


def assistant(expr: Expr | str | None = None) -> Concat:
    return role("assistant", expr)


def system_begin() -> RoleBegin:
    return RoleBegin("system")


def system_end() -> RoleEnd:
    return RoleEnd("system")


def user_begin() -> RoleBegin:
    return RoleBegin("user")


def user_end() -> RoleEnd:
    return RoleEnd("user")


def assistant_begin() -> RoleBegin:
    return RoleBegin("assistant")


def assistant_end() -> RoleEnd:
    return RoleEnd("assistant")
