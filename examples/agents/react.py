"""Reason and act: the model thinks, calls a tool and reads its answer, until it can answer the question.

    ramiform run examples/agents/react.py ["A question?"]

Every action is constrained to a well-formed call, so the program need not parse malformed ones.
"""

import ast
import operator
import sys
from collections.abc import Callable

from transcript import show

import ramiform
from ramiform import ProgramState, gen

PAGES = {
    "spider": "A spider is an arachnid. It has 8 legs, lives in gardens and eats insects.",
    "ant": "An ant is an insect. It has 6 legs, lives in nests and eats seeds.",
    "france": "France is a country in Europe. Its capital is Paris, its currency is the euro, and about 68 million "
    "people live there.",
    "japan": "Japan is a country in Asia. Its capital is Tokyo, its currency is the yen, and about 124 million people "
    "live there.",
    "mars": "Mars is a rocky planet. It is number 4 from the sun, and it is called the red planet.",
}
HEADER = (
    "Answer the question in steps. Use lookup[name] to look something up, calculate(expression) for arithmetic "
    "and finish[answer] to end.\n\n"
)
ACTION = r" (lookup\[[A-Za-z ]{1,30}\]|calculate\([0-9]{1,9}( [-+*/] [0-9]{1,9}){1,3}\)|finish\[[A-Za-z0-9 ]{1,40}\])"
OPERATORS: dict[type, Callable[..., float]] = {ast.Add: operator.add, ast.Sub: operator.sub,
                                               ast.Mult: operator.mul, ast.Div: operator.truediv}  # fmt: skip


def calculate(expression: str) -> str:
    """Return the value of an expression of integers, a whole number without its '.0'."""

    def value(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.BinOp(left, operation, right):
                return OPERATORS[type(operation)](value(left), value(right))
        raise ValueError(f"cannot calculate {expression!r}")

    try:
        return f"{value(ast.parse(expression, mode='eval').body):g}"
    except ZeroDivisionError:
        return "A division by zero."


def observe(action: str) -> str:
    """Return a tool's answer to an action such as `lookup[spider]` or `calculate(2 * 3)`."""
    if action.startswith("lookup["):
        return PAGES.get(action[len("lookup[") : -1].lower(), "Nothing found.")
    return calculate(action[len("calculate(") : -1])


@ramiform.function
def react(s: ProgramState, question: str, max_steps: int = 6) -> None:
    s += HEADER + f"Question: {question}\n"
    for n in range(1, max_steps + 1):
        s += f"Thought {n}:" + gen(f"thought_{n}", max_tokens=60, stop="\n")
        s += f"\nAction {n}:" + gen(f"action_{n}", max_tokens=40, regex=ACTION)
        action = s[f"action_{n}"].strip()
        if action.startswith("finish["):
            s["answer"] = action[len("finish[") : -1]
            return
        s += f"\nObservation {n}: {observe(action)}\n"


if __name__ == "__main__":
    question = sys.argv[1] if len(sys.argv) > 1 else "How many legs do 12 spiders have?"
    state = react.run(question=question, temperature=0)
    show(state)
    print(f"Answer: {state['answer']}" if "answer" in state else "No answer within the steps allowed.")
