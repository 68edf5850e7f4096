"""Chat messages, whole or by their two ends. How a role is written is the model's chat template's business."""

from __future__ import annotations

from .expr import Concat, Expr, RoleBeginExpr, RoleEndExpr, parts_of


def role(name: str, expr: Expr | str | None) -> Concat:
    """A whole chat message, of any role that the model's chat template knows: "tool", "developer"."""
    return Concat((RoleBeginExpr(name), *(() if expr is None else parts_of(expr)), RoleEndExpr(name)))


def system(expr: Expr | str | None = None) -> Concat:
    return role("system", expr)


def user(expr: Expr | str | None = None) -> Concat:
    return role("user", expr)


def assistant(expr: Expr | str | None = None) -> Concat:
    return role("assistant", expr)


def system_begin() -> RoleBeginExpr:
    return RoleBeginExpr("system")


def system_end() -> RoleEndExpr:
    return RoleEndExpr("system")


def user_begin() -> RoleBeginExpr:
    return RoleBeginExpr("user")


def user_end() -> RoleEndExpr:
    return RoleEndExpr("user")


def assistant_begin() -> RoleBeginExpr:
    return RoleBeginExpr("assistant")


def assistant_end() -> RoleEndExpr:
    return RoleEndExpr("assistant")
