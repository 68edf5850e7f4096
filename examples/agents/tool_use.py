"""Make one tool call and answer from its result; agent.py lets the model decide which calls, and how many.

    ramiform run examples/agents/tool_use.py ["What is 12 plus 30?"]

The program begins the call, so the model must make one. The functions' signatures constrain its arguments.
"""

import json
import sys
from collections.abc import Callable

from transcript import show

import ramiform
from ramiform import ProgramState, assistant, gen, role, system, user

TEMPERATURES = {"Paris": 21, "Oslo": 4, "Cairo": 33}
QUESTIONS = ["What is the weather in Oslo?", "What is 37 times 12?", "Add 250 and 78.", "Set a timer for 25 minutes."]


def get_weather(city: str) -> dict[str, object]:
    """Get the weather of a city"""
    temperature = TEMPERATURES.get(city, 15)
    return {"weather": "snowy" if temperature < 5 else "sunny", "temperature": temperature}


def add(a: int, b: int) -> dict[str, object]:
    """Add two numbers"""
    return {"result": a + b}


def multiply(a: int, b: int) -> dict[str, object]:
    """Multiply two numbers"""
    return {"result": a * b}


def set_timer(minutes: int) -> dict[str, object]:
    """Set a timer"""
    return {"status": "ok"}


TOOLS: list[Callable[..., object]] = [get_weather, add, multiply, set_timer]


@ramiform.function
def tool_use(s: ProgramState, question: str) -> None:
    s += system("You are a helpful assistant.", tools=TOOLS) + user(question)
    s += assistant("<tool_call>\n" + gen("call", max_tokens=80, tools=TOOLS, tool_result="\n</tool_call>"))
    s += role("tool", json.dumps(s["call"]))  # the variable is the function's return value
    s += assistant(gen("answer", max_tokens=40))


if __name__ == "__main__":
    asked = sys.argv[1:] or QUESTIONS
    states = tool_use.run_batch([{"question": question} for question in asked], temperature=0)
    show(states[0])
    for question, state in zip(asked, states, strict=True):
        made = state.get_meta_info("call")["tool_call"]
        arguments = ", ".join(f"{name}={value!r}" for name, value in made["arguments"].items())
        print(f"\n{question}\n  {made['name']}({arguments}) -> {made['result_text']}\n  {state['answer']}")
