"""ReAct traces, written step by step: thought, action, observation."""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass, field
from fractions import Fraction

from .draw import Draw

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: Fraction}


@dataclass(frozen=True)
class Trace:
    question: str
    steps: list[tuple[str, str, str]]  # thought, action, observation ("" after finish)
    pages: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        lines = []
        for n, (thought, action, observation) in enumerate(self.steps, start=1):
            lines += [f"Thought {n}: {thought}", f"Action {n}: {action}"]
            lines += [f"Observation {n}: {observation}"] if observation else []
        return "\n".join(lines)


def calculate(expression: str) -> int:
    """Evaluate integers with + - * / and brackets. Division rounds; other expressions raise ValueError."""
    try:
        return round(_value(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, ZeroDivisionError):
        raise ValueError(f"cannot calculate {expression!r}") from None


def _value(node: ast.expr) -> int | Fraction:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(left), _value(right))
    raise ValueError("only + - * / of integers")


class Writer:
    """Writer of a trace."""

    def __init__(self, d: Draw) -> None:
        self.d, self.steps, self.pages = d, [], {}

    def lookup(self, entity: str, what: str, page: str) -> None:
        thought = self.d.wording(
            "think lookup",
            [
                f"I need to look up {entity} to find {what}.",
                f"I should look up {entity}.",
                f"To find {what}, I look up {entity}.",
                f"I need {what}, so I look up {entity}.",
            ],
        )
        self.steps.append((thought, f"lookup[{entity}]", page))
        self.pages[entity.lower()] = page

    def calculate(self, expression: str, how: str) -> int:
        result = calculate(expression)
        thought = self.d.wording(
            "think calculate",
            [f"I need to {how}.", f"Now I {how}.", f"To get the answer, I {how}.", f"I have to {how}."],
        )
        self.steps.append((thought, f"calculate({expression})", str(result)))
        return result

    def finish(self, answer: object) -> list[tuple[str, str, str]]:
        thought = self.d.wording(
            "think finish",
            [f"The answer is {answer}.", f"So the answer is {answer}.", f"I know the answer now: {answer}."],
        )
        return [*self.steps, (thought, f"finish[{answer}]", "")]
